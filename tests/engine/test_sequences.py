"""Models with sequences, served: what the instances get and what the clients hear."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from bireme import Server
from bireme.engine import ServerOptions
from bireme.engine.options import RateLimit
from bireme.testing import FakeBackend, FakeRequestBackend, FakeRequestInstance
from bireme.types import (
    BackendFailed,
    BiremeError,
    Cancelled,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Tensor,
    Unavailable,
)
from model_dirs import until

CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 2.5 ] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
"""
CONFIG = """
backend: "fake"
max_batch_size: {rows}
input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}
sequence_batching {{ {batching} }}
instance_group {{ kind: KIND_CPU count: {count} {limits} }}
{more}
"""


def corrid(datatype: str) -> str:
    kind = f"kind: CONTROL_SEQUENCE_CORRID data_type: {datatype}"
    return f'control_input {{ name: "ID" control {{ {kind} }} }}'


class Harness:
    """A server with the model "m", whose requests are answered by a fake backend."""

    def __init__(self, server: Server, backend: FakeBackend | FakeRequestBackend) -> None:
        self.server = server
        self.backend = backend
        self.answers: dict[str, InferenceResponse] = {}

    @property
    def instances(self) -> list[FakeRequestInstance]:
        return self.backend.instances

    @property
    def instance(self) -> FakeRequestInstance:
        return self.instances[0]

    @property
    def model(self) -> Any:
        return self.server._latest["m"]

    @property
    def queue(self) -> dict[str, Any]:
        return self.model.queue_statistics()["queue"]

    async def ask(self, x: float, sequence: int | str, flags: str = "") -> float:
        result = await self.server.ainfer(
            "m",
            {"X": self._input(x)},
            sequence_id=sequence,
            sequence_start="S" in flags,
            sequence_end="E" in flags,
        )
        return result["Y"].item()

    def send(self, name: str, sequence: int | str, flags: str = "", x: float = 0) -> InferenceRequest:
        request = InferenceRequest(
            "m",
            {"X": Tensor.from_numpy("X", self._input(x))},
            self._respond,
            id=name,
            sequence_id=sequence,
            sequence_start="S" in flags,
            sequence_end="E" in flags,
        )
        self.server.submit(request)
        return request

    def _input(self, x: float) -> np.ndarray:
        return np.full((1, 1) if self.model.max_batch_size else (1,), x, np.float32)

    def _respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        self.answers[request.id] = response

    async def running(self, instance: int = 0) -> list[InferenceRequest]:
        """Return the requests of the oldest execution, once there is one."""
        await until(lambda: self.instances[instance].executions)
        return list(self.instances[instance].executions[0].requests)


@pytest.fixture
def serve(tmp_path):
    """Run a test's coroutine with a harness."""

    def run(
        scenario: Callable[[Harness], Awaitable[None]],
        backend: FakeBackend | FakeRequestBackend,
        batching: str = "oldest { }",
        *,
        rows: int = 4,
        count: int = 1,
        more: str = "",
        limits: str = "",
        **options: Any,
    ) -> None:
        (tmp_path / "m" / "1").mkdir(parents=True)
        config = CONFIG.format(batching=batching, rows=rows, count=count, limits=limits, more=more)
        (tmp_path / "m" / "config.pbtxt").write_text(config)
        server_options = ServerOptions(
            model_repository=(str(tmp_path),),
            exit_timeout_secs=5,
            model_control_mode="explicit",
            load_model=("*",),
            **options,
        )

        async def main() -> None:
            async with Server(options=server_options, backends={"fake": backend}) as server:
                harness = Harness(server, backend)
                statistics = harness.model.statistics
                await scenario(harness)
                with suppress(
                    BiremeError
                ):  # a server that stops would wait for the sequences that have begun
                    await server.unload_model("m")
            assert statistics.num_pending == statistics.num_executing == 0
            assert statistics.num_accepted == statistics.num_succeeded + statistics.num_failed

        asyncio.run(main())

    return run


