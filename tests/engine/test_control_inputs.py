"""The tensors that tell a model where in its sequence a request is."""

import numpy as np
import pytest

from bireme.config.model_config import (
    ModelConfig,
    ModelSequenceBatching,
    SequenceControl,
    SequenceControlInput,
)
from bireme.engine.control_inputs import ControlInputs
from bireme.types import InferenceRequest, InvalidArgument, Tensor


def make(*controls: tuple[str, SequenceControl], rows: int = 0) -> ControlInputs:
    inputs = tuple(SequenceControlInput(name, (control,)) for name, control in controls)
    return ControlInputs(
        ModelConfig("m", max_batch_size=rows, sequence_batching=ModelSequenceBatching(control_input=inputs))
    )


START = ("S", SequenceControl("CONTROL_SEQUENCE_START", int32_false_true=(0, 1)))
READY = ("R", SequenceControl("CONTROL_SEQUENCE_READY", fp32_false_true=(0.5, 2)))
ID = ("I", SequenceControl("CONTROL_SEQUENCE_CORRID", data_type="TYPE_UINT32"))
TEXT = ("I", SequenceControl("CONTROL_SEQUENCE_CORRID", data_type="TYPE_STRING"))


def request_of(sequence_id: int | str, **flags: bool) -> InferenceRequest:
    tensor = Tensor.from_numpy("X", np.ones((1, 3), np.float32))
    return InferenceRequest("m", {"X": tensor}, lambda *_: None, sequence_id=sequence_id, **flags)


def values(request: InferenceRequest) -> dict[str, object]:
    return {name: tensor.to_numpy().item() for name, tensor in request.inputs.items() if name != "X"}


def test_a_second_run_replaces_those_of_the_first():
    controls, request = make(START, READY, ID), request_of(7, sequence_start=True)
    before = request.inputs
    controls.add(request)
    assert values(request) == {"S": 1, "R": 2, "I": 7}
    assert list(before) == ["X"]  # the caller's own dict

    request.sequence_start = False
    controls.add(request)
    assert values(request) == {"S": 0, "R": 2, "I": 7}


def test_a_null_request_has_the_inputs_of_another_and_is_not_ready():
    controls, request = make(START, READY, TEXT, rows=4), request_of("seven", sequence_start=True)
    controls.add(request)
    null = controls.make_null(request)

    assert values(request) == {"S": 1, "R": 2, "I": b"seven"}
    assert values(null) == {"S": 0, "R": 0.5, "I": b""}
    assert null.inputs["X"] is request.inputs["X"]
    assert (null.sequence_id, null.sequence_start, null.owner) == (0, False, None)
    assert {tensor.shape for name, tensor in null.inputs.items() if name != "X"} == {(1, 1)}
    null.respond(null, None)


def test_nobody_can_change_what_all_requests_share():
    controls, request = make(START), request_of(1)
    controls.add(request)
    with pytest.raises(ValueError, match="read-only"):
        request.inputs["S"].to_numpy()[0] = 9


@pytest.mark.parametrize(
    ("control", "sequence_id", "sent", "expected"),
    [(ID, "x", "BYTES", "UINT32"), (TEXT, 1, "UINT64", "BYTES")],
)
def test_an_id_of_the_other_kind_is_named(control, sequence_id, sent, expected):
    with pytest.raises(
        InvalidArgument, match=f"control 'I' data-type is '{sent}', but model 'm' expects '{expected}'"
    ):
        make(control).check_id(request_of(sequence_id))


def test_without_the_control_any_id_will_do_and_none_is_not_its_business():
    make(START).check_id(request_of("x"))
    make(TEXT).check_id(request_of(0))
    make(ID).check_id(request_of(1))
