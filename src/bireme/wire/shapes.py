"""Shapes as both protocols carry them: what is a valid one, and how messages show it."""

from __future__ import annotations

from bireme.types import InvalidArgument

INT64_MAX = (1 << 63) - 1

MAX_NUM_DIMS = 32
"""The most dimensions that every supported numpy can hold."""

_MAX_HIDDEN_ELEMENTS = INT64_MAX >> 4  # numpy multiplies the non-zero dimensions and the item size


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as messages show it: ``[1,16]``."""
    return f"[{','.join(map(str, shape))}]"


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Check that an array can have a ``shape`` of one or more dimensions.

    Zeros take no part in the product: ``[0,4611686018427387904,4]`` holds nothing, and yet no array can have it.

    Raises:
        InvalidArgument: names the input, the shape and the limit.
    """
    count = 1
    for dim in shape:
        count *= dim or 1
    if min(shape) < 0 or max(shape) > INT64_MAX:
        fault = "contains one or more invalid dimensions"
    elif count > (_MAX_HIDDEN_ELEMENTS if 0 in shape else INT64_MAX):
        fault = f"causes total element count to exceed maximum size of {INT64_MAX}"
    else:
        return
    raise InvalidArgument(f"invalid shape for input '{name}': shape {format_shape(shape)} {fault}")


def too_many_dims(name: str, num_dims: int) -> InvalidArgument:
    """Return the error for a shape of more than `MAX_NUM_DIMS`."""
    return InvalidArgument(
        f"invalid shape for input '{name}': it has {num_dims} dimensions, at most {MAX_NUM_DIMS} are supported"
    )
