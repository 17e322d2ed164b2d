"""``bireme repo``: what can be said of a model repository without serving it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bireme.cli.flags import FLAGS
from bireme.cli.options import FlagType

if TYPE_CHECKING:  # loads every floor: only when a repository is really checked
    from bireme.cli.check import ModelReport
    from bireme.cli.values import BackendSetting


@click.group()
def repo() -> None:
    """Look at model repositories."""


@repo.command(short_help="Tell all faults of repositories at once, without serving them.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--no-load", is_flag=True, help="Read files only; open no model.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
@click.option(
    "--model-config-name",
    type=FlagType(FLAGS["model-config-name"]),
    metavar="NAME",
    help="As of serve.",
)
@click.option("--disable-auto-complete-config", is_flag=True, help="As of serve.")
@click.option(
    "--backend-config",
    type=FlagType(FLAGS["backend-config"]),
    multiple=True,
    metavar=FLAGS["backend-config"].type.metavar,
    help="As of serve.",
)
@click.option(
    "--backend-directory",
    type=FlagType(FLAGS["backend-directory"]),
    default=FLAGS["backend-directory"].default,
    metavar=FLAGS["backend-directory"].type.metavar,
    help="As of serve.",
)
@click.option(
    "--repoagent-directory",
    type=FlagType(FLAGS["repoagent-directory"]),
    default=FLAGS["repoagent-directory"].default,
    metavar=FLAGS["repoagent-directory"].type.metavar,
    help="As of serve.",
)
@click.option(
    "--model-namespacing",
    type=FlagType(FLAGS["model-namespacing"]),
    default=False,
    metavar=FLAGS["model-namespacing"].type.metavar,
    help="As of serve.",
)
def check(
    paths: tuple[str, ...],
    model_config_name: str | None,
    backend_config: tuple[BackendSetting, ...],
    backend_directory: str,
    repoagent_directory: str,
    *,
    model_namespacing: bool,
    no_load: bool,
    as_json: bool,
    disable_auto_complete_config: bool,
) -> int:
    """Check every model in the repositories PATH and tell all faults at once.

    Reads configs, labels and version directories, opens each model and warms it up, as the server would. The exit
    status is 1 if any model would not load, or if there is none.
    """
    from bireme.cli.check import check_repositories
    from bireme.engine.options import ServerOptions

    options = ServerOptions(
        model_repository=paths,
        model_config_name=model_config_name or "",
        disable_auto_complete_config=disable_auto_complete_config,
        backend_config=backend_config,
        backend_directory=backend_directory,
        repoagent_directory=repoagent_directory,
        model_namespacing=model_namespacing,
    )
    reports = []
    for report in check_repositories(options, opens_models=not no_load):
        reports.append(report)
        if not as_json:
            _print(report)
    if as_json:
        import orjson

        click.echo(orjson.dumps([asdict(report) for report in reports], option=orjson.OPT_INDENT_2))
    elif reports:
        _print_summary(reports)
    if not reports:
        raise click.ClickException(
            f"no models in {', '.join(paths)}: a model is a directory such as NAME/1/model.onnx"
        )
    return int(not all(report.is_good for report in reports))


def _print(report: ModelReport) -> None:
    mark = click.style("ok    ", fg="green") if report.is_good else click.style("FAULTY", fg="red", bold=True)
    versions = (
        f"version{'s' * (len(report.versions) != 1)} {', '.join(map(str, report.versions)) or '(none)'}"
    )
    what = click.style(f"{report.backend or 'backend unknown'}, {versions}", dim=True)
    click.echo(f"{mark}  {report.name}  {what}")
    here = f"{Path.cwd()}/"  # paths as the user would type them
    for fault in report.faults:
        click.echo(f"        {fault.replace(here, '')}")
    for note in report.notes:
        click.echo(click.style(f"        note: {note.replace(here, '')}", dim=True))


def _print_summary(reports: list[ModelReport]) -> None:
    num_faulty = sum(not report.is_good for report in reports)
    num_faults = sum(len(report.faults) for report in reports)
    models = f"{len(reports)} model{'s' * (len(reports) != 1)}"
    if num_faulty:
        click.echo(f"{models}, {num_faulty} faulty, {num_faults} fault{'s' * (num_faults != 1)}")
    else:
        click.echo(f"{models}, all ok")
