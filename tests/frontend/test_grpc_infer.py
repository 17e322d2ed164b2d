"""``ModelInfer`` over a fake engine: what takes time goes beside the loop, what has no room for its answer waits."""

from __future__ import annotations

import gzip
import threading

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from bireme.config import parse_text
from bireme.engine.validation import RequestValidator
from bireme.types import BackendFailed, InferenceResponse, NotFound, QueueFull, encode_bytes
from bireme.wire.grpc.status import Status
from grpc_calls import INFER
from grpc_fakes import (
    BYTES_MODEL,
    DECOUPLED,
    TEXTS,
    GrpcClient,
    GrpcScene,
    classifying,
    framed,
    in_loop,
    make_infer,
    read_infer,
    turns,
    typed_request,
)
from http_fakes import FakeConfig, FakeModel, tensor

X = np.arange(4, dtype=np.float32)

# On the way in


@in_loop
async def test_many_typed_values_are_decoded_in_a_thread():
    scene = GrpcScene()

    answer = await scene.finish(scene.client.ask(INFER, typed_request(50_000)))

    assert answer.status == 0
    assert read_infer(answer.messages[0]).outputs[0].shape == [50_000]
    assert scene.num_held == 0


@in_loop
async def test_large_bytes_are_checked_in_a_thread_by_the_model_that_is_there_then():
    scene = GrpcScene()
    validator = RequestValidator(parse_text(BYTES_MODEL, "config.pbtxt"))
    threads = []

    class Watched(RequestValidator):
        def check_bytes(self, request):
            threads.append(threading.current_thread())
            scene.server.models["m"] = reloaded
            validator.check_bytes(request)

    reloaded = FakeModel(version=2)
    scene.server.models["m"] = FakeModel(validator=Watched(parse_text(BYTES_MODEL, "config.pbtxt")))

    answer = await scene.finish(scene.client.infer(X=TEXTS))

    assert answer.status == 0
    assert threads != [threading.main_thread()]
    assert not scene.server.submitted[0].inputs["X"].is_encoded


@in_loop
async def test_broken_bytes_are_the_client_s_error():
    scene = GrpcScene()
    scene.server.models["m"] = FakeModel(validator=RequestValidator(parse_text(BYTES_MODEL, "config.pbtxt")))
    message = service_pb2.ModelInferRequest.FromString(make_infer(X=TEXTS))
    message.raw_input_contents[0] = message.raw_input_contents[0][:-1]

    answer = await scene.finish(scene.client.ask(INFER, message.SerializeToString()))

    assert answer.status == Status.INVALID_ARGUMENT
    assert scene.server.submitted == []


@in_loop
async def test_a_client_may_leave_while_its_bytes_are_checked():
    scene = GrpcScene()
    scene.server.models["m"] = FakeModel(validator=RequestValidator(parse_text(BYTES_MODEL, "config.pbtxt")))
    stream = scene.client.infer(X=TEXTS)

    await turns(1)
    scene.client.h2.reset_stream(stream)
    scene.client.flush()
    await scene.api.settle(1.0)

    assert scene.server.submitted == []
    assert scene.num_held == 0
    assert scene.statuses == {Status.CANCELLED: 1}


@in_loop
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("gone"), Status.NOT_FOUND),
        (QueueFull("full"), Status.UNAVAILABLE),
        (BackendFailed("broken"), Status.INTERNAL),
    ],
)
async def test_errors_of_the_engine_keep_their_meaning(error, status):
    scene = GrpcScene()
    scene.server.submit_error = error

    answer = scene.client.answer(scene.client.infer(X=X))

    assert (answer.status, answer.headers["grpc-message"]) == (status, error.message)


@in_loop
async def test_garbage_is_unreadable():
    scene = GrpcScene()

    answer = scene.client.answer(scene.client.ask(INFER, b"\xff\xff"))

    assert answer.status == Status.INTERNAL
    assert answer.headers["grpc-message"].startswith("Unable to parse request")


@in_loop
async def test_a_decoupled_model_needs_a_stream():
    scene = GrpcScene()
    policy = parse_text(DECOUPLED, "config.pbtxt").model_transaction_policy
    scene.server.models["m"] = FakeModel(config=FakeConfig(policy))

    answer = scene.client.answer(scene.client.infer(X=X))

    assert answer.status == Status.UNIMPLEMENTED
    assert "doesn't support models with decoupled" in answer.headers["grpc-message"]


@in_loop
async def test_a_server_that_is_shutting_down_takes_no_more():
    scene = GrpcScene()
    scene.api.is_accepting = False

    answer = scene.client.answer(scene.client.infer(X=X))

    assert answer.status == Status.UNAVAILABLE
    assert answer.headers["grpc-message"].startswith("GRPC server is shutting down")


# On the way out


@in_loop
async def test_an_error_of_the_model_ends_the_call():
    scene = GrpcScene()
    scene.server.holds = True
    stream = scene.client.infer(X=X)
    (request,) = scene.server.held

    request.respond(request, InferenceResponse("m", 1, error=BackendFailed("bad run")))

    assert scene.client.answer(stream).headers["grpc-message"] == "bad run"


@in_loop
async def test_a_second_response_is_an_error_and_the_request_is_taken_back():
    scene = GrpcScene()
    scene.server.holds = True
    stream = scene.client.infer(X=X)

    scene.server.answer(scene.server.held[0], final=False)
    scene.server.answer(scene.server.held[0])

    assert scene.client.answer(stream).headers["grpc-message"].startswith("expected a single response")
    assert scene.server.cancelled == scene.server.held
    assert scene.statuses == {Status.INTERNAL: 1}


