"""Infer responses out, as gRPC's clients read them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bireme.types import InferenceResponse, Internal, InvalidArgument, Tensor, datatypes, encode_bytes
from bireme.wire import encoded, grpc as wire_grpc
from bireme.wire.grpc import infer_response
from bireme.wire.regions import OutputRegion
from bireme.wire.wanted_outputs import WantedOutput
from grpc_infer_messages import Response, StreamResponse, joined, read_response
from infer_bodies import DATATYPES, FIXED_SIZE_DATATYPES

ALL = wire_grpc.GrpcWanted()


def listed(**choices):
    """Return listed outputs: a number of classes, a region, or None for the tensor itself."""
    by_name = {}
    for name, choice in choices.items():
        if isinstance(choice, OutputRegion):
            by_name[name] = WantedOutput(region=choice)
        else:
            by_name[name] = WantedOutput(classification=choice or 0)
    return wire_grpc.GrpcWanted(by_name=by_name)


def region(memory: bytearray, offset: int = 0, size: int | None = None) -> OutputRegion:
    size = len(memory) - offset if size is None else size
    return OutputRegion("r", offset, size, memoryview(memory)[offset : offset + size])


def respond(*outputs, **members):
    return InferenceResponse("m", 3, outputs=outputs, **members)


def fp32(name="Y", shape=(2,)):
    return Tensor(name, "FP32", shape, np.arange(math.prod(shape), dtype=np.float32).reshape(shape))


def strings(*elements, name="S"):
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return Tensor(name, "BYTES", array.shape, array)


def described(output):
    return output.name, output.datatype, tuple(output.shape)


def test_a_response_byte_by_byte():
    message = wire_grpc.encode_infer_response(respond(fp32("A"), fp32("B", (1, 1)), id="é"), ALL)
    expected = Response(model_name="m", model_version="3", id="é")
    expected.outputs.add(name="A", datatype="FP32", shape=[2])
    expected.outputs.add(name="B", datatype="FP32", shape=[1, 1])
    expected.raw_output_contents.extend([np.array([0, 1], np.float32).tobytes(), bytes(4)])

    assert message.is_complete
    assert joined(message) == expected.SerializeToString()


def test_what_is_empty_is_left_out():
    assert read_response(wire_grpc.encode_infer_response(respond(parameters={}), ALL)) == Response(
        model_name="m", model_version="3"
    )


@pytest.mark.parametrize("datatype", FIXED_SIZE_DATATYPES)
@pytest.mark.parametrize("num_elements", [1, 3, 10_000])
def test_outputs_are_their_bytes(datatype, num_elements):
    array = np.arange(num_elements).astype(datatypes.NUMPY_DTYPES[datatype])
    found = read_response(
        wire_grpc.encode_infer_response(respond(Tensor("Y", datatype, array.shape, array)), ALL)
    )

    assert list(found.raw_output_contents) == [array.tobytes()]
    assert described(found.outputs[0]) == ("Y", datatype, (num_elements,))
    assert not found.outputs[0].HasField("contents")


@pytest.mark.parametrize("shape", [(), (1,), (127, 1), (128, 1), (300, 2), (1, 1, 1, 1)])
def test_shapes(shape):
    found = read_response(wire_grpc.encode_infer_response(respond(fp32(shape=shape)), ALL))

    assert tuple(found.outputs[0].shape) == shape
    assert len(found.raw_output_contents[0]) == 4 * math.prod(shape)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_an_empty_output_has_an_empty_entry(datatype):
    array = np.empty((0, 3), datatypes.NUMPY_DTYPES[datatype])
    found = read_response(
        wire_grpc.encode_infer_response(respond(Tensor("Y", datatype, (0, 3), array), fp32("Z")), ALL)
    )

    assert [len(content) for content in found.raw_output_contents] == [0, 8]
    assert tuple(found.outputs[0].shape) == (0, 3)


@pytest.mark.parametrize("wanted", [ALL, listed(A=None)])
def test_a_large_output_is_not_copied(wanted):
    large = fp32("A", (1000, 100))
    message = wire_grpc.encode_infer_response(respond(fp32("B"), large, fp32("C")), wanted)

    assert message.is_complete
    assert [len(piece) for piece in message.pieces if len(piece) > 4096] == [large.nbytes]
    assert np.shares_memory(np.frombuffer(message.pieces[1], np.uint8), large.to_numpy())
    assert [len(content) for content in read_response(message).raw_output_contents] == [8, 400_000, 8]


def test_small_outputs_travel_with_the_head():
    message = wire_grpc.encode_infer_response(respond(fp32("A"), fp32("B")), ALL, final=True, stream=True)

    assert len(message.pieces) == 1


def test_strided_outputs_are_row_major():
    whole = np.arange(40_000, dtype=np.int32).reshape(200, 200)
    for view in (whole.T, whole[::2, ::3], whole[:3, :3].T):
        response = respond(Tensor("Y", "INT32", view.shape, view))
        found = read_response(wire_grpc.encode_infer_response(response, ALL))
        assert list(found.raw_output_contents) == [view.tobytes()]


def test_bytes_are_framed():
    elements = [b"", b"ab", b"\xff" * 300]
    for tensor in (strings(*elements), Tensor("S", "BYTES", (3,), None, memoryview(encode_bytes(elements)))):
        message = wire_grpc.encode_infer_response(respond(fp32(), tensor), ALL)

        assert message.is_complete
        assert read_response(message).raw_output_contents[1] == encode_bytes(elements)


def test_large_encoded_bytes_are_sent_as_they_are():
    data = bytearray(encode_bytes([b"x" * 10_000]))
    message = wire_grpc.encode_infer_response(
        respond(Tensor("S", "BYTES", (1,), None, memoryview(data))), ALL
    )

    assert np.shares_memory(np.frombuffer(message.pieces[-1], np.uint8), np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("stream", [False, True])
def test_many_strings_are_encoded_in_steps(stream, monkeypatch: pytest.MonkeyPatch):
    for module in (encoded, infer_response):
        monkeypatch.setattr(module, "MAX_SLICE_ELEMENTS", 10)
    elements = [b"%d" % number for number in range(95)]
    message = wire_grpc.encode_infer_response(
        respond(fp32(), strings(*elements), fp32("Z")), ALL, stream=stream
    )
    num_steps = 1
    assert not message.is_complete
    assert not message.is_heavy
    while not message.advance():
        num_steps += 1

    data = joined(message)
    found = StreamResponse.FromString(data).infer_response if stream else Response.FromString(data)
    assert num_steps == 9
    assert list(found.raw_output_contents)[1] == encode_bytes(elements)
    assert [output.name for output in found.outputs] == ["Y", "S", "Z"]


# Classification


def test_a_classified_output_is_bytes():
    scores = Tensor("Y", "FP32", (2, 3), np.array([[0.1, 0.9, 0.5], [3, 2, 1]], np.float32))
    wanted = listed(Y=2, Z=None)
    labels = {"Y": ["cat", "dog"]}
    message = wire_grpc.encode_infer_response(respond(scores, fp32("Z")), wanted, labels, has_batch_dim=True)
    found = read_response(message)

    assert [described(output) for output in found.outputs] == [("Y", "BYTES", (2, 2)), ("Z", "FP32", (2,))]
    assert found.raw_output_contents[0] == encode_bytes(
        [b"0.900000:1:dog", b"0.500000:2", b"3.000000:0:cat", b"2.000000:1:dog"]
    )
    found = read_response(wire_grpc.encode_infer_response(respond(scores), wanted))
    assert described(found.outputs[0]) == ("Y", "BYTES", (2,))


def test_what_takes_long_to_sort_is_heavy():
    scores = Tensor("Y", "INT32", (70_000,), np.arange(70_000, dtype=np.int32))
    message = wire_grpc.encode_infer_response(respond(scores), listed(Y=1))

    assert message.is_heavy
    assert not message.is_complete
    assert read_response(message).raw_output_contents[0] == encode_bytes([b"69999:69999"])


def test_an_output_without_an_order_cannot_be_classified():
    with pytest.raises(InvalidArgument, match="class result not available"):
        joined(wire_grpc.encode_infer_response(respond(strings(b"x")), listed(S=1)))


# Shared memory


def test_outputs_in_shared_memory_have_an_empty_entry():
    memory = bytearray(32)
    wanted = listed(A=region(memory, 4, 12), S=region(memory, 20), B=None)
    message = wire_grpc.encode_infer_response(respond(fp32("A"), fp32("B"), strings(b"xy")), wanted)
    found = read_response(message)

    assert [described(output) for output in found.outputs] == [
        ("A", "FP32", (2,)),
        ("B", "FP32", (2,)),
        ("S", "BYTES", (1,)),
    ]
    assert [len(content) for content in found.raw_output_contents] == [0, 8, 0]
    assert memory[4:12] == np.array([0, 1], np.float32).tobytes()
    assert memory[20:26] == encode_bytes([b"xy"])
    assert memory[:4] + memory[12:20] + memory[26:] == bytes(18)


def test_a_strided_output_is_written_row_major():
    memory = bytearray(24)
    view = np.arange(6, dtype=np.int32).reshape(2, 3).T
    joined(
        wire_grpc.encode_infer_response(respond(Tensor("Y", "INT32", (3, 2), view)), listed(Y=region(memory)))
    )

    assert memory == view.tobytes()


def test_a_region_that_is_too_small_is_told():
    with pytest.raises(Internal) as caught:
        joined(wire_grpc.encode_infer_response(respond(fp32()), listed(Y=region(bytearray(7)))))

    assert caught.value.message == (
        "shared memory size specified with the request for output 'Y' (7 bytes) should be at least 8 bytes to hold the "
        "results"
    )


def test_much_to_copy_is_heavy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoded, "MAX_COPY_BYTES", 7)
    memory = bytearray(8)
    message = wire_grpc.encode_infer_response(respond(fp32()), listed(Y=region(memory)))

    assert message.is_heavy
    assert memory == bytes(8)
    joined(message)
    assert memory == np.array([0, 1], np.float32).tobytes()


# Streams


@pytest.mark.parametrize("final", [None, False, True])
@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_a_stream_response_wraps_the_response(final, size):
    response = respond(fp32(shape=(size,)), id="7", parameters={"p": 1})
    message = wire_grpc.encode_infer_response(response, ALL, final=final, stream=True)
    found = StreamResponse.FromString(joined(message))

    assert found.error_message == ""
    inner = found.infer_response
    plain = read_response(wire_grpc.encode_infer_response(response, ALL, final=final))
    assert inner == plain
    expected = {"p"} if final is None else {"p", "triton_final_response"}
    assert set(inner.parameters) == expected
    if final is not None:
        entry = inner.parameters["triton_final_response"]
        assert entry.WhichOneof("parameter_choice") == "bool_param"
        assert entry.bool_param is final


def test_a_stream_error_names_the_request():
    found = StreamResponse.FromString(wire_grpc.encode_stream_error("what was wrong", id="7"))

    expected = StreamResponse(error_message="what was wrong")
    expected.infer_response.id = "7"
    assert found == expected


@pytest.mark.parametrize(("version", "expected"), [(-1, ""), (0, "0"), (12, "12")])
def test_a_stream_error_of_inference_names_the_model(version, expected):
    data = wire_grpc.encode_stream_error("x" * 300, id="7", model_name="m", model_version=version)
    found = StreamResponse.FromString(data)

    assert found.error_message == "x" * 300
    inner = found.infer_response
    assert (inner.id, inner.model_name, inner.model_version) == ("7", "m", expected)
    assert not inner.parameters


def test_a_stream_error_of_inference_may_end_the_request():
    data = wire_grpc.encode_stream_error("x", id="7", final=True)

    assert StreamResponse.FromString(data).infer_response.parameters["triton_final_response"].bool_param


def test_an_error_without_an_id_still_has_a_response():
    assert StreamResponse.FromString(wire_grpc.encode_stream_error("x")).HasField("infer_response")


def test_the_end_of_a_request_is_a_response_without_outputs():
    found = StreamResponse.FromString(wire_grpc.encode_stream_final(id="7", model_name="m", model_version=-1))

    assert found.error_message == ""
    inner = found.infer_response
    assert (inner.id, inner.model_name, inner.model_version, len(inner.outputs)) == ("7", "m", "", 0)
    assert inner.parameters["triton_final_response"].bool_param


# Limits


def test_a_message_that_clients_would_refuse_is_not_sent(monkeypatch: pytest.MonkeyPatch):
    response = respond(fp32(shape=(10_000,)))
    size = wire_grpc.encode_infer_response(response, ALL).nbytes
    monkeypatch.setattr(infer_response, "MAX_MESSAGE_BYTES", size)
    assert wire_grpc.encode_infer_response(response, ALL).nbytes == size
    monkeypatch.setattr(infer_response, "MAX_MESSAGE_BYTES", size - 1)

    with pytest.raises(InvalidArgument) as caught:
        wire_grpc.encode_infer_response(response, ALL)
    assert caught.value.message == (
        f"Response has byte size {size} which exceeds gRPC's byte size limit {size - 1}."
    )


def test_tables_of_fragments_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoded, "_MAX_FRAGMENTS", 3)
    for size in range(1, 9):
        found = read_response(wire_grpc.encode_infer_response(respond(fp32(shape=(size,))), ALL))
        assert tuple(found.outputs[0].shape) == (size,)

    assert len(infer_response._output_fragments) <= 3
