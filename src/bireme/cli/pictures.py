"""A picture file as the tensor that a model takes: size, channels, order and value range from the input's shape.

Pillow is optional; it is imported here alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bireme.types import Array, InvalidArgument, datatypes
from bireme.wire import bfloat16

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


def load(
    path: Path,
    dims: tuple[int, ...],
    datatype: str,
    layout: str,
    scaling: str,
    open_size: tuple[int, int] | None = None,
) -> Array:
    """Return the picture as an array of the input's ``dims``.

    A height or width that the dims leave open is that of ``open_size`` (width, height), else the picture's own.

    Raises:
        InvalidArgument: the file is no picture, the input takes none, or Pillow is not installed.
    """
    channels_first, channels, height, width = _geometry(path, dims, layout)
    image = _open(path).convert("L" if channels == 1 else "RGB")
    own_width, own_height = open_size or image.size
    size = (width if width > 0 else own_width, height if height > 0 else own_height)
    if size != image.size:
        image = image.resize(size)
    values = np.asarray(image, np.float32).reshape(size[1], size[0], -1)
    values = _scale(values, scaling, is_float=datatype.startswith(("FP", "BF")))
    if channels_first:
        values = values.transpose(2, 0, 1)
    shaped: Array = values[..., 0] if len(dims) == 2 else values
    if datatype == "BF16":
        return bfloat16.from_float64(np.ascontiguousarray(shaped, np.float64))
    return np.ascontiguousarray(shaped, datatypes.NUMPY_DTYPES[datatype])


def _geometry(path: Path, dims: tuple[int, ...], layout: str) -> tuple[bool, int, int, int]:
    """Return whether channels come first, and the input's channels, height and width."""
    if len(dims) == 2:
        return False, 1, dims[0], dims[1]
    if len(dims) == 3:
        first, last = dims[0] in {1, 3}, dims[2] in {1, 3}
        if layout == "FORMAT_NCHW" or (first and not (last and layout == "FORMAT_NHWC")):
            return True, dims[0], dims[1], dims[2]
        if layout == "FORMAT_NHWC" or last:
            return False, dims[2], dims[0], dims[1]
    raise InvalidArgument(
        f"{path}: an input of shape [{','.join(map(str, dims))}] takes no picture; expected [3,H,W], [H,W,3], "
        f"[1,H,W], [H,W,1] or [H,W]. Other data goes by .npy, .json or NAME=VALUE"
    )


def _scale(values: Array, scaling: str, *, is_float: bool) -> Array:
    if scaling == "auto":
        scaling = "unit" if is_float else "none"
    if scaling == "none":
        return values
    if scaling == "signed":
        return values / np.float32(127.5) - np.float32(1)
    values = values / np.float32(255)
    if scaling == "imagenet":
        channels = values.shape[-1]
        mean = np.array(_IMAGENET_MEAN[:channels], np.float32)
        values = (values - mean) / np.array(_IMAGENET_DEVIATION[:channels], np.float32)
    return values


def _open(path: Path) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InvalidArgument(
            f"{path}: reading pictures needs Pillow, which is not installed: pip install pillow"
        ) from None
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        raise InvalidArgument(
            f"{path}: neither a picture nor .npy nor .json; bytes of any file go to string inputs only"
        ) from None
