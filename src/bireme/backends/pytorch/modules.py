"""Modules: the copies of a Python module, on devices and for instances, that share what can be shared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from bireme.backends.pytorch.runtime import quiet, torch


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
        self._copies: list[Any] = []

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
            another = copy.deepcopy(first) if sharing is False else copy_state(first)
        self._copies.append(another)
        return another

    def close(self) -> None:
        """Let go of all of them, and of their weights.

        Modules of ``torch.fx`` and those of users refer to themselves by way of others. So they would keep their weights until
        the garbage collector comes by, which never looks at what was there when the server started.
        """
        for module in (self._module, *self._placed.values(), *self._copies):
            forget_tensors(module)
        self._module = None
        self._placed.clear()
        self._copies.clear()

    def _on(self, device: Any) -> Any:
        if device is None or device == self._device:
            return self._module
        with quiet():
            return self._move(copy.deepcopy(self._module), device)


def forget_tensors(module: Any) -> None:
    """Take parameters and buffers out of ``module``, which nobody runs any more. Whoever else has them keeps them."""
    for part in module.modules() if module is not None else ():
        if not isinstance(part, torch.jit.ScriptModule):  # which is C++'s, and refers to nothing
            part._parameters.clear()  # noqa: SLF001 - nothing public takes out all
            part._buffers.clear()  # noqa: SLF001 - as above


def copy_state(module: Any) -> Any:
    """Return a copy of ``module`` that shares its parameters."""
    return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
