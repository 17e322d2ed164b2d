"""``ModelStreamInfer`` over a fake engine: order, errors as messages, strict mode, ends of every kind."""

from __future__ import annotations

import gzip
import logging

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from bireme.config import parse_text
from bireme.engine.validation import RequestValidator
from bireme.frontend.grpc import connection
from bireme.types import BackendFailed, InferenceResponse, Internal, InvalidArgument
from bireme.wire.encoded import Encoded
from bireme.wire.grpc.status import Status
from grpc_fakes import (
    BYTES_MODEL,
    DECOUPLED,
    INFER,
    STREAM_INFER,
    TEXTS,
    GrpcScene,
    classifying,
    framed,
    in_loop,
    make_infer,
    read_stream,
    turns,
    typed_request,
)
from http_fakes import FakeConfig, FakeModel, FakeServer, Owner, tensor

X = np.arange(4, dtype=np.float32)
STRICT = ("triton_grpc_error", "true")
GZIP = ("grpc-encoding", "gzip")
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


class Stream:
    """One call of a `GrpcScene`."""

    def __init__(
        self, *extra: tuple[str, str], holds: bool = False, decoupled: bool = False, **options
    ) -> None:
        self.scene = GrpcScene(FakeServer(), **options)
        self.server = self.scene.server
        self.server.holds = holds
        if decoupled:
            policy = parse_text(DECOUPLED, "config.pbtxt").model_transaction_policy
            self.server.models["d"] = FakeModel("d", config=FakeConfig(policy))
        self.client = self.scene.client
        self.id = self.client.open_grpc(STREAM_INFER, *extra)

    def send(self, *messages: bytes, is_end: bool = False, is_compressed: bool = False) -> None:
        """Send requests, all in one piece."""
        data = b"".join(framed(message, is_compressed=is_compressed) for message in messages)
        self.client.send(self.id, data, is_end=is_end)

    def ask(self, *names: str, model: str = "m", is_end: bool = False, **settings) -> None:
        """Send a small request for each of ``names``."""
        self.send(*(make_infer(model, id=name, X=X, **settings) for name in names), is_end=is_end)

    def end(self) -> None:
        self.client.send(self.id, b"", is_end=True)

    @property
    def answer(self):
        return self.client.answer(self.id)

    @property
    def messages(self) -> list:
        return [read_stream(message) for message in self.answer.messages]

    @property
    def ids(self) -> list[str]:
        return [message.infer_response.id for message in self.messages]

    def respond(self, index: int, *outputs, **settings) -> None:
        """Answer a held request."""
        self.server.answer(self.server.held[index], outputs or None, **settings)


# Order


@in_loop
async def test_one_call_has_any_number_of_answers_and_ends_well():
    stream = Stream()

    stream.ask("1", "2")
    stream.ask("3", is_end=True)

    assert stream.ids == ["1", "2", "3"]
    assert all(m.infer_response.parameters["triton_final_response"].bool_param for m in stream.messages)
    assert stream.answer.status == 0
    assert stream.scene.statuses == {0: 1}
    assert stream.scene.ended[0]["bytes_out"] == sum(map(len, stream.answer.messages))
    assert stream.scene.ended[0]["bytes_in"] == 3 * len(make_infer(id="1", X=X))
    assert stream.scene.num_held == 0


@in_loop
async def test_responses_keep_the_order_of_their_requests():
    stream = Stream(holds=True)
    stream.ask("1", "2", "3", is_end=True)

    stream.respond(2)
    stream.respond(1)
    assert stream.ids == []
    stream.respond(0)

    assert stream.ids == ["1", "2", "3"]
    assert stream.answer.status == 0


@in_loop
async def test_an_error_waits_for_its_turn_too():
    stream = Stream(holds=True)

    stream.ask("1")
    stream.ask("2", model="absent", is_end=True)
    assert stream.ids == []
    stream.respond(0)

    assert stream.ids == ["1", "2"]
    assert stream.messages[1].error_message == "Request for unknown model: 'absent' is not found"
    assert stream.answer.status == 0


@in_loop
async def test_requests_keep_their_order_while_one_is_decoded_beside_the_loop():
    stream = Stream(GZIP)
    validator = RequestValidator(parse_text(BYTES_MODEL, "config.pbtxt"))
    stream.server.models["m"] = FakeModel(validator=validator)
    packed = gzip.compress(make_infer(id="texts", X=TEXTS), 0)

    stream.send(typed_request(50_000))
    stream.send(packed, is_compressed=True)
    stream.send(gzip.compress(make_infer(id="small", X=X)), is_compressed=True)
    stream.send(make_infer(id="last", X=TEXTS), is_end=True)
    await stream.scene.finish(stream.id)

    expected = ["typed", "texts", "small", "last"]
    assert [request.id for request in stream.server.submitted] == expected
    assert stream.ids == expected
    assert stream.scene.num_held == 0


