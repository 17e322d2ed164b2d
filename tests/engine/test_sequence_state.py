"""Implicit state: each sequence gets back what its last successful request left, and nobody else does."""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bireme.config.model_config import (
    InitialState,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    SequenceState,
)
from bireme.engine.batch import BatchPlan, GatherBuffers
from bireme.engine.sequence_state import read_states
from bireme.engine.tensor_runs import TensorRuns
from bireme.types import (
    BackendFailed,
    BiremeError,
    Execution,
    InferenceRequest,
    InvalidArgument,
    SequenceSlot,
    Tensor,
)

SUM = SequenceState("sum_in", "sum_out", "TYPE_INT64", (1,))
LAST = SequenceState("last_in", "last_out", "TYPE_INT64", (1,))
LOG = SequenceState("log_in", "log_out", "TYPE_STRING", (1,))


def config(*states: SequenceState, max_batch_size: int = 8, outputs: tuple[str, ...] = ()) -> ModelConfig:
    return ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        input=(ModelInput("x", "TYPE_INT64", dims=(1,)),),
        output=(
            ModelOutput("y", "TYPE_INT64", dims=(1,)),
            *(ModelOutput(name, "TYPE_INT64", dims=(1,)) for name in outputs),
        ),
        sequence_batching=ModelSequenceBatching(state=states),
    )


def accumulate(inputs: dict[str, Any]) -> dict[str, Any]:
    """Play a model with three states: the sum so far, the last number and the text of all; y is a mix of two."""
    x, before = inputs["x"], inputs["sum_in"]
    outputs = {"y": before * 1000 + x, "sum_out": before + x}
    if "last_in" in inputs:
        outputs |= {"y": before * 1000 + inputs["last_in"], "last_out": x}
    if "log_in" in inputs:
        outputs["log_out"] = np.array(
            [[f"{old.decode()}{new}."] for (old,), (new,) in zip(inputs["log_in"], x.tolist(), strict=True)]
        )
    return outputs


@dataclass
class Model:
    """A model with states as the engine runs it: executions in, results out."""

    config: ModelConfig
    execute: Any = accumulate
    folder: Path = Path()
    execute_into: Any = None
    buffers: GatherBuffers = field(default_factory=GatherBuffers)

    def __post_init__(self):
        self.tensors = self  # an instance with its buffers: what the engine calls a slot
        self.states = read_states(self.config, self.folder)
        self.runs = TensorRuns("model 'm'", BatchPlan(self.config, self.states), measures_cpu=False)

    def run(self, *items: tuple[SequenceSlot | None, int]) -> list[Any]:
        """Run a batch of one number for each slot; return a dict of what each is answered, or its error."""
        shape = (1, 1) if self.config.max_batch_size else (1,)
        requests = [
            InferenceRequest(
                "m", {"x": Tensor.from_numpy("x", np.full(shape, x))}, lambda _request, _response: None
            )
            for _, x in items
        ]
        execution = Execution(requests, len(requests), "full")
        execution.sequence_slots = [slot for slot, _ in items]
        results = self.runs.run(self, execution)
        for slot, _ in items:
            if slot is not None:
                slot.is_start = False
                slot.advance(has_succeeded=True)
        return [
            result
            if isinstance(result, BiremeError)
            else {tensor.name: tensor.to_numpy().item() for tensor in result}
            for result in results
        ]


def slot(sequence_id: int = 1) -> SequenceSlot:
    return SequenceSlot(sequence_id, 0, 0)


@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_a_state_comes_back_with_the_next_request(max_batch_size):
    model, one = Model(config(SUM, max_batch_size=max_batch_size)), slot()

    answers = [model.run((one, x))[0]["y"] for x in (1, 2, 3)]

    assert [1, 1002, 3003] == answers
    assert ((1, 1) if max_batch_size else (1,)) == one.state["sum_in"].shape


