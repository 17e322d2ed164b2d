"""Optimization profiles: which of them holds the shapes of a batch, and which suits it best. Pure.

A profile says for each input the least, the best and the greatest shape that it was built for, and for each shape tensor the same
about its values.

Source: Triton ``instance_state.cc`` (GetMostOptimizedProfile, EvaluateTensorRTContext).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bireme.types import InvalidArgument

Dims = tuple[int, ...]


class Range(NamedTuple):
    """The shapes, or the values, that a profile admits for one input."""

    least: Dims
    best: Dims
    greatest: Dims

    def holds(self, dims: Dims) -> bool:
        """Whether each of ``dims`` is within the range."""
        return len(dims) == len(self.least) and all(
            low <= size <= high for low, size, high in zip(self.least, dims, self.greatest, strict=True)
        )

    def distance(self, dims: Dims) -> int:
        """Return how far ``dims`` are from the best ones, as the sum over the dimensions."""
        return sum(abs(size - best) for size, best in zip(dims, self.best, strict=True))

    def __str__(self) -> str:
        sizes = (
            str(low) if low == high else f"{low} to {high}"
            for low, high in zip(self.least, self.greatest, strict=True)
        )
        return f"[{', '.join(sizes)}]"


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile of an engine."""

    index: int
    shapes: Mapping[str, Range]
    """By input."""
    values: Mapping[str, Range]
    """By input that is a shape tensor."""

    def distance(self, shapes: Mapping[str, Dims], values: Mapping[str, Dims]) -> int | None:
        """Return how far from the best a batch is; None: the profile does not hold it."""
        return (
            None
            if self.misfit(shapes, values)
            else sum(self.shapes[name].distance(dims) for name, dims in shapes.items())
            + sum(self.values[name].distance(dims) for name, dims in values.items())
        )

    def misfit(self, shapes: Mapping[str, Dims], values: Mapping[str, Dims]) -> str:
        """Return what the profile does not hold, with its range; empty: it holds all."""
        for name, dims in shapes.items():
            if not self.shapes[name].holds(dims):
                return (
                    f"input '{name}' has shape {list(dims)}, profile {self.index} takes {self.shapes[name]}"
                )
        for name, dims in values.items():
            if not self.values[name].holds(dims):
                return f"shape tensor '{name}' has values {list(dims)}, profile {self.index} takes {self.values[name]}"
        return ""


def choose(
    profiles: Sequence[Profile],
    shapes: Mapping[str, Dims],
    values: Mapping[str, Dims],
    others: Sequence[Profile] = (),
) -> int:
    """Return the position in ``profiles`` of the one whose best shapes are nearest to those of a batch.

    ``others`` are the profiles of the engine that the instance does not use; they are named where one would do.

    Raises:
        InvalidArgument: none holds the batch; says for each what it takes.
    """
    nearest, position = None, -1
    for index, profile in enumerate(profiles):
        distance = profile.distance(shapes, values)
        if distance is not None and (nearest is None or distance < nearest):
            nearest, position = distance, index
    if position < 0:
        text = "; ".join(profile.misfit(shapes, values) for profile in profiles)
        would_do = [str(other.index) for other in others if not other.misfit(shapes, values)]
        if would_do:
            text += f"; profile {' or '.join(would_do)} of the engine would do: list it in 'profile' of the instance_group"
        raise InvalidArgument(f"no optimization profile holds the batch: {text}")
    return position
