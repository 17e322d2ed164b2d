"""Nothing that a client sends raises anything but InvalidArgument or Unsupported; what is valid comes through."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, strategies as st

from bireme.types import InferenceResponse, InvalidArgument, Tensor, Unsupported, datatypes, encode_bytes
from bireme.wire import http as wire_http
from infer_bodies import (
    DATATYPES,
    FIXED_SIZE_DATATYPES,
    LIMITS,
    json_scalars,
    make_body,
    make_input,
    read_reply,
    respond,
)

KEYS = [
    "id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "binary_data_size", "binary_data",
    "classification", "shared_memory_region", "sequence_id", "sequence_start", "priority", "timeout", "triton_x",
    "binary_data_output",
]  # fmt: skip
VALID = {
    "id": "1",
    "parameters": {"priority": 1, "timeout": 5, "sequence_id": 9, "sequence_start": True, "x": 1.5},
    "inputs": [
        make_input("A", "FP32", [1, 2], size=8),
        make_input("B", "BYTES", [2], data=["a", "b"]),
        make_input("C", "INT8", [2, 2], data=[[1, 2], [3, 4]]),
        make_input("D", "BF16", [1], data=[1.5]),
    ],
    "outputs": [
        {"name": "Y", "parameters": {"binary_data": True}},
        {"name": "Z", "parameters": {"classification": 2}},
    ],
}

any_json = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=15,
)


def try_to_read(body, json_length):
    """Decode in every way there is, down to the elements; return whether the direct way succeeds."""
    is_read = False
    try:
        request = wire_http.decode_infer_request(
            body, json_length, model_name="m", respond=respond, limits=LIMITS
        )
        is_read = True
        for tensor in request.inputs.values():
            assert isinstance(tensor.shape, tuple)
            assert tensor.to_numpy().shape == tensor.shape
    except (InvalidArgument, Unsupported):
        pass
    try:
        wire_http.rewrite_as_binary(body, json_length, LIMITS)
    except (InvalidArgument, Unsupported):
        assert not is_read
    return is_read


def paths_of(value, path=()):
    """Yield the path of every node in a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_of(inner, (*path, key))


