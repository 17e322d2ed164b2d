"""Runner and AsyncRunner: a model's batches, between the messages of its server. The far end is the test."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time

import numpy as np
import pytest

from bireme.backends.python.pb_utils.errors import TritonError, TritonModelException
from bireme.backends.python.pb_utils.request import InferenceRequest
from bireme.backends.python.pb_utils.response import InferenceResponse
from bireme.backends.python.pb_utils.tensor import Tensor
from bireme.ipc.messages import (
    Cancel,
    CheckReady,
    DropSequence,
    ErrorData,
    Execute,
    Executed,
    Finalize,
    Infer,
    Orphaned,
    Readiness,
    Released,
    Reply,
    Respond,
    ResponseData,
)
from model_channel import answer_infer, echo, lent_data, request_data
from model_runner import Bench, values, x_data, x_of, y

FINAL = 1
RESCHEDULE = 2


def plus_one(requests):
    return [y(x_of(request) + 1) for request in requests]


async def plus_one_async(requests):
    await asyncio.sleep(0)
    return plus_one(requests)


def both(function):
    """Return ``function`` as a model's ``execute``, and as an asynchronous one."""

    async def execute(requests):
        return function(requests)

    return pytest.mark.parametrize("execute", [function, execute], ids=["sync", "async"])


# What execute returns


@pytest.mark.parametrize("execute", [plus_one, plus_one_async], ids=["sync", "async"])
def test_batch_is_answered_in_one_message(execute):
    with Bench(execute) as bench:
        before_ns = time.monotonic_ns()
        executed = bench.run(request_data(1, x_data(1, 2)), request_data(2, x_data(3)))

        assert [values(response) for response in executed.responses] == [[2, 3], [4]]
        assert all(response.is_final for response in executed.responses)
        assert before_ns <= executed.start_ns <= executed.end_ns <= time.monotonic_ns()
        assert (executed.number, executed.error, executed.rescheduled) == (1, None, [])
        assert len(bench.channel.sent) == 1
        assert bench.runtime.open == {}


def test_request_is_as_the_server_says():
    seen = []

    def execute(requests):
        seen.extend(requests)
        return plus_one(requests)

    with Bench(execute) as bench:
        bench.run(
            request_data(
                1,
                x_data(1),
                id="a",
                parameters={"p": 1},
                sequence_id=5,
                flags=3,
                timeout_us=9,
                trace_context="{}",
                outputs=["Y"],
            ),
            request_data(2, x_data(1), is_shared=True),
        )

    first, second = seen
    assert (first.request_id(), first.correlation_id(), first.flags(), first.timeout()) == ("a", 5, 3, 9)
    assert (first.parameters(), first.trace().get_context()) == ('{"p":1}', "{}")
    assert (first.requested_output_names(), second.requested_output_names()) == ({"Y"}, {"Y", "Z"})
    assert (x_of(first).flags.writeable, x_of(second).flags.writeable) == (True, False)


def test_outputs_that_nobody_wants_are_dropped():
    def execute(requests):
        outputs = [Tensor(name, np.zeros(1, np.float32)) for name in ("W", "Y", "Z")]
        return [InferenceResponse(outputs) for _ in requests]

    with Bench(execute) as bench:
        executed = bench.run(request_data(1, outputs=["Z"]), request_data(2))

    names = [[output.name for output in response.outputs] for response in executed.responses]
    assert names == [["Z"], ["Y", "Z"]]


def test_error_responses_keep_code_and_text():
    def execute(requests):
        return [
            InferenceResponse(error=TritonError("no such thing", TritonError.NOT_FOUND)) for _ in requests
        ]

    with Bench(execute) as bench:
        executed = bench.run(request_data(1, x_data(1)))

    assert executed.responses[0].error == ErrorData("NOT_FOUND", "no such thing")
    assert executed.error is None


def test_leases_of_inputs_go_back_with_the_answer():
    with Bench(plus_one) as bench:
        executed = bench.run(request_data(1, lent_data("X", 7)), request_data(2, lent_data("X", 8)))

        assert sorted(executed.released) == [7, 8]