def test_sequences_of_one_batch_have_states_of_their_own():
    model, one, two = Model(config(SUM, LAST, LOG)), slot(1), slot(2)

    model.run((one, 1), (two, 10))
    model.run((two, 20), (one, 2))

    assert [3, 30] == [each.state["sum_in"].item() for each in (one, two)]
    assert [2, 20] == [each.state["last_in"].item() for each in (one, two)]
    assert [b"1.2.", b"10.20."] == [each.state["log_in"].item() for each in (one, two)]


def test_a_start_begins_with_the_initial_state_whatever_was_there():
    model, one = Model(config(SUM)), slot()
    model.run((one, 5))

    one.is_start = True

    assert [{"y": 7}] == model.run((one, 7))
    assert 7 == one.state["sum_in"].item()


@pytest.mark.parametrize(
    ("dims", "datatype", "expected"),
    [
        ((2, 3), "TYPE_FP32", np.zeros((1, 2, 3), np.float32)),
        ((-1, 3), "TYPE_INT8", np.zeros((1, 1, 3), np.int8)),
        ((), "TYPE_BOOL", np.zeros((1,), np.bool_)),
        ((2,), "TYPE_STRING", np.array([[b"", b""]], np.object_)),
        ((2,), "TYPE_BF16", np.zeros((1, 2), np.uint16)),
    ],
)
def test_without_an_initial_state_it_is_zeros_and_variable_dims_are_1(dims, datatype, expected):
    states = read_states(config(SequenceState("in", "out", datatype, dims)), Path())
    inputs: dict[str, Any] = {}

    states.add_inputs(inputs, [slot()], GatherBuffers())

    assert expected.dtype == inputs["in"].dtype
    np.testing.assert_array_equal(expected, inputs["in"])


@pytest.mark.parametrize(
    ("initial", "content", "expected"),
    [
        ({"data_type": "TYPE_INT64", "dims": (2,), "data_file": "s"}, np.array([4, 5, 6]).tobytes(), [4, 5]),
        ({"data_type": "TYPE_INT64", "dims": (3,), "zero_data": True}, b"", [0, 0, 0]),
        ({"data_type": "TYPE_STRING", "dims": (1,), "data_file": "s"}, b"\2\0\0\0ab", [b"ab"]),
        ({"data_type": "TYPE_FP32", "dims": (2,), "data_file": "s.json"}, b"[0.5, 1]", [0.5, 1]),
    ],
)
def test_an_initial_state_is_zeros_or_a_file(tmp_path, initial, content, expected):
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / initial.get("data_file", "s")).write_bytes(content)
    state = SequenceState("in", "out", initial["data_type"], (-1,), (InitialState(**initial, name="first"),))
    states = read_states(config(state), tmp_path)
    inputs: dict[str, Any] = {}

    states.add_inputs(inputs, [slot()], GatherBuffers())

    assert [expected] == inputs["in"].tolist()


@pytest.mark.parametrize(
    ("filename", "text"),
    [
        (
            "short",
            r"state 'in' of model 'm': .*short': initial_state setting expects 2 INT64 elements, but .* 1",
        ),
        ("none", r"none' cannot be read: No such file or directory; the folder holds 'short'"),
        ("../../secret", "'../../secret' is outside the model's directory"),
    ],
)
def test_a_data_file_that_is_of_no_use_is_named(tmp_path, filename, text):
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state/short").write_bytes(bytes(8))
    initial = InitialState("TYPE_INT64", (2,), data_file=filename, name="first")

    with pytest.raises(InvalidArgument, match=text):
        read_states(config(SequenceState("in", "out", "TYPE_INT64", (2,), (initial,))), tmp_path)


