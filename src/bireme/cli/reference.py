"""Writes ``docs/cli.md`` from the commands themselves: ``python -m bireme.cli.reference docs/cli.md``."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from bireme.cli.flags import SECTIONS, Feature, Flag
from bireme.cli.import_model import import_model
from bireme.cli.infer import infer
from bireme.cli.options import describe_default
from bireme.cli.repo import check
from bireme.cli.trace import trace

_HEAD = """\
# Command line

<!-- Written by `make docs` from the commands themselves; change those, not this page. -->

`bireme --help` and `bireme COMMAND --help` say the same in the terminal. Exit status: 0 when all is well, 1 after any
error, 130 after Ctrl-C in a command other than `serve`.

## `bireme serve`

Serves the models of one or several repositories until SIGTERM or Ctrl-C. It takes tritonserver's flags, as
`--flag=value` or `--flag value`; a boolean is `true`/`on`/`1` or `false`/`off`/`0`, in any case. A flag given twice
counts as given last, unless it can be repeated. An unknown flag, a wrong value or a stray word is an error that says what
is expected; the exit status is then 1.

    bireme serve -m ./models
    bireme serve --model-repository=./models --http-port=9000 --model-control-mode=explicit --load-model='*'

"""

_WITHOUT_EFFECT = """
### Accepted without effect

Flags that tune something which is built differently here. They are accepted, so that a tritonserver command line keeps
working, and a warning says so.
"""

_LATER = """
### Later releases

Flags of features that do not exist yet. Each is accepted where it leaves its feature off (the values are listed), and
where tritonserver itself would ignore it because the feature is off, as `--sagemaker-port` without `--allow-sagemaker`.
Anything else is an error, so that nobody takes a silent server for one that does what was asked.
"""


def write_reference() -> str:
    """Return the page."""
    return "".join(
        (
            _HEAD,
            *_serve_sections(),
            "\n## `bireme infer`\n\n",
            *_command(infer, "bireme infer MODEL [INPUT]..."),
            "\n## `bireme trace`\n\n",
            *_command(trace, "bireme trace MODEL [INPUT]..."),
            "\n## `bireme import`\n\n",
            *_command(import_model, "bireme import FILE"),
            "\n## `bireme repo check`\n\n",
            *_command(check, "bireme repo check PATH..."),
        )
    )


def _serve_sections() -> Iterator[str]:
    flags = [flag for section in SECTIONS.values() for flag in section]
    for section, members in SECTIONS.items():
        working = [flag for flag in members if flag.text]
        if working:
            yield f"### {section}\n\n"
            yield from _table(("Flag", "Default", "Meaning"), map(_working_row, working))
            yield "\n"
    yield f"{_WITHOUT_EFFECT.lstrip()}\n"
    yield from _table(
        ("Flag", "Why"), ((f"`--{flag.name}`", flag.no_effect) for flag in flags if flag.no_effect)
    )
    yield f"{_LATER}\n"
    by_feature: dict[Feature, list[Flag]] = {}
    for flag in flags:
        if flag.feature:
            by_feature.setdefault(flag.feature, []).append(flag)
    yield from _table(
        ("Feature", "Flags", "Accepted as"),
        (
            (
                feature.name,
                " ".join(f"`--{flag.name}`" for flag in members),
                ", ".join(f"`--{flag.name}={flag.off[0]}`" for flag in members if flag.off and flag.off[0])
                or "–",
            )
            for feature, members in by_feature.items()
        ),
    )


def _working_row(flag: Flag) -> tuple[str, str, str]:
    names = (
        [f"`-{flag.short}`"] * bool(flag.short)
        + [f"`--{flag.name}`"]
        + [f"`--{flag.alias}`"] * bool(flag.alias)
    )
    metavar = f" `{_cell(flag.type.metavar)}`" if flag.type.metavar else ""
    marks = " *Repeatable.*" * flag.repeat + " *Not a flag of tritonserver.*" * flag.extension
    default = describe_default(flag)
    return f"{', '.join(names)}{metavar}", f"`{default}`" if default else "–", f"{_cell(flag.text)}{marks}"


def _command(command: click.Command, usage: str) -> Iterator[str]:
    yield f"    {usage}\n\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        # click's mark: the lines that follow stay as they are; the first of them is "Examples:".
        yield f"{_examples(rest)}\n\n" if first == "\b" else f"{paragraph}\n\n"
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    yield from _table(("Option", "Default", "Meaning"), map(_option_row, options))


def _option_row(option: click.Option) -> tuple[str, str, str]:
    # Put together here: click's own help records differ from release to release.
    names = ", ".join(f"`{name}`" for name in option.opts)
    metavar = f" `{_cell(option.metavar)}`" if option.metavar else ""
    return names + metavar, f"`{option.default}`" if option.show_default else "–", _cell(option.help or "")


def _examples(lines: str) -> str:
    """Return the lines after the first, which is a heading, as a block of code."""
    return textwrap.indent(textwrap.dedent(lines.partition("\n")[2]), "    ")


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |\n"
    yield f"|{'---|' * len(headings)}\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"


def _cell(text: str) -> str:
    """A vertical bar would end the cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(write_reference(), encoding="utf-8")