def test_leases_go_back_with_the_answer_of_a_failed_batch_too():
    def execute(requests):
        kept = x_of(requests[0])
        raise ValueError(kept.shape)

    with Bench(execute) as bench:
        assert bench.run(request_data(1, lent_data("X", 7))).released == [7]


def test_leases_that_the_model_keeps_go_back_later():
    kept = []

    def execute(requests):
        kept.append(x_of(requests[0]))
        return plus_one(requests)

    with Bench(execute) as bench:
        assert bench.run(request_data(1, lent_data("X", 7))).released == []
        kept.clear()
        assert bench.run(request_data(2, lent_data("X", 8))).released == [7]


@both(lambda requests: 1 / 0)
def test_exception_fails_the_whole_batch(execute):
    with Bench(execute) as bench:
        executed = bench.run(request_data(1), request_data(2))

        assert executed.error.code == "INTERNAL"
        assert executed.error.message.startswith(
            "Failed to process the request(s) for model 'm_0_0', message: ZeroDivisionError: division by zero\n\nAt:\n"
        )
        assert executed.responses == []
        assert bench.runtime.open == {}


@both(lambda requests: sys.exit("enough"))
def test_exit_ends_the_batch_and_not_the_process(execute):
    with Bench(execute) as bench:
        assert "SystemExit: enough" in bench.run(request_data(1)).error.message
        assert "SystemExit" in bench.run(request_data(2)).error.message


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ((), "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            [],
            (
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
            ),
        ),
        (
            ["no"],
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'.",
        ),
    ],
)
def test_wrong_return_fails_the_batch(returned, text):
    with Bench(lambda _: returned) as bench:
        executed = bench.run(request_data(1))

    assert executed.error.message == f"Failed to process the request(s) for model 'm_0_0', message: {text}"


def test_decoupled_model_must_return_none():
    with Bench(plus_one, is_decoupled=True) as bench:
        executed = bench.run(request_data(1, x_data(1)))

    assert executed.error.message == (
        "Failed to process the request(s) for model 'm_0_0', message: Python model 'm_0_0' is using the decoupled mode "
        "and the execute function must return None."
    )


def test_model_may_empty_the_list_it_gets():
    def execute(requests):
        return [y(x_of(requests.pop(0))) for _ in range(2)]

    with Bench(execute) as bench:
        executed = bench.run(request_data(1, x_data(1)), request_data(2, x_data(2)))

    assert [values(response) for response in executed.responses] == [[1], [2]]


def test_decorated_coroutine_function_is_run_to_its_end():
    with Bench(lambda requests: plus_one_async(list(requests))) as bench:
        assert values(bench.run(request_data(1, x_data(1))).responses[0]) == [2]


def test_what_no_message_can_hold_fails_the_batch_and_not_the_process():
    def execute(requests):
        if requests[0].request_id() == "text":
            raise ValueError("file \udcff is missing")
        return [InferenceResponse([Tensor("Y", np.zeros(1, np.float32))], parameters={"n": 1 << 70})]

    with Bench(execute) as bench:
        assert "file \\udcff is missing" in bench.run(request_data(1, id="text")).error.message
        executed = bench.run(request_data(2))

        assert (executed.responses, executed.error.code) == ([], "INTERNAL")
        assert bench.runtime.open == {}


# Senders


def test_ordinary_model_may_answer_by_its_sender():
    def execute(requests):
        requests[0].get_response_sender().send(y([1]), FINAL)
        return [None, y([2])]

    with Bench(execute) as bench:
        executed = bench.run(request_data(1), request_data(2))

        (respond,) = bench.channel.of(Respond)
        assert (respond.request, values(respond.response), respond.response.is_final) == (1, [1], True)
        assert (executed.responses[0], values(executed.responses[1])) == (None, [2])
        assert bench.runtime.open == {}


def test_response_beside_that_of_the_sender_fails_the_batch():
    def execute(requests):
        requests[0].get_response_sender().send(y([1]), FINAL)
        return [y([2])]

    with Bench(execute) as bench:
        executed = bench.run(request_data(1))

    assert executed.error.message.endswith(
        "message: Unable to send response. Non-decoupled model cannot send more than one response."
    )


