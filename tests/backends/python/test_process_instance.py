"""ProcessInstance: what becomes of requests between the engine and a worker process, and of a process that dies."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import ModelContext, RequestInstance
from bireme.backends.python.instance import ProcessInstance
from bireme.backends.supervised import Launch
from bireme.config import ModelConfig
from bireme.ipc.messages import (
    Cancel,
    CheckReady,
    DropSequence,
    ErrorData,
    Execute,
    Executed,
    Finalize,
    Hold,
    Infer,
    Orphaned,
    Readiness,
    Released,
    Respond,
    ResponseData,
    Resume,
    Start,
    Started,
)
from bireme.types import BackendFailed, InvalidArgument, Unavailable
from model_dirs import until
from worker_fakes import FakeHost, FakeSink, FakeWorker, call_data, make_execution, make_request, tensor_data


class Bench:
    """An instance with a fake process, sink and server, on the running loop."""

    def __init__(self, max_concurrent: int = 4) -> None:
        self.workers: list[FakeWorker] = []
        self.spawn_error: OSError | None = None
        self.host = FakeHost(asyncio.get_running_loop())
        self.sink = FakeSink()
        context = ModelContext("m", 1, Path("/m"), Path("/m/1"), ModelConfig(name="m"), host=self.host)
        launch = Launch("model 'm' version 1", "m_0_0", self.spawn, {"mode": "serve"})
        self.instance = ProcessInstance(context, self.host, launch, max_concurrent=max_concurrent)

    def spawn(self) -> FakeWorker:
        if self.spawn_error is not None:
            raise self.spawn_error
        self.workers.append(FakeWorker())
        return self.workers[-1]

    @property
    def worker(self) -> FakeWorker:
        return self.workers[-1]

    async def open(self, started: Started | None = None) -> None:
        """Open it on another thread, as a load does; ``started`` is what the process says."""
        opening = asyncio.get_running_loop().run_in_executor(None, self.instance.open)
        await until(lambda: self.workers and self.worker.sent)
        self.worker.say(started or Started())
        await opening
        self.instance.start(self.sink)
        self.worker.take()

    def run(self, *requests) -> Execute:
        """Have the instance take ``requests`` as a batch; return what the process got."""
        self.instance.execute_requests(make_execution(*requests))
        return self.worker.take()[-1]


@pytest.fixture
def bench():
    """Make a bench on the running loop, and open it."""

    async def make(started: Started | None = None, **options) -> Bench:
        bench = Bench(**options)
        await bench.open(started)
        return bench

    return make


def run(scenario) -> None:
    asyncio.run(scenario())


def executed(message: Execute, *responses: ResponseData | None, **settings) -> Executed:
    return Executed(message.number, 10, 20, list(responses), **settings)


def answer(*values: float, **settings) -> ResponseData:
    return ResponseData([tensor_data("Y", *values)], **settings)


def test_it_is_what_the_engine_takes_for_a_request_instance(bench):
    async def scenario():
        assert isinstance((await bench()).instance, RequestInstance)

    run(scenario)


def test_opening_sends_the_settings_and_waits_until_the_model_is_initialised(bench):
    async def scenario():
        bench = Bench()
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, bench.instance.open)
        await until(lambda: bench.workers and bench.worker.sent)

        assert bench.worker.take() == [Start({"mode": "serve"})]
        assert not opening.done()
        bench.worker.say(Started())
        await opening
        assert bench.instance.unavailable is None

    run(scenario)


def test_a_model_that_fails_to_initialise_fails_the_load_with_its_own_text(bench):
    async def scenario():
        bench = Bench()
        opening = asyncio.get_running_loop().run_in_executor(None, bench.instance.open)
        await until(lambda: bench.workers and bench.worker.sent)
        bench.worker.say(
            Started(ErrorData("INTERNAL", "ValueError: no weights\n\nAt:\n  model.py(3): initialize"))
        )

        with pytest.raises(BackendFailed, match=r"^ValueError: no weights\n\nAt:"):
            await opening
        assert not bench.worker.is_killed  # it writes what its model printed, and ends by itself

    run(scenario)


def test_a_process_that_dies_while_it_initialises_fails_the_load(bench):
    async def scenario():
        bench = Bench()
        opening = asyncio.get_running_loop().run_in_executor(None, bench.instance.open)
        await until(lambda: bench.workers and bench.worker.sent)
        bench.worker.die("was killed by signal 9 (SIGKILL)")

        with pytest.raises(BackendFailed, match=r"'m_0_0' \(pid \d+\) was killed by signal 9 .* initialised"):
            await opening

    run(scenario)


def test_a_process_that_cannot_be_spawned_fails_the_load():
    async def scenario():
        bench = Bench()
        bench.spawn_error = OSError(2, "No such file or directory")

        with pytest.raises(
            BackendFailed, match=r"cannot start the process of instance 'm_0_0': .*No such file"
        ):
            await asyncio.get_running_loop().run_in_executor(None, bench.instance.open)

    run(scenario)


def test_a_batch_goes_out_as_one_message_with_all_that_its_requests_say(bench):
    async def scenario():
        b = await bench()
        first = make_request(
            1.0,
            id="a",
            outputs=("Y",),
            parameters={"p": 1},
            priority=2,
            timeout_us=300,
            sequence_id="s",
            sequence_start=True,
            sequence_end=True,
        )
        first.trace_context = "{}"
        second = make_request(2.0)
        second.parent = make_execution()
        second.cancelled = True

        message = b.run(first, second)

        a, c = message.requests
        assert (a.id, a.outputs, a.parameters, a.priority, a.timeout_us) == ("a", ["Y"], {"p": 1}, 2, 300)
        assert (a.sequence_id, a.flags, a.trace_context) == ("s", 3, "{}")
        assert (a.is_shared, a.is_cancelled) == (False, False)
        assert (c.is_shared, c.is_cancelled, c.outputs, c.flags) == (True, True, None, 0)
        assert a.number != c.number
        assert [data.name for data in a.inputs] == ["X"]

    run(scenario)


def test_the_instance_is_free_before_the_answers_are_given(bench):
    """The process gets its next batch first; it does not wait until this one's answers are encoded."""

    async def scenario():
        b = await bench()
        first, second = make_request(1.0, id="a"), make_request(2.0, id="b")
        message = b.run(first, second)

        b.worker.say(executed(message, answer(5.0), answer(6.0)))

        assert b.sink.kinds == ["finish", "respond", "respond"]
        execution = b.sink.events[0][1]
        assert b.sink.events[0][2] is None
        assert (execution.compute_input_end_ns, execution.compute_output_start_ns) == (10, 20)
        assert execution.compute_end_ns > execution.compute_start_ns > 0
        (_, request, response), (_, other, _) = b.sink.events[1:]
        assert request is first
        assert other is second
        assert (response.model_name, response.model_version, response.id, response.final) == (
            "m",
            1,
            "a",
            True,
        )
        assert response.outputs[0].to_numpy().tolist() == [5.0]

    run(scenario)