@in_loop
@pytest.mark.parametrize("size", [10, 200_000], ids=["on the loop", "in a thread"])
async def test_classification(size):
    scene = GrpcScene()

    answer = await scene.finish(scene.client.ask(INFER, classifying(1, size)))

    (raw,) = read_infer(answer.messages[0]).raw_output_contents
    assert raw[4:].endswith(f":{size - 1}".encode())


@in_loop
async def test_a_response_that_cannot_be_encoded_is_an_error():
    scene = GrpcScene()
    scene.server.holds = True
    stream = scene.client.ask(INFER, classifying(2, 4))

    scene.server.answer(scene.server.held[0], [tensor("X", TEXTS)])

    assert scene.client.answer(stream).status == Status.INVALID_ARGUMENT


@in_loop
async def test_large_responses_are_compressed_in_a_thread():
    scene = GrpcScene(response_compression_level="medium")
    values = np.zeros(100_000, np.float32)

    answer = await scene.finish(scene.client.infer(("grpc-accept-encoding", "gzip"), X=values))

    assert answer.headers["grpc-encoding"] == "gzip"
    assert answer.data[0] == 1
    assert read_infer(gzip.decompress(answer.messages[0])).raw_output_contents[0] == values.tobytes()
    assert scene.ended[0]["bytes_out"] == len(answer.messages[0])


@in_loop
async def test_a_client_may_leave_while_its_response_is_compressed():
    scene = GrpcScene(response_compression_level="medium")
    stream = scene.client.infer(("grpc-accept-encoding", "gzip"), X=np.zeros(100_000, np.float32))
    await turns(1)

    scene.client.leave()
    await scene.api.stop()

    assert scene.statuses == {Status.CANCELLED: 1}
    assert not scene.client.answers[stream].data


@in_loop
async def test_objects_are_encoded_step_by_step():
    scene = GrpcScene()
    scene.server.holds = True
    texts = np.array([b"ab"] * 70_000, dtype=np.object_)
    stream = scene.client.infer(X=X)

    scene.server.answer(scene.server.held[0], [tensor("Y", texts)])
    answer = await scene.finish(stream)

    assert read_infer(answer.messages[0]).raw_output_contents[0] == encode_bytes(list(texts))


# Waiting for room


def greedy(scene: GrpcScene, number: int, size: int = 50_000) -> list[int]:
    """Ask for answers of ``size`` floats each, from a client that takes none."""
    return [scene.client.infer(X=np.zeros(size, np.float32)) for _ in range(number)]


@in_loop
async def test_requests_begin_as_their_client_takes_earlier_answers():
    scene = GrpcScene(max_unsent_bytes=500_000, client={"opens_windows": False})

    streams = greedy(scene, 6)

    num_begun = len(scene.server.submitted)
    assert 1 <= num_begun <= 3
    assert scene.num_held > 3 * 200_000
    scene.client.h2.increment_flow_control_window(1 << 30)
    for stream in streams:
        scene.client.h2.increment_flow_control_window(1 << 30, stream)
    scene.client.flush()
    for stream in streams:
        assert (await scene.finish(stream)).status == 0
    assert len(scene.server.submitted) == 6
    assert scene.num_held == 0


@in_loop
async def test_no_more_begin_than_have_room_for_their_answers():
    scene = GrpcScene(max_unsent_bytes=500_000)
    scene.client.answer(*greedy(scene, 1))
    scene.server.holds = True
    streams = greedy(scene, 5)
    assert len(scene.server.held) == 2

    for number in (3, 4, 5):
        scene.server.answer(scene.server.held[number - 3])
        await turns()
        scene.client.settle()
        await turns()
        assert len(scene.server.held) == number
    for request in scene.server.held[3:]:
        scene.server.answer(request)
    for stream in streams:
        assert (await scene.finish(stream)).status == 0


@in_loop
async def test_one_large_answer_holds_up_neither_others_nor_for_ever():
    scene = GrpcScene(max_unsent_bytes=500_000)
    scene.client.answer(*greedy(scene, 1, 120_000))
    other = GrpcClient(scene.listener)
    other.answer(other.infer(X=X))
    scene.server.holds = True
    for _ in range(5):
        other.infer(X=X)
    assert len(scene.server.held) == 5

    greedy(scene, 5, 10)
    assert len(scene.server.held) == 6
    scene.server.holds = False
    scene.server.answer(scene.server.held[-1])
    scene.client.settle()
    await turns(10)
    greedy(scene, 40, 10)
    scene.client.settle()
    scene.server.holds = True
    greedy(scene, 5, 10)

    assert len(scene.server.held) == 11


@in_loop
async def test_calls_that_wait_are_forgotten_with_their_client_and_let_others_pass():
    scene = GrpcScene(max_unsent_bytes=500_000)
    scene.client.answer(*greedy(scene, 1))
    scene.server.holds = True
    streams = greedy(scene, 4)
    assert len(scene.server.held) == 2
    compressed = scene.client.open_grpc(INFER, ("grpc-encoding", "gzip"))
    scene.client.send(compressed, framed(gzip.compress(make_infer(X=X)), is_compressed=True), is_end=True)

    for stream in streams:
        scene.client.h2.reset_stream(stream)
    scene.client.flush()
    scene.server.holds = False

    assert (await scene.finish(compressed)).status == 0
    assert len(scene.server.submitted) == 4
    assert scene.num_held == 0
    assert not scene.connection._waiting
    assert scene.connection._num_expected == 0


@in_loop
async def test_a_model_may_go_while_a_request_waits():
    scene = GrpcScene(max_unsent_bytes=500_000)
    scene.client.answer(*greedy(scene, 1))
    scene.server.holds = True
    streams = greedy(scene, 3)
    del scene.server.models["m"]

    scene.server.answer(scene.server.held[0])

    assert (await scene.finish(streams[2])).status == Status.NOT_FOUND
    assert len(scene.server.held) == 2