def test_returned_response_closes_the_sender():
    senders = []

    def execute(requests):
        senders.append(requests[0].get_response_sender())
        return plus_one(requests)

    with Bench(execute) as bench:
        bench.run(request_data(1, x_data(1)))

        with pytest.raises(TritonModelException, match=r"Response sender|more than one"):
            senders[0].send(y([2]), FINAL)
        senders.clear()
        assert bench.channel.of(Orphaned) == []


def test_sender_may_answer_after_execute():
    senders = []

    def execute(requests):
        senders.extend(request.get_response_sender() for request in requests)

    with Bench(execute) as bench:
        assert bench.run(request_data(1)).responses == [None]

        senders[0].send(y([5]), FINAL)

        assert [values(message.response) for message in bench.channel.of(Respond)] == [[5]]


def test_request_that_nobody_can_answer_is_given_up():
    """Neither a response, nor a sender that could send one later."""
    with Bench(lambda requests: [None] * len(requests)) as bench:
        bench.run(request_data(1))

        assert bench.channel.wait_for(Orphaned) == [Orphaned(1)]
        assert bench.channel.sent[0] == bench.executed()


def test_request_that_a_thread_still_holds_is_not_given_up():
    held = []
    with Bench(held.extend) as bench:
        bench.run(request_data(1))
        bench.run(request_data(2))
        assert bench.channel.of(Orphaned) == []

        held.pop(0).get_response_sender().send(y([5]), FINAL)
        held.clear()

        assert [message.request for message in bench.channel.of(Respond)] == [1]
        assert bench.channel.of(Orphaned) == [Orphaned(2)]


def repeat(requests):
    for request in requests:
        sender = request.get_response_sender()
        for number in range(3):
            sender.send(y([number]))
        sender.send(flags=FINAL)


@both(repeat)
def test_decoupled_responses_go_out_as_they_come(execute):
    with Bench(execute, is_decoupled=True) as bench:
        executed = bench.run(request_data(1), request_data(2))

        responds = bench.channel.of(Respond)
        assert [message.request for message in responds] == [1] * 4 + [2] * 4
        assert [values(message.response) for message in responds[:3]] == [[0], [1], [2]]
        assert (responds[3].response.is_final, responds[3].response.is_flag_only) == (True, True)
        assert (executed.responses, executed.error) == ([None, None], None)
        assert bench.runtime.open == {}


def test_decoupled_instance_is_free_while_threads_answer():
    go_on = threading.Event()

    def answer(sender):
        go_on.wait(10)
        sender.send(y([1]), FINAL)

    def execute(requests):
        for request in requests:
            threading.Thread(target=answer, args=(request.get_response_sender(),)).start()

    with Bench(execute, is_decoupled=True) as bench:
        bench.run(request_data(1))
        bench.run(request_data(2))
        assert bench.channel.of(Respond) == []

        go_on.set()

        assert sorted(message.request for message in bench.channel.wait_for(Respond, 2)) == [1, 2]


def test_dropped_sender_of_a_decoupled_model_gives_the_request_up():
    def execute(requests):
        requests[0].get_response_sender().send(y([1]))

    with Bench(execute, is_decoupled=True) as bench:
        bench.run(request_data(1))

        assert bench.channel.wait_for(Orphaned) == [Orphaned(1)]


def test_senders_of_a_failed_batch_send_nothing_more():
    senders = []

    def execute(requests):
        senders.append(requests[0].get_response_sender())
        senders[0].send(y([1]))
        raise ValueError("broken")

    with Bench(execute, is_decoupled=True) as bench:
        assert "ValueError: broken" in bench.run(request_data(1)).error.message
        with pytest.raises(TritonModelException, match="closed"):
            senders[0].send(y([2]))
        senders.clear()

        assert len(bench.channel.of(Respond)) == 1
        assert bench.channel.of(Orphaned) == []


# Rescheduling


