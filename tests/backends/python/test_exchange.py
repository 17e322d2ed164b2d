"""Exchange: several threads wait on one channel, and each gets its own, whoever reads it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bireme.backends.python.exchange import Exchange, Waiter
from bireme.ipc.messages import (
    Call,
    Cancel,
    CheckReady,
    Execute,
    Finalize,
    Infer,
    Released,
    Reply,
    RequestData,
    ResponseData,
    Result,
)
from bireme.types import Internal
from model_channel import FakeChannel, FakeLedger, lent_data


@pytest.fixture
def channel():
    channel = FakeChannel()
    yield channel
    channel.close()


@pytest.fixture
def exchange(channel):
    return Exchange(channel, FakeLedger())


def call(number):
    return Call(number, "is_model_ready", {})


def in_thread(function, *arguments):
    """Run ``function`` in a thread; its result is a future."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future


def test_one_thread_asks_and_reads_its_own_answer(channel, exchange):
    channel.put(Result(7, None, 1))

    assert exchange.ask(call(7), 7).value == 1
    assert channel.sent == [call(7)]


def test_what_arrives_meanwhile_is_kept_for_whom_it_is_meant(channel, exchange):
    tasks = Waiter()
    exchange.take_tasks(tasks)
    cancelled = []
    exchange.on_cancel = cancelled.append
    channel.put(Execute(1, [], [5]), Cancel(3), Released([6]), CheckReady(2), Result(7, None, 1))

    exchange.ask(call(7), 7)

    assert cancelled == [3]
    assert exchange.ledger.taken_back == [5, 6]
    assert [exchange.wait(tasks), exchange.wait(tasks)] == [Execute(1, [], [5]), CheckReady(2)]


def test_leases_that_come_with_an_answer_are_taken_back(channel, exchange):
    channel.put(Reply(7, ResponseData(), [1, 2]))

    exchange.ask(Infer(RequestData(7, "", [])), 7)

    assert exchange.ledger.taken_back == [1, 2]


def test_answers_reach_threads_that_do_not_read(channel, exchange):
    """The first thread leads; what it reads for the others wakes them."""
    asking = [in_thread(exchange.ask, call(number), number) for number in range(1, 9)]
    channel.wait_for(Call, 8)

    channel.put(*(Result(number, None, number) for number in (5, 3, 8, 1, 2, 7, 4, 6)))

    assert [future.result(10).value for future in asking] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_main_thread_gets_its_tasks_while_another_thread_reads(channel, exchange):
    tasks = Waiter()
    exchange.take_tasks(tasks)
    asking = in_thread(exchange.ask, call(1), 1)
    channel.wait_for(Call)
    waiting = in_thread(exchange.wait, tasks)

    channel.put(Finalize())
    assert waiting.result(10) == Finalize()
    channel.put(Result(1, None, 1))

    assert asking.result(10).value == 1


def test_nothing_is_lost_when_many_threads_ask_at_once():
    def answer(message):
        return [Result(message.call, None, message.call)]

    channel = FakeChannel(answer)
    exchange = Exchange(channel, FakeLedger())

    def ask(first):
        return [exchange.ask(call(number), number).value for number in range(first, first + 50)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, range(1000, 9000, 1000)))

    assert results == [list(range(first, first + 50)) for first in range(1000, 9000, 1000)]
    channel.close()


def test_answer_that_nobody_waits_for_is_dropped(channel, exchange):
    channel.put(Reply(1, ResponseData([lent_data("Y", 9)])), Result(2), Result(7))

    exchange.ask(call(7), 7)

    assert exchange.ledger.released == [9]


def test_answer_that_makes_no_sense_is_an_error(channel, exchange):
    def adopt(data, *, writable=True):
        raise Internal(f"no such memory: {data.name}")

    exchange.ledger.adopt = adopt
    channel.put(Reply(7, ResponseData([lent_data("Y", 9)])))

    assert exchange.ask(Infer(RequestData(7, "", [])), 7).error.message == "no such memory: Y"


def test_everyone_learns_that_the_server_is_gone(channel, exchange):
    tasks = Waiter()
    exchange.take_tasks(tasks)
    asking = [in_thread(exchange.ask, call(number), number) for number in (1, 2, 3)]
    channel.wait_for(Call, 3)

    channel.put(None)

    assert [future.result(10) for future in asking] == [None, None, None]
    assert exchange.wait(tasks) is None
    assert exchange.ask(call(4), 4) is None
    assert len(channel.of(Call)) == 3


def test_send_to_a_server_that_is_gone_ends_the_conversation(channel, exchange):
    channel.is_lost = True

    assert exchange.ask(call(1), 1) is None
    assert exchange.is_lost


def test_poll_reads_only_what_is_there(channel, exchange):
    cancelled = []
    exchange.on_cancel = cancelled.append
    exchange.poll()
    assert channel.num_polls == 1

    channel.put(Cancel(1), Cancel(2))
    exchange.poll()

    assert cancelled == [1, 2]


def test_poll_leaves_reading_to_who_reads(channel, exchange):
    asking = in_thread(exchange.ask, call(1), 1)
    channel.wait_for(Call)

    exchange.poll()

    assert channel.num_polls == 0
    channel.put(Result(1))
    asking.result(10)


def test_forked_copy_is_silent(channel, exchange):
    exchange.mark_forked()

    with pytest.raises(RuntimeError, match="forked"):
        exchange.send(Finalize())
    for wait in (lambda: exchange.wait(Waiter()), lambda: exchange.ask(call(1), 1)):
        with pytest.raises(RuntimeError, match="forked"):
            wait()
    exchange.poll()
    assert (channel.sent, channel.num_polls) == ([], 0)


def test_leases_go_back_with_messages_or_on_their_own(channel, exchange):
    exchange.ledger.released += [1, 2, 3]

    exchange.flush(4)
    assert channel.sent == []
    exchange.flush()

    assert [sorted(message.released) for message in channel.sent] == [[1, 2, 3]]
    assert exchange.ledger.released == []
