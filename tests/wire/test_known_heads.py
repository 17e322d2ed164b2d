"""Known heads: a repeated head is read like the first one, whatever lies behind it."""

from __future__ import annotations

import numpy as np
import pytest

from bireme.types import InvalidArgument, Tensor, encode_bytes
from bireme.wire.http import known_heads
from infer_bodies import decode, make_input


@pytest.fixture(autouse=True)
def no_heads():
    known_heads._layouts.clear()
    yield
    known_heads._layouts.clear()


def contents(tensor: Tensor):
    return (tensor.name, tensor.datatype, tensor.shape, bytes(tensor.to_buffer()))


HEAD = {
    "id": "",
    "inputs": [
        make_input("A", "FP32", [2, 2], size=16),
        make_input("T", "BYTES", [2], size=11),
        make_input("B", "INT8", [3], size=3),
    ],
    "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
}


def data(seed: int) -> tuple[bytes, bytes, bytes]:
    text = f"{seed:03}"[:3].encode()
    return np.full(4, seed, "<f4").tobytes(), encode_bytes([text, b""]), bytes([seed] * 3)


def test_a_repeated_head_gives_the_same_request_over_new_data():
    first = decode(HEAD, *data(1))
    again = decode(HEAD, *data(2))

    assert len(known_heads._layouts) == 1
    for request, seed in ((first, 1), (again, 2)):
        assert [bytes(tensor.to_buffer()) for tensor in request.inputs.values()] == list(data(seed))
    assert [contents(t)[:3] for t in first.inputs.values()] == [
        contents(t)[:3] for t in again.inputs.values()
    ]
    for field in ("id", "model_name", "model_version", "outputs", "context", "parameters", "priority"):
        assert getattr(again, field) == getattr(first, field)


@pytest.mark.parametrize("size", [0, 29, 31])
def test_a_known_head_with_another_amount_of_data_is_refused_as_always(size: int):
    decode(HEAD, *data(1))

    with pytest.raises(InvalidArgument, match=r"unexpected (size for input|additional input data)"):
        decode(HEAD, bytes(size))


@pytest.mark.parametrize(
    "head",
    [
        HEAD | {"id": "7"},
        HEAD | {"parameters": {"priority": 1}},
        HEAD | {"inputs": [*HEAD["inputs"], {"name": "J", "datatype": "INT8", "shape": [1], "data": [1]}]},
    ],
    ids=["id", "parameters", "JSON data"],
)
def test_what_differs_in_more_than_tensor_bytes_is_not_remembered(head):
    decode(head, *data(1))

    assert not known_heads._layouts


def test_the_table_of_heads_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_heads, "_MAX_HEADS", 3)
    for size in range(1, 9):
        decode({"inputs": [make_input("X", "UINT8", [size], size=size)]}, bytes(size))

    assert len(known_heads._layouts) <= 3
