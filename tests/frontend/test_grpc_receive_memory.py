"""What the messages of all connections may hold together."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

from bireme.frontend.grpc import receive_memory
from bireme.frontend.grpc.receive_memory import ReceiveMemory
from bireme.wire.grpc.status import Refusal, Status
from grpc_fakes import INFER, STREAM_INFER, GrpcClient, GrpcScene, framed, in_loop, make_infer, turns

LARGE = np.zeros(100_000, np.float32)
SIZE = len(make_infer(X=LARGE))


def test_takes_up_to_the_limit_and_counts_nothing_that_it_refuses():
    memory = ReceiveMemory(100)
    memory.take(60)
    with pytest.raises(Refusal, match="60 of 100 bytes are in use") as caught:
        memory.take(41)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    memory.take(40)
    assert memory.num_held == 100
    memory.give_back(100)
    assert (memory.num_held, repr(memory)) == (0, "ReceiveMemory(0 of 100 bytes)")


def test_without_a_limit_it_is_half_of_the_machine(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert ReceiveMemory().limit == 2_048_000


def test_a_machine_that_does_not_tell_has_2_gb(monkeypatch):
    def refuse(name):
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", refuse)
    assert ReceiveMemory().limit == receive_memory._FALLBACK_BYTES // 2


@in_loop
async def test_a_message_counts_as_it_arrives_and_until_its_answer():
    scene = GrpcScene()
    scene.server.holds = True
    stream = scene.client.open_grpc(INFER)
    data = framed(make_infer(X=LARGE))

    scene.client.send(stream, data[:100])
    assert scene.num_held == 0  # it has no memory yet
    scene.client.send(stream, data[100:50_000])
    assert scene.num_held == 50_000 - 5
    scene.client.send(stream, data[50_000:], is_end=True)
    assert scene.num_held == SIZE
    scene.server.answer(scene.server.held[0])
    assert scene.num_held == 0


@in_loop
async def test_a_medium_message_that_comes_at_once_counts_and_a_small_one_is_not_worth_it():
    scene = GrpcScene()
    scene.server.holds = True

    scene.client.infer(X=LARGE[:500])
    assert scene.num_held == 0
    scene.client.infer(X=LARGE[:3000])
    assert 12_000 < scene.num_held < 12_100
    scene.client.leave()
    assert scene.num_held == 0


@in_loop
async def test_what_does_not_fit_is_refused_and_all_connections_share_the_room():
    scene = GrpcScene(max_receive_bytes=SIZE + 50_000)
    scene.server.holds = True
    kept = scene.client.infer(X=LARGE)
    other = GrpcClient(scene.listener)

    for data in (LARGE, LARGE[:14_000]):  # one is received in place, the other at once
        answer = other.answer(other.infer(X=data))
        assert answer.status == Status.RESOURCE_EXHAUSTED
        assert "memory for received messages is used up" in answer.headers["grpc-message"]
        assert scene.num_held == SIZE

    scene.server.answer(scene.server.held[0])
    assert scene.client.answer(kept).status == 0
    scene.server.holds = False
    assert other.answer(other.infer(X=LARGE)).status == 0
    assert scene.num_held == 0


@in_loop
async def test_a_message_is_refused_as_soon_as_its_memory_would_not_fit():
    scene = GrpcScene(max_receive_bytes=4000)
    stream = scene.client.open_grpc(INFER)

    scene.client.send(stream, framed(make_infer(X=LARGE))[:8000])

    assert scene.client.answer(stream).status == Status.RESOURCE_EXHAUSTED
    assert scene.num_held == 0


@in_loop
async def test_messages_of_a_stream_count_while_they_wait_however_small():
    scene = GrpcScene(max_held_requests=2, max_receive_bytes=10_000)
    scene.server.holds = True
    stream = scene.client.open_grpc(STREAM_INFER)
    message = framed(make_infer(X=LARGE[:4]))

    for _ in range(8):
        scene.client.send(stream, message)
    assert len(scene.server.held) == 2
    assert scene.num_held == 8 * (512 + len(message) - 5)

    for _ in range(20):
        if not scene.client.answer(stream).is_complete:
            scene.client.send(stream, message)
    assert scene.client.answer(stream).status == Status.RESOURCE_EXHAUSTED
    assert scene.server.cancelled == scene.server.held
    assert scene.num_held == 0


@in_loop
@pytest.mark.parametrize("sizes", [(10, 3000, 100_000)])
async def test_messages_of_a_stream_are_given_back_one_by_one(sizes):
    scene = GrpcScene()
    scene.server.holds = True
    stream = scene.client.open_grpc(STREAM_INFER)
    for size in sizes:
        scene.client.send(stream, framed(make_infer(X=LARGE[:size])))
    counted = [512 + len(make_infer(X=LARGE[:size])) for size in sizes]
    assert scene.num_held == sum(counted)

    for index, request in enumerate(scene.server.held):
        scene.server.answer(request)
        assert scene.num_held == sum(counted[index + 1 :])
    await turns()


@in_loop
async def test_what_is_being_inflated_counts_as_it_grows():
    scene = GrpcScene(max_receive_bytes=3 << 20)
    scene.listener.memory.take(1 << 20)
    stream = scene.client.open_grpc(INFER, ("grpc-encoding", "gzip"))

    scene.client.send(stream, framed(gzip.compress(bytes(3 << 20)), is_compressed=True), is_end=True)
    answer = await scene.finish(stream)

    assert answer.status == Status.RESOURCE_EXHAUSTED
    assert "memory for received messages is used up" in answer.headers["grpc-message"]
    await turns()
    assert scene.num_held == 1 << 20


@in_loop
async def test_a_client_that_has_left_has_nothing_inflated():
    scene = GrpcScene()
    connection = scene.connection
    stream = scene.client.open_grpc(INFER, ("grpc-encoding", "gzip"))
    call = connection.h2.streams[stream].receiver
    scene.client.leave()

    with pytest.raises(Refusal) as caught:
        call.inflate(gzip.compress(bytes(100)))

    assert caught.value.status is Status.CANCELLED
    assert scene.num_held == 0