def test_model_wants_a_request_again():
    def execute(requests):
        requests[0].set_release_flags(RESCHEDULE)
        return [None, y([1])]

    with Bench(execute) as bench:
        executed = bench.run(request_data(1), request_data(2))

        assert executed.rescheduled == [1]
        assert bench.runtime.open == {}
        assert bench.channel.of(Orphaned) == []


def test_decoupled_model_wants_a_request_again():
    def execute(requests):
        requests[0].set_release_flags(RESCHEDULE)

    with Bench(execute, is_decoupled=True) as bench:
        assert bench.run(request_data(1)).rescheduled == [1]
        assert bench.channel.of(Orphaned) == []


def test_response_for_a_rescheduled_request_fails_the_batch():
    def execute(requests):
        requests[0].set_release_flags(RESCHEDULE)
        return [y([1])]

    with Bench(execute) as bench:
        executed = bench.run(request_data(1))

    assert "Expected a None object in the execute function return list for reschduled request" in (
        executed.error.message
    )
    assert executed.rescheduled == []


# Other models


def call(array, name="other", **arguments):
    return InferenceRequest(
        model_name=name, inputs=[Tensor("X", array)], requested_output_names=["Y"], **arguments
    )


def forward(requests):
    results = [call(x_of(request) * 2).exec() for request in requests]
    return [InferenceResponse([Tensor("Y", result.output_tensors()[0].as_numpy())]) for result in results]


async def forward_async(requests):
    results = await asyncio.gather(*(call(x_of(request) * 2).async_exec() for request in requests))
    return [InferenceResponse([Tensor("Y", result.output_tensors()[0].as_numpy())]) for result in results]


@pytest.mark.parametrize("execute", [forward, forward_async], ids=["sync", "async"])
def test_model_asks_another_one(execute):
    with Bench(execute, answer=answer_infer(echo)) as bench:
        executed = bench.run(request_data(1, x_data(4)), request_data(2, x_data(5)))

        assert [values(response) for response in executed.responses] == [[8], [10]]
        assert [infer.execution for infer in bench.channel.of(Infer)] == [1, 1]


def test_batch_that_comes_during_a_call_is_run_after_it():
    def answer(message):
        if type(message) is Infer and message.execution == 1:
            return [
                Execute(2, [request_data(2, x_data(7))]),
                Reply(message.request.number, echo(message.request)),
            ]
        return answer_infer(echo)(message)

    with Bench(forward, answer=answer) as bench:
        bench.execute(1, request_data(1, x_data(4)))

        assert [values(bench.executed(number).responses[0]) for number in (1, 2)] == [[8], [14]]


def test_fan_out_to_threads_from_execute():
    def execute(requests):
        async def fan_out():
            return await asyncio.gather(*(call(x_of(request)).async_exec() for request in requests))

        return [y(result.output_tensors()[0].as_numpy()) for result in asyncio.run(fan_out())]

    with Bench(execute, answer=answer_infer(echo)) as bench:
        executed = bench.run(*(request_data(number, x_data(number)) for number in range(4)))

    assert [values(response) for response in executed.responses] == [[0], [1], [2], [3]]


def test_thread_of_an_async_model_may_ask_while_the_loop_waits_for_it():
    async def execute(requests):
        result = await asyncio.to_thread(call(x_of(requests[0])).exec)
        return [y(result.output_tensors()[0].as_numpy())]

    with Bench(execute, answer=answer_infer(echo)) as bench:
        executed = bench.run(request_data(1, x_data(3)))

        assert values(executed.responses[0]) == [3]
        assert bench.channel.of(Infer)[0].execution == 1


def test_thread_of_an_async_model_may_ask_while_the_loop_is_blocked():
    async def execute(requests):
        results = []
        thread = threading.Thread(target=lambda: results.append(call(x_of(requests[0])).exec()))
        thread.start()
        thread.join()
        return [y(results[0].output_tensors()[0].as_numpy())]

    with Bench(execute, answer=answer_infer(echo)) as bench:
        assert values(bench.run(request_data(1, x_data(3))).responses[0]) == [3]


