"""Modules: the copies of a Python module, on devices and for instances, that share what can be shared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from bireme.backends.pytorch.runtime import quiet


class Modules:
    """The copies of one ``torch.nn.Module``.

    A copy for another instance shares the parameters, which nothing changes while a model is served. Buffers and other
    attributes are its own: a model may keep its state there.
    """

    def __init__(self, module: Any, device: Any, move: Callable[[Any, Any], Any]) -> None:
        """``device``: where ``module`` is; ``move(module, device)`` returns one that is there, and may change the first."""
        self._module = module
        self._device = device
        self._move = move
        self._placed: dict[str, Any] = {}

    def place(self, device: Any, *, sharing: bool | None) -> Any:
        """Return a module on ``device``; see `bireme.backends.pytorch.program.Program.place`."""
        key = str(device)
        first = self._placed.get(key)
        if first is None:
            first = self._placed[key] = self._on(device)
            return first
        if sharing:
            return first
        with quiet():
            return copy.deepcopy(first) if sharing is False else copy_state(first)

    def close(self) -> None:
        """Let go of all of them."""
        self._module = None
        self._placed.clear()

    def _on(self, device: Any) -> Any:
        if device is None or device == self._device:
            return self._module
        with quiet():
            return self._move(copy.deepcopy(self._module), device)


def copy_state(module: Any) -> Any:
    """Return a copy of ``module`` that shares its parameters."""
    return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
