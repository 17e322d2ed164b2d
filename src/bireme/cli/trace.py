"""``bireme trace``: where the time of one request goes, through all models that it passes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.request_options import GivenRequest, request_options

if TYPE_CHECKING:  # numpy and the wire code load when a request is really sent
    from bireme.cli.targets import Call, Target


@dataclass(frozen=True, slots=True)
class Run:
    """One traced request."""

    trace: dict[str, Any]
    """As the server tells it."""
    took_us: float
    """As the client sees it."""

    @property
    def server_us(self) -> float:
        """As the server sees it."""
        return float(self.trace["request_end"] - self.trace["request_start"])


@click.command(short_help="Send a request and show where its time goes, model by model.")
@request_options
@click.option(
    "--load",
    multiple=True,
    metavar="NAME",
    help="With -m: load this model, and no others than those given. Default: all of the repository.",
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Send the request N times and show the median run.",
)
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Requests before those, which are not shown: a model's first ones take longer.",
)
@click.option(
    "--all", "shows_all", is_flag=True, help="A line for every call, also of many equal ones in a row."
)
@click.option("--json", "as_json", is_flag=True, help="Print the trace as JSON on one line.")
def trace(
    load: tuple[str, ...], runs: int, warmup: int, *, shows_all: bool, as_json: bool, **words: Any
) -> None:
    """Send a request to MODEL and show where its time goes: each model that it passes, with queue and compute time.

    An INPUT is written as for `bireme infer`. Steps of an ensemble and calls of Python models (BLS) are shown as a tree.

    \b
    Examples:
      bireme trace transcribe AUDIO=@speech.npy --runs 20
      bireme trace -m models page_upright page.png
    """  # noqa: D301 - click's mark for a paragraph whose lines stay as they are
    request = GivenRequest(**words)
    with request.open_target(load or ("*",)) as target:
        call = request.make_call(target)
        for _ in range(warmup):
            target.infer(call)
        found = sorted((_run(target, call) for _ in range(runs)), key=lambda run: run.server_us)
        median = found[(len(found) - 1) // 2]
        if as_json:
            import orjson

            click.echo(orjson.dumps(median.trace).decode())
        else:
            _show(found, median, shows_all=shows_all)


def _run(target: Target, call: Call) -> Run:
    """Send the request with the wish for a trace.

    Raises:
        Unsupported: the server knows no traces.
    """
    import orjson

    from bireme.telemetry.spans import TRACE_PARAMETER
    from bireme.types import Unsupported

    answer = target.infer(replace(call, parameters={**call.parameters, TRACE_PARAMETER: True}))
    text = answer.parameters.get(TRACE_PARAMETER)
    if not isinstance(text, str):
        raise Unsupported(
            f"the answer of model '{call.model}' has no parameter '{TRACE_PARAMETER}': the server traces no requests; "
            "is it one of Bireme, and not older than this command?"
        )
    return Run(orjson.loads(text), answer.took_ms * 1e3)


def _show(runs: list[Run], median: Run, *, shows_all: bool) -> None:
    from rich.console import Console

    from bireme.cli.steps import read_step
    from bireme.cli.symbols import ASCII, Clock, symbols_for
    from bireme.cli.time_shares import show_shares
    from bireme.cli.waterfall import Waterfall

    console = Console(highlight=False, markup=False)
    symbols = symbols_for(console.encoding)
    if symbols is ASCII and isinstance(sys.stdout, TextIOWrapper):  # names and errors may hold any character
        sys.stdout.reconfigure(errors="replace")
    clock = Clock(median.server_us, symbols)
    facts = [
        f"{median.trace['model']} version {median.trace['version']}",
        f"{clock.with_unit(median.server_us)} in the server",
        f"{clock.with_unit(median.took_us)} for the client",
    ]
    console.print(", ".join(facts))
    if len(runs) > 1:
        fastest, slowest = clock.number(runs[0].server_us), clock.with_unit(runs[-1].server_us)
        console.print(f"median of {len(runs)} runs, {fastest} to {slowest}")
    console.print()
    root = read_step(median.trace)
    Waterfall(root, clock, symbols, shows_all=shows_all).show(console)
    console.print()
    show_shares(console, root, clock, symbols)
