"""FixedBatch: runs a model that takes batches of one size alone."""

from __future__ import annotations

from bireme.backends.interface import Execute
from bireme.backends.padding import pad_rows
from bireme.types import Array, BackendFailed


class FixedBatch:
    """Fills batches up with zeros, or refuses those that are too small."""

    __slots__ = ("_execute", "_pads", "_size")

    def __init__(self, execute: Execute, size: int, *, pads: bool) -> None:
        self._execute = execute
        self._size = size
        self._pads = pads

    def __call__(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """As `bireme.backends.interface.Instance.execute`.

        Raises:
            BackendFailed: the batch has another size, and is not to be filled up.
        """
        num_rows = next(iter(inputs.values())).shape[0]
        if num_rows == self._size:
            return self._execute(inputs)
        if not self._pads:
            raise BackendFailed(
                f"expected requests with batch size '{self._size}', got '{num_rows}': the model is compiled for that size "
                f"alone (SKIP_OV_DYNAMIC_BATCHSIZE); the parameter ENABLE_BATCH_PADDING, value YES, has smaller batches "
                f"filled up"
            )
        results = self._execute({name: pad_rows(array, self._size) for name, array in inputs.items()})
        return {name: array[:num_rows] for name, array in results.items()}