@in_loop
async def test_a_thousand_requests_in_one_piece_are_no_recursion():
    stream = Stream(max_held_requests=1, holds=True)
    message = framed(make_infer(id="x", X=X))
    stream.client.send(stream.id, message * 1000, is_end=True)
    assert len(stream.server.held) == 1

    stream.server.holds = False
    stream.respond(0)
    await stream.scene.finish(stream.id)

    assert len(stream.ids) == 1000
    assert stream.answer.status == 0


@in_loop
async def test_no_more_than_so_many_requests_are_held():
    stream = Stream(holds=True, max_held_requests=2)

    stream.ask("1", "2", "3", "4")
    assert [request.id for request in stream.server.held] == ["1", "2"]
    stream.respond(1)
    assert len(stream.server.held) == 2  # its response is held for its turn
    stream.respond(0)

    assert [request.id for request in stream.server.held] == ["1", "2", "3", "4"]


@in_loop
async def test_large_responses_that_are_compressed_in_threads_keep_their_order():
    stream = Stream(("grpc-accept-encoding", "gzip"), response_compression_level="low")
    sizes = [100_000, 4, 50_000, 4]

    stream.send(*(make_infer(id=str(n), X=np.zeros(n, np.float32)) for n in sizes), is_end=True)
    answer = await stream.scene.finish(stream.id)

    flags = [answer.data[0]]
    assert flags == [1]
    position, ids = 0, []
    while position < len(answer.data):
        flag, size = answer.data[position], int.from_bytes(answer.data[position + 1 : position + 5], "big")
        body = bytes(answer.data[position + 5 : position + 5 + size])
        ids.append(read_stream(gzip.decompress(body) if flag else body).infer_response.id)
        position += 5 + size
    assert ids == [str(size) for size in sizes]


# Decoupled models


@in_loop
async def test_responses_of_decoupled_models_leave_as_they_come():
    stream = Stream(holds=True, decoupled=True)
    stream.ask("1")
    stream.ask("2", "3", model="d")

    stream.respond(2, final=False)
    stream.respond(1, final=False)
    stream.respond(2, final=True)
    assert stream.ids == ["3", "2", "3"]
    finals = [m.infer_response.parameters["triton_final_response"].bool_param for m in stream.messages]
    assert finals == [False, False, True]
    stream.respond(0)
    stream.end()
    assert not stream.answer.is_complete
    stream.respond(1, final=True)

    assert stream.ids == ["3", "2", "3", "1", "2"]
    assert stream.answer.status == 0


@in_loop
@pytest.mark.parametrize("wants", [True, False])
async def test_an_empty_end_is_told_to_those_who_asked(wants):
    stream = Stream(holds=True, decoupled=True)
    message = service_pb2.ModelInferRequest.FromString(make_infer("d", id="1", X=X))
    message.parameters["triton_enable_empty_final_response"].bool_param = wants
    stream.send(message.SerializeToString(), is_end=True)
    (request,) = stream.server.held

    stream.respond(0, final=False)
    request.respond(request, InferenceResponse("d", 1, "1", flag_only=True))

    assert stream.ids == (["1", "1"] if wants else ["1"])
    if wants:
        assert stream.messages[1].infer_response.parameters["triton_final_response"].bool_param
        assert not stream.messages[1].infer_response.outputs
        assert not stream.messages[1].infer_response.model_version, "only the version that was asked for"
    assert stream.answer.status == 0


@in_loop
async def test_a_decoupled_model_whose_responses_nobody_reads_is_stopped():
    stream = Stream(holds=True, decoupled=True, max_unsent_bytes=300_000, client={"opens_windows": False})
    stream.ask("1", model="d")

    for _ in range(100):
        stream.respond(0, tensor("Y", np.zeros(10_000, np.float32)), final=False)

    call_statuses = stream.scene.statuses
    assert call_statuses == {Status.RESOURCE_EXHAUSTED: 1}
    assert stream.server.cancelled == stream.server.held
    assert stream.scene.connection._sum_unsent() < 400_000
    assert stream.scene.connection._num_expected == 0


