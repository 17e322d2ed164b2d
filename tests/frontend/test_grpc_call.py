"""One gRPC call: its messages, its one status, its deadline, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import weakref
import zlib

import numpy as np
import pytest

from bireme.frontend.grpc.call import ENDED, INLINE_INFLATE_SIZE
from bireme.frontend.grpc.infer import InferCall
from bireme.telemetry import log as server_log
from bireme.types import InvalidArgument, Unavailable
from bireme.wire.grpc.status import Status
from grpc_fakes import (
    INFER,
    LIVE,
    STREAM_INFER,
    WATCH,
    GrpcScene,
    framed,
    in_loop,
    make_infer,
    read_infer,
    turns,
)
from grpc_handlers import make_message

X = np.arange(4, dtype=np.float32)
ONE = make_infer(X=X)
LARGE = np.zeros(100_000, np.float32)
GZIP = ("grpc-encoding", "gzip")
DEFLATE = ("grpc-encoding", "deflate")


def holding(**options) -> GrpcScene:
    """A scene whose engine keeps requests until the test answers them."""
    scene = GrpcScene(**options)
    scene.server.holds = True
    return scene


# Messages


@in_loop
async def test_a_call_gets_one_answer_and_counts_once():
    scene = GrpcScene()

    answer = scene.client.answer(scene.client.infer(X=X, id="7"))

    assert answer.status == 0
    (message,) = answer.messages
    assert read_infer(message).id == "7"
    assert scene.statuses == {0: 1}
    assert scene.ended == [
        {
            "path": INFER,
            "status": Status.OK,
            "error": "",
            "bytes_in": len(make_infer(X=X, id="7")),
            "bytes_out": len(message),
            "client": "192.0.2.1",
            "request": True,
        }
    ]


@in_loop
@pytest.mark.parametrize(
    ("messages", "text"), [(b"", "got none"), (framed(ONE) * 2, "got more")], ids=["none", "two"]
)
async def test_a_unary_call_has_exactly_one_message(messages, text):
    scene = GrpcScene()

    stream = scene.client.open_grpc(INFER)
    scene.client.send(stream, messages, is_end=True)
    answer = scene.client.answer(stream)

    assert answer.status == Status.INTERNAL
    assert answer.headers["grpc-message"] == f"expected one request message, {text}"
    assert scene.server.submitted == []
    assert scene.statuses == {Status.INTERNAL: 1}


@in_loop
async def test_headers_that_end_the_stream_are_a_call_without_a_message():
    scene = GrpcScene()

    assert scene.client.answer(scene.client.open_grpc(INFER, is_end=True)).status == Status.INTERNAL


@in_loop
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x02\x00\x00\x00\x01a", Status.INTERNAL),
        (b"\x00\x00\x00\x00\x05abc", Status.INTERNAL),
        (b"\x00\x00", Status.INTERNAL),
        (b"\x00\x7f\x00\x00\x00", Status.RESOURCE_EXHAUSTED),
    ],
    ids=["flags", "cut short", "half a prefix", "too large"],
)
async def test_broken_framing_ends_the_call_alone(data, status):
    scene = GrpcScene(max_message_size=1 << 20)

    stream = scene.client.open_grpc(INFER)
    scene.client.send(stream, data, is_end=True)

    assert scene.client.answer(stream).status == status
    assert scene.client.answer(scene.client.infer(X=X)).status == 0
    assert scene.num_held == 0


@in_loop
async def test_bytes_may_come_one_by_one():
    scene = GrpcScene()
    scene.client.sock.step = 1

    answer = scene.client.answer(scene.client.infer(X=np.arange(2000, dtype=np.float32)))

    assert answer.status == 0
    assert read_infer(answer.messages[0]).outputs[0].shape == [2000]
    assert scene.num_held == 0


# Compression


@in_loop
@pytest.mark.parametrize(("encoding", "compress"), [(GZIP, gzip.compress), (DEFLATE, zlib.compress)])
@pytest.mark.parametrize("size", [4, INLINE_INFLATE_SIZE * 4], ids=["on the loop", "beside it"])
async def test_compressed_messages(encoding, compress, size):
    scene = GrpcScene()
    values = np.random.default_rng(1).random(size, np.float32)

    stream = scene.client.open_grpc(INFER, encoding)
    packed = compress(make_infer(X=values))
    scene.client.send(stream, framed(packed, is_compressed=True), is_end=True)
    answer = await scene.finish(stream)

    assert answer.status == 0
    assert read_infer(answer.messages[0]).raw_output_contents[0] == values.tobytes()
    assert scene.ended[0]["bytes_in"] == len(packed)
    assert scene.num_held == 0


@in_loop
@pytest.mark.parametrize(
    ("extra", "message", "status"),
    [
        ((GZIP,), b"", Status.INTERNAL),
        ((GZIP,), b"garbage", Status.INTERNAL),
        ((GZIP,), b"garbage" * 1000, Status.INTERNAL),
        ((), gzip.compress(ONE), Status.INTERNAL),
        ((GZIP,), gzip.compress(bytes(1 << 20)), Status.RESOURCE_EXHAUSTED),
    ],
    ids=["empty", "garbage", "much garbage", "no encoding", "a bomb"],
)
async def test_messages_that_cannot_be_inflated(extra, message, status):
    scene = GrpcScene(max_message_size=1 << 16)

    stream = scene.client.open_grpc(INFER, *extra)
    scene.client.send(stream, framed(message, is_compressed=True), is_end=True)

    assert (await scene.finish(stream)).status == status
    assert scene.num_held == 0


@in_loop
async def test_what_a_message_inflates_to_counts_as_received():
    scene = holding(max_receive_bytes=100_000)
    packed = gzip.compress(make_infer(X=np.zeros(15_000, np.float32)))

    def ask():
        stream = scene.client.open_grpc(INFER, GZIP)
        scene.client.send(stream, framed(packed, is_compressed=True), is_end=True)
        return stream

    first, second = ask(), ask()

    assert 60_000 < scene.num_held < 61_000
    assert scene.client.answer(second).status == Status.RESOURCE_EXHAUSTED
    scene.server.answer(scene.server.held.pop())
    assert scene.client.answer(first).status == 0
    assert scene.num_held == 0


@in_loop
async def test_a_message_without_the_flag_is_plain_in_a_call_with_an_encoding():
    scene = GrpcScene()

    assert scene.client.answer(scene.client.infer(GZIP, X=X)).status == 0


# Errors


@in_loop
async def test_an_error_is_told_in_one_block_of_headers():
    scene = GrpcScene()
    scene.server.submit_error = InvalidArgument("no é")

    answer = scene.client.answer(scene.client.infer(X=X))

    assert answer.headers == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "3",
        "grpc-message": "no %C3%A9",
    }
    assert scene.ended[0]["error"] == "no é"


@in_loop
async def test_an_unforeseen_exception_is_logged_and_told_without_its_text(caplog):
    scene = GrpcScene()
    scene.server.submit_error = ZeroDivisionError("secret")

    with caplog.at_level(logging.ERROR):
        answer = scene.client.answer(scene.client.infer(X=X))

    assert answer.status == Status.INTERNAL
    assert "secret" not in answer.headers["grpc-message"]
    assert "ZeroDivisionError: secret" in caplog.text
    assert f"InferCall({INFER}, stream 1) failed" in caplog.text
    assert scene.client.answer(scene.client.infer(X=X)).status == Status.INTERNAL


@in_loop
async def test_nothing_that_comes_after_the_status_has_an_effect(caplog):
    scene = holding()
    stream = scene.client.infer(("grpc-timeout", "10S"), X=X)
    call = scene.connection.h2.streams[stream].receiver
    scene.client.h2.reset_stream(stream)
    scene.client.flush()

    with caplog.at_level(logging.ERROR):
        call.take_error(Unavailable("late"))
        assert not caplog.text
        call.take_error(ZeroDivisionError("late"))
    call.answer((b"late",), 4)
    call.send((b"late",), 4)
    call.fail(Status.UNKNOWN, "late")
    call.succeed()
    call.cancel()
    scene.server.answer(scene.server.held[0])

    assert "ZeroDivisionError: late" in caplog.text  # never in silence
    assert scene.statuses == {Status.CANCELLED: 1}
    assert len(scene.ended) == 1


@in_loop
async def test_calls_are_logged_when_asked_for(caplog, monkeypatch):
    monkeypatch.setattr(server_log, "verbose_enabled", True)
    scene = GrpcScene()

    with caplog.at_level(logging.DEBUG):
        scene.client.infer(X=X)
        scene.client.infer(("grpc-timeout", "x"), X=X)

    assert f"gRPC call: {INFER} ended with OK" in caplog.text
    assert f"gRPC call: {INFER} ended with INTERNAL, 0 bytes: malformed grpc-timeout" in caplog.text


# Deadlines and cancellation


@in_loop
async def test_a_deadline_ends_the_call_and_takes_the_request_back():
    scene = holding()

    stream = scene.client.infer(("grpc-timeout", "1m"), X=X)
    answer = await scene.finish(stream)

    assert answer.status == Status.DEADLINE_EXCEEDED
    assert scene.server.cancelled == scene.server.held
    assert scene.statuses == {Status.DEADLINE_EXCEEDED: 1}


@in_loop
async def test_the_status_of_a_deadline_stands_whatever_the_engine_answers_a_cancellation_with():
    scene = holding()
    scene.server.cancel = scene.server.answer

    stream = scene.client.infer(("grpc-timeout", "1m"), X=X)

    assert (await scene.finish(stream)).status == Status.DEADLINE_EXCEEDED
    assert scene.statuses == {Status.DEADLINE_EXCEEDED: 1}


@in_loop
async def test_a_deadline_ends_a_call_whose_message_has_not_come():
    scene = GrpcScene()

    stream = scene.client.open_grpc(INFER, ("grpc-timeout", "1m"))

    assert (await scene.finish(stream)).status == Status.DEADLINE_EXCEEDED


@in_loop
async def test_a_deadline_of_nothing_has_passed():
    scene = GrpcScene()

    assert scene.client.answer(scene.client.infer(("grpc-timeout", "0n"), X=X)).status == 4
    assert scene.server.submitted == []


@in_loop
async def test_an_answer_in_time_stops_the_clock():
    scene = GrpcScene()

    assert scene.client.answer(scene.client.infer(("grpc-timeout", "99999999H"), X=X)).status == 0
    scheduled = [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
    assert scheduled == []


@in_loop
@pytest.mark.parametrize("leaves", [True, False], ids=["connection", "stream"])
async def test_a_client_that_leaves_takes_its_request_back(leaves):
    scene = holding()
    stream = scene.client.infer(X=LARGE)
    assert scene.num_held > LARGE.nbytes

    if leaves:
        scene.client.leave()
    else:
        scene.client.h2.reset_stream(stream)
        scene.client.flush()

    assert scene.server.cancelled == scene.server.held
    assert scene.statuses == {Status.CANCELLED: 1}
    assert scene.num_held == 0
    scene.server.answer(scene.server.held[0])
    assert scene.statuses == {Status.CANCELLED: 1}


@in_loop
async def test_a_client_may_leave_while_its_message_is_inflated():
    scene = GrpcScene()
    packed = gzip.compress(make_infer(X=np.random.default_rng(1).random(5000, np.float32)))
    stream = scene.client.open_grpc(INFER, GZIP)
    scene.client.send(stream, framed(packed, is_compressed=True), is_end=True)

    scene.client.h2.reset_stream(stream)
    scene.client.flush()
    await scene.api.settle(1.0)
    await turns()

    assert scene.server.submitted == []
    assert scene.statuses == {Status.CANCELLED: 1}
    assert scene.num_held == 0


@in_loop
async def test_a_client_may_leave_within_a_message():
    scene = GrpcScene()
    stream = scene.client.open_grpc(INFER)
    scene.client.send(stream, framed(make_infer(X=LARGE))[:200_000])
    assert scene.num_held == 200_000 - 5

    scene.client.h2.reset_stream(stream)
    scene.client.flush()

    assert scene.num_held == 0


# Stalls


@in_loop
async def test_a_message_that_comes_no_further_ends_its_call():
    scene = GrpcScene(stall_timeout_s=3.0)
    data = framed(make_infer(X=LARGE))
    stalled, moving = scene.client.open_grpc(INFER), scene.client.open_grpc(INFER)
    scene.client.send(stalled, data[:-1])
    for index in range(8):
        scene.client.send(moving, data[index * 8000 : (index + 1) * 8000])
        scene.sweep()

    answer = scene.client.answer(stalled)
    assert answer.status == Status.UNAVAILABLE
    assert answer.headers["grpc-message"] == "the rest of a message did not arrive in time"
    scene.client.send(moving, data[64_000:], is_end=True)
    assert scene.client.answer(moving).status == 0


@in_loop
async def test_a_small_part_of_a_message_stalls_as_well_and_waiting_for_an_answer_does_not():
    scene = holding(stall_timeout_s=2.0)
    waiting = scene.client.infer(X=X)
    stalled, silent = scene.client.open_grpc(INFER), scene.client.open_grpc(STREAM_INFER)
    scene.client.send(stalled, b"\x00\x00")

    scene.sweep(5)

    assert scene.client.answer(stalled).status == Status.UNAVAILABLE
    assert not scene.client.answer(waiting).is_complete
    assert not scene.client.answer(silent).is_complete


# What is left


@in_loop
async def test_calls_leave_nothing_to_the_garbage_collector():
    scene = GrpcScene(response_compression_level="high", max_message_size=1 << 20)
    client = scene.client
    gzip_one = framed(gzip.compress(make_infer(X=LARGE)), is_compressed=True)

    def cancelled(path: str, data: bytes) -> None:
        stream = client.open_grpc(path)
        client.send(stream, data)
        client.h2.reset_stream(stream)
        client.flush()

    async def use_everything() -> None:
        await scene.finish(client.infer(X=X))
        await scene.finish(client.infer(X=LARGE))
        await scene.finish(client.infer(("grpc-accept-encoding", "gzip"), X=LARGE))
        for path in (INFER, STREAM_INFER):
            client.send(stream := client.open_grpc(path, GZIP), gzip_one, is_end=True)
            await scene.finish(stream)
            await scene.finish(client.infer(path=path, model="absent", X=X))
            await scene.finish(client.ask(path, b"\xff"))
        await scene.finish(client.ask(LIVE, b""))
        await scene.finish(client.ask("/absent", b""))
        scene.server.holds = True
        for path in (INFER, STREAM_INFER):
            await scene.finish(client.infer(("grpc-timeout", "1m"), path=path, X=X))
            cancelled(path, framed(make_infer(X=X)))
            cancelled(path, framed(make_infer(X=LARGE))[:100_000])
        cancelled(WATCH, framed(make_message("grpc.health.v1.HealthCheckRequest").SerializeToString()))
        scene.server.holds = False
        scene.server.held.clear()
        scene.server.submitted.clear()
        scene.server.cancelled.clear()
        client.answers.clear()
        await turns()

    await use_everything()
    gc.collect()
    gc.disable()
    try:
        ours: list[str] = []
        await use_everything()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [repr(each) for each in gc.garbage if type(each).__module__.startswith("bireme")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert ours == []
    assert scene.num_held == 0


@in_loop
async def test_a_call_is_freed_with_its_answer():
    scene = holding()
    stream = scene.client.infer(X=LARGE)
    call = scene.connection.h2.streams[stream].receiver
    assert isinstance(call, InferCall)
    inputs = weakref.ref(scene.server.held[0].inputs["X"].to_numpy())
    del call

    scene.server.answer(scene.server.held.pop())
    scene.server.submitted.clear()
    assert scene.client.answer(stream).status == 0
    scene.client.transport.writes.clear()  # the model gave its input back, so what was written is a view of it

    assert inputs() is None


def test_what_stands_for_an_ended_call_takes_everything():
    ENDED.receive(memoryview(b"late"))
    ENDED.advance(4)
    ENDED.end()
    ENDED.cancel()
    ENDED.drain()
    ENDED.sweep(1)
    assert ENDED.get_target(4) is None
