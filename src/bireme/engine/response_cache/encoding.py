"""Responses as bytes, for caches outside this process, and back.

    4 bytes   CRC-32 of all that follows
    4 bytes   length of the head, little-endian
    head      msgpack: [[[name, data type, shape, bytes] of each output], parameters or nil]
    zeros     up to a multiple of 8
    the outputs' bytes, each at a multiple of 8

Reading copies nothing: tensors are views of the bytes.
"""

from __future__ import annotations

import struct
import zlib
from math import prod
from typing import Final

import msgspec
import numpy as np

from bireme.engine.response_cache.interface import ENTRY_NBYTES, TENSOR_NBYTES, CachedResponse, CachedTensor
from bireme.types import Buffer, Parameter, datatypes

_HEAD: Final = struct.Struct("<II")
_ALIGNMENT: Final = 8

_Output = tuple[str, str, tuple[int, ...], int]
_Head = tuple[list[_Output], dict[str, Parameter] | None]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Head).decode


class Unreadable(Exception):
    """The bytes are no response: damaged, or written by something else."""


def write(response: CachedResponse) -> bytes:
    """Return ``response`` as bytes."""
    buffers = [output.to_tensor().to_buffer() for output in response.outputs]
    outputs = [
        (output.name, output.datatype, output.shape, len(buffer))
        for output, buffer in zip(response.outputs, buffers, strict=True)
    ]
    head = _encode((outputs, response.parameters))
    pieces: list[Buffer] = [head, _padding(_HEAD.size + len(head))]
    for buffer in buffers:
        pieces += (buffer, _padding(len(buffer)))
    crc = zlib.crc32(head_size := len(head).to_bytes(4, "little"))
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return b"".join((crc.to_bytes(4, "little"), head_size, *pieces))


def read(data: bytes) -> CachedResponse:
    """Return the response that ``data`` is; it stays referred to.

    Raises:
        Unreadable: says why.
    """
    if len(data) < _HEAD.size:
        raise Unreadable(f"{len(data)} bytes are too few")
    crc, head_size = _HEAD.unpack_from(data)
    view = memoryview(data)
    if zlib.crc32(view[4:]) != crc:
        raise Unreadable("the checksum does not fit")
    start = _HEAD.size
    try:
        outputs, parameters = _decode(view[start : start + head_size])
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unreadable(f"the head cannot be read: {error}") from None
    offset = _aligned(start + head_size)
    tensors = []
    for output in outputs:
        tensors.append(_read_tensor(output, view[offset : offset + output[3]]))
        offset = _aligned(offset + output[3])
    nbytes = ENTRY_NBYTES + len(tensors) * TENSOR_NBYTES + len(data)
    return CachedResponse(tuple(tensors), parameters, nbytes)


def _read_tensor(output: _Output, data: memoryview) -> CachedTensor:
    name, datatype, shape, nbytes = output
    dtype = datatypes.NUMPY_DTYPES.get(datatype)
    if dtype is None or len(data) != nbytes or min(shape, default=0) < 0:
        raise Unreadable(f"output '{name}': {datatype}{list(shape)} in {len(data)} of {nbytes} bytes")
    if datatype == "BYTES":
        return CachedTensor(name, datatype, shape, data)
    if prod(shape) * dtype.itemsize != nbytes:
        raise Unreadable(f"output '{name}': {datatype}{list(shape)} is not {nbytes} bytes")
    return CachedTensor(name, datatype, shape, np.frombuffer(data, dtype).reshape(shape))


def _aligned(offset: int) -> int:
    return offset + -offset % _ALIGNMENT


def _padding(nbytes: int) -> bytes:
    return bytes(-nbytes % _ALIGNMENT)