def test_a_response_may_be_an_error_of_the_models_own_code(bench):
    async def scenario():
        b = await bench()
        message = b.run(make_request())

        b.worker.say(
            executed(message, ResponseData(error=ErrorData("INVALID_ARG", "too long"), parameters={"n": 1}))
        )

        error = b.sink.events[1][2].error
        assert isinstance(error, InvalidArgument)
        assert error.message == "too long"
        assert b.sink.events[1][2].parameters == {"n": 1}

    run(scenario)


def test_a_batch_that_failed_is_finished_with_its_error(bench, caplog):
    async def scenario():
        b = await bench()
        message = b.run(make_request(), make_request())

        b.worker.say(executed(message, error=ErrorData("INTERNAL", "Failed to process the request(s)")))
        b.worker.say(Respond(message.requests[0].number, answer(1.0)))

        assert b.sink.kinds == ["finish"]
        assert isinstance(b.sink.events[0][2], BackendFailed)
        assert "Failed to process the request(s)" in caplog.text

    run(scenario)


def test_requests_without_a_response_in_the_list_are_answered_by_their_sender(bench):
    async def scenario():
        b = await bench()
        request = make_request()
        message = b.run(request)
        number = message.requests[0].number

        b.worker.say(Respond(number, answer(1.0, is_final=False)))
        b.worker.say(executed(message, None))
        b.worker.say(Respond(number, answer(2.0, is_final=False)))
        b.worker.say(Respond(number, ResponseData(is_flag_only=True)))
        b.worker.say(Respond(number, answer(3.0)))  # nobody is there any more

        assert b.sink.kinds == ["respond", "finish", "respond", "respond"]
        assert [event[2].final for event in b.sink.events if event[0] == "respond"] == [False, False, True]
        assert b.sink.events[-1][2].flag_only

    run(scenario)


def test_a_sender_that_was_dropped_is_an_error_of_the_model(bench):
    async def scenario():
        b = await bench()
        message = b.run(make_request())
        b.worker.say(executed(message, None))

        b.worker.say(Orphaned(message.requests[0].number))

        assert "dropped the response sender" in b.sink.events[-1][2].error.message

    run(scenario)


