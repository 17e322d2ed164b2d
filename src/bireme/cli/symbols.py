"""What a trace is drawn with: characters, colours, and times in the unit that suits them."""

from __future__ import annotations

from dataclasses import dataclass

from bireme.cli.steps import Phase


@dataclass(frozen=True, slots=True)
class Symbols:
    """The characters."""

    phases: dict[Phase, str]
    branch: str
    last_branch: str
    trunk: str
    times: str
    ellipsis: str
    micro: str


UNICODE = Symbols(
    phases={
        Phase.BETWEEN: "·",
        Phase.QUEUE: "░",
        Phase.INPUT: "▒",
        Phase.COMPUTE: "█",
        Phase.OUTPUT: "▓",
        Phase.CALLS: "─",
    },
    branch="├─ ",
    last_branch="└─ ",
    trunk="│  ",
    times="×",
    ellipsis="…",
    micro="µs",
)
ASCII = Symbols(
    phases={
        Phase.BETWEEN: ":",
        Phase.QUEUE: ".",
        Phase.INPUT: "<",
        Phase.COMPUTE: "#",
        Phase.OUTPUT: ">",
        Phase.CALLS: "-",
    },
    branch="|- ",
    last_branch="`- ",
    trunk="|  ",
    times="x",
    ellipsis="..",
    micro="us",
)
STYLES = {
    Phase.BETWEEN: "magenta",
    Phase.QUEUE: "yellow",
    Phase.INPUT: "blue",
    Phase.COMPUTE: "green",
    Phase.OUTPUT: "cyan",
    Phase.CALLS: "bright_black",
}


def symbols_for(encoding: str) -> Symbols:
    """Return what a terminal or file of ``encoding`` can show."""
    return UNICODE if encoding.lower().replace("-", "").startswith("utf") else ASCII


class Clock:
    """Writes times, all in the unit that suits the longest of them."""

    def __init__(self, longest: float, symbols: Symbols) -> None:
        """``longest`` is in µs."""
        self._scale, self._digits, self.unit = 1.0, 0, symbols.micro
        if longest >= 10_000_000:
            self._scale, self._digits, self.unit = 1e6, 2, "s"
        elif longest >= 2_000:
            self._scale, self._digits, self.unit = 1e3, 2 if longest < 1_000_000 else 0, "ms"

    def number(self, time: float) -> str:
        """Return a time in µs without its unit."""
        return f"{time / self._scale:,.{self._digits}f}"

    def with_unit(self, time: float) -> str:
        """Return a time in µs with its unit."""
        return f"{self.number(time)} {self.unit}"


def percent(part: float, whole: float) -> str:
    """Return the share of ``part`` in ``whole``."""
    share = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < share < 0.5 else f"{share:.0f} %"