def test_async_model_may_ask_synchronously():
    async def execute(requests):
        return forward(requests)

    with Bench(execute, answer=answer_infer(echo)) as bench:
        assert values(bench.run(request_data(1, x_data(3))).responses[0]) == [6]


@pytest.mark.parametrize("is_async", [False, True])
def test_model_reads_the_responses_of_a_decoupled_one(is_async):
    def answer(message):
        if type(message) is not Infer:
            return None
        number = message.request.number
        responses = [ResponseData([x_data(value)], is_final=False) for value in range(3)]
        return [Reply(number, response) for response in [*responses, ResponseData(is_flag_only=True)]]

    def execute(requests):
        read = [r.output_tensors() for r in call(x_of(requests[0])).exec(decoupled=True)]
        return [y([float(outputs[0].as_numpy()[0]) if outputs else -1 for outputs in read])]

    async def execute_async(requests):
        stream = await call(x_of(requests[0])).async_exec(decoupled=True)
        read = [r.output_tensors() async for r in stream]
        return [y([float(outputs[0].as_numpy()[0]) if outputs else -1 for outputs in read])]

    with Bench(execute_async if is_async else execute, answer=answer) as bench:
        assert values(bench.run(request_data(1, x_data(3))).responses[0]) == [0, 1, 2, -1]


# Cancellation


def test_cancellation_is_seen_during_execute():
    started = threading.Event()

    def execute(requests):
        started.set()
        while not requests[0].is_cancelled():
            time.sleep(0.001)
        return [InferenceResponse(error=TritonError("taken back", TritonError.CANCELLED))]

    with Bench(execute) as bench:
        bench.execute(1, request_data(1))
        assert started.wait(10)
        bench.channel.put(Cancel(1))

        assert bench.executed().responses[0].error.code == "CANCELLED"


def test_cancellation_is_seen_by_an_async_model():
    async def execute(requests):
        while not requests[0].is_cancelled():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return [InferenceResponse(error=TritonError("taken back", TritonError.CANCELLED))]

    with Bench(execute) as bench:
        bench.execute(1, request_data(1))
        bench.channel.put(Cancel(1))

        assert bench.executed().responses[0].error.code == "CANCELLED"


# Async models


def test_async_batches_overlap():
    gates = {}

    async def execute(requests):
        gate = gates[requests[0].request_id()] = asyncio.Event()
        if len(gates) == 2:
            for other in gates.values():
                other.set()
        await gate.wait()
        return plus_one(requests)

    with Bench(execute) as bench:
        bench.execute(1, request_data(1, x_data(1), id="a"))
        bench.execute(2, request_data(2, x_data(2), id="b"))

        assert {message.number for message in bench.channel.wait_for(Executed, 2)} == {1, 2}


def test_async_decoupled_failure_is_answered():
    async def execute(requests):
        await asyncio.sleep(0)
        raise ValueError("broken")

    with Bench(execute, is_decoupled=True) as bench:
        assert "ValueError: broken" in bench.run(request_data(1)).error.message


def test_running_batches_are_finished_before_the_end():
    async def execute(requests):
        await asyncio.sleep(0.01)
        return plus_one(requests)

    with Bench(execute) as bench:
        bench.execute(1, request_data(1, x_data(1)))
        bench.channel.put(Finalize())
        bench.executed()


def test_task_that_wants_to_end_the_process_ends_only_itself():
    async def leave():
        await asyncio.sleep(0)
        raise SystemExit(3)

    tasks = []

    async def execute(requests):
        tasks.append(asyncio.ensure_future(leave()))
        with contextlib.suppress(SystemExit):
            await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))
        return plus_one(requests)

    with Bench(execute) as bench:
        bench.run(request_data(1, x_data(1)))
        assert values(bench.run(request_data(2, x_data(1))).responses[0]) == [2]
    tasks.clear()
    gc.collect()


# Readiness