@in_loop
async def test_a_decoupled_model_waits_for_a_client_that_does_not_read():
    stream = Stream(holds=True, decoupled=True, max_unsent_bytes=800_000, client={"opens_windows": False})
    stream.ask("1", model="d")
    (owner,) = map(Owner, stream.server.held)

    for _ in range(10):
        stream.respond(0, tensor("Y", np.zeros(10_000, np.float32)), final=False)
    assert owner.events == ["hold"]
    stream.client.h2.increment_flow_control_window(1 << 30)
    stream.client.h2.increment_flow_control_window(100_000, stream.id)
    stream.client.flush()
    await turns()
    assert owner.events == ["hold"]
    stream.client.h2.increment_flow_control_window(1 << 30, stream.id)
    stream.client.flush()
    await turns()

    assert owner.events == ["hold", "resume"]
    stream.respond(0, final=True, flag_only=True)
    stream.end()
    assert (await stream.scene.finish(stream.id)).status == 0
    assert len(stream.messages) == 10


@in_loop
async def test_a_decoupled_model_waits_for_responses_that_are_compressed():
    stream = Stream(
        ("grpc-accept-encoding", "gzip"),
        response_compression_level="low",
        holds=True,
        decoupled=True,
        max_unsent_bytes=800_000,
    )
    stream.ask("1", model="d")
    (owner,) = map(Owner, stream.server.held)

    for _ in range(10):
        stream.respond(0, tensor("Y", np.zeros(10_000, np.float32)), final=False)
    events = [*owner.events]
    await stream.scene.turn(lambda: len(owner.events) == 2)

    assert (events, owner.events) == (["hold"], ["hold", "resume"])


# Errors


@in_loop
async def test_an_inference_that_fails_is_a_message_and_the_stream_goes_on():
    stream = Stream(holds=True)
    stream.ask("1", "2")
    request = stream.server.held[0]

    request.respond(request, InferenceResponse("m", 1, error=BackendFailed("bad run")))
    stream.respond(1)

    failed = stream.messages[0]
    assert failed.error_message == "bad run"
    assert (failed.infer_response.id, failed.infer_response.model_name) == ("1", "m")
    assert stream.ids == ["1", "2"]


@in_loop
async def test_strict_mode_ends_with_the_first_failure_and_takes_the_others_back():
    stream = Stream(STRICT, holds=True)
    stream.ask("1", "2", "3")
    stream.ask("4", model="absent")  # not an inference yet: a message, if its turn came
    request = stream.server.held[1]

    request.respond(request, InferenceResponse("m", 1, error=Internal("bad run")))

    assert stream.answer.status == Status.INTERNAL
    assert stream.answer.headers["grpc-message"] == "bad run"
    assert stream.server.cancelled == [stream.server.held[0], stream.server.held[2]]
    assert stream.scene.num_held == 0
    stream.respond(0)
    assert stream.ids == []


@in_loop
async def test_strict_mode_still_tells_what_never_began_by_a_message():
    stream = Stream(STRICT)

    stream.ask("1", model="absent")
    stream.ask("2", is_end=True)

    assert stream.ids == ["1", "2"]
    assert stream.answer.status == 0


@in_loop
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("size", [4, 200_000], ids=["at once", "in a thread"])
async def test_a_response_that_cannot_be_encoded_is_an_inference_that_failed(strict, size, monkeypatch):
    stream = Stream(*([STRICT] if strict else []), holds=True)
    stream.send(classifying(1, size))
    texts = tensor("X", TEXTS)
    if size > 4:

        def refuse(_):
            raise InvalidArgument("cannot be classified")

        monkeypatch.setattr(Encoded, "advance", refuse)

    stream.respond(0, *([texts] if size == 4 else []))
    stream.end()
    await stream.scene.finish(stream.id)

    assert stream.answer.status == (Status.INVALID_ARGUMENT if strict else 0)
    if not strict:
        assert stream.messages[0].error_message
        assert stream.messages[0].infer_response.parameters["triton_final_response"].bool_param


@in_loop
async def test_unforeseen_exceptions_are_logged_and_told_without_their_text(caplog):
    stream = Stream()
    stream.server.submit_error = ZeroDivisionError("secret")

    with caplog.at_level(logging.ERROR):
        stream.ask("1", is_end=True)

    assert stream.messages[0].error_message == "internal error; the server's log has the details"
    assert "ZeroDivisionError: secret" in caplog.text
    assert stream.answer.status == 0


