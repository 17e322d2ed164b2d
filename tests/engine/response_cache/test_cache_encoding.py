"""Responses as bytes: back they come as they were, and what is damaged is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.engine.response_cache.encoding import Unreadable, read, write
from bireme.engine.response_cache.interface import CachedResponse
from bireme.engine.response_cache.keeping import keep
from bireme.types import InferenceResponse, Tensor


def response(*tensors: Tensor, parameters: dict[str, object] | None = None) -> CachedResponse:
    return keep(InferenceResponse("m", 1, "", list(tensors), parameters=parameters))


MIXED = response(
    Tensor.from_numpy("A", np.arange(3, dtype=np.uint8)),
    Tensor.from_numpy("long name", np.arange(6, dtype=np.float64).reshape(1, 2, 3)),
    Tensor.from_numpy("texts", np.array([[b"", b"a"], [b"\x00\xff", "ä".encode()]], np.object_)),
    Tensor.from_numpy("none", np.zeros((0, 4), np.int64)),
    Tensor.from_numpy("half", np.array([1, 2], np.uint16), "BF16"),
    Tensor.from_numpy("flag", np.array(True)),
    parameters={"a": 1, "b": True, "c": 1.5, "d": "text"},
)


def facts(found: CachedResponse) -> list[tuple[str, str, tuple[int, ...], list[object]]]:
    tensors = [output.to_tensor() for output in found.outputs]
    return [(tensor.name, tensor.datatype, tensor.shape, tensor.to_numpy().tolist()) for tensor in tensors]


def test_every_data_type_and_parameter_comes_back():
    found = read(write(MIXED))

    assert facts(found) == facts(MIXED)
    assert found.parameters == MIXED.parameters
    assert [type(value) for value in found.parameters.values()] == [int, bool, float, str]


def test_nothing_is_copied_on_reading():
    tensor = Tensor.from_numpy("A", np.arange(1000, dtype=np.float64))
    data = write(response(tensor))
    (found,) = read(data).outputs
    array = found.data

    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert array.flags.aligned


def test_it_is_as_large_as_the_tensors_and_little_more():
    tensor = Tensor.from_numpy("A", np.zeros(10_000, np.float32))

    assert len(write(response(tensor))) <= 40_000 + 40


@given(st.data())
def test_damage_is_noticed_and_nothing_else_happens(data):
    whole = write(MIXED)
    place = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= flip
    for broken in (bytes(damaged), whole[:cut]):
        with pytest.raises(Unreadable):
            read(broken)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_response(data):
    with pytest.raises(Unreadable):
        read(data)