def test_a_failed_execution_leaves_the_state_as_it_was():
    def fail(inputs):
        inputs["sum_in"][...] = 99 if len(inputs["x"]) > 1 else inputs["sum_in"]
        raise RuntimeError("no")

    model, one, two = Model(config(SUM)), slot(1), slot(2)
    model.run((one, 5))

    model.execute = fail
    assert "model 'm' failed: no" == model.run((one, 1))[0].message
    model.run((one, 1), (two, 2))
    model.execute = accumulate

    assert [5001, 1] == [model.run((each, 1))[0]["y"] for each in (one, two)]


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({}, "output 'sum_out' is missing"),
        (
            {"sum_out": np.zeros((2, 1), np.float32)},
            "data_type is TYPE_INT64, but the model returned float32",
        ),
        ({"sum_out": np.zeros((3, 1), np.int64)}, "expected 2 rows"),
        ({"sum_out": np.zeros((2, 2), np.int64)}, r"make shape \[1, 1\], but the model returned \[1, 2\]"),
    ],
)
def test_a_wrong_state_fails_the_batch_and_changes_nothing(outputs, text):
    model, one, two = Model(config(LAST, SUM)), slot(1), slot(2)
    model.run((one, 5), (two, 6))

    model.execute = lambda inputs: {"y": inputs["x"], "last_out": inputs["x"], **outputs}
    failures = model.run((one, 1), (two, 2))

    for failure in failures:
        assert re.search(text, failure.message)
    assert [(5, 5), (6, 6)] == [
        tuple(each.state[name].item() for name in ("sum_in", "last_in")) for each in (one, two)
    ]


def test_a_request_whose_own_result_is_wrong_keeps_its_state():
    model, one = Model(config(SUM)), slot()
    model.run((one, 5))

    model.execute = lambda inputs: {"y": inputs["x"].astype(float), "sum_out": inputs["x"]}
    (failure,) = model.run((one, 1))

    assert isinstance(failure, BiremeError)
    assert 5 == one.state["sum_in"].item()


def test_null_requests_get_states_that_nobody_keeps():
    seen = []
    model, one, two = Model(config(SUM, LOG)), slot(1), slot(2)
    model.execute = lambda inputs: (seen.append(inputs), accumulate(inputs))[1]
    model.run((one, 1), (two, 2))

    model.run((one, 1), (None, 7), (two, 2))

    assert [[1], [0], [2]] == seen[1]["sum_in"].tolist()
    assert [[b"1."], [b""], [b"2."]] == seen[1]["log_in"].tolist()
    assert [2, 4] == [each.state["sum_in"].item() for each in (one, two)]


def test_only_listed_states_are_answered():
    model, one = Model(config(SUM, LAST, outputs=("sum_out",))), slot()

    assert [{"y": 0, "sum_out": 3}] == model.run((one, 3))


def test_a_client_cannot_change_a_state_that_it_is_answered():
    given: list[Any] = []
    model, one = Model(config(SUM, outputs=("sum_out",))), slot()
    model.execute = lambda inputs: (given.append(accumulate(inputs)), given[-1])[1]

    model.run((one, 3))
    given[0]["sum_out"][...] = 77

    assert 3 == one.state["sum_in"].item()


def test_a_framework_that_writes_into_its_input_spoils_no_other_sequence():
    def in_place(inputs):
        inputs["sum_in"] += inputs["x"]
        return {"y": inputs["x"], "sum_out": inputs["sum_in"]}

    model, one, two = Model(config(SUM), in_place), slot(1), slot(2)

    for _ in range(3):
        model.run((one, 1))
    model.run((two, 1))

    assert [3, 1] == [each.state["sum_in"].item() for each in (one, two)]


def test_a_sequence_does_not_hold_the_states_of_its_batch():
    model, one, two = Model(config(SUM)), slot(1), slot(2)

    model.run((one, 1), (two, 2))

    assert one.state["sum_in"].base is None


GROWING = SequenceState("cache_in", "cache_out", "TYPE_FP32", (-1,))
LARGE = 1 << 16


def test_a_large_state_of_one_sequence_is_not_copied_unless_it_is_the_requests():
    cache = np.zeros((1, LARGE), np.float32)
    model, one = Model(config(GROWING)), slot()

    model.execute = lambda inputs: {"y": inputs["x"], "cache_out": cache}
    model.run((one, 1))
    assert one.state["cache_in"] is cache

    model.execute = lambda inputs: {
        "y": inputs["x"],
        "cache_out": np.broadcast_to(inputs["x"], (1, LARGE)).view(),
    }
    own = SequenceState("cache_in", "cache_out", "TYPE_INT64", (-1,))
    other, two = Model(config(own), model.execute), slot()
    other.run((two, 1))
    assert two.state["cache_in"].flags.owndata