class Recorder(FakeBackend):
    """Gives X back, and keeps the inputs of each execution."""

    def __init__(self) -> None:
        super().__init__(self._run)
        self.inputs: list[dict[str, np.ndarray]] = []

    def _run(self, inputs):
        self.inputs.append({name: array.copy() for name, array in inputs.items()})
        return {"Y": inputs["X"].copy()}


Y = {"Y": np.zeros((1, 1), np.float32)}


# Control inputs.


@pytest.mark.parametrize(
    ("flags", "start", "end"), [("S", 1, -1), ("", 0, -1), ("E", 0, 2.5), ("SE", 1, 2.5)]
)
@pytest.mark.parametrize("rows", [0, 4])
def test_control_inputs_tell_where_in_its_sequence_a_request_is(serve, flags, start, end, rows):
    backend = Recorder()

    async def scenario(h):
        if "S" not in flags:
            await h.ask(1, 7, "S")
        assert await h.ask(2, 7, flags) == 2
        inputs = backend.inputs[-1]
        shape = (1, 1) if rows else (1,)
        for name, value, dtype in (
            ("START", start, np.int32),
            ("END", end, np.float32),
            ("READY", True, bool),
        ):
            assert (inputs[name].shape, inputs[name].dtype) == (shape, dtype)
            assert inputs[name].item() == value

    serve(scenario, backend, CONTROLS, rows=rows)


@pytest.mark.parametrize(
    ("datatype", "sequence", "value"),
    [
        ("TYPE_UINT64", 2**64 - 2, 2**64 - 2),
        ("TYPE_INT64", 2**64 - 2, -2),
        ("TYPE_UINT32", 2**33 + 5, 5),
        ("TYPE_INT32", 2**32 - 2, -2),
        ("TYPE_STRING", "größer", "größer".encode()),
    ],
)
def test_the_id_comes_in_the_type_of_the_config(serve, datatype, sequence, value):
    backend = Recorder()

    async def scenario(h):
        await h.ask(1, sequence, "SE")
        assert backend.inputs[0]["ID"].shape == (1, 1)
        assert backend.inputs[0]["ID"].item() == value

    serve(scenario, backend, corrid(datatype))


@pytest.mark.parametrize(("datatype", "sequence"), [("TYPE_UINT64", "x"), ("TYPE_STRING", 7)])
def test_an_id_of_the_other_kind_is_refused(serve, datatype, sequence):
    async def scenario(h):
        with pytest.raises(InvalidArgument, match="sequence batching control 'ID' data-type is"):
            await h.ask(1, sequence, "S")

    serve(scenario, FakeBackend(), corrid(datatype))


def test_clients_must_not_send_control_inputs(serve):
    async def scenario(h):
        with pytest.raises(InvalidArgument, match="START"):
            await h.server.ainfer(
                "m", {"X": [[1.0]], "START": np.ones((1, 1), np.int32)}, sequence_id=1, sequence_start=True
            )

    serve(scenario, FakeBackend(), CONTROLS)


def test_empty_slots_are_null_requests_that_nobody_counts(serve):
    backend = Recorder()

    async def scenario(h):
        await asyncio.gather(*(h.ask(1, sequence, "S") for sequence in (1, 2, 3)))
        assert await asyncio.gather(h.ask(5, 1), h.ask(7, 3)) == [5, 7]
        inputs = backend.inputs[-1]
        assert inputs["X"].shape == (3, 1)
        assert (inputs["X"][0], inputs["X"][2]) == (5, 7)
        assert inputs["READY"].flatten().tolist() == [True, False, True]
        assert inputs["ID"].flatten().tolist() == [1, 0, 3]
        assert inputs["START"].flatten().tolist() == [0, 0, 0]
        statistics = h.model.statistics
        assert (statistics.inference_count, statistics.execution_count) == (5, 2)
        assert statistics.batch_sizes == {2: 1, 3: 1}

    serve(scenario, backend, "direct { }" + CONTROLS + corrid("TYPE_UINT64"))


