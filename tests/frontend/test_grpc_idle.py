"""A gRPC connection without calls: its client is asked to leave, and connects anew for its next call."""

from __future__ import annotations

from grpc_fakes import LIVE, GrpcScene, in_loop
from http_fakes import FakeServer


@in_loop
async def test_a_connection_without_calls_ends_well():
    scene = GrpcScene(idle_timeout_s=3, stall_timeout_s=0)

    scene.sweep(3)

    assert scene.client.goaway.error_code == 0
    assert not scene.client.transport.is_closed

    scene.sweep()

    assert scene.client.transport.is_closed
    assert not scene.client.transport.is_aborted


@in_loop
async def test_each_call_starts_the_time_anew():
    scene = GrpcScene(idle_timeout_s=3)

    for _ in range(5):
        scene.sweep(2)
        assert scene.client.call(LIVE).status == 0

    assert scene.client.goaway is None


@in_loop
async def test_a_connection_with_an_open_call_is_not_idle():
    server = FakeServer()
    server.holds = True
    scene = GrpcScene(server, idle_timeout_s=3)
    stream_id = scene.client.infer()

    scene.sweep(10)

    assert scene.client.goaway is None

    server.answer(server.held[0])

    assert scene.client.answer(stream_id).status == 0


@in_loop
async def test_without_a_timeout_a_connection_may_be_idle_for_ever():
    scene = GrpcScene(idle_timeout_s=0, keepalive_time_ms=1 << 40)

    scene.sweep(5000)

    assert scene.client.goaway is None
    assert not scene.client.transport.is_closed