@in_loop
@pytest.mark.parametrize(
    "data",
    [
        framed(b"\xff\xff"),
        framed(b"garbage", is_compressed=True),
        framed(b"garbage" * 1000, is_compressed=True),
        b"\x05aaaaaaaaaa",
    ],
    ids=["no request", "no gzip", "much that is no gzip", "no frame"],
)
async def test_what_is_no_message_ends_the_call_and_takes_its_requests_back(data):
    stream = Stream(GZIP, holds=True)
    stream.ask("1")

    stream.client.send(stream.id, data)
    await stream.scene.finish(stream.id)

    assert stream.answer.status == Status.INTERNAL
    assert stream.server.cancelled == stream.server.held
    assert stream.scene.statuses == {Status.INTERNAL: 1}
    assert stream.scene.num_held == 0
    assert stream.scene.connection._num_expected == 0


@in_loop
async def test_what_messages_inflate_to_counts_as_received():
    stream = Stream(GZIP, holds=True, max_receive_bytes=1_200_000)
    packed = gzip.compress(make_infer(X=np.zeros(200_000, np.float32)))

    stream.send(packed, is_compressed=True)
    small = gzip.compress(make_infer(X=X))
    stream.send(small, is_compressed=True)
    await stream.scene.turn(lambda: len(stream.server.held) == 2)
    sizes = len(packed) + 800_000 + len(small)
    assert sizes < stream.scene.num_held < sizes + 3000
    stream.send(packed, is_compressed=True)

    assert (await stream.scene.finish(stream.id)).status == Status.RESOURCE_EXHAUSTED
    assert stream.scene.num_held == 0


# Ends


@in_loop
async def test_a_stream_without_requests_ends_well():
    stream = Stream()

    stream.end()

    assert stream.answer.status == 0
    assert stream.answer.headers == {":status": "200", "content-type": "application/grpc"}


@in_loop
async def test_half_close_delivers_what_is_in_flight():
    stream = Stream(holds=True)
    stream.ask("1")
    stream.end()
    assert not stream.answer.is_complete

    stream.respond(0)

    assert stream.ids == ["1"]
    assert stream.answer.status == 0


@in_loop
@pytest.mark.parametrize("how", ["reset", "leave", "deadline"])
async def test_an_early_end_takes_every_request_back(how):
    extra = [("grpc-timeout", "1m")] if how == "deadline" else []
    stream = Stream(*extra, holds=True, decoupled=True, max_held_requests=4)
    stream.ask("1", "2")
    stream.respond(1)  # its response waits for its turn: it is over for the engine
    stream.ask("3", model="d")
    stream.respond(2, final=False)
    stream.ask("4", "5", "6")

    if how == "reset":
        stream.client.h2.reset_stream(stream.id)
        stream.client.flush()
    elif how == "leave":
        stream.client.leave()
    else:
        await stream.scene.finish(stream.id)

    assert [request.id for request in stream.server.cancelled] == ["1", "3", "4"]
    assert stream.scene.statuses == {4 if how == "deadline" else 1: 1}
    assert stream.scene.num_held == 0
    assert stream.scene.connection._num_expected == 0
    for index in (0, 2, 3):
        stream.respond(index)


@in_loop
@pytest.mark.parametrize("message", [typed_request(50_000), make_infer(X=TEXTS)], ids=["decoded", "checked"])
async def test_a_client_may_leave_while_a_request_is_prepared(message):
    stream = Stream()
    validator = RequestValidator(parse_text(BYTES_MODEL, "config.pbtxt"))
    stream.server.models["m"] = FakeModel(validator=validator)
    stream.send(message, make_infer(X=X))
    await turns(1)

    stream.client.leave()
    await stream.scene.api.settle(1.0)
    await turns()

    assert stream.server.submitted == []
    assert stream.scene.statuses == {Status.CANCELLED: 1}
    assert stream.scene.num_held == 0


@in_loop
async def test_a_client_may_leave_while_a_response_is_compressed():
    stream = Stream(("grpc-accept-encoding", "gzip"), response_compression_level="low")
    stream.send(make_infer(X=np.zeros(100_000, np.float32)), make_infer(X=X))
    await turns(1)

    stream.client.leave()
    await stream.scene.api.stop()

    assert stream.scene.statuses == {Status.CANCELLED: 1}
    assert stream.scene.num_held == 0