def test_a_growing_state_has_the_shape_of_the_last_output():
    def grow(inputs):
        before = inputs["cache_in"]
        return {
            "y": np.full((len(before), 1), before.shape[1]),
            "cache_out": np.pad(before, ((0, 0), (0, 1))),
        }

    model, one, two = Model(config(GROWING), grow), slot(1), slot(2)

    assert [1, 2, 3] == [model.run((one, 0))[0]["y"] for _ in range(3)]

    (failure, _) = model.run((one, 0), (two, 0))
    assert "sequences of one batch have states of shapes [1, 1], [1, 4]" in failure.message
    assert [{"y": 1}] == model.run((two, 0))


def test_bf16_states_are_kept_as_bits():
    state = SequenceState("in", "out", "TYPE_BF16", (1,))
    model, one = Model(config(state)), slot()
    model.execute = lambda inputs: {"y": inputs["x"], "out": np.array([[1.5]], ml_dtypes.bfloat16)}

    model.run((one, 1))

    assert 1.5 == one.state["in"].view(ml_dtypes.bfloat16).item()


def test_a_state_lives_exactly_as_long_as_its_slot():
    model, one = Model(config(SUM, LAST, LOG)), slot()
    model.run((one, 1))
    held = [weakref.ref(array) for array in one.state.values()]

    del one

    assert [None] * 3 == [reference() for reference in held]


def test_a_model_without_states_has_none():
    assert None is read_states(config(), Path())
    assert None is read_states(ModelConfig(name="m"), Path())


SEQUENCES = 4


def refuse(_inputs):
    raise BackendFailed("no")


@settings(max_examples=50)
@given(
    batches=st.lists(
        st.tuples(
            st.lists(st.integers(0, SEQUENCES - 1), min_size=1, unique=True),  # whose requests it has
            st.integers(0, 3),  # null requests among them
            st.booleans(),  # it fails
            st.booleans(),  # the first of them starts anew
        ),
        max_size=12,
    )
)
def test_interleaved_sequences_never_mix(batches):
    """Each sequence has exactly the states that it would have alone, whatever else shares its batches."""
    model = Model(config(SUM, LAST, LOG, max_batch_size=8))
    slots = [slot(index) for index in range(SEQUENCES)]
    expected: list[list[int]] = [[] for _ in slots]
    for number, (members, num_null, fails, restarts) in enumerate(batches, start=1):
        if restarts:
            slots[members[0]].is_start = True
            expected[members[0]] = []
        items: list[tuple[SequenceSlot | None, int]] = [
            (slots[member], number * 10 + member) for member in members
        ]
        for position in range(num_null):
            items.insert(position * 2, (None, -1))
        model.execute = refuse if fails else accumulate

        answers = model.run(*items)

        for (place, x), answer in zip(items, answers, strict=True):
            if place is None or fails:
                continue
            numbers = expected[place.sequence_id]
            assert sum(numbers) * 1000 + (numbers[-1] if numbers else 0) == answer["y"]
            numbers.append(x)
    for place, numbers in zip(slots, expected, strict=True):
        if numbers:
            assert sum(numbers) == place.state["sum_in"].item()
            assert numbers[-1] == place.state["last_in"].item()
            assert "".join(f"{x}." for x in numbers).encode() == place.state["log_in"].item()


def test_only_sequences_with_states_of_one_shape_may_share_a_batch():
    def grow(inputs):
        return {"y": inputs["x"], "cache_out": np.pad(inputs["cache_in"], ((0, 0), (0, 1)))}

    model, one, two, new = Model(config(GROWING), grow), slot(1), slot(2), slot(3)

    model.run((one, 0), (two, 0))
    assert one.batch_key == two.batch_key != new.batch_key
    model.run((one, 0))
    assert one.batch_key != two.batch_key
    one.is_start = True
    model.run((one, 0), (new, 0))
    assert one.batch_key == two.batch_key == new.batch_key


def test_states_of_fixed_shape_keep_no_sequences_apart():
    model, one = Model(config(SUM)), slot()

    model.run((one, 1))

    assert one.batch_key is None
