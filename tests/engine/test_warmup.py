"""Warm-up: what runs before a model serves, and how its failure is told."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import ModelContext, Placement
from bireme.config.model_config import (
    InitialState,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    ModelWarmup,
    SequenceState,
    WarmupInput,
)
from bireme.engine.batch import BatchPlan
from bireme.engine.sequence_state import read_states
from bireme.engine.warmup import run_warmup
from bireme.testing import FakeBackend, FakeInstance, FakeRequestBackend, FakeRequestInstance
from bireme.types import (
    BackendFailed,
    Execution,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    encode_bytes,
)

ZEROS = WarmupInput("TYPE_FP32", (2,), zero_data=True)
RANDOM = WarmupInput("TYPE_FP32", (2,), random_data=True)


def config(*samples: ModelWarmup, max_batch_size: int = 8) -> ModelConfig:
    return ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        input=(ModelInput("X", "TYPE_FP32", dims=(2,)),),
        output=(ModelOutput("Y", "TYPE_FP32", dims=(2,)),),
        model_warmup=samples,
    )


def sample(
    spec: WarmupInput = ZEROS, *, name: str = "s", batch_size: int = 1, count: int = 0, **others: WarmupInput
) -> ModelWarmup:
    return ModelWarmup(name, batch_size, {"X": spec, **others}, count)


def instances(backend: FakeBackend, made: ModelConfig, count: int = 1) -> list[FakeInstance]:
    model = backend.load(ModelContext("m", 1, Path("m"), Path("m/1"), made))
    return [model.create_instance(Placement(f"m_{index}")) for index in range(count)]


def warm_up(made: ModelConfig, backend: FakeBackend | None = None, *, count: int = 1, folder: Path = Path()):
    return run_warmup(made, folder, BatchPlan(made), instances(backend or FakeBackend(), made, count))


def test_every_sample_runs_on_every_instance_as_often_as_it_says():
    backend = FakeBackend()
    made = config(sample(count=2), sample(RANDOM, batch_size=3))

    executions = warm_up(made, backend, count=2)

    assert sorted(batch["X"] for batch in backend.batches) == [(1, 2)] * 4 + [(3, 2)] * 2
    assert [instance.num_executions for instance in backend.instances] == [3, 3]
    assert sorted(execution.batch_size for execution in executions) == [1, 1, 1, 1, 3, 3]


def test_executions_carry_what_the_statistics_need():
    (execution,) = warm_up(config(sample(batch_size=2)))

    times = [
        execution.requests[0].start_ns,
        execution.requests[0].queue_ns,
        execution.compute_start_ns,
        execution.compute_input_end_ns,
        execution.compute_output_start_ns,
        execution.compute_end_ns,
    ]
    assert times == sorted(times)
    assert times[0] > 0
    assert [request.execution for request in execution.requests] == [execution, execution]
    assert execution.requests[0].model_name == "m"


def test_a_model_that_does_not_batch_gets_the_bare_dims():
    backend = FakeBackend()

    warm_up(config(sample(), max_batch_size=0), backend)

    assert backend.batches == [{"X": (2,)}]


def test_batch_size_zero_skips_the_sample():
    backend = FakeBackend()

    assert warm_up(config(sample(batch_size=0)), backend) == []
    assert backend.batches == []


def test_inputs_that_the_config_does_not_list_are_passed_on():
    """Control and state inputs of sequence models."""
    backend = FakeBackend()

    warm_up(config(sample(START=WarmupInput("TYPE_INT32", (1,), zero_data=True))), backend)

    assert backend.batches == [{"X": (1, 2), "START": (1, 1)}]


def test_a_failure_names_the_sample_and_ends_the_warm_up():
    backend = FakeBackend()
    backend.execute_error = ValueError("no such thing")

    with pytest.raises(InvalidArgument, match=r"^failed to run warmup sample 'first': no such thing$"):
        warm_up(config(sample(name="first"), sample(name="second")), backend)

    assert len(backend.batches) == 1


def test_results_are_checked_as_those_of_real_requests():
    backend = FakeBackend(lambda inputs: {"Y": inputs["X"].astype(np.float64)})

    with pytest.raises(
        InvalidArgument, match=r"failed to run warmup sample 's': model 'm', output 'Y'.*TYPE_FP64"
    ):
        warm_up(config(sample()), backend)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (config(sample(batch_size=9)), "batch_size is 9, but the model's max_batch_size is 8"),
        (config(sample(batch_size=2), max_batch_size=0), "batch_size is 2, but the model's max_batch_size is 0"),
        (config(ModelWarmup("s", 1, {})), "it has no data for input 'X'; it gives none"),
        (config(ModelWarmup("s", 1, {"x": ZEROS})), "it has no data for input 'X'; it gives 'x'"),
    ],
)  # fmt: skip
def test_a_sample_that_does_not_fit_the_model_is_named(made, expected):
    with pytest.raises(InvalidArgument, match=f"^failed to run warmup sample 's': {expected}$"):
        warm_up(made)


class RequestTaker(FakeRequestInstance):
    """An instance that answers requests from a thread of its own."""

    def __init__(self, *answers: dict) -> None:
        super().__init__(FakeRequestBackend().load(None), Placement("m_0"))
        self.answers = answers

    def execute_requests(self, execution: Execution) -> None:
        super().execute_requests(execution)
        threading.Thread(target=self.answer_all, args=(execution.requests,)).start()

    def answer_all(self, requests: list[InferenceRequest]) -> None:
        for request in list(requests):
            for answer in self.answers:
                self.sink.respond(request, InferenceResponse("m", 1, **answer))
        self.finish()


def test_an_instance_that_takes_requests_answers_each_with_a_final_response():
    instance = RequestTaker({"final": False}, {})
    made = config(sample(batch_size=2))

    (execution,) = run_warmup(made, Path(), BatchPlan(made), [instance])

    assert execution.requests == instance.requests
    assert instance.requests[1].inputs["X"].shape == (1, 2)


def test_an_error_response_is_a_failure():
    instance = RequestTaker({"error": BackendFailed("broken")})
    made = config(sample())

    with pytest.raises(InvalidArgument, match="failed to run warmup sample 's': broken"):
        run_warmup(made, Path(), BatchPlan(made), [instance])


def test_a_file_of_the_models_warmup_folder_is_data(tmp_path):
    made = ModelConfig(
        name="m",
        max_batch_size=2,
        input=(ModelInput("X", "TYPE_STRING", dims=(2,)),),
        output=(ModelOutput("Y", "TYPE_STRING", dims=(2,)),),
        model_warmup=(ModelWarmup("s", 2, {"X": WarmupInput("TYPE_STRING", (2,), input_data_file="words")}),),
    )
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "words").write_bytes(encode_bytes(["é".encode(), b"b"]))
    seen = []

    warm_up(
        made,
        FakeBackend(lambda inputs: seen.append(inputs["X"].tolist()) or {"Y": inputs["X"]}),
        folder=tmp_path,
    )

    assert seen == [[["é".encode(), b"b"]] * 2]


def test_states_of_a_sequence_need_no_data_and_begin_as_a_sequence_does():
    """A sample may give some; what a state is at its start cannot be wrong."""
    seen = []
    initial = InitialState("TYPE_FP32", (1,), zero_data=True, name="first")
    states = tuple(SequenceState(f"in{n}", f"out{n}", "TYPE_FP32", (1,), (initial,) * n) for n in (0, 1))
    made = replace(
        config(sample(batch_size=2, in0=WarmupInput("TYPE_FP32", (1,), random_data=True))),
        sequence_batching=ModelSequenceBatching(state=states),
    )
    backend = FakeBackend(lambda inputs: (seen.append(inputs), {"Y": inputs["X"]})[1])

    run_warmup(made, Path(), BatchPlan(made, read_states(made, Path())), instances(backend, made))

    assert [{"X": (2, 2), "in0": (2, 1), "in1": (2, 1)}] == backend.batches
    assert seen[0]["in0"].any()
    assert not seen[0]["in1"].any()