@in_loop
async def test_broken_bytes_are_a_message():
    stream = Stream()
    validator = RequestValidator(parse_text(BYTES_MODEL, "config.pbtxt"))
    stream.server.models["m"] = FakeModel(validator=validator)
    message = service_pb2.ModelInferRequest.FromString(make_infer(id="1", X=TEXTS))
    message.raw_input_contents[0] = message.raw_input_contents[0][:-1]

    stream.send(message.SerializeToString())
    stream.send(make_infer(id="2", X=TEXTS), is_end=True)
    await stream.scene.finish(stream.id)

    assert stream.ids == ["1", "2"]
    assert stream.messages[0].error_message
    assert not stream.messages[1].error_message


# Draining


@in_loop
async def test_an_idle_stream_ends_when_the_server_drains():
    stream = Stream()
    stream.ask("1")

    stream.scene.connection.drain()

    assert stream.answer.status == Status.UNAVAILABLE
    assert stream.answer.trailers["grpc-message"] == SHUTTING_DOWN
    assert stream.client.transport.is_closed


@in_loop
async def test_a_busy_stream_ends_after_its_last_response_when_the_server_drains():
    stream = Stream(holds=True)
    stream.ask("1", "2")

    stream.scene.connection.drain()
    assert not stream.answer.is_complete
    stream.respond(0)
    stream.respond(1)

    assert stream.ids == ["1", "2"]
    assert stream.answer.status == Status.UNAVAILABLE
    assert stream.client.transport.is_closed


@in_loop
async def test_requests_that_come_while_the_server_shuts_down_are_refused_one_by_one():
    stream = Stream()
    stream.scene.api.is_accepting = False

    stream.ask("1", is_end=True)

    assert stream.messages[0].error_message == SHUTTING_DOWN
    assert stream.answer.status == 0


# Waiting for room


@in_loop
async def test_requests_begin_as_their_client_takes_earlier_responses():
    stream = Stream(max_unsent_bytes=500_000, client={"opens_windows": False})
    message = make_infer(X=np.zeros(50_000, np.float32))

    stream.send(*[message] * 6, is_end=True)
    assert 1 <= len(stream.server.submitted) <= 3
    stream.client.h2.increment_flow_control_window(1 << 30)
    stream.client.h2.increment_flow_control_window(1 << 30, stream.id)
    stream.client.flush()
    await stream.scene.finish(stream.id)

    assert len(stream.answer.messages) == 6
    assert stream.answer.status == 0
    assert stream.scene.num_held == 0


@in_loop
async def test_streams_that_wait_take_turns():
    stream = Stream(max_unsent_bytes=500_000, client={"opens_windows": False})
    message = make_infer(X=np.zeros(50_000, np.float32))
    streams = [stream.id, *(stream.client.open_grpc(STREAM_INFER) for _ in range(2))]
    for each in streams:
        stream.client.send(each, framed(message) * 4, is_end=True)
    await turns()

    stream.client.h2.increment_flow_control_window(1 << 30)
    for each in streams:
        stream.client.h2.increment_flow_control_window(1 << 30, each)
    stream.client.flush()

    for each in streams:
        answer = await stream.scene.finish(each)
        assert len(answer.messages) == 4
        assert answer.status == 0


@in_loop
async def test_a_burst_of_requests_begins_turn_by_turn(monkeypatch):
    monkeypatch.setattr(connection, "_TURN_S", 0.0)
    stream = Stream()

    stream.ask(*map(str, range(10)), is_end=True)
    assert stream.ids == ["0"]
    await turns(1)
    assert len(stream.ids) < 4
    await stream.scene.finish(stream.id)

    assert stream.ids == [*map(str, range(10))]


@in_loop
@pytest.mark.parametrize("how", ["goes on", "model gone", "leaves"])
async def test_a_decoded_request_that_waits_for_room(how):
    stream = Stream(max_unsent_bytes=500_000)
    large = make_infer(id="large", X=np.zeros(100_000, np.float32))
    stream.client.answer(stream.client.ask(INFER, large))
    stream.server.holds = True
    stream.send(large, large, make_infer(id="small", X=X), is_end=True)
    assert [request.id for request in stream.server.held] == ["large"]

    if how == "leaves":
        stream.client.leave()
        assert stream.scene.statuses == {0: 1, Status.CANCELLED: 1}
    else:
        stream.server.holds = False
        if how == "model gone":
            del stream.server.models["m"]
        stream.respond(0)
        await stream.scene.finish(stream.id)
        assert stream.ids == ["large", "large", "small"]
        assert bool(stream.messages[1].error_message) == (how == "model gone")
        assert stream.answer.status == 0
    assert stream.scene.num_held == 0
    assert stream.scene.connection._num_expected == 0
