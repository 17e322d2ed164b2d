"""Channel and LoopChannel: order, large messages, a peer that does not read, and ends."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time

import pytest

from bireme.ipc.arena import Arena
from bireme.ipc.channel import MAX_MESSAGE, NOTHING, Channel, LoopChannel, make_pair
from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import Cancel, CancelCall, Finalize, LogLine, Released, Result, Spilled
from model_dirs import until


class Ends:
    """Both ends of a channel, in this process."""

    def __init__(self) -> None:
        ours, theirs = make_pair()
        introductions, their_introductions = make_pair()
        self.sockets = [ours, theirs, introductions, their_introductions]
        self.server = LoopChannel(ours, Ledger(Arena(), introductions))
        self.worker = Channel(theirs, Ledger(Arena(), their_introductions))
        self.messages: list = []
        self.num_losses = 0

    def attach(self) -> None:
        self.server.attach(asyncio.get_running_loop(), self.messages.append, self.lose)

    def lose(self) -> None:
        self.num_losses += 1

    def close(self) -> None:
        self.server.close()
        for end in self.sockets:
            end.close()


@pytest.fixture
def ends():
    ends = Ends()
    yield ends
    ends.close()
    gc.collect()


def attached(scenario):
    """Make a test of a scenario that needs the loop."""

    def test(ends):
        async def run():
            ends.attach()
            await scenario(ends)

        asyncio.run(run())

    test.__name__ = scenario.__name__
    return test


# The worker's end


def test_messages_arrive_in_order(ends):
    for number in range(100):
        ends.server.send(Cancel(number))
    ends.server.send(Finalize())

    assert [ends.worker.receive() for _ in range(100)] == [Cancel(number) for number in range(100)]
    assert ends.worker.receive_now() == Finalize()
    assert ends.worker.receive_now() is NOTHING


def test_the_end_of_the_server_is_none(ends):
    ends.server.send(Cancel(1))
    ends.server.close()

    assert ends.worker.receive() == Cancel(1)
    assert ends.worker.receive() is None
    assert ends.worker.receive_now() is None
    with pytest.raises(OSError, match="Broken pipe"):
        ends.worker.send(CancelCall(1))


@pytest.mark.parametrize("read", ["receive", "receive_now"])
def test_a_server_that_left_without_reading_is_still_heard_to_its_end(ends, read):
    ends.worker.send(CancelCall(1))  # never read: the connection is reset
    ends.server.send(Cancel(1))
    ends.server.close()

    assert getattr(ends.worker, read)() == Cancel(1)
    assert getattr(ends.worker, read)() is None


@pytest.mark.parametrize("excess", [-100, 0, 1, 5_000_000])
def test_messages_of_any_size_arrive(ends, excess):
    text = "x" * (MAX_MESSAGE + excess)
    ends.server.send(Result(1, None, text))

    assert ends.worker.receive() == Result(1, None, text)
    ends.server.ledger.take_back(ends.worker.ledger.take_released())
    assert ends.server.ledger.num_lent == 0
    assert ends.server.ledger.arena.used_bytes == 0


def test_several_threads_may_send_large_messages(ends):
    def work(mark: int) -> None:
        for _ in range(20):
            ends.worker.send(LogLine(mark, "x" * 100_000, "", mark))

    async def scenario():
        ends.attach()
        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        await until(lambda: len(ends.messages) == 80)
        for thread in threads:
            thread.join()

    asyncio.run(scenario())
    assert all(message.level == message.line and len(message.message) == 100_000 for message in ends.messages)


def test_an_idle_worker_gives_back_what_it_has_not_needed_for_a_while_and_then_sleeps(ends, monkeypatch):
    waits = []

    def wait_less(channel: Channel, seconds: int) -> None:
        waits.append(seconds)
        timeout = struct.pack("@ll", 0, 1000 * seconds)
        ends.sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    monkeypatch.setattr(Channel, "_set_timeout", wait_less)
    wait_less(ends.worker, 1)
    arena = ends.worker.ledger.arena
    block = arena.allocate(1 << 20)
    block[...] = 1
    del block
    ends.worker.ledger.released.append(5)
    timer = threading.Timer(0.1, lambda: ends.server.send(Cancel(1)))
    timer.start()
    message = ends.worker.receive()
    timer.join()

    assert message == Cancel(1)
    assert arena.free_bytes == 0
    assert waits == [1, 0, 1]
    assert ends.worker._idle_rounds == 0
    assert ends.server._decode(ends.sockets[0].recv(100)) == Released([5])


# The server's end


@attached
async def test_the_loop_gets_each_message(ends):
    for number in range(200):
        ends.worker.send(CancelCall(number))
    await until(lambda: len(ends.messages) == 200)

    assert ends.messages == [CancelCall(number) for number in range(200)]
    assert ends.num_losses == 0


@attached
async def test_others_get_their_turn_during_a_burst(ends):
    for number in range(100):
        ends.worker.send(CancelCall(number))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert 0 < len(ends.messages) < 50


@attached
async def test_a_worker_that_does_not_read_does_not_hold_up_the_loop(ends):
    start = time.monotonic()
    sent = [Result(number, None, "x" * 50_000) for number in range(500)]
    for message in sent:
        ends.server.send(message)
    assert time.monotonic() - start < 5
    assert ends.server._unsent
    received = []
    reader = threading.Thread(target=lambda: received.extend(ends.worker.receive() for _ in sent))
    reader.start()
    await until(lambda: not reader.is_alive())

    assert received == sent
    assert not ends.server._unsent
    ends.server.send(Cancel(1))
    assert ends.worker.receive_now() == Cancel(1)


@attached
async def test_a_loss_is_told_once_after_the_last_message(ends):
    ends.server.send(Cancel(1))  # never read: the connection is reset
    ends.worker.send(CancelCall(1))
    ends.worker.send(CancelCall(2))
    ends.worker.close()
    await until(lambda: ends.num_losses)
    await asyncio.sleep(0.01)

    assert ends.messages == [CancelCall(1), CancelCall(2)]
    assert ends.num_losses == 1
    ends.server.send(Cancel(1))  # to nobody


@attached
async def test_what_waits_for_a_worker_that_is_gone_is_dropped(ends):
    for number in range(500):
        ends.server.send(Result(number, None, "x" * 50_000))
    ends.worker.close()
    await until(lambda: ends.num_losses)

    assert not ends.server._unsent


@pytest.mark.parametrize("noise", [b"\xc1", b"\x93\x01\x02\x03", b"\x92\x63\x01", b"\x92\x08\xa1x"])
def test_what_is_no_message_ends_the_connection(ends, noise, caplog):
    async def scenario():
        ends.attach()
        ends.sockets[1].send(noise)
        await until(lambda: ends.num_losses)

    asyncio.run(scenario())
    assert "no message" in caplog.text
    assert ends.messages == []


def test_a_spilled_message_that_is_not_there_ends_the_connection(ends, caplog):
    async def scenario():
        ends.attach()
        ends.worker.send(Spilled(ends.worker.ledger.lend(ends.worker.ledger.arena.allocate(10))))
        await until(lambda: ends.num_losses)

    asyncio.run(scenario())
    assert "no message" in caplog.text


@attached
async def test_nothing_is_delivered_after_a_handler_has_closed_the_channel(ends):
    ends.messages = [None]
    ends.server._on_message = lambda message: (ends.messages.append(message), ends.server.close())
    for number in range(5):
        ends.worker.send(CancelCall(number))
    await asyncio.sleep(0.01)

    assert ends.messages == [None, CancelCall(0)]
    assert ends.num_losses == 0


def test_drain_takes_what_is_there(ends):
    async def scenario():
        ends.attach()
        for number in range(40):
            ends.worker.send(CancelCall(number))
        ends.server.drain()
        assert len(ends.messages) == 40

    asyncio.run(scenario())
    ends.server.drain()
    assert len(ends.messages) == 40
