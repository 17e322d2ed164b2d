"""ProcessRuntime: a model's calls to its server, over a channel whose far end is the test."""

import asyncio
import gc
import threading

import numpy as np
import pytest

from bireme.backends.python.exchange import Exchange
from bireme.backends.python.process_runtime import ProcessRuntime
from bireme.ipc.messages import (
    Call,
    Cancel,
    CancelCall,
    ErrorData,
    Infer,
    LogLine,
    Orphaned,
    Released,
    Reply,
    Respond,
    ResponseData,
    Result,
    Taken,
)
from bireme.types import (
    BackendFailed,
    InferenceRequest,
    InferenceResponse,
    NotFound,
    Tensor,
    Unavailable,
)
from model_channel import FakeChannel, FakeLedger, answer_infer, echo, lent_data, tensor_data


class Bench:
    """A runtime and what the server does with its messages."""

    def __init__(self, answer=None):
        self.channel = FakeChannel(answer)
        self.ledger = FakeLedger()
        self.runtime = ProcessRuntime(Exchange(self.channel, self.ledger), model_name="m", version_dir="/m/1")
        self.runtime.can_infer = True

    def respond_to(self, number, *responses):
        self.channel.put(*(Reply(number, response) for response in responses))


@pytest.fixture
def make_bench():
    benches = []

    def make(answer=None):
        benches.append(Bench(answer))
        return benches[-1]

    yield make
    for bench in benches:
        bench.channel.close()


def request(name="other", *arrays, **fields):
    inputs = {f"X{index}": Tensor.from_numpy(f"X{index}", array) for index, array in enumerate(arrays)}
    return InferenceRequest(name, inputs, lambda *_: None, **fields)


def incoming(number):
    return InferenceRequest("m", {}, lambda *_: None, context=number)


def text(data):
    """Return a response that carries ``data`` as a tensor of one element."""
    return ResponseData([tensor_data("Y", np.array([data], np.int32))], is_final=False)


def value(response):
    return int(response.outputs[0].to_numpy()[0])


def test_infer_sends_all_of_the_request_and_returns_the_response(make_bench):
    bench = make_bench(answer_infer(echo))
    bench.runtime.execution = 5

    response = bench.runtime.infer(
        request(
            "other",
            np.array([1, 2], np.float32),
            model_version=3,
            id="a",
            outputs=("X0",),
            parameters={"p": 1},
            priority=2,
            timeout_us=4,
            sequence_id=6,
            sequence_start=True,
            sequence_end=True,
        )
    )

    assert response.outputs[0].to_numpy().tolist() == [1, 2]
    (infer,) = bench.channel.of(Infer)
    assert (infer.execution, infer.is_decoupled) == (5, False)
    data = infer.request
    assert (data.model_name, data.model_version, data.id, data.outputs) == ("other", 3, "a", ["X0"])
    assert (data.parameters, data.priority, data.timeout_us) == ({"p": 1}, 2, 4)
    assert (data.sequence_id, data.flags) == (6, 3)


def test_failures_of_the_other_model_are_responses(make_bench):
    bench = make_bench(answer_infer(lambda _: ResponseData(error=ErrorData("NOT_FOUND", "no such model"))))

    response = bench.runtime.infer(request())

    assert isinstance(response.error, NotFound)
    assert response.error.message == "no such model"


def test_calls_outside_execute_are_refused(make_bench):
    bench = make_bench()
    bench.runtime.can_infer = False

    for call in (bench.runtime.infer, bench.runtime.stream):
        with pytest.raises(RuntimeError, match=r"^BLS is only supported during the 'execute' function\.$"):
            call(request())
    assert bench.channel.sent == []


def test_infer_without_a_server_answers_unavailable(make_bench):
    bench = make_bench()
    bench.channel.put(None)

    assert isinstance(bench.runtime.infer(request()).error, Unavailable)
    assert isinstance(bench.runtime.infer(request()).error, Unavailable)


def test_leases_of_former_answers_go_with_the_next_call(make_bench):
    bench = make_bench(answer_infer(lambda data: ResponseData([lent_data("Y", data.number)])))

    bench.runtime.infer(request())
    bench.runtime.infer(request())

    assert [infer.released for infer in bench.channel.of(Infer)] == [[], [1]]


