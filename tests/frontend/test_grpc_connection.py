"""A gRPC connection: what is written when, who is asked to leave, who is cut off."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import numpy as np
import pytest

import http2_peer as http2
from bireme.frontend.grpc import connection
from bireme.wire.grpc.status import Status
from bireme.wire.http2 import ErrorCode
from grpc_fakes import (
    INFER,
    LIVE,
    REFLECTION,
    STREAM_INFER,
    WATCH,
    GrpcClient,
    GrpcScene,
    framed,
    in_loop,
    make_infer,
    turns,
)
from grpc_handlers import make_message
from grpc_socket import INITIAL_WINDOW_SIZE

X = np.arange(4, dtype=np.float32)
LARGE = np.zeros(100_000, np.float32)
LAST_STREAM = (1 << 31) - 1


def goaways(scene: GrpcScene) -> list[tuple[int, int]]:
    """Last stream and code of each GOAWAY that was sent."""
    frames = http2.parse_frames(bytes(scene.client.transport.written))
    return [(each.last_stream_id, each.error_code) for each in frames if type(each).__name__ == "GoAwayFrame"]


def pings(scene: GrpcScene) -> int:
    frames = http2.parse_frames(bytes(scene.client.transport.written))
    return sum(type(each).__name__ == "PingFrame" and "ACK" not in each.flags for each in frames)


def open_watch(scene: GrpcScene) -> int:
    stream = scene.client.open_grpc(WATCH)
    message = make_message("grpc.health.v1.HealthCheckRequest").SerializeToString()
    scene.client.send(stream, framed(message))
    return stream


class Clock:
    """The time of the running loop, turned by hand."""

    def __init__(self, scene: GrpcScene) -> None:
        self.now_s = 1000.0
        scene.connection.loop = SimpleNamespace(time=lambda: self.now_s, call_soon=lambda *_: None)  # type: ignore[assignment]


# Writing


@in_loop
async def test_the_settings_go_out_at_once():
    scene = GrpcScene()
    first = http2.parse_frames(bytes(scene.client.transport.written))[0]
    assert type(first).__name__ == "SettingsFrame"
    assert scene.client.transport.write_limit == 1 << 20


@in_loop
async def test_what_one_read_leads_to_goes_out_in_one_write():
    scene = GrpcScene()
    request = http2.encode([*http2.REQUEST_HEADERS])
    data = b"".join(
        http2.headers(stream, request) + http2.data(stream, framed(make_infer(X=X)), http2.END_STREAM)
        for stream in range(1, 33, 2)
    )
    num_writes = len(scene.client.transport.writes)

    scene.client.sock.sendall(data)

    assert len(scene.client.transport.writes) == num_writes + 1
    assert scene.statuses == {0: 16}


@in_loop
async def test_after_its_time_a_flood_is_read_on_behind_the_other_connections(monkeypatch):
    monkeypatch.setattr(connection, "_TURN_S", 0.0)
    scene = GrpcScene()

    scene.client.sock.sendall(http2.window_update(0, 1) * 3000)
    assert scene.client.transport.is_reading_paused
    await turns(1)
    assert not scene.client.transport.is_reading_paused
    scene.client.sock.sendall(http2.window_update(0, 1) * 1000)

    assert not scene.client.transport.is_reading_paused


@in_loop
async def test_answers_of_the_engine_go_out_as_they_come():
    scene = GrpcScene()
    scene.server.holds = True
    stream = scene.client.infer(X=X)

    scene.server.answer(scene.server.held[0])

    assert scene.client.answer(stream).status == 0


@in_loop
async def test_the_answers_of_a_batch_go_out_in_one_write():
    scene = GrpcScene()
    scene.server.holds = True
    streams = [scene.client.infer(X=X) for _ in range(4)]
    num_writes = len(scene.client.transport.writes)

    for held in list(scene.server.held):
        scene.server.answer(held)
    await turns(1)

    assert len(scene.client.transport.writes) == num_writes + 1
    assert [scene.client.answer(stream).status for stream in streams] == [0] * 4


@in_loop
async def test_while_the_transport_is_paused_answers_stay_in_their_streams():
    scene = GrpcScene(client={"settings": {INITIAL_WINDOW_SIZE: 1 << 30}})
    scene.connection.pause_writing()
    stream = scene.client.infer(X=LARGE)
    assert not scene.client.answer(stream).data

    scene.connection.resume_writing()

    assert scene.client.answer(stream).status == 0


@in_loop
async def test_large_answers_are_gathered_without_a_copy():
    scene = GrpcScene(client={"settings": {INITIAL_WINDOW_SIZE: 1 << 30}})
    scene.client.infer(X=LARGE)
    assert max(len(buffers) for buffers in scene.client.transport.writes) > 3


@in_loop
async def test_a_lost_connection_writes_nothing_and_does_nothing_more():
    scene = GrpcScene()
    scene.server.holds = True
    scene.client.infer(X=X)
    connection = scene.connection
    scene.client.leave()

    scene.server.answer(scene.server.held[0])
    connection.retire()
    connection.drain()
    connection.resume_writing()

    assert scene.listener.connections == set()


@in_loop
async def test_an_exception_ends_its_connection_alone(caplog):
    scene = GrpcScene()
    other = GrpcClient(scene.listener)
    resolve = scene.listener.resolve

    def fail(head):
        raise ZeroDivisionError("secret")

    scene.listener.resolve = fail
    with caplog.at_level(logging.ERROR):
        scene.client.call(LIVE)
    scene.listener.resolve = resolve

    assert goaways(scene)[-1][1] == ErrorCode.INTERNAL_ERROR
    assert scene.client.transport.is_closed
    assert "ZeroDivisionError: secret" in caplog.text
    assert other.call(LIVE).status == 0


@in_loop
async def test_a_broken_rule_ends_the_connection_with_its_reason(caplog):
    scene = GrpcScene()

    with caplog.at_level(logging.DEBUG):
        scene.client.sock.sendall(http2.frame(http2.PUSH_PROMISE, 0, 1, bytes(4)))

    assert goaways(scene) == [(0, ErrorCode.PROTOCOL_ERROR)]
    assert scene.client.transport.is_closed
    assert "connection closed: PUSH_PROMISE from a client" in caplog.text
    scene.connection.sweep()


@in_loop
@pytest.mark.parametrize(("protocol", "is_closed"), [("h2", False), (None, True), ("http/1.1", True)])
async def test_a_tls_client_must_have_agreed_on_http2(protocol, is_closed):
    scene = GrpcScene()
    ssl_object = SimpleNamespace(selected_alpn_protocol=lambda: protocol)

    client = GrpcClient(scene.listener, ssl_object)

    assert client.transport.is_closed == is_closed
    assert bool(client.transport.written) != is_closed


@in_loop
async def test_busy_polling_goes_on_after_the_last_answer():
    scene = GrpcScene()
    extended = []
    scene.listener.busy_poll = SimpleNamespace(extend=lambda: extended.append(1))  # type: ignore[assignment]
    scene.server.holds = True
    scene.client.infer(X=X)
    scene.client.infer(X=X)

    scene.server.answer(scene.server.held[0])
    assert extended == []
    scene.server.answer(scene.server.held[1])

    assert extended == [1]


@in_loop
async def test_it_says_what_it_is():
    assert repr(GrpcScene().connection).startswith("GrpcConnection(")


@in_loop
async def test_an_acknowledged_ping_is_taken():
    scene = GrpcScene()
    scene.client.sock.sendall(http2.ping(flags=http2.ACK))
    assert scene.client.call(LIVE).status == 0


# Leaving


@in_loop
async def test_a_retired_connection_takes_what_comes_meanwhile():
    scene = GrpcScene()

    scene.connection.retire()
    scene.connection.retire()

    assert goaways(scene) == [(LAST_STREAM, 0)]
    assert scene.client.call(LIVE).status == 0
    assert not scene.client.transport.is_closed


@in_loop
async def test_a_drained_connection_finishes_its_calls_and_takes_no_more():
    scene = GrpcScene()
    scene.server.holds = True
    stream = scene.client.infer(X=X)
    scene.connection.retire()

    scene.connection.drain()
    scene.connection.drain()
    late = scene.client.infer(X=X)

    assert goaways(scene) == [(LAST_STREAM, 0), (stream, 0)]
    assert scene.client.answer(late).reset_code == ErrorCode.REFUSED_STREAM
    assert not scene.client.transport.is_closed
    scene.server.answer(scene.server.held[0])
    assert scene.client.answer(stream).status == 0
    assert scene.client.transport.is_closed
    assert not scene.client.transport.is_aborted


@in_loop
async def test_a_drain_closes_an_idle_connection_at_once_and_ends_streams_that_have_no_end():
    idle = GrpcScene()
    idle.connection.drain()
    assert idle.client.transport.is_closed

    scene = GrpcScene()
    watch = open_watch(scene)
    reflection, infer = scene.client.open_grpc(REFLECTION), scene.client.open_grpc(STREAM_INFER)
    scene.connection.drain()
    assert [scene.client.answer(each).status for each in (watch, reflection, infer)] == [
        Status.UNAVAILABLE
    ] * 3
    assert scene.client.transport.is_closed
    assert not scene.api.health_watch._streams


@in_loop
async def test_a_drain_survives_a_client_that_reads_nothing():
    scene = GrpcScene(client={"settings": {INITIAL_WINDOW_SIZE: 1 << 30}})
    for _ in range(3):
        open_watch(scene)
    scene.connection.pause_writing()
    scene.connection.h2._backlog = 1 << 20  # as much as it may leave unread

    scene.connection.drain()

    assert scene.connection.h2.is_closed
    assert scene.client.transport.is_closed


@in_loop
async def test_an_old_connection_leaves_in_two_steps():
    scene = GrpcScene(max_connection_age_ms=10_000)
    scene.sweep(8)
    assert goaways(scene) == []

    scene.sweep(3)
    assert goaways(scene)[0] == (LAST_STREAM, 0)
    scene.sweep()

    assert len(goaways(scene)) == 2
    assert scene.client.transport.is_closed
    assert not scene.client.transport.is_aborted


@in_loop
@pytest.mark.parametrize("grace_ms", [0, 5000])
async def test_calls_of_an_old_connection_have_a_grace(grace_ms):
    scene = GrpcScene(max_connection_age_ms=10_000, max_connection_age_grace_ms=grace_ms)
    scene.server.holds = True
    stream = scene.client.infer(X=X)
    watch = open_watch(scene)

    scene.sweep(13)
    assert not scene.client.answer(stream).is_complete
    scene.sweep(4)

    assert scene.client.transport.is_aborted == bool(grace_ms)
    if not grace_ms:
        scene.connection.drain()  # it ends what the age does not
        assert scene.client.answer(watch).status == Status.UNAVAILABLE
        scene.server.answer(scene.server.held[0])
        assert scene.client.answer(stream).status == 0
        assert scene.client.transport.is_closed


# Keep-alive


@in_loop
async def test_a_client_that_answers_no_ping_is_cut(caplog):
    scene = GrpcScene(keepalive_time_ms=1000, keepalive_timeout_ms=500)
    clock = Clock(scene)
    scene.server.holds = True
    scene.client.infer(X=X)
    with caplog.at_level(logging.INFO):
        scene.connection.sweep()
        clock.now_s += 1
        scene.connection.sweep()
        assert pings(scene) == 1
        clock.now_s += 0.5
        scene.connection.sweep()

    assert scene.client.transport.is_aborted
    assert "answered no ping for 500 ms" in caplog.text


@in_loop
async def test_a_client_that_answers_stays():
    scene = GrpcScene(keepalive_time_ms=1000, keepalive_timeout_ms=500, keepalive_permit_without_calls=True)
    clock = Clock(scene)
    for _ in range(10):
        scene.sweep()
        clock.now_s += 1
    assert pings(scene) == 2  # no more without data
    assert scene.client.call(LIVE).status == 0
    scene.sweep()
    clock.now_s += 1
    scene.sweep()
    assert pings(scene) == 3


@in_loop
async def test_too_many_pings_end_the_connection_and_calls_in_between_forgive():
    scene = GrpcScene()
    for _ in range(10):
        scene.client.sock.sendall(http2.ping())
        assert scene.client.call(LIVE).status == 0
    assert goaways(scene) == []

    scene.client.sock.sendall(http2.ping() * 4)

    assert goaways(scene) == [(19, ErrorCode.ENHANCE_YOUR_CALM)]
    assert scene.client.transport.is_closed


@in_loop
async def test_pings_that_measure_a_large_download_are_welcome():
    scene = GrpcScene(client={"opens_windows": False})
    stream = scene.client.infer(X=LARGE)
    for _ in range(5):
        scene.client.sock.sendall(http2.ping())
        scene.client.h2.increment_flow_control_window(60_000)
        scene.client.h2.increment_flow_control_window(60_000, stream)
        scene.client.flush()
        scene.client.settle()

    assert goaways(scene) == []


# Stalls


@in_loop
async def test_a_client_that_never_says_anything_is_cut():
    scene = GrpcScene(stall_timeout_s=3.0)
    silent = scene.listener.make_connection()
    transport = type(scene.client.transport)()
    silent.connection_made(transport)

    silent.sweep()
    silent.sweep()
    assert not transport.is_closed
    silent.sweep()

    assert transport.is_aborted
    assert not scene.client.transport.is_closed


@in_loop
async def test_an_answer_that_nobody_takes_ends_its_stream_alone():
    scene = GrpcScene(stall_timeout_s=3.0, client={"opens_windows": False})
    stalled = scene.client.infer(X=LARGE)
    for _ in range(5):
        scene.sweep()

    assert scene.client.answer(stalled).reset_code == ErrorCode.CANCEL
    assert scene.statuses == {0: 1}  # it had its answer
    assert not scene.client.transport.is_closed
    assert scene.connection._sum_unsent() == 0


@in_loop
async def test_a_stream_that_nobody_reads_is_given_up_with_its_requests():
    scene = GrpcScene(stall_timeout_s=3.0, client={"opens_windows": False})
    stream = scene.client.open_grpc(STREAM_INFER)
    scene.client.send(stream, framed(make_infer(X=LARGE)))
    scene.server.holds = True
    scene.client.send(stream, framed(make_infer(X=X)))
    scene.sweep(5)

    assert scene.client.answer(stream).reset_code == ErrorCode.CANCEL
    assert scene.server.cancelled == scene.server.held
    assert scene.statuses == {Status.CANCELLED: 1}


@in_loop
async def test_a_slow_reader_is_no_stalled_one():
    scene = GrpcScene(stall_timeout_s=2.0, client={"opens_windows": False})
    stream = scene.client.infer(X=LARGE)
    for _ in range(6):
        scene.client.h2.increment_flow_control_window(1000)
        scene.client.h2.increment_flow_control_window(1000, stream)
        scene.client.flush()
        scene.sweep()
    assert not scene.client.answer(stream).is_complete


@in_loop
async def test_a_client_that_reads_nothing_at_all_is_cut():
    scene = GrpcScene(stall_timeout_s=3.0)
    scene.client.transport.num_unsent = 1000
    scene.sweep(3)
    scene.client.transport.num_unsent = 999
    scene.sweep(3)
    assert not scene.client.transport.is_closed
    scene.sweep(1)
    assert scene.client.transport.is_aborted


@in_loop
async def test_without_a_stall_timeout_nothing_stalls():
    scene = GrpcScene(stall_timeout_s=0)
    scene.client.transport.num_unsent = 1000
    stream = scene.client.open_grpc(INFER)
    scene.client.send(stream, b"\x00")
    scene.sweep(100)
    assert not scene.client.transport.is_closed
    assert not scene.client.answer(stream).is_complete


# Streams beside inference


@in_loop
async def test_a_watch_is_forgotten_however_its_call_ends():
    scene = GrpcScene()
    watches = scene.api.health_watch._streams

    def reset(stream):
        scene.client.h2.reset_stream(stream)
        scene.client.flush()

    for end in (
        reset,
        lambda stream: scene.client.send(stream, b"\x07aaaaaaaa"),
        lambda stream: scene.client.send(stream, framed(b"\xff")),
        lambda stream: scene.client.send(stream, framed(b"\x00", is_compressed=True)),
    ):
        stream = open_watch(scene)
        assert len(watches) == 1
        end(stream)
        assert not watches
    assert scene.statuses == {Status.CANCELLED: 1, Status.INTERNAL: 3}


@in_loop
async def test_reflection_answers_each_question_and_ends_with_its_client():
    scene = GrpcScene()
    stream = scene.client.open_grpc(REFLECTION)
    question = make_message(
        "grpc.reflection.v1.ServerReflectionRequest", list_services="*"
    ).SerializeToString()

    scene.client.send(stream, framed(question) * 2)
    scene.client.send(stream, b"", is_end=True)

    answer = scene.client.answer(stream)
    assert len(answer.messages) == 2
    assert answer.status == 0


@in_loop
async def test_an_exception_of_a_stream_s_handler_ends_its_call(caplog, monkeypatch):
    scene = GrpcScene()
    streams = [scene.client.open_grpc(WATCH) for _ in range(2)]
    handlers = [scene.connection.h2.streams[each].receiver._handler for each in streams]

    def fail(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(type(handlers[0]), "take", fail)
    monkeypatch.setattr(type(handlers[0]), "end", fail)
    with caplog.at_level(logging.ERROR):
        scene.client.send(streams[0], framed(b""))
        scene.client.send(streams[1], b"", is_end=True)

    assert [scene.client.answer(each).status for each in streams] == [Status.INTERNAL] * 2
    assert caplog.text.count("ZeroDivisionError: secret") == 2


@in_loop
async def test_a_watch_without_a_question_fails():
    scene = GrpcScene()
    assert scene.client.answer(scene.client.open_grpc(WATCH, is_end=True)).status == Status.UNIMPLEMENTED


@in_loop
async def test_a_client_that_reads_no_answers_of_a_stream_is_cut_off():
    scene = GrpcScene(client={"opens_windows": False})
    stream = scene.client.open_grpc(REFLECTION)
    question = framed(
        make_message(
            "grpc.reflection.v1.ServerReflectionRequest", file_by_filename="grpc_service.proto"
        ).SerializeToString()
    )
    for _ in range(200):
        if not scene.statuses:
            scene.client.sock.sendall(http2.data(stream, question * 10))

    assert scene.statuses == {Status.RESOURCE_EXHAUSTED: 1}


# Control


@in_loop
async def test_a_load_goes_on_when_its_client_leaves():
    scene = GrpcScene()
    scene.server.load_gate = asyncio.Event()
    request = make_message("inference.RepositoryModelLoadRequest", model_name="m").SerializeToString()
    stream = scene.client.ask("/inference.GRPCInferenceService/RepositoryModelLoad", request)
    await turns()
    scene.client.h2.reset_stream(stream)
    scene.client.flush()
    (task,) = scene.api._tasks

    scene.server.load_gate.set()
    await task

    assert scene.statuses == {Status.CANCELLED: 1}


@in_loop
async def test_a_load_answers_when_it_is_done():
    scene = GrpcScene()
    request = make_message("inference.RepositoryModelLoadRequest", model_name="m").SerializeToString()

    stream = scene.client.ask("/inference.GRPCInferenceService/RepositoryModelLoad", request)

    assert (await scene.finish(stream)).status == 0
    assert scene.server.calls[0][:2] == ("load", "m")
