"""Shapes as the HTTP protocol carries them: what is a valid one, and how messages show it."""

from __future__ import annotations

from bireme.types import InvalidArgument

INT64_MAX = (1 << 63) - 1

MAX_NUM_DIMS = 32
"""The most dimensions that every supported numpy can hold."""


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as messages show it: ``[1,16]``."""
    return f"[{','.join(map(str, shape))}]"


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Check that a shape of non-negative integers can belong to a tensor, whatever its data.

    Zeros take no part in the product: a shape like ``[0,4611686018427387904,4]`` holds nothing, yet no array can have
    it.

    Raises:
        InvalidArgument: names the input, the shape and the limit.
    """
    count = 1
    for dim in shape:
        if dim > INT64_MAX:
            raise _invalid_shape(name, shape, "contains one or more invalid dimensions")
        count *= dim or 1
    if count > INT64_MAX:
        raise _invalid_shape(name, shape, f"causes total element count to exceed maximum size of {INT64_MAX}")
    if len(shape) > MAX_NUM_DIMS:
        raise _invalid_shape(
            name, shape, f"has {len(shape)} dimensions, at most {MAX_NUM_DIMS} are supported"
        )


def _invalid_shape(name: str, shape: tuple[int, ...], fault: str) -> InvalidArgument:
    shown = format_shape(shape)
    if len(shown) > 200:
        shown = shown[:196] + "...]"
    return InvalidArgument(f"invalid shape for input '{name}': shape {shown} {fault}")
