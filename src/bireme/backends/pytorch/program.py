"""Program: a model file that is open, whatever its kind, as the rest of the backend sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from bireme.backends.pytorch.interface import Interface
from bireme.backends.signature import Signature

Forward = Callable[..., Any]
"""``forward()`` of a module that is placed: takes the arguments in their order and returns what the model returns."""


class Program(Protocol):
    """A model file that is open."""

    interface: Interface
    """What ``forward()`` takes and gives back."""
    signature: Signature | None
    """What the file tells of its tensors, by their usual names; empty inputs or outputs: nothing of those; None: of none."""
    max_rows: int | None
    """The largest batch that the file admits; None: any."""
    may_run_inline: bool
    """Whether it is native code alone, which waits for nothing."""

    def place(self, device: Any, *, sharing: bool | None) -> Forward:
        """Return ``forward()`` for one more instance on ``device`` (a ``torch.device``; None: where the file says).

        With ``sharing`` all instances on a device run one module; without, each has a copy of all; None: they share the
        weights, and each has its own state, if the model keeps any.
        """

    def close(self) -> None:
        """Let go of the weights."""