def test_a_request_that_is_wanted_again_is_answered_with_what_that_needs(bench):
    async def scenario():
        b = await bench()
        message = b.run(make_request())

        b.worker.say(executed(message, None, rescheduled=[message.requests[0].number]))

        (answer,) = (event[2] for event in b.sink.events if event[0] == "respond")
        assert "iterative_sequence" in answer.error.message

    run(scenario)


def test_a_request_of_an_iterative_model_runs_again_once_its_execution_has_ended(bench):
    async def scenario():
        b = await bench()
        b.sink.is_iterative = True
        request = make_request()
        message = b.run(request)
        number = message.requests[0].number

        b.worker.say(executed(message, None, rescheduled=[number]))

        assert [event[0] for event in b.sink.events] == ["run_again", "finish"]
        again = b.run(request)
        assert again.requests[0].number != number

    run(scenario)


def test_a_process_hears_of_a_dropped_sequence_if_its_model_has_the_hook(bench):
    async def scenario():
        b = await bench()
        b.instance.drop_sequence(7)
        assert b.worker.take() == []

        b = await bench(Started(facts={"has_drop_sequence": "1"}))
        b.instance.drop_sequence("seven")
        assert b.worker.take() == [DropSequence("seven")]

    run(scenario)


def test_cancelling_a_request_tells_the_process_its_number(bench):
    async def scenario():
        b = await bench()
        requests = [make_request(), make_request()]
        message = b.run(*requests)

        b.instance.cancel(requests[1])
        b.instance.cancel(make_request())

        assert b.worker.take() == [Cancel(message.requests[1].number)]

    run(scenario)


def test_memory_that_was_let_go_of_is_given_back_with_the_next_batch(bench):
    async def scenario():
        b = await bench()
        b.worker.ledger.released += [3, 4]

        assert b.run(make_request()).released == [3, 4]
        assert b.run(make_request()).released == []

    run(scenario)


@pytest.mark.slow
def test_an_idle_process_gets_its_memory_back_without_a_batch(bench):
    async def scenario():
        b = await bench()
        b.worker.ledger.num_borrowed = 1
        b.worker.say(executed(b.run(make_request()), answer(1.0)))
        await asyncio.sleep(0.7)
        b.worker.ledger.released.append(5)
        await until(lambda: b.worker.sent)

        assert b.worker.take() == [Released([5])]

    run(scenario)


def test_what_the_process_lets_go_of_is_free_again(bench):
    async def scenario():
        b = await bench()
        message = b.run(make_request())

        b.worker.say(executed(message, answer(1.0), released=[1]))
        b.worker.say(Released([2, 3]))

        assert b.worker.ledger.taken_back == [1, 2, 3]

    run(scenario)


def test_only_an_async_model_takes_several_batches_at_a_time(bench):
    async def scenario():
        assert (await bench(Started())).instance.max_concurrent == 1
        assert (await bench(Started(facts={"is_async": "1"}), max_concurrent=7)).instance.max_concurrent == 7

    run(scenario)


# Readiness


def test_a_model_without_is_ready_is_ready_as_long_as_its_process_lives(bench):
    async def scenario():
        b = await bench()

        assert not b.instance.has_ready_hook
        assert await b.instance.check_ready()
        assert b.worker.sent == []
        b.worker.die("ended with status 1")
        assert not await b.instance.check_ready()

    run(scenario)


@pytest.mark.parametrize("is_ready", [True, False])
def test_checks_at_one_time_share_one_question(bench, is_ready):
    async def scenario():
        b = await bench(Started(facts={"has_is_ready": "1"}))
        checks = [asyncio.create_task(b.instance.check_ready()) for _ in range(3)]
        await asyncio.sleep(0)

        assert [type(message) for message in b.worker.take()] == [CheckReady]
        b.worker.say(Readiness(0, is_ready))
        assert await asyncio.gather(*checks) == [is_ready] * 3

    run(scenario)


def test_a_check_that_takes_too_long_says_no(bench, monkeypatch):
    monkeypatch.setattr("bireme.backends.python.instance.READY_TIMEOUT_S", 0.01)

    async def scenario():
        b = await bench(Started(facts={"has_is_ready": "1"}))

        assert not await b.instance.check_ready()
        assert not await b.instance.check_ready()
        assert len(b.worker.take()) == 1  # the process has not answered the first question yet
        b.worker.say(Readiness(0, True))

    run(scenario)