def test_models_that_take_whole_requests_get_null_requests_and_may_answer_them(serve):
    async def scenario(h):
        h.send("a", 1, "S", 1)
        h.send("b", 2, "S", 2)
        await h.running()
        h.instance.answer(Y)
        h.send("c", 2, "", 3)
        null, real = await h.running()
        assert [null.sequence_id, real.sequence_id] == [0, 2]
        assert null.inputs["READY"].to_numpy().item() is False
        assert null.inputs["X"].to_numpy().item() == 3
        h.instance.answer(Y)
        assert sorted(h.answers) == ["a", "b", "c"]
        assert h.model.statistics.num_succeeded == 3

    serve(scenario, FakeRequestBackend(), "direct { }" + CONTROLS)


def test_a_failed_batch_answers_the_real_requests(serve):
    async def scenario(h):
        h.send("a", 1, "S")
        h.send("b", 2, "S")
        await h.running()
        h.instance.answer(Y)
        h.send("c", 2)
        await h.running()
        h.instance.finish(BackendFailed("broken"))
        assert h.answers["c"].error.message == "broken"
        h.send("d", 2)
        await h.running()
        h.instance.answer(Y)

    serve(scenario, FakeRequestBackend(), "direct { }")


# Order and instances.


def test_a_sequence_stays_with_its_instance(serve):
    async def scenario(h):
        for name, sequence in (("a", 1), ("b", 2)):
            h.send(name, sequence, "S")
        await h.running(0)
        await h.running(1)
        h.instances[1].answer(Y)
        h.send("c", 1)  # its instance is busy, the other one is free
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not h.instances[1].executions
        h.instances[0].answer(Y)
        assert [request.id for request in await h.running(0)] == ["c"]
        h.instances[0].answer(Y)

    serve(scenario, FakeRequestBackend(), count=2)


def test_instances_wait_for_their_resources(serve):
    async def scenario(h):
        h.send("a", 1, "SE")
        h.send("b", 2, "SE")
        await h.running(0)
        assert not h.instances[1].executions
        h.instances[0].answer(Y)
        assert [request.id for request in await h.running(1)] == ["b"]
        h.instances[1].answer(Y)
        assert h.model.pool.statistics()["resources_in_use"] == {}

    serve(
        scenario,
        FakeRequestBackend(),
        count=2,
        limits='rate_limiter { resources { name: "R" count: 1 } }',
        rate_limit=RateLimit.EXECUTION_COUNT,
    )


def test_the_next_request_waits_for_the_last_response_of_a_decoupled_model(serve):
    async def scenario(h):
        first = h.send("a", 1, "S")
        h.send("b", 1)
        await h.running()
        h.instance.send(first, Y)
        h.instance.finish()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not h.instance.executions
        h.instance.send(first)
        (second,) = await h.running()
        assert second.id == "b"
        h.instance.answer(Y)

    serve(
        scenario,
        FakeRequestBackend(),
        more="model_transaction_policy { decoupled: true }",
    )


def test_answers_leave_in_the_order_of_their_runs(serve):
    async def scenario(h):
        h.send("x", 3, "S")
        h.send("a", 1, "S")
        await h.running()
        h.send("b", 2, "S")
        await until(lambda: len(h.instance.executions) == 2)
        (last,) = h.instance.executions[1].requests
        h.instance.send(last, Y, final=True)
        assert last.id not in h.answers
        h.instance.answer(Y)
        assert list(h.answers) == ["x", "a", "b"]
        h.instance.finish()

    serve(
        scenario,
        FakeRequestBackend(max_concurrent=2),
        "oldest { max_candidate_sequences: 4 preserve_ordering: true }",
    )


# Ends.


