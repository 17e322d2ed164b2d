"""What the demos print with."""

from __future__ import annotations

from rich.console import Console

console = Console(highlight=False, markup=False)
if not console.is_terminal:
    console.width = 110  # a log file wraps nothing


def step(number: int, text: str) -> None:
    """Announce a step."""
    console.print(f"\n{number}  {text}", style="bold")
