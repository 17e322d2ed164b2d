"""Requests of decoupled models that are held: who waits, who does not, and what ends it; in processes and in threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from bireme import Server
from bireme.backends.python import holds, process_runtime
from bireme.backends.python.backlog import MOST, MOST_BYTES, Backlog
from bireme.backends.python.holds import MOST_ON_THEIR_WAY, Holds, Passage, paced
from bireme.ipc.messages import Call, Cancel, Execute, Finalize, Hold, Respond, Result, Resume
from bireme.types import InferenceRequest, Tensor
from e2e_server import wait_until
from model_channel import request_data
from model_dirs import until
from model_runner import Bench, values, y
from thread_models import DECOUPLED, Ask, add_thread_model, serve

FINAL = 1


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch):
    monkeypatch.setattr(process_runtime, "LOOK_NS", -1)


def waits(runtime, key) -> bool:
    """Whether somebody waits for the release of a request."""
    return bool(runtime.holds._waiting.get(key))


def numbers(bench) -> list[float]:
    """Return the values that were sent."""
    return [
        value
        for message in bench.channel.of(Respond)
        if message.response.outputs
        for value in values(message.response)
    ]


def three(requests):
    for request in requests:
        sender = request.get_response_sender()
        for number in range(3):
            sender.send(y([number]))
        sender.send(flags=FINAL)


def held(execute, answer=None) -> Bench:
    """Return a bench whose model gets request 1 together with a `Hold`."""
    bench = Bench(execute, is_decoupled=True, answer=answer)
    bench.channel.put(Execute(1, [request_data(1, id="1")]), Hold(1))
    return bench


# Processes


@pytest.mark.parametrize("end", [Resume(1), Cancel(1)], ids=["resume", "cancel"])
def test_a_sender_waits_until_its_request_is_released(end):
    with held(three) as bench:
        wait_until(lambda: waits(bench.runtime, 1))
        assert bench.channel.of(Respond) == []
        bench.channel.put(Hold(1), end)
        assert bench.executed().error is None
        assert numbers(bench) == [0, 1, 2]


@pytest.mark.parametrize("end", [Finalize(), None], ids=["finalize", "server gone"])
def test_a_sender_does_not_wait_for_what_will_not_come(end):
    is_done = threading.Event()

    def execute(requests):
        three(requests)
        is_done.set()

    with held(execute) as bench:
        wait_until(lambda: waits(bench.runtime, 1))
        bench.channel.put(end)
        assert is_done.wait(10)


def test_a_request_that_is_held_again_waits_again():
    may_go_on = threading.Event()

    def execute(requests):
        sender = requests[0].get_response_sender()
        sender.send(y([1]))
        may_go_on.wait(10)
        sender.send(y([2]))
        sender.send(flags=FINAL)

    with held(execute) as bench:
        wait_until(lambda: waits(bench.runtime, 1))
        bench.channel.put(Resume(1))
        bench.channel.wait_for(Respond)
        bench.channel.put(Hold(1))
        may_go_on.set()
        wait_until(lambda: waits(bench.runtime, 1))
        assert numbers(bench) == [1]
        bench.channel.put(Resume(1))
        bench.executed()
        assert numbers(bench) == [1, 2]


def test_other_requests_go_on_meanwhile():
    senders = []

    def execute(requests):
        for request in requests:
            sender = request.get_response_sender()
            senders.append(threading.Thread(target=send, args=(sender, request.request_id())))
            senders[-1].start()

    def send(sender, text):
        if text == "1":
            wait_until(lambda: 1 in bench.runtime.holds)
        sender.send(y([float(text)]))
        sender.send(flags=FINAL)

    bench = held(execute)
    with bench:
        bench.channel.put(Execute(2, [request_data(2, id="2"), request_data(3, id="3")]))
        bench.channel.put(Execute(3, [request_data(4, id="4")]))
        bench.executed(3)
        bench.channel.wait_for(Respond, 6)
        wait_until(lambda: waits(bench.runtime, 1))
        assert sorted(numbers(bench)) == [2, 3, 4]
        bench.channel.put(Resume(1))
        bench.channel.wait_for(Respond, 8)
        for sender in senders:
            sender.join(10)


@pytest.mark.parametrize("last", [None, [5]], ids=["flag", "response"])
def test_the_end_of_a_request_does_not_wait(last):
    def execute(requests):
        sender = requests[0].get_response_sender()
        sender.send(None if last is None else y(last), flags=FINAL)

    with held(execute) as bench:
        bench.executed()
        assert numbers(bench) == (last or [])
        assert 1 not in bench.runtime.holds


def test_a_final_response_by_another_thread_ends_the_wait_for_nothing():
    def execute(requests):
        sender = requests[0].get_response_sender()
        thread = threading.Thread(target=lambda: sender.send(y([1])))
        thread.start()
        wait_until(lambda: waits(bench.runtime, 1))
        sender.send(flags=FINAL)
        thread.join(10)

    def release(message):
        return [Resume(1)] if type(message) is Respond and message.response.is_final else []

    bench = held(execute, release)
    with bench:
        bench.executed()
        assert [message.response.is_flag_only for message in bench.channel.of(Respond)] == [True]


def test_the_loop_of_an_async_model_does_not_wait_but_the_coroutine_that_sends():
    async def execute(requests):
        sender = requests[0].get_response_sender()
        for number in range(3):
            sender.send(y([number]))
            await asyncio.sleep(0)
        sender.send(flags=FINAL)

    bench = Bench(execute, is_decoupled=True)
    # The hold is read after the first send; in a batch of its own, as the loop turns.
    bench.channel.put(Execute(1, [request_data(1, id="a")]), Hold(1))
    with bench:
        wait_until(lambda: waits(bench.runtime, 1))
        num_sent = len(numbers(bench))
        assert num_sent < 3
        bench.channel.put(Execute(2, [request_data(2)]))
        bench.executed()
        assert len(bench.channel.of(Respond)) == num_sent + 4
        bench.channel.put(Resume(1))
        bench.channel.wait_for(Respond, 8)
        assert sorted(numbers(bench)) == [0, 0, 1, 1, 2, 2]


def test_a_batch_whose_coroutine_is_cancelled_while_it_rests():
    """What a model sees is a cancellation at the place where it awaits something."""

    async def scenario():
        held_keys: Holds[str] = Holds()
        seen = []

        async def work():
            held_keys.hold("a")
            held_keys.owe("a")
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            seen.append("went on")

        async def run():
            await paced(work(), held_keys, ["a"])

        task = asyncio.create_task(run())
        await until(lambda: held_keys._waiting.get("a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(scenario()) == ["cancelled"]


def test_what_a_paced_coroutine_returns_and_raises_comes_out():
    async def scenario():
        async def good():
            await asyncio.sleep(0)
            return 5

        async def bad():
            await asyncio.sleep(0)
            raise ValueError("no")

        assert await paced(good(), Holds(), []) == 5
        with pytest.raises(ValueError, match="no"):
            await paced(bad(), Holds(), [])

    asyncio.run(scenario())


def test_only_so_many_responses_are_on_their_way_to_a_server_that_is_behind():
    def execute(requests):
        sender = requests[0].get_response_sender()
        for number in range(3 * MOST_ON_THEIR_WAY):
            sender.send(y([number]))
        sender.send(flags=FINAL)

    with Bench(execute, is_decoupled=True) as bench:
        bench.execute(1, request_data(1))
        first, second = bench.channel.wait_for(Call, 2)
        assert (first.method, len(bench.channel.of(Respond))) == ("receipt", 2 * MOST_ON_THEIR_WAY)
        bench.channel.put(Result(first.call))
        bench.channel.wait_for(Call, 3)
        bench.channel.put(Result(second.call))
        bench.executed()
        assert numbers(bench) == list(range(3 * MOST_ON_THEIR_WAY))


def test_receipts_are_asked_for_by_bytes_too(monkeypatch):
    monkeypatch.setattr(holds, "MOST_BYTES_ON_THEIR_WAY", 100)
    events = []
    passage = Passage(lambda: lambda: events.append("waited"))

    for nbytes in (99, 1, 100, 100):
        passage.note(nbytes)

    assert events == ["waited"] * 2


# Threads


STREAM = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for number in range(200):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([number], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ASYNC_STREAM = STREAM.replace("def execute", "async def execute").replace(
    "            sender.send(pb_utils.Inf",
    "            await asyncio.sleep(0)\n            sender.send(pb_utils.Inf",
)


class HeldAsk(Ask):
    """Holds its request when the first response comes."""

    def _take(self, request: InferenceRequest, response) -> None:
        super()._take(request, response)
        if len(self.responses) == 1:
            self.runtime = request.instance._runtime
            self.server.model(request.model_name).hold(request)


@pytest.mark.parametrize("body", [STREAM, ASYNC_STREAM], ids=["plain", "async"])
@pytest.mark.parametrize("end", ["resume", "cancel"])
def test_a_sender_in_a_thread_waits_until_its_request_is_released(
    tmp_path: Path, body: str, end: str
) -> None:
    add_thread_model(tmp_path, "m", body, extra=DECOUPLED)

    async def scenario(server: Server) -> None:
        ask = HeldAsk(server, "m")
        await ask.first()
        await until(lambda: waits(ask.runtime, ask.request))
        num_responses = len(ask.responses)
        await asyncio.sleep(0.01)
        assert num_responses <= len(ask.responses) <= 2 * MOST_ON_THEIR_WAY + 1
        getattr(server.model("m"), end)(ask.request)
        assert [[float(number)] for number in range(200)] == await ask.values()
        assert ask.request not in ask.runtime.holds

    serve(tmp_path, scenario)


def test_a_server_that_stops_does_not_wait_for_held_threads(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", STREAM, extra=DECOUPLED)

    async def scenario(server: Server) -> None:
        ask = HeldAsk(server, "m")
        await ask.first()
        await until(lambda: waits(ask.runtime, ask.request))
        ask.request.instance.kill()
        assert "was given up" in await ask.error()

    serve(tmp_path, scenario)


def test_a_request_that_is_answered_is_not_held(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", STREAM, extra=DECOUPLED)

    async def scenario(server: Server) -> None:
        ask = Ask(server, "m")
        instance = server.model("m").pool.slots[0].instance
        await ask.all()
        instance.hold(ask.request)
        assert ask.request not in instance._runtime.holds

    serve(tmp_path, scenario)


def test_a_model_in_a_thread_that_reads_slowly_makes_the_one_it_asks_wait(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "s", STREAM, extra=DECOUPLED)
    add_thread_model(
        tmp_path,
        "m",
        """
        gate = threading.Event()
        def execute(self, requests):
            asked = pb_utils.InferenceRequest(
                model_name="s", inputs=requests[0].inputs(), requested_output_names=["Y"]
            )
            answers = asked.exec(decoupled=True)
            next(iter(answers))
            self.gate.wait(10)
            if pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0] == 2:
                del answers
                rest = []
            else:
                rest = [r.output_tensors()[0].as_numpy()[0] for r in answers if r.output_tensors()]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(rest, np.float32))])]
        """,
    )

    async def scenario(server: Server) -> None:
        callee = server.model("s")
        instance = callee.pool.slots[0].instance
        gate = server.model("m").pool.slots[0].instance._model._object.gate
        for value, expected in ((1, [float(number) for number in range(1, 200)]), (2, [])):
            gate.clear()
            ask = Ask(server, "m", (value,))
            await until(lambda: any(instance._runtime.holds._waiting.values()))
            gate.set()
            assert [expected] == await ask.values()
            await until(lambda: callee.num_in_flight == 0)
            assert not instance._runtime.holds._waiting

    serve(tmp_path, scenario)


# What both have in common


def test_whoever_comes_too_late_does_not_wait():
    held_keys: Holds[int] = Holds()
    woken = []
    assert not held_keys.join(1, lambda: woken.append(0))
    held_keys.hold(1)
    assert held_keys.join(1, lambda: woken.append(1))
    held_keys.hold(1)
    held_keys.release(1)
    held_keys.release(1)

    assert woken == [1]
    assert 1 not in held_keys


def test_nothing_is_held_after_the_end():
    held_keys: Holds[int] = Holds()
    held_keys.hold(1)
    held_keys.end()
    held_keys.hold(2)

    assert 1 not in held_keys
    assert 2 not in held_keys


@pytest.mark.parametrize(("nbytes", "most"), [(1, MOST), (MOST_BYTES // 4, 4)])
def test_a_backlog_is_full_from_much_to_little(nbytes, most):
    backlog = Backlog()

    assert [backlog.add(nbytes) for _ in range(most + 2)] == [False] * (most - 1) + [True] * 3
    assert [backlog.take() for _ in range(most + 2)].index(True) == most // 2 + 1
    assert not backlog.is_full
    assert not backlog.take(100)


def test_bytes_of_texts_are_counted_without_encoding_them():
    texts = Tensor.from_numpy("T", np.array([b"abc", b"de"], np.object_))

    assert holds.size_of([texts, Tensor.from_numpy("X", np.zeros(4, np.float32))]) == 5 + 16