def test_a_waiting_request_that_is_cancelled_takes_the_rest_of_its_sequence_with_it(serve):
    async def scenario(h):
        h.send("a", 1, "S")
        second = h.send("b", 1)
        h.send("c", 1)
        await h.running()
        h.server.cancel(second)
        await until(lambda: "c" in h.answers)
        assert isinstance(h.answers["b"].error, Cancelled)
        assert "an earlier request of its sequence was cancelled" in h.answers["c"].error.message
        h.instance.answer(Y)
        await until(lambda: h.queue["sequences"] == 0)
        assert h.queue["dropped"]["cancelled"] == 1

    serve(scenario, FakeRequestBackend())


def test_an_instance_that_has_the_hook_is_told_of_dropped_sequences(serve, monkeypatch):
    told = []
    monkeypatch.setattr(
        FakeRequestInstance, "drop_sequence", lambda _, sequence: told.append(sequence), raising=False
    )

    async def scenario(h):
        for name, sequence in (("a", 1), ("b", "two")):
            h.send(name, sequence, "S")
        await h.running()
        h.instance.answer(Y)
        h.send("c", 1, "E")
        await h.running()
        h.instance.answer(Y)
        await until(lambda: told)
        assert told == ["two"]

    serve(scenario, FakeRequestBackend(), "oldest { } max_sequence_idle_microseconds: 20000")


def test_a_sequence_that_its_client_has_left_does_not_hold_up_a_server_that_stops(serve, monkeypatch, caplog):
    told = []
    monkeypatch.setattr(
        FakeRequestInstance, "drop_sequence", lambda _, sequence: told.append(sequence), raising=False
    )

    async def scenario(h):
        h.send("a", 1, "S")
        await h.running()
        h.instance.answer(Y)
        await until(lambda: "a" in h.answers)
        begun = asyncio.get_running_loop().time()
        assert await h.server.stop(timeout_s=0.1)
        assert asyncio.get_running_loop().time() - begun < 0.1
        assert told == [1]
        assert "is over without its END: nothing came for as long as the server waits" in caplog.text

    caplog.set_level("INFO")
    serve(scenario, FakeRequestBackend(), "oldest { } max_sequence_idle_microseconds: 600000000")


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_sequence_falls_silent_whatever_of_its_last_request_ended_last(serve, answers_first):
    async def scenario(h):
        h.send("a", 1, "S")
        (request,) = await h.running()
        if answers_first:
            h.instance.answer(Y)
        else:
            h.instance.finish()
            h.instance.send(request, Y, final=True)
        await until(lambda: h.queue["dropped"]["idle"] == 1)

    serve(scenario, FakeRequestBackend(), "oldest { } max_sequence_idle_microseconds: 20000")


def test_sequences_are_lost_with_the_process_of_their_instance(serve):
    async def scenario(h):
        h.send("a", 1, "S")
        await h.running()
        h.instance.answer(Y)
        h.send("b", 1)
        h.send("c", 1)
        await h.running()
        h.instance.die("it died", retry_delay_s=0.0)
        await until(lambda: "c" in h.answers)
        assert isinstance(h.answers["b"].error, Unavailable)
        assert "the sequence is lost with its instance" in h.answers["c"].error.message
        with pytest.raises(InvalidArgument, match="START"):
            h.send("d", 1)
        h.send("e", 1, "S")
        h.instance.revive()
        assert [request.id for request in await h.running()] == ["e"]
        h.instance.answer(Y)

    serve(scenario, FakeRequestBackend())


def test_sequences_that_have_begun_end_while_the_server_stops(serve):
    async def scenario(h):
        assert await h.ask(1, 1, "S") == 1
        stop = asyncio.ensure_future(h.server.stop())
        await asyncio.sleep(0)
        assert await h.ask(2, 1) == 2
        with pytest.raises(Unavailable, match="Server is stopping"):
            await h.ask(1, 2, "S")
        assert not stop.done()
        assert await h.ask(3, 1, "E") == 3
        assert await stop

    serve(scenario, FakeBackend(), "oldest { } max_sequence_idle_microseconds: 60000000")


