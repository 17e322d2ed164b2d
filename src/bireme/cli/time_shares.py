"""Where the time of a whole request went: every moment counts once, so that the parts make up the total."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from bireme.cli.steps import Phase, Step
from bireme.cli.symbols import STYLES, Clock, Symbols, percent

_MAX_BAR = 40


@dataclass(slots=True)
class Shares:
    """Times in µs; all of them together are ``total``.

    A moment in which something computes belongs to that, shared if several models do; one in which none does, but tensors are
    on their way, to those; then come queues.
    """

    total: float
    models: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Computing, by model."""
    transfer: float = 0.0
    """Models take inputs or give outputs."""
    queue: float = 0.0
    """Requests wait for an instance."""
    between: float = 0.0
    """On the way from one model to the next."""

    @property
    def in_models(self) -> float:
        """Computing, in any model."""
        return sum(self.models.values())

    def _add(self, active: Mapping[tuple[Phase, str], int], duration: float) -> None:
        """Count a while in which each of the keys of ``active`` was going on so many times."""
        computing = {model: n for (phase, model), n in active.items() if phase is Phase.COMPUTE and n}
        phases = {phase for (phase, _), n in active.items() if n}
        if computing:
            num_computing = sum(computing.values())
            for model, n in computing.items():
                self.models[model] += duration * n / num_computing
        elif Phase.INPUT in phases or Phase.OUTPUT in phases:
            self.transfer += duration
        elif Phase.QUEUE in phases:
            self.queue += duration
        else:
            self.between += duration


def find_shares(root: Step) -> Shares:
    """Return the shares of the request ``root``."""
    changes: list[tuple[float, int, tuple[Phase, str]]] = []
    for step in root.walk():
        for phase, start, end in step.segments:
            if phase is not Phase.CALLS and start < root.end:
                key = (phase, step.model)
                changes += [(start, 1, key), (min(end, root.end), -1, key)]
    shares = Shares(root.end - root.start)
    active: Counter[tuple[Phase, str]] = Counter()
    at = root.start
    for time, change, changed in sorted(changes, key=lambda each: each[0]):
        if time > at:
            shares._add(active, time - at)  # noqa: SLF001 (one thing, in two parts)
            at = time
        active[changed] += change
    return shares


def show_shares(console: Console, root: Step, clock: Clock, symbols: Symbols) -> None:
    """Print the shares, the longest first, and what was spent in the models and around them."""
    shares = find_shares(root)
    lines = [
        (_describe(model, root, symbols), time, Phase.COMPUTE)
        for model, time in sorted(shares.models.items(), key=lambda item: -item[1])
    ]
    lines.append(("inputs and outputs", shares.transfer, Phase.INPUT))
    lines.append(("waiting in queues", shares.queue, Phase.QUEUE))
    lines.append(("between the models", shares.between, Phase.BETWEEN))
    width = max(len(name) for name, _, _ in lines)
    time_width = len(clock.with_unit(shares.total)) + 3
    room = max(1, min(_MAX_BAR, console.width - width - time_width - 9))
    console.print(Text("where the time went", "bold"))
    for name, time, phase in lines:
        line = Text(name.ljust(width) + clock.with_unit(time).rjust(time_width))
        line.append(percent(time, shares.total).rjust(7) + "  ")
        cells = round(time / shares.total * room) if shares.total else 0
        line.append(symbols.phases[Phase.COMPUTE] * cells, STYLES[phase])
        line.rstrip()
        console.print(line, no_wrap=True, overflow="crop")
    rest = shares.total - shares.in_models
    console.print()
    console.print(
        Text(
            f"in the models {clock.with_unit(shares.in_models)} ({percent(shares.in_models, shares.total)}), "
            f"around them {clock.with_unit(rest)} ({percent(rest, shares.total)})",
            "bold",
        )
    )


def _describe(model: str, root: Step, symbols: Symbols) -> str:
    """Name a model, with the number of requests that it ran; if it calls others, the time is that of its own code."""
    steps = [step for step in root.walk() if step.model == model and step.batch_size]
    count = f" {symbols.times}{len(steps)}" if len(steps) > 1 else ""
    return f"{model}{count}{', its own code' if any(step.calls for step in steps) else ''}"
