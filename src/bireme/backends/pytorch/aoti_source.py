"""What the source of a compiled package tells of its inputs. Pure.

A package has its C++ source beside the library, with a check of each input. The checks themselves are off unless a variable of the
environment says otherwise, and better stay so: they refuse a batch of one wherever the batch is dynamic. But their texts
tell data types, fixed dimensions and the largest batch, so the config can be compared with those.

Source: PyTorch ``torch/_inductor/codegen/cpp_wrapper_cpu.py`` (codegen_input_size_asserts and around it).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bireme.backends.signature import TensorSpec

_INPUT: Final = r"input_handles\[(\d+)\]: "
_GAP: Final = r'[\s"<]*'
_DTYPE: Final = re.compile(_INPUT + r'unmatched dtype, "\s*<< "expected: " << \w+ << "\(at::k(\w+)\)')
_FIXED: Final = re.compile(_INPUT + r"unmatched dim value at (\d+)," + _GAP + r"expected: (\d+)")
_LARGEST: Final = re.compile(_INPUT + r"dim value is too large at (\d+)," + _GAP + r"expected to be <= (\d+)")
_ANY_DIM: Final = re.compile(
    _INPUT + r"(?:unmatched (?:dim|stride) value|dim value is too (?:small|large)) at (\d+)"
)
_DATATYPES: Final = {
    "Bool": "BOOL",
    "Byte": "UINT8",
    "UInt16": "UINT16",
    "UInt32": "UINT32",
    "UInt64": "UINT64",
    "Char": "INT8",
    "Short": "INT16",
    "Int": "INT32",
    "Long": "INT64",
    "Half": "FP16",
    "Float": "FP32",
    "Double": "FP64",
    "BFloat16": "BF16",
}


class SourceFacts(NamedTuple):
    """What the source tells."""

    inputs: tuple[TensorSpec, ...]
    """By position, with names such as ``INPUT__0``; empty: it tells nothing, or not of all."""
    max_rows: int | None
    """The largest first dimension; None: any."""


def read_source(source: str, num_inputs: int) -> SourceFacts:
    """Read the wrapper of a package with ``num_inputs`` inputs."""
    kinds = {int(index): kind for index, kind in _DTYPE.findall(source)}
    if kinds.keys() != set(range(num_inputs)):
        return SourceFacts((), None)
    ranks = dict.fromkeys(range(num_inputs), 0)
    for index, dim in _ANY_DIM.findall(source):
        ranks[int(index)] = max(ranks[int(index)], int(dim) + 1)
    fixed = {(int(index), int(dim)): int(size) for index, dim, size in _FIXED.findall(source)}
    inputs = tuple(
        TensorSpec(
            f"INPUT__{index}",
            _DATATYPES.get(kinds[index]),
            tuple(fixed.get((index, dim), -1) for dim in range(ranks[index])),
            f"at::k{kinds[index]}",
        )
        for index in range(num_inputs)
    )
    largest = [int(size) for _, dim, size in _LARGEST.findall(source) if dim == "0"]
    return SourceFacts(inputs, min(largest, default=None))
