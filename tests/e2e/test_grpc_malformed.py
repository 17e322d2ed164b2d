"""Case 8 of the users' list over gRPC: whatever a message holds, the answer is a status that helps, and the server lives on."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tritonclient.grpc import service_pb2

from e2e_server import fake_config
from grpc_calls import INFER, SERVER_LIVE, STREAM_INFER, A, B, infer_message

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def channel(server) -> Iterator[grpc.Channel]:
    """A connection on which a call succeeds after the test, too."""
    with grpc.insecure_channel(server.grpc_address) as made:
        yield made
        live = made.unary_unary(SERVER_LIVE, response_deserializer=service_pb2.ServerLiveResponse.FromString)
        assert live(b"").live


def ask(channel: grpc.Channel, message: bytes) -> tuple[grpc.StatusCode, str]:
    """Send a message that is wrong, alone and on a stream; return the status and the text of the call."""
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(INFER)(message, timeout=10)
    return caught.value.code(), caught.value.details()


def tensor(shape: list[int], datatype: str = "INT32", **contents: list) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=f"identity_{datatype.lower()}")
    item = message.inputs.add(name="X", datatype=datatype, shape=shape)
    for field, values in contents.items():
        if field == "raw":
            message.raw_input_contents.extend(values)
        else:
            getattr(item.contents, field).extend(values)
    return message


@pytest.mark.parametrize(
    "message",
    [
        tensor([-1, 8], "UINT8", raw=[bytes(8)]),
        tensor([1, -8], "UINT8", raw=[bytes(8)]),
        tensor([2**62, 2**62], "UINT8", raw=[bytes(8)]),
        tensor([2], raw=[bytes(9)]),
        tensor([2], raw=[b""]),
        tensor([2], raw=[]),
        tensor([1, 1], raw=[bytes(4)]),
        tensor([2], int_contents=[1]),
        tensor([2], int_contents=[1, 2, 3]),
        tensor([1], fp32_contents=[1]),
        tensor([1], int_contents=[1], fp32_contents=[1]),
        tensor([1], int_contents=[1], raw=[bytes(4)]),
        tensor([1], "FP16", fp32_contents=[1]),
        tensor([2], "BYTES", raw=[b"\x09\0\0\0short"]),
        tensor([1], "BYTES", raw=[b"\x01\0\0\0a\x01\0\0\0b"]),
        tensor([1], "BYTES", raw=[b"\xff\xff\xff\xff"]),
    ],
    ids=lambda message: str(message.inputs[0]).replace("\n", " ")[:60],
)
def test_a_wrong_tensor_is_named(channel, message):
    code, details = ask(channel, message.SerializeToString())

    assert code is INVALID
    assert "'X'" in details


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("sequence_id", {"bool_param": True}, "sequence_id"),
        ("sequence_start", {"int64_param": 1}, "sequence_start"),
        ("priority", {"int64_param": -1}, "priority"),
        ("priority", {"string_param": "high"}, "priority"),
        ("timeout", {"string_param": "1"}, "timeout"),
        ("triton_anything", {"bool_param": True}, "triton_"),
        ("mine", {"uint64_param": 1}, "mine"),
        ("mine", {}, "mine"),
    ],
)
def test_a_wrong_parameter_is_named(channel, key, value, text):
    message = infer_message("add", INPUT0=A, INPUT1=B)
    message.parameters[key].CopyFrom(service_pb2.InferParameter(**value))
    code, details = ask(channel, message.SerializeToString())

    assert code is INVALID
    assert text in details


def test_a_shape_that_fits_no_batch_is_refused(start_fake):
    server, _ = start_fake({"m": fake_config("m", dims="[2]", max_batch_size=4)})
    with grpc.insecure_channel(server.grpc_address) as own:
        for shape in ((), (2,), (5, 2), (0, 2), (1, 3)):
            code, details = ask(own, infer_message("m", X=np.zeros(shape, np.float32)).SerializeToString())
            assert code is INVALID
            assert "'m'" in details


def test_the_same_on_a_stream_are_messages(channel):
    stream = channel.stream_stream(
        STREAM_INFER, response_deserializer=service_pb2.ModelStreamInferResponse.FromString
    )
    wrong = tensor([2], raw=[bytes(9)])
    wrong.id = "wrong"
    right = tensor([2], raw=[bytes(8)])
    right.id = "right"
    answers = list(stream(iter([wrong.SerializeToString(), right.SerializeToString()]), timeout=10))

    assert "'X'" in answers[0].error_message
    assert answers[0].infer_response.id == "wrong"
    assert not answers[1].error_message
    assert answers[1].infer_response.id == "right"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_message_is_an_error_or_an_answer(channel, data):
    message = bytearray(infer_message("add", id="id", INPUT0=A, INPUT1=B).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(1, len(message))) :]
    try:
        channel.unary_unary(INFER)(bytes(message), timeout=10)
    except grpc.RpcError as error:
        assert error.code() in {  # noqa: PT017
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.NOT_FOUND,
        }
        assert error.details()  # noqa: PT017