def test_execution_is_unknown_in_threads_of_the_model(make_bench):
    bench = make_bench(answer_infer(echo))
    bench.runtime.execution = 5
    thread = threading.Thread(target=bench.runtime.infer, args=(request(),))

    thread.start()
    thread.join()

    assert [infer.execution for infer in bench.channel.of(Infer)] == [0]


def test_infer_async_on_a_foreign_loop(make_bench):
    """``asyncio.run`` in an ordinary ``execute``: calls overlap, and know their batch."""
    bench = make_bench()
    bench.runtime.execution = 5

    async def fan_out():
        calls = [bench.runtime.infer_async(request()) for _ in range(3)]
        await asyncio.to_thread(bench.channel.wait_for, Infer, 3)
        for infer in reversed(bench.channel.of(Infer)):
            bench.respond_to(infer.request.number, text(infer.request.number))
        return [value(response) for response in await asyncio.gather(*calls)]

    assert sorted(asyncio.run(fan_out())) == [1, 2, 3]
    assert [infer.execution for infer in bench.channel.of(Infer)] == [5, 5, 5]


def on_own_loop(bench):
    """Have the running loop read the channel, as `AsyncRunner` does."""
    bench.runtime.loop = asyncio.get_running_loop()
    bench.runtime.loop.add_reader(bench.channel.fileno(), bench.runtime.exchange.poll)


def test_infer_async_on_the_own_loop_needs_no_thread(make_bench):
    bench = make_bench(answer_infer(echo))

    async def run():
        on_own_loop(bench)
        responses = await asyncio.gather(
            *(bench.runtime.infer_async(request("other", np.array([n], np.int32))) for n in range(4))
        )
        return [value(response) for response in responses], threading.active_count()

    num_threads = threading.active_count()

    assert asyncio.run(run()) == ([0, 1, 2, 3], num_threads)


def test_cancelled_call_is_taken_back(make_bench):
    bench = make_bench()

    async def run():
        on_own_loop(bench)
        call = bench.runtime.infer_async(request())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        bench.respond_to(1, ResponseData([lent_data("Y", 9)]))
        while not bench.ledger.released:  # noqa: ASYNC110 (the loop is to turn)
            await asyncio.sleep(0)

    asyncio.run(run())

    assert bench.channel.of(CancelCall) == [CancelCall(1)]
    assert bench.ledger.released == [9]


def test_stream_yields_responses_up_to_the_final_one(make_bench):
    bench = make_bench()
    stream = bench.runtime.stream(request())
    bench.respond_to(1, text(1), text(2), ResponseData(is_final=True, is_flag_only=True))

    first, second, last = next(stream), next(stream), next(stream)

    assert (value(first), value(second), last.flag_only, last.final) == (1, 2, True, True)
    with pytest.raises(StopIteration):
        next(stream)
    assert bench.channel.of(Infer)[0].is_decoupled


def test_two_streams_are_read_in_turns(make_bench):
    bench = make_bench()
    first, second = bench.runtime.stream(request()), bench.runtime.stream(request())
    bench.channel.put(Reply(2, text(20)), Reply(2, text(21)), Reply(1, text(10)), Reply(1, text(11)))

    assert [value(next(stream)) for stream in (first, second, first, second)] == [10, 20, 11, 21]


def test_what_is_read_of_a_stream_is_told_now_and_then(make_bench):
    bench = make_bench()
    stream = bench.runtime.stream(request())
    bench.respond_to(1, *(text(number) for number in range(40)))
    large = ResponseData([tensor_data("Y", np.zeros(600_000, np.float32))], is_final=False)
    bench.respond_to(1, large, large)

    for _ in range(42):
        next(stream)

    assert bench.channel.of(Taken) == [Taken(1, 16), Taken(1, 16), Taken(1, 9), Taken(1, 1)]


def test_a_stream_that_is_closed_early_tells_so(make_bench):
    bench = make_bench()
    stream, over = bench.runtime.stream(request()), bench.runtime.stream(request())
    bench.respond_to(2, ResponseData())
    next(over)

    stream.close()
    stream.close()
    over.close()

    assert bench.channel.of(Taken) == [Taken(1, 0)]