def test_a_model_that_is_not_ready_says_why_in_the_log_once(bench, caplog):
    async def scenario():
        b = await bench(Started(facts={"has_is_ready": "1"}))
        for _ in range(2):
            b.worker.say(Readiness(0, False, "is_ready() returned False"))

        assert caplog.text.count("instance 'm_0_0' is not ready: is_ready() returned False") == 1

    run(scenario)


# Death


def test_all_that_a_dead_process_had_is_answered_unavailable(bench):
    async def scenario():
        b = await bench()
        decoupled, running = make_request(id="d"), make_request(id="r")
        message = b.run(decoupled)
        b.worker.say(executed(message, None))
        b.run(running)
        b.sink.events.clear()
        pid = b.worker.pid

        b.worker.die("was killed by signal 9 (SIGKILL)")

        assert b.sink.kinds == ["finish", "respond", "change"]
        error = b.sink.events[0][2]
        assert isinstance(error, Unavailable)
        assert error.message == (
            f"model 'm' version 1: the process of instance 'm_0_0' (pid {pid}) was killed by signal 9 (SIGKILL); "
            f"the request was lost and may be sent again"
        )
        assert b.sink.events[1][1] is decoupled
        assert b.sink.events[1][2].error is error
        assert b.instance.unavailable.startswith("the process of instance 'm_0_0'")

    run(scenario)


def test_the_instance_is_unavailable_before_it_says_that_it_is_free(bench):
    """Otherwise the engine would hand it the next batch at once."""

    async def scenario():
        b = await bench()
        b.run(make_request())
        seen = []
        finish = b.sink.finish
        b.sink.finish = lambda execution, error: (
            seen.append(b.instance.unavailable),
            finish(execution, error),
        )

        b.worker.die("ended with status 1")

        assert seen[0] is not None

    run(scenario)


def test_a_process_that_died_is_started_again_at_once(bench):
    async def scenario():
        b = await bench()
        b.worker.die("ended with status 1")
        assert b.instance.retry_delay_s == 0
        b.sink.events.clear()

        await until(lambda: len(b.workers) == 2 and b.worker.sent)
        assert b.worker.take() == [Start({"mode": "serve"})]
        assert b.instance.unavailable is not None
        b.worker.say(Started())

        assert b.instance.unavailable is None
        assert b.instance.num_restarts == 1
        assert b.sink.kinds == ["change"]
        b.worker.say(executed(b.run(make_request()), answer(1.0)))
        assert b.sink.kinds == ["change", "finish", "respond"]

    run(scenario)


def test_a_restart_that_fails_is_tried_again_later(bench, caplog):
    async def scenario():
        b = await bench()
        b.worker.die("ended with status 1")
        await until(lambda: len(b.workers) == 2 and b.worker.sent)

        b.worker.say(Started(ErrorData("INTERNAL", "OSError: gone")))

        assert b.instance.unavailable == "instance 'm_0_0' cannot be started again: OSError: gone"
        assert b.instance.retry_delay_s == 1
        assert b.sink.kinds[-1] == "change"
        await asyncio.get_running_loop().run_in_executor(None, b.instance.close)

    run(scenario)


def test_what_a_dead_process_says_late_changes_nothing(bench):
    async def scenario():
        b = await bench()
        old = b.worker
        message = b.run(make_request())
        old.die("ended with status 1")
        old.die("ended with status 1")
        await until(lambda: len(b.workers) == 2 and b.worker.sent)
        b.worker.say(Started())
        b.sink.events.clear()

        old.say(executed(message, answer(1.0), released=[1]))
        old.say(Infer(call_data(), message.number))

        assert b.sink.events == []
        assert b.host.submitted == []
        assert b.worker.ledger.taken_back == []

    run(scenario)


def test_a_batch_for_a_process_that_is_gone_is_answered_later_and_not_at_once(bench):
    async def scenario():
        b = await bench()
        b.worker.die("ended with status 1")
        b.sink.events.clear()

        b.instance.execute_requests(make_execution(make_request()))
        assert b.sink.events == []
        await until(lambda: b.sink.events)

        assert isinstance(b.sink.events[0][2], Unavailable)

    run(scenario)


def test_a_batch_that_cannot_be_handed_over_is_answered(bench):
    async def scenario():
        b = await bench()

        def fail(tensor):
            raise MemoryError("full")

        b.worker.ledger.export = fail
        b.instance.execute_requests(make_execution(make_request()))
        await until(lambda: b.sink.events)

        assert "full" in b.sink.events[0][2].message

    run(scenario)


def test_calls_of_a_dead_process_are_taken_back(bench):
    async def scenario():
        b = await bench()
        message = b.run(make_request())
        b.worker.say(Infer(call_data(), message.number))
        (call,) = b.host.submitted
        assert call.parent is not None

        b.worker.die("ended with status 1")

        assert b.host.cancelled == [call]

    run(scenario)