def test_an_unload_forgets_sequences(serve):
    async def scenario(h):
        await h.ask(1, 1, "S")
        await h.server.unload_model("m")
        await h.server.load_model("m")
        with pytest.raises(InvalidArgument, match="START"):
            await h.ask(1, 1)

    serve(scenario, FakeBackend(), "oldest { } max_sequence_idle_microseconds: 60000000")


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling { step {
  model_name: "m" model_version: -1
  input_map { key: "X" value: "X" }
  output_map { key: "Y" value: "Y" }
} }
"""


def test_an_ensemble_passes_its_sequence_on(serve, tmp_path):
    backend = Recorder()
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)

    async def scenario(h):
        for x, flags in ((1, "S"), (2, ""), (3, "E")):
            await h.server.ainfer(
                "e",
                {"X": [[float(x)]]},
                sequence_id="seven",
                sequence_start="S" in flags,
                sequence_end="E" in flags,
            )
        assert [inputs["START"].item() for inputs in backend.inputs] == [1, 0, 0]
        assert {inputs["ID"].item() for inputs in backend.inputs} == {b"seven"}
        assert h.queue["sequences"] == 0
        await h.server.unload_model("e")

    serve(scenario, backend, CONTROLS + corrid("TYPE_STRING"))


# Iterative sequences.


def test_a_request_runs_again_and_is_batched_with_others(serve):
    async def scenario(h):
        first = h.send("a", 0)
        (running,) = await h.running()
        assert (running.sequence_id, running.inputs["START"].to_numpy().item()) == (1, 1)
        h.send("b", 0)
        assert h.instance.sink.run_again(first)
        assert h.model.statistics.num_pending == 2
        h.instance.finish()
        batch = await h.running()
        assert sorted(request.id for request in batch) == ["a", "b"]
        assert [request.inputs["START"].to_numpy().item() for request in batch if request.id == "a"] == [0]
        h.instance.answer(Y)
        await until(lambda: h.queue["sequences"] == 0)
        assert h.model.statistics.num_succeeded == 2

    serve(scenario, FakeRequestBackend(), "oldest { } iterative_sequence: true" + CONTROLS)


def test_a_request_that_waits_to_run_again_can_be_cancelled(serve):
    async def scenario(h):
        first = h.send("a", 0)
        h.send("b", 0)
        _, second = await h.running()
        assert h.instance.sink.run_again(first)
        h.instance.send(second, Y, final=True)
        h.instance.finish()
        h.server.cancel(first)
        assert isinstance(h.answers["a"].error, Cancelled)
        assert h.model._answers.num_given_up == 0

    waits_for_two = "oldest { preferred_batch_size: 2 max_queue_delay_microseconds: 10000000 }"
    serve(scenario, FakeRequestBackend(), waits_for_two + " iterative_sequence: true", rows=2)


def test_a_request_that_was_cancelled_while_it_ran_does_not_run_again(serve):
    async def scenario(h):
        first = h.send("a", 0)
        await h.running()
        h.server.cancel(first)
        assert h.instance.cancelled == [first]
        assert h.instance.sink.run_again(first)
        h.instance.finish()
        await until(lambda: "a" in h.answers)
        assert isinstance(h.answers["a"].error, Cancelled)
        assert h.model._answers.num_given_up == h.queue["sequences"] == 0

    serve(scenario, FakeRequestBackend(), "oldest { } iterative_sequence: true")


def test_other_models_cannot_run_a_request_again(serve):
    async def scenario(h):
        first = h.send("a", 1, "S")
        await h.running()
        assert not h.instance.sink.run_again(first)
        h.instance.answer(Y)

    serve(scenario, FakeRequestBackend())