@pytest.mark.parametrize(
    ("answer", "readiness"),
    [
        (True, (True, "")),
        (False, (False, "is_ready() returned False")),
        (1, (False, "is_ready() must return a boolean value, found int")),
    ],
)
@pytest.mark.parametrize("execute", [plus_one, plus_one_async], ids=["sync", "async"])
@pytest.mark.parametrize("is_async", [False, True])
def test_model_says_whether_it_is_ready(execute, is_async, answer, readiness):
    async def is_ready():
        await asyncio.sleep(0)
        return answer

    with Bench(execute, is_ready=is_ready if is_async else lambda: answer) as bench:
        bench.channel.put(CheckReady(4))

        assert bench.channel.wait_for(Readiness) == [Readiness(4, *readiness)]


@pytest.mark.parametrize("execute", [plus_one, plus_one_async], ids=["sync", "async"])
def test_model_whose_is_ready_fails_is_not_ready(execute):
    with Bench(execute, is_ready=lambda: 1 / 0) as bench:
        bench.channel.put(CheckReady(4))

        (readiness,) = bench.channel.wait_for(Readiness)
        assert not readiness.is_ready
        assert readiness.reason.startswith("ZeroDivisionError: division by zero")


def test_readiness_does_not_wait_for_another_model():
    def answer(message):
        return [CheckReady(4)] if type(message) is Infer else None

    with Bench(forward, answer=answer, is_ready=lambda: True) as bench:
        bench.execute(1, request_data(1, x_data(1)))
        assert bench.channel.wait_for(Readiness) == [Readiness(4, True)]
        assert bench.channel.of(Executed) == []

        (infer,) = bench.channel.of(Infer)
        bench.channel.put(Reply(infer.request.number, echo(infer.request)))
        bench.executed()


def test_async_model_is_asked_while_it_runs():
    async def execute(requests):
        while not bench.channel.of(Readiness):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return plus_one(requests)

    with Bench(execute, is_ready=lambda: True) as bench:
        bench.execute(1, request_data(1, x_data(1)))
        bench.channel.put(CheckReady(4))
        bench.executed()


# The end


@pytest.mark.parametrize("execute", [plus_one, plus_one_async], ids=["sync", "async"])
def test_runner_ends_when_the_server_is_gone(execute):
    with Bench(execute) as bench:
        bench.channel.put(None)


@pytest.mark.parametrize("execute", [plus_one, plus_one_async], ids=["sync", "async"])
def test_other_models_cannot_be_asked_afterwards(execute):
    with Bench(execute) as bench:
        pass
    assert not bench.runtime.can_infer


def test_leases_do_not_wait_for_the_next_batch():
    """What a model lets go of outside of ``execute`` is on its way before the worker sleeps."""
    kept = []

    def execute(requests):
        if not kept:
            kept.append(x_of(requests[0]))
        return plus_one(requests)

    def is_ready():
        kept.clear()
        return True

    with Bench(execute, is_ready=is_ready) as bench:
        assert bench.run(request_data(1, lent_data("X", 7))).released == []
        bench.channel.put(CheckReady(1))

        assert bench.channel.wait_for(Released) == [Released([7])]


def test_the_channel_of_an_async_model_stays_a_blocking_one():
    """Its threads wait in it. libuv makes what it watches non-blocking."""

    async def execute(requests):
        await asyncio.sleep(0)
        return [y(x_of(request) + os.get_blocking(bench.channel.fileno())) for request in requests]

    with Bench(execute) as bench:
        assert values(bench.run(request_data(1, x_data(1.0))).responses[0]) == [2.0]


# Sequences that are dropped


@pytest.mark.parametrize("is_async", [False, True])
def test_the_model_is_told_of_a_dropped_sequence_in_turn(is_async):
    events = []

    def execute(requests):
        events.append(requests[0].correlation_id())
        return [y([1])]

    async def execute_async(requests):
        return execute(requests)

    with Bench(
        execute_async if is_async else execute, drop_sequence=lambda sequence: events.append(f"no {sequence}")
    ) as bench:
        bench.run(request_data(1, sequence_id=7))
        bench.channel.put(DropSequence(7))
        bench.run(request_data(2, sequence_id=7))

    assert events == [7, "no 7", 7]
