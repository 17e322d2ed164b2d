"""Reshape: the step between a tensor as clients see it (``dims``) and as the backend sees it (``reshape``).

Source: Triton ``InferenceRequest::Normalize`` and ``InferenceResponse::Output::Reshape``.
"""

from __future__ import annotations

from bireme.config.model_config import ModelInput, ModelOutput
from bireme.types import Array


def model_dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    """Return the dims that the backend sees: those of ``reshape``, if there is one."""
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


class Reshape:
    """Turns arrays of shape ``[*leading, *source]`` into ``[*leading, *target]`` without copying.

    The n-th variable dimension (-1) of ``target`` takes the size of the n-th one of ``source``; the config was checked
    for that when it was read.
    """

    __slots__ = ("_pairs", "source", "target")

    def __init__(self, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        self.source = source
        self.target = target
        from_axes = [axis for axis, dim in enumerate(source) if dim == -1]
        to_axes = [axis for axis, dim in enumerate(target) if dim == -1]
        self._pairs = tuple(zip(to_axes, from_axes, strict=True))

    def shape(self, shape: tuple[int, ...], num_leading: int) -> tuple[int, ...]:
        """Return the new shape of an array of ``shape``, whose first ``num_leading`` dimensions stay."""
        leading = shape[:num_leading]
        if not self._pairs:
            return leading + self.target
        dims = list(self.target)
        for to_axis, from_axis in self._pairs:
            dims[to_axis] = shape[num_leading + from_axis]
        return (*leading, *dims)

    def apply(self, array: Array, num_leading: int) -> Array:
        """Return ``array`` under its new shape: a view when it is contiguous.

        Raises:
            ValueError: the array has not as many elements as the new shape.
            IndexError: it has fewer dimensions than ``source``.
        """
        return array.reshape(self.shape(array.shape, num_leading))

    def __repr__(self) -> str:
        return f"Reshape({list(self.source)} -> {list(self.target)})"
