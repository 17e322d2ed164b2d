"""DirectOutput: runs a session whose large outputs go straight into memory that the caller provides.

onnxruntime writes into given memory only if it's told the exact shape first. Shapes of outputs follow from those of the
inputs, as a rule; so they are taken from the first run with the same input shapes, an ordinary one. Where they depend on
the data after all, onnxruntime finds that out, and runs with those input shapes are ordinary ones from then on.

Binding costs 10 µs. Copying costs that for 0.5 MB, and for 6 MB 0.3 to 0.5 ms: as long as the sum of two such tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import numpy as np

from bireme.backends.onnxruntime.runtime import log
from bireme.types import Array

_MAX_KNOWN: Final = 1024
"""Combinations of input shapes that are remembered."""

_Shapes = tuple[tuple[int, ...], ...]
_VARIABLE: Final[_Shapes] = ()
"""Stands for the shapes of outputs that differ from run to run."""


class DirectOutput:
    """An `ExecuteInto` for sessions of numbers. Several threads may call it at once."""

    __slots__ = ("_execute", "_known", "_options", "_outputs", "_session")

    def __init__(
        self,
        session: Any,
        outputs: list[tuple[str, np.dtype[Any]]],
        options: Any,
        execute: Callable[[dict[str, Array]], dict[str, Array]],
    ) -> None:
        """Prepare; ``execute`` is the ordinary way to run ``session`` for the same ``outputs``."""
        self._session = session
        self._outputs = outputs
        self._options = options
        self._execute = execute
        self._known: dict[tuple[tuple[str, tuple[int, ...]], ...], _Shapes] = {}

    def __call__(self, inputs: dict[str, Array], targets: Mapping[str, memoryview]) -> dict[str, Array]:
        """Run the session; each output that fits into its target is a view of that."""
        key = tuple((name, array.shape) for name, array in inputs.items())
        shapes = self._known.get(key)
        if shapes is None:
            results = self._execute(inputs)
            self._remember(key, tuple(results[name].shape for name, _ in self._outputs))
            return results
        places = self._place(shapes, targets)
        if not places:
            return self._execute(inputs)
        try:
            return self._run(inputs, places)
        except Exception as error:  # noqa: BLE001 - the ordinary run says what is wrong, if it's not the shapes
            results = self._execute(inputs)
            log.debug("outputs of shapes %s could not be put into given memory: %s", shapes, error)
            self._remember(key, _VARIABLE)
            return results

    def _remember(self, key: tuple[tuple[str, tuple[int, ...]], ...], shapes: _Shapes) -> None:
        if len(self._known) >= _MAX_KNOWN:  # shapes come from clients; learning them anew is cheap
            self._known.clear()
        self._known[key] = shapes

    def _place(self, shapes: _Shapes, targets: Mapping[str, memoryview]) -> dict[str, Array]:
        """Return an array in its target for each output that has one and fits."""
        places: dict[str, Array] = {}
        if shapes is _VARIABLE:
            return places
        for (name, dtype), shape in zip(self._outputs, shapes, strict=True):
            target = targets.get(name)
            if target is not None and 0 < prod(shape) * dtype.itemsize <= len(target):
                array: Array = np.ndarray(shape, dtype, target)
                if array.flags.aligned:
                    places[name] = array
        return places

    def _run(self, inputs: dict[str, Array], places: dict[str, Array]) -> dict[str, Array]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        others: list[str] = []
        for name, dtype in self._outputs:
            place = places.get(name)
            if place is None:
                binding.bind_output(name)
                others.append(name)
            else:
                binding.bind_output(name, "cpu", 0, dtype, place.shape, place.ctypes.data)
        self._session.run_with_iobinding(binding, self._options)
        results = dict(places)
        if others:
            values = binding.get_outputs()
            for index, (name, _) in enumerate(self._outputs):
                if name not in results:
                    results[name] = values[index].numpy()
        return results