def test_stream_can_be_read_on_the_own_loop(make_bench):
    bench = make_bench()

    async def run():
        on_own_loop(bench)
        stream = bench.runtime.stream(request())
        asyncio.get_running_loop().call_later(0.001, bench.respond_to, 1, text(1), text(2))
        values = [value(await stream.__anext__()) for _ in range(2)]
        bench.respond_to(1, ResponseData())
        last = await stream.__anext__()
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        return values, last.final

    assert asyncio.run(run()) == ([1, 2], True)


def test_stream_can_be_read_on_a_foreign_loop(make_bench):
    bench = make_bench()
    stream = bench.runtime.stream(request())
    bench.respond_to(1, text(1), ResponseData())

    async def run():
        values = [value(await stream.__anext__())]
        await stream.__anext__()
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        return values

    assert asyncio.run(run()) == [1]


def test_cancelled_stream_goes_on_to_its_final_response(make_bench):
    bench = make_bench()
    stream = bench.runtime.stream(request())
    stream.cancel()
    bench.respond_to(1, ResponseData(error=ErrorData("CANCELLED", "taken back")))

    assert next(stream).error.code == "CANCELLED"
    stream.cancel()
    assert bench.channel.of(CancelCall) == [CancelCall(1)]


def test_closed_stream_drops_what_came_and_what_comes(make_bench):
    bench = make_bench(lambda message: [Result(message.call)] if type(message) is Call else None)
    stream = bench.runtime.stream(request())
    other = bench.runtime.stream(request())
    bench.channel.put(
        Reply(1, ResponseData([lent_data("Y", 7)], is_final=False)),
        Reply(2, ResponseData()),
        Reply(1, ResponseData([lent_data("Y", 8)])),
    )
    next(other)
    stream.close()
    assert bench.ledger.released == [7]

    bench.runtime.unload_model("n", unload_dependents=False)

    assert sorted(bench.ledger.released) == [7, 8]
    with pytest.raises(StopIteration):
        next(stream)


def test_long_stream_gives_back_what_was_read(make_bench):
    """It sends nothing itself that leases could go with."""
    bench = make_bench()
    stream = bench.runtime.stream(request())
    for lease in range(30):
        bench.respond_to(1, ResponseData([lent_data("Y", lease)], is_final=False))

    for _ in range(30):
        next(stream)

    back = [lease for message in bench.channel.of(Released) for lease in message.released]
    assert len(back) >= 16


def test_stream_ends_with_the_server(make_bench):
    bench = make_bench()
    stream = bench.runtime.stream(request())
    bench.channel.put(None)

    assert isinstance(next(stream).error, Unavailable)
    with pytest.raises(StopIteration):
        next(stream)


def test_responses_are_sent_until_the_final_one(make_bench):
    bench = make_bench()
    bench.runtime.open_request(4, is_cancelled=False)
    outputs = [Tensor.from_numpy("Y", np.zeros(2, np.float32))]

    for response in (
        InferenceResponse("m", 1, outputs=outputs, final=False),
        InferenceResponse("m", 1, error=BackendFailed("broken")),
        InferenceResponse("m", 1, final=False),
    ):
        bench.runtime.respond(incoming(4), response)

    first, last = bench.channel.of(Respond)
    assert (first.request, len(first.response.outputs), first.response.is_final) == (4, 1, False)
    assert (last.response.error, last.response.is_final) == (ErrorData("INTERNAL", "broken"), True)


def test_response_that_cannot_be_sent_answers_its_caller_all_the_same(make_bench):
    bench = make_bench()
    bench.runtime.open_request(4, is_cancelled=False)

    with pytest.raises(OverflowError):
        bench.runtime.respond(incoming(4), InferenceResponse("m", 1, parameters={"n": 1 << 70}, final=False))

    (respond,) = bench.channel.of(Respond)
    assert (respond.response.error.code, respond.response.is_final) == ("INTERNAL", True)
    assert bench.runtime.open == {}