def test_a_process_that_talks_nonsense_is_ended(bench, caplog):
    async def scenario():
        b = await bench()
        message = b.run(make_request())
        bad = ResponseData([tensor_data("Y", 1.0)])
        bad.outputs[0].shape = (7, 7)

        b.worker.say(executed(message, bad))

        assert b.worker.is_killed
        assert b.instance.unavailable is not None
        respond = next(event for event in b.sink.events if event[0] == "respond")
        assert isinstance(respond[2].error, Unavailable)

    run(scenario)


# The end


def test_closing_lets_the_model_finalize(bench):
    async def scenario():
        b = await bench()

        await asyncio.get_running_loop().run_in_executor(None, b.instance.close)

        assert b.worker.take() == [Finalize()]
        assert b.worker.stopped == [30.0]
        b.worker.die("ended with status 0")
        await asyncio.sleep(0)
        assert len(b.workers) == 1

    run(scenario)


def test_a_batch_that_a_process_still_has_when_it_ended_is_answered(bench):
    async def scenario():
        b = await bench()
        b.run(make_request())

        await asyncio.get_running_loop().run_in_executor(None, b.instance.close)
        await until(lambda: b.sink.events)

        assert isinstance(b.sink.events[0][2], Unavailable)
        assert len(b.workers) == 1

    run(scenario)


def test_a_killed_process_answers_at_once_and_comes_back(bench):
    async def scenario():
        b = await bench()
        b.run(make_request())
        old = b.worker

        b.instance.kill()

        assert old.is_killed
        assert b.sink.kinds == ["finish", "change"]
        await until(lambda: len(b.workers) == 2 and b.worker.sent)

    run(scenario)


def test_a_process_that_runs_nothing_is_not_killed(bench):
    async def scenario():
        b = await bench()

        b.instance.kill()

        assert not b.worker.is_killed
        assert b.sink.kinds == []

    run(scenario)


def test_killing_a_process_that_does_not_come_to_serve_is_a_failed_start(bench):
    async def scenario():
        b = await bench()
        b.worker.die("ended with status 1")
        await until(lambda: len(b.workers) == 2 and b.worker.sent)

        b.instance.kill()

        assert b.worker.is_killed
        assert b.instance.retry_delay_s == 1
        await asyncio.get_running_loop().run_in_executor(None, b.instance.close)

    run(scenario)


def test_a_process_that_is_killed_and_then_closed_does_not_come_back(bench):
    async def scenario():
        b = await bench()
        b.run(make_request())

        b.instance.kill()
        await asyncio.get_running_loop().run_in_executor(None, b.instance.close)
        await asyncio.sleep(0.1)

        assert len(b.workers) == 1

    run(scenario)


def test_arrays_of_a_response_are_views_of_what_the_process_sent(bench):
    async def scenario():
        b = await bench()
        data = answer(1.0, 2.0)
        b.worker.say(executed(b.run(make_request()), data))

        array = b.sink.events[-1][2].outputs[0].to_numpy()
        assert np.shares_memory(array, np.frombuffer(data.outputs[0].data, np.uint8))

    run(scenario)


def test_holding_a_request_tells_the_process_once(bench):
    async def scenario():
        process = await bench()
        request, other = make_request(), make_request()
        process.run(request, other)
        process.worker.take()

        process.instance.hold(other)
        process.instance.hold(other)
        process.instance.resume(other)
        process.instance.resume(other)
        process.instance.hold(make_request())

        assert process.worker.take() == [Hold(2), Resume(2)]

    run(scenario)


@pytest.mark.parametrize(
    "end",
    [
        Respond(1, ResponseData(is_flag_only=True)),
        Orphaned(1),
        Executed(1, 1, 2, [], ErrorData("INTERNAL", "no")),
    ],
    ids=["final response", "dropped sender", "failure"],
)
def test_what_waits_in_the_process_learns_that_its_request_has_ended(bench, end):
    async def scenario():
        process = await bench()
        request = make_request()
        process.run(request)
        process.instance.hold(request)
        process.worker.take()

        process.worker.say(end)

        assert process.worker.take() == [Resume(1)]

    run(scenario)


def test_a_process_that_is_started_again_holds_nothing(bench):
    async def scenario():
        process = await bench()
        request = make_request()
        process.run(request)
        process.instance.hold(request)
        process.worker.die("was killed")

        process.instance.resume(request)

        assert process.instance._held == set()

    run(scenario)