def replaced(value, path, new):
    """Return ``value`` with the node at ``path`` replaced."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


PATHS = list(paths_of(VALID))


def test_the_valid_request_is_read():
    assert try_to_read(*make_body(VALID, bytes(8)))


@given(st.binary(max_size=200), st.integers(0, 220))
def test_arbitrary_bytes(data, json_length):
    try_to_read(memoryview(data), min(json_length, len(data)))
    try_to_read(memoryview(data), None)


@given(any_json, st.binary(max_size=16))
def test_arbitrary_json(document, blob):
    try_to_read(*make_body(document, blob))


@given(any_json)
def test_arbitrary_members(value):
    for key in ("id", "parameters", "inputs", "outputs"):
        try_to_read(*make_body(VALID | {key: value}, bytes(8)))


@given(st.sampled_from(PATHS), any_json)
def test_one_node_replaced(path, value):
    try_to_read(*make_body(replaced(VALID, path, value), bytes(8)))


@given(st.data())
def test_bytes_changed(data):
    body, json_length = make_body(VALID, bytes(8))
    mutated = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(mutated)))
        match data.draw(st.sampled_from(["insert", "delete", "replace"])):
            case "insert":
                mutated[position:position] = data.draw(st.binary(min_size=1, max_size=3) | st.just(b"NaN"))
            case "delete":
                del mutated[position : position + 2]
            case _:
                mutated[position : position + 1] = data.draw(st.binary(min_size=1, max_size=1))
    try_to_read(memoryview(mutated), min(json_length, len(mutated)))


@given(st.data())
def test_body_cut_or_length_moved(data):
    body, _ = make_body(VALID, bytes(8))
    cut = body[: data.draw(st.integers(0, len(body)))]
    try_to_read(cut, data.draw(st.none() | st.integers(0, len(cut))))


@given(st.lists(st.integers(0, 4), max_size=4).map(tuple), st.data())
def test_binary_tensors_go_round(shape, data):
    datatype = data.draw(st.sampled_from(DATATYPES))
    count = int(np.prod(shape))
    if datatype == "BYTES":
        blob = encode_bytes(data.draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count)))
    else:
        size = count * datatypes.ITEM_SIZES[datatype]
        blob = data.draw(st.binary(min_size=size, max_size=size))
    body, length = make_body({"inputs": [make_input("X", datatype, shape, size=len(blob))]}, blob)
    request = wire_http.decode_infer_request(body, length, model_name="m", respond=respond, limits=LIMITS)
    wanted = wire_http.WantedOutputs(default_binary=True)
    reply = wire_http.encode_infer_response(
        InferenceResponse("m", 1, outputs=[*request.inputs.values()]), wanted
    )

    head, section = read_reply(reply)
    assert head["outputs"][0]["shape"] == list(shape)
    assert section == blob


@given(st.lists(st.integers(0, 4), max_size=4).map(tuple), st.sampled_from(FIXED_SIZE_DATATYPES), st.data())
def test_json_numbers_go_round(shape, datatype, data):
    """What we send as JSON we read back as the same bits (but for the payload of a NaN)."""
    dtype = datatypes.NUMPY_DTYPES[datatype]
    count = int(np.prod(shape))
    if datatype == "BOOL":
        values = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
        array = np.array(values, dtype).reshape(shape)
    else:
        blob = data.draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
        array = np.frombuffer(blob, dtype).reshape(shape)
    head, _ = read_reply(
        wire_http.encode_infer_response(
            InferenceResponse("m", 1, outputs=[Tensor("X", datatype, shape, array)]),
            wire_http.WantedOutputs(),
        )
    )
    body, length = make_body(
        {"inputs": [{"name": "X", "datatype": datatype, "shape": list(shape)} | head["outputs"][0]]}
    )
    result = wire_http.decode_infer_request(body, length, model_name="m", respond=respond, limits=LIMITS)

    back = result.inputs["X"].to_numpy()
    if datatype == "BF16":
        is_nan = (array & 0x7FFF) > 0x7F80
        np.testing.assert_array_equal(back[~is_nan], array[~is_nan])
        assert ((back[is_nan] & 0x7FFF) > 0x7F80).all()
    else:
        np.testing.assert_array_equal(back, array)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=5))
def test_json_strings_go_round(texts):
    body, length = make_body({"inputs": [make_input("X", "BYTES", [len(texts)], data=texts)]})
    request = wire_http.decode_infer_request(body, length, model_name="m", respond=respond, limits=LIMITS)
    response = InferenceResponse("m", 1, outputs=[*request.inputs.values()])
    head, _ = read_reply(wire_http.encode_infer_response(response, wire_http.WantedOutputs()))

    assert head["outputs"][0]["data"] == json.loads(json.dumps(texts))


@given(
    st.binary(max_size=40) | st.integers(-(2**70), 2**70).map(lambda value: str(value).encode()),
    st.integers(0, 99),
)
def test_arbitrary_header_lengths(value, content_length):
    try:
        length = wire_http.parse_header_length(value, content_length)
    except InvalidArgument:
        return
    assert 0 <= length <= content_length


@given(
    st.binary(max_size=60),
    st.sampled_from(DATATYPES),
    st.lists(st.sampled_from([-1, 0, 1, 2, 3]), max_size=4).map(tuple),
    st.booleans(),
)
def test_arbitrary_raw_requests(data, datatype, dims, batches):
    class Spec:
        name = "X"

    spec = Spec()
    spec.datatype, spec.dims, spec.shape = datatype, dims, (-1, *dims) if batches else dims
    try:
        request = wire_http.decode_raw_request(
            memoryview(data), {"X": spec}, model_name="m", respond=respond, limits=LIMITS
        )
    except InvalidArgument:
        return
    tensor = request.inputs["X"]
    assert tensor.to_numpy().shape == tensor.shape
    assert len(tensor.shape) == len(spec.shape)
