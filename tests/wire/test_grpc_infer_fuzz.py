"""The gRPC infer codecs against protobuf: whatever the bytes, both read the same, and nothing but our errors comes out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, strategies as st

from bireme.types import BiremeError, InferenceResponse, Tensor, datatypes, encode_bytes
from bireme.wire import grpc as wire_grpc
from bireme.wire.grpc import UnreadableMessage, known_requests
from bireme.wire.grpc.request_parts import split_request
from bireme.wire.grpc.wire_fields import read_varint, write_bytes, write_varint
from grpc_infer_messages import (
    FakeRegions,
    Request,
    StreamResponse,
    decode,
    joined,
    make_input,
    make_output,
    make_request,
    read_response,
)
from infer_bodies import DATATYPES, FIXED_SIZE_DATATYPES

REGIONS = FakeRegions(r=bytearray(64))


@pytest.fixture(autouse=True)
def no_heads():
    known_requests._known.clear()
    yield
    known_requests._known.clear()


# Valid messages, their fields in any order

names = st.text(max_size=4)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=4),
    st.floats(allow_nan=False),
    st.integers(0, 2**64 - 1).map(lambda value: ("uint64_param", value)),
)
keys = st.text(max_size=3) | st.sampled_from(["sequence_id", "priority", "timeout", "triton_x"])
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def inputs_with_data(draw):
    """Draw inputs and their raw contents."""
    items, raw = [], []
    for name in draw(st.lists(names, unique=True, max_size=3)):
        datatype, shape = draw(st.sampled_from(DATATYPES)), draw(shapes)
        count = math.prod(shape)
        if datatype == "BYTES":
            data = encode_bytes(draw(st.lists(st.binary(max_size=3), min_size=count, max_size=count)))
        else:
            size = count * datatypes.ITEM_SIZES[datatype]
            data = draw(st.binary(min_size=size, max_size=size))
        items.append(make_input(name, datatype, shape))
        raw.append(data)
    return items, raw


@st.composite
def valid_messages(draw):
    """Draw the fields of a valid request, serialised and shuffled, with some that nobody knows."""
    items, raw = draw(inputs_with_data())
    head = make_request(
        outputs=[make_output(name) for name in draw(st.lists(names, unique=True, max_size=3))],
        parameters={
            "x" + key: value
            for key, value in draw(
                st.dictionaries(keys, st.booleans() | st.text(max_size=3), max_size=2)
            ).items()
        },
    )
    fields = [write_bytes(b"\x2a", item.SerializeToString()) for item in items]
    # Inputs keep their order, and so do their contents; everything else may go anywhere.
    contents = [write_bytes(b"\x3a", data) for data in raw]
    others = [head.SerializeToString()]
    others += [write_bytes(b"\x1a", text.encode()) for text in draw(st.lists(names, max_size=2))]
    others += [
        write_varint(number << 3) + write_varint(value)
        for number, value in draw(st.lists(st.tuples(st.integers(8, 2**29 - 1), st.integers(0, 2**64 - 1))))
    ]
    others += draw(st.lists(st.sampled_from([b"\x41" + bytes(8), b"\x45" + bytes(4), b"\x3d" + bytes(4)])))
    pieces = draw(st.permutations(["i"] * len(fields) + ["c"] * len(contents) + ["o"] * len(others)))
    queues = {"i": fields, "c": contents, "o": list(draw(st.permutations(others)))}
    return b"".join(queues[kind].pop(0) for kind in pieces)


@pytest.mark.slow
@given(valid_messages())
def test_a_valid_message_is_read_as_protobuf_reads_it(data):
    expected = Request.FromString(data)
    for _ in range(2):  # the second time it's known
        request = decode(data)

        assert (request.model_name, request.id) == (expected.model_name, expected.id)
        assert [
            (tensor.name, tensor.datatype, tensor.shape, bytes(tensor.to_buffer()))
            for tensor in request.inputs.values()
        ] == [
            (item.name, item.datatype, tuple(item.shape), raw)
            for item, raw in zip(expected.inputs, expected.raw_input_contents, strict=True)
        ]
        assert request.outputs == ([item.name for item in expected.outputs] or None)
        assert set(request.parameters or ()) == set(expected.parameters)


@pytest.mark.slow
@given(valid_messages(), st.integers(0, 100))
def test_the_offset_of_raw_contents_is_that_of_the_first(data, size):
    starts = split_request(data)[2]

    assert wire_grpc.raw_offset(data) == (starts[0] if starts else 0)
    assert wire_grpc.raw_offset(data[:size]) in {0, *starts[:1]}


# Anything at all


def check_against_protobuf(data: bytes) -> None:
    try:
        expected = Request.FromString(data)
    except DecodeError:
        expected = None
    try:
        request = decode(data, REGIONS)
    except UnreadableMessage as error:
        is_group = "wire type" in error.message
        assert expected is None or is_group
        return
    except BiremeError:
        assert expected is not None
        return
    for tensor in request.inputs.values():
        assert tensor.is_encoded or tensor.to_numpy().shape == tensor.shape
    assert expected is not None
    assert (request.model_name, request.id) == (expected.model_name, expected.id)
    assert list(request.inputs) == [item.name for item in expected.inputs]
    assert wire_grpc.peek_request_id(data) == request.id


@given(st.binary(max_size=40))
def test_arbitrary_bytes(data):
    check_against_protobuf(data)


@st.composite
def odd_messages(draw):
    """Draw requests that break rules, or parts of them."""
    tensor_parameters = st.dictionaries(
        st.sampled_from(
            [
                "shared_memory_region",
                "shared_memory_offset",
                "shared_memory_byte_size",
                "classification",
                "x",
            ]
        ),
        values | st.sampled_from(["r", 8]),
        max_size=3,
    )
    contents = st.none() | st.dictionaries(
        st.sampled_from(["int_contents", "uint_contents", "int64_contents", "fp32_contents"]),
        st.lists(st.integers(0, 300), max_size=3),
        max_size=2,
    )
    items = [
        make_input(name, datatype, shape, some, **parameters)
        for name, datatype, shape, some, parameters in draw(
            st.lists(
                st.tuples(
                    st.sampled_from("AB"),
                    st.sampled_from([*DATATYPES, "X"]),
                    st.lists(st.integers(-1, 4) | st.integers(-(2**63), 2**63 - 1), max_size=3),
                    contents,
                    tensor_parameters,
                ),
                max_size=3,
            )
        )
    ]
    return make_request(
        *items,
        raw=draw(st.lists(st.binary(max_size=12), max_size=3)),
        outputs=[
            make_output(name, **parameters)
            for name, parameters in draw(
                st.lists(st.tuples(st.sampled_from("YZ"), tensor_parameters), max_size=2)
            )
        ],
        parameters=draw(st.dictionaries(keys, values | st.none(), max_size=3)),
        id=draw(names),
        model_version=draw(st.sampled_from(["", "1", "-1", "x"])),
    ).SerializeToString()


@pytest.mark.slow
@given(odd_messages())
def test_messages_that_break_rules(data):
    check_against_protobuf(data)


@pytest.mark.slow
@given(st.data())
def test_damaged_messages(data):
    message = bytearray(data.draw(odd_messages() | valid_messages()))
    for place in data.draw(st.lists(st.integers(0, max(len(message) - 1, 0)), max_size=3)):
        if message:
            message[place % len(message)] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    check_against_protobuf(bytes(message[:cut]))
    check_against_protobuf(bytes(message))


@given(st.binary(max_size=12), st.integers(0, 14))
def test_arbitrary_numbers(data, offset):
    try:
        value, end = read_varint(data, offset)
    except UnreadableMessage:
        return
    assert offset < end <= len(data)
    assert 0 <= value < 1 << 70


# There and back


@given(
    st.sampled_from(FIXED_SIZE_DATATYPES),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.data(),
)
def test_tensors_go_round(datatype, shape, data):
    size = math.prod(shape) * datatypes.ITEM_SIZES[datatype]
    array = np.ndarray(
        shape, datatypes.NUMPY_DTYPES[datatype], data.draw(st.binary(min_size=size, max_size=size))
    )
    response = InferenceResponse("m", 1, outputs=[Tensor("X", datatype, shape, array)])
    found = read_response(wire_grpc.encode_infer_response(response, wire_grpc.GrpcWanted()))
    (output,) = found.outputs
    request = decode(
        make_request(
            make_input(output.name, output.datatype, tuple(output.shape)), raw=found.raw_output_contents
        )
    )

    back = request.inputs["X"]
    assert (back.datatype, back.shape) == (datatype, shape)
    assert bytes(back.to_buffer()) == array.tobytes()


@pytest.mark.slow
@given(
    name=st.text(max_size=200),
    version=st.integers(0, 2**63),
    request_id=st.text(max_size=200),
    outputs=st.lists(
        st.tuples(st.text(max_size=150), st.lists(st.integers(0, 3), max_size=4), st.booleans()), max_size=4
    ),
    parameters=st.dictionaries(
        st.text(max_size=3),
        st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=200),
        max_size=3,
    ),
    final=st.sampled_from([None, True, False]),
)
def test_responses_are_read_as_they_were_written(name, version, request_id, outputs, parameters, final):
    tensors = []
    for output_name, shape, is_text in outputs:
        count = math.prod(shape)
        if is_text:
            tensors.append(Tensor(output_name, "BYTES", tuple(shape), None, encode_bytes([b"abc"] * count)))
        else:
            array = np.arange(count, dtype=np.int16).reshape(shape)
            tensors.append(Tensor(output_name, "INT16", tuple(shape), array))
    response = InferenceResponse(name, version, request_id, tensors, parameters=parameters)
    message = wire_grpc.encode_infer_response(
        response, wire_grpc.GrpcWanted(), final=final, stream=final is not None
    )
    data = joined(message)
    found = read_response(message) if final is None else StreamResponse.FromString(data).infer_response

    assert (found.model_name, found.model_version, found.id) == (name, str(version), request_id)
    assert [(output.name, tuple(output.shape)) for output in found.outputs] == [
        (tensor.name, tensor.shape) for tensor in tensors
    ]
    assert list(found.raw_output_contents) == [bytes(tensor.to_buffer()) for tensor in tensors]
    read = {
        key: getattr(entry, entry.WhichOneof("parameter_choice")) for key, entry in found.parameters.items()
    }
    expected = parameters if final is None else parameters | {"triton_final_response": final}
    assert read == expected
    assert {key: type(value) for key, value in read.items()} == {
        key: type(value) for key, value in expected.items()
    }