def test_call_that_cannot_be_sent_leaves_nothing(make_bench):
    bench = make_bench(answer_infer(echo))

    with pytest.raises(OverflowError):
        bench.runtime.infer(request(timeout_us=1 << 70))

    assert bench.runtime.infer(request()).error is None


def test_dropped_sender_orphans_a_request_that_nothing_else_answers(make_bench):
    bench = make_bench()
    runtime = bench.runtime
    runtime.open_request(1, is_cancelled=False)
    runtime.abandon(incoming(1))  # execute still has it, and may return a response
    assert bench.channel.sent == []

    runtime.open[1] = 2
    runtime.abandon(incoming(1))
    runtime.abandon(incoming(1))

    assert bench.channel.sent == [Orphaned(1)]


def test_cancellation_is_seen_while_nobody_reads(make_bench):
    bench = make_bench()
    bench.runtime.open_request(1, is_cancelled=False)
    mine = incoming(1)
    assert not bench.runtime.is_cancelled(mine)

    bench.channel.put(Cancel(1))

    assert bench.runtime.is_cancelled(mine)
    polls = bench.channel.num_polls
    assert bench.runtime.is_cancelled(mine)
    assert bench.channel.num_polls == polls


def test_request_may_be_cancelled_from_the_start(make_bench):
    bench = make_bench()
    bench.runtime.open_request(1, is_cancelled=True)

    assert bench.runtime.is_cancelled(incoming(1))


def test_cancellation_of_an_answered_request_leaves_nothing(make_bench):
    bench = make_bench()
    bench.runtime.open_request(1, is_cancelled=False)
    bench.runtime.close(1)
    bench.channel.put(Cancel(1))

    assert not bench.runtime.is_cancelled(incoming(1))


def test_calls_by_name_wait_for_their_result(make_bench):
    results = {"load_model": None, "unload_model": None, "is_model_ready": True, "metric": 2.5}
    bench = make_bench(
        lambda message: [Result(message.call, None, results[message.method])] if message.call else None
    )
    runtime = bench.runtime

    runtime.load_model("n", "{}", {"file:1/model.py": b"x"})
    runtime.unload_model("n", unload_dependents=True)

    assert runtime.is_model_ready("n", "") is True
    assert runtime.metric("value", handle=1) == 2.5
    assert runtime.metric("increment", handle=1, value=2) is None
    assert [(call.method, call.arguments, bool(call.call)) for call in bench.channel.of(Call)] == [
        ("load_model", {"name": "n", "config": "{}", "files": {"file:1/model.py": b"x"}}, True),
        ("unload_model", {"name": "n", "unload_dependents": True}, True),
        ("is_model_ready", {"name": "n", "version": ""}, True),
        ("metric", {"operation": "value", "handle": 1}, True),
        ("metric", {"operation": "increment", "handle": 1, "value": 2}, False),
    ]


def test_refused_call_raises_what_the_server_says(make_bench):
    bench = make_bench(lambda message: [Result(message.call, ErrorData("NOT_FOUND", "no such model"))])

    with pytest.raises(NotFound, match="no such model"):
        bench.runtime.load_model("n", "", None)


def test_call_without_a_server_raises(make_bench):
    bench = make_bench()
    bench.channel.put(None)

    with pytest.raises(Unavailable):
        bench.runtime.is_model_ready("n", "")


def test_log_lines_go_to_the_server_or_before_that_to_stderr(make_bench, capsys):
    bench = make_bench()
    bench.runtime.log(20, "hello", "model.py", 3)
    bench.runtime.logs_to_stderr = True
    bench.runtime.log(20, "early", "model.py", 4)

    assert bench.channel.sent == [LogLine(20, "hello", "model.py", 3)]
    assert capsys.readouterr().err == "model.py:4] early\n"


def test_forked_copy_cannot_ask(make_bench):
    bench = make_bench()
    bench.runtime.exchange.mark_forked()

    with pytest.raises(RuntimeError, match="forked"):
        bench.runtime.infer(request())
    bench.runtime.open_request(1, is_cancelled=False)
    bench.runtime.open[1] = 2
    bench.runtime.abandon(incoming(1))
    gc.collect()
    assert bench.channel.sent == []
