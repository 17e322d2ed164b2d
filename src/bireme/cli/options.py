"""The flag table as a click command: parsing, help by section, and errors that say what to do."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from bireme.cli.flags import FLAGS, SECTIONS, Flag
from bireme.cli.unsupported import find_unsupported
from bireme.cli.values import SWITCH


class FlagType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A flag's value type for click. A later feature's value is checked, and kept as its text."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag
        self.name = flag.type.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed ``value``; a default comes already parsed."""
        if not isinstance(value, str):
            return value
        try:
            parsed = self.flag.type.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value if self.flag.feature else parsed


class FlagCommand(click.Command):
    """A command whose options are the flag table, and whose help is printed by section."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(params=[_option(flag) for flag in FLAGS.values()], **settings)
        # Positional words are taken only to be refused with a hint.
        self.params.append(click.Argument(["words"], nargs=-1, metavar=""))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, then refuse what this server cannot do."""
        rest = super().parse_args(ctx, args)
        words = ctx.params.pop("words", ())
        if words:
            raise click.UsageError(
                f"unexpected argument '{words[0]}'; a repository is given by --model-repository {words[0]}",
                ctx,
            )
        unsupported = find_unsupported(
            {name: _as_list(ctx.params[_variable(name)]) for name in FLAGS if ctx.params[_variable(name)]}
        )
        if unsupported:
            raise click.ClickException("\n       ".join(unsupported))
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the flags that work, by section; the others are only named."""
        for section, flags in SECTIONS.items():
            described = [flag for flag in flags if flag.text]
            if described:
                with formatter.section(section):
                    formatter.write_dl([(_heading(flag), _description(flag)) for flag in described])
        with formatter.section("Other"):
            formatter.write_dl([("-h, --help", "Show this message and exit.")])
        _write_names(
            formatter,
            "Accepted without effect (docs/cli.md says why)",
            [f"--{flag.name}" for flag in FLAGS.values() if flag.no_effect],
        )
        _write_names(
            formatter,
            "Later releases (accepted where they switch their feature off)",
            [f"--{flag.name}" for flag in FLAGS.values() if flag.feature],
        )


def given_flags(ctx: click.Context) -> list[Flag]:
    """Return the flags that stand on the command line."""
    source = click.core.ParameterSource.COMMANDLINE
    return [flag for flag in FLAGS.values() if ctx.get_parameter_source(_variable(flag.name)) is source]


def describe_default(flag: Flag) -> str:
    """Return the default as one would type it; empty where there is none."""
    if flag.default is None or flag.default == "" or flag.type is SWITCH:
        return ""
    return (
        str(flag.default).lower()
        if isinstance(flag.default, bool)
        else f"{flag.default:g}"
        if isinstance(flag.default, float)
        else str(flag.default)
    )


def _write_names(formatter: click.HelpFormatter, heading: str, names: list[str]) -> None:
    with formatter.section(heading):
        indent = " " * formatter.current_indent
        width = formatter.width - len(indent)
        for line in textwrap.wrap(" ".join(names), width, break_on_hyphens=False):
            formatter.write(f"{indent}{line}\n")


def _option(flag: Flag) -> click.Option:
    names = [f"--{flag.name}"]
    if flag.alias:
        names.append(f"--{flag.alias}")
    if flag.short:
        names.insert(0, f"-{flag.short}")
    names.append(_variable(flag.name))
    if flag.type is SWITCH:
        return click.Option(names, is_flag=True, default=bool(flag.default))
    return click.Option(
        names,
        type=FlagType(flag),
        default=None if flag.repeat else flag.default,
        multiple=flag.repeat,
        metavar=flag.type.metavar,
    )


def _variable(name: str) -> str:
    return name.replace("-", "_")


def _as_list(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, tuple) else [str(value)]


def _heading(flag: Flag) -> str:
    short = f"-{flag.short}, " if flag.short else ""
    alias = f", --{flag.alias}" if flag.alias else ""
    return f"{short}--{flag.name}{alias} {flag.type.metavar}".rstrip()


def _description(flag: Flag) -> str:
    default = describe_default(flag)
    return f"{flag.text}  [default: {default}]" if default else flag.text
