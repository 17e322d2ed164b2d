"""The tensors of a warm-up sample: zeros, random values, or a file in the model's ``warmup`` folder.

A data file (`bireme.engine.data_files`) holds the elements of one batch item.

Source: Triton ``TritonModelInstance::GenerateWarmupData``.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from bireme.config.model_config import WarmupInput
from bireme.engine.data_files import read_elements, zeros
from bireme.types import Array, InvalidArgument, Tensor, datatypes
from bireme.wire import bfloat16

WARMUP_FOLDER: Final = "warmup"
"""Name of the folder, beside config.pbtxt, that holds the data files."""

# Every load warms up with the same values, so that a failure can be repeated.
_SEED: Final = 0


def make_warmup_tensor(
    name: str, spec: WarmupInput, model_dir: Path, leading: tuple[int, ...], *, item: int = 0
) -> Tensor:
    """Return the tensor of input ``name``, of shape ``[*leading, *dims]``; random values differ between ``item``s.

    Raises:
        InvalidArgument: the sample's input or its data file is wrong; names it, what was expected and found.
    """
    datatype, dims = _checked(name, spec)
    num_elements = prod(dims)
    if spec.input_data_file is not None:
        array = read_elements(
            f"input '{name}'",
            "warmup",
            datatype,
            num_elements,
            model_dir / WARMUP_FOLDER,
            spec.input_data_file,
        )
    elif spec.random_data:
        array = _random(datatype, num_elements, item)
    else:
        array = zeros(datatype, num_elements)
    shape = leading + dims
    return Tensor(name, datatype, shape, array.reshape(shape))


def _checked(name: str, spec: WarmupInput) -> tuple[str, tuple[int, ...]]:
    """Return the protocol data type and dims of ``spec``, or say what is wrong with it."""
    try:
        datatype = datatypes.from_config_name(spec.data_type)
    except KeyError:
        raise InvalidArgument(f"input '{name}': data_type {spec.data_type} is not a data type") from None
    if any(dim < 0 for dim in spec.dims):
        raise InvalidArgument(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}', found dims "
            f"{list(spec.dims)}"
        )
    if not (spec.zero_data or spec.random_data or spec.input_data_file is not None):
        raise InvalidArgument(
            f"warmup setting expects input '{name}' to have input_data_type set: one of zero_data, random_data and "
            f"input_data_file"
        )
    return datatype, tuple(spec.dims)


def _random(datatype: str, num_elements: int, item: int) -> Array:
    """Return values that any model takes: floats in [0, 1), integers and booleans 0 or 1, BYTES empty as in Triton.

    Triton fills in random bytes; those are NaN for floats, and an index out of range for an embedding.
    """
    if datatype == "BYTES":
        return zeros(datatype, num_elements)
    generator = np.random.default_rng((_SEED, item))
    dtype = datatypes.NUMPY_DTYPES[datatype]
    if datatype == "BF16":
        return bfloat16.from_float64(generator.random(num_elements))
    if dtype.kind == "f":
        return generator.random(num_elements).astype(dtype)
    return generator.integers(0, 2, num_elements).astype(dtype)
