"""Rules on sequence batching: control tensors, strategies, implicit state.

Source: Triton ``model_config_utils.cc`` (Get…SequenceControlProperties, ValidateModelConfig),
``sequence_batch_scheduler.cc`` (Create, GenerateInitialStateData), ``sequence_state.cc``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from bireme.config.model_config import (
    InitialState,
    ModelConfig,
    ModelSequenceBatching,
    SequenceControl,
    SequenceState,
)
from bireme.config.validate.batching import preferred_size_faults

_CORRELATION_ID_TYPES: Final = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_VALUES: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")


def find_faults(config: ModelConfig) -> Iterator[str]:
    """Yield the faults of ``sequence_batching``."""
    batching = config.sequence_batching
    if batching is None:
        return
    yield from _control_tensors(batching, config.name)
    yield from _strategies(batching, config)
    yield from _state_names(batching, config)
    for index, state in enumerate(batching.state):
        yield from _state(state, f"sequence_batching.state[{index}]", config.name)


def _control_tensors(batching: ModelSequenceBatching, model: str) -> Iterator[str]:
    names: set[str] = set()
    kinds: set[str] = set()
    for index, tensor in enumerate(batching.control_input):
        path = f"sequence_batching.control_input[{index}]"
        if not tensor.name:
            yield f"sequence batching control tensor must have a name for {model}: {path}.name is empty"
        elif tensor.name in names:
            yield (
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for "
                f"{model}: {path}.name"
            )
        names.add(tensor.name)
        for number, control in enumerate(tensor.control):
            if control.kind in kinds:
                yield f"sequence batching specifies multiple {control.kind} tensors for {model}: {path}.control[{number}]"
            kinds.add(control.kind)
            check = _correlation_id if control.kind == "CONTROL_SEQUENCE_CORRID" else _flag
            yield from check(control, f"{path}.control[{number}]", model)


def _flag(control: SequenceControl, path: str, model: str) -> Iterator[str]:
    """Check a control that is true or false: one list of two values."""
    given = [name for name in _VALUES if getattr(control, name)]
    if not given:
        yield (
            f"sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{control.kind} for {model}: {path}"
        )
    elif len(given) > 1:
        yield (
            f"sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {control.kind} for {model}: {path} has {' and '.join(given)}"
        )
    for name in given:
        values = getattr(control, name)
        if len(values) != 2:
            yield (
                f"sequence batching control '{name}' must have exactly 2 entries for {control.kind} for {model}: "
                f"{path} has {len(values)}"
            )


def _correlation_id(control: SequenceControl, path: str, model: str) -> Iterator[str]:
    given = [name for name in _VALUES if getattr(control, name)]
    if given:
        yield (
            f"sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {control.kind} for {model}: {path} has {' and '.join(given)}"
        )
    if control.data_type not in _CORRELATION_ID_TYPES:
        yield (
            f"unexpected data type for control {control.kind} for {model}: {path}.data_type is {control.data_type}. "
            f"Allowed data types are {', '.join(_CORRELATION_ID_TYPES)}"
        )


def _strategies(batching: ModelSequenceBatching, config: ModelConfig) -> Iterator[str]:
    if batching.direct is not None and batching.oldest is not None:
        yield f"sequence batching takes only one of 'direct' and 'oldest' for {config.name}: both are set"
    if batching.oldest is not None:
        yield from preferred_size_faults(
            batching.oldest.preferred_batch_size,
            "sequence batching preferred batch size",
            "sequence_batching.oldest.preferred_batch_size",
            config,
        )
    if batching.direct is not None and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        yield (
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}: "
            f"sequence_batching.direct.minimum_slot_utilization is {batching.direct.minimum_slot_utilization}"
        )


def _state_names(batching: ModelSequenceBatching, config: ModelConfig) -> Iterator[str]:
    """Check that no tensor is two things at once; of two states with one output, Triton ignores the second."""
    for kind in ("input", "output"):
        names = Counter(getattr(state, f"{kind}_name") for state in batching.state)
        for name, count in names.items():
            if count > 1 and name:
                yield f"State {kind} name '{name}' specified more than once for {config.name}: sequence_batching.state"
    controls = {control.name for control in batching.control_input}
    made = {name for entry in config.batch_input for name in entry.target_name}
    for index, state in enumerate(batching.state):
        for others, what in ((controls, "sequence batching control"), (made, "batch input")):
            if state.input_name and state.input_name in others:
                yield (
                    f"State input name '{state.input_name}' is that of a {what} tensor too for {config.name}: "
                    f"sequence_batching.state[{index}].input_name"
                )


def _state(state: SequenceState, path: str, model: str) -> Iterator[str]:
    for field in ("input_name", "output_name"):
        if not getattr(state, field):
            yield f"sequence batching state must specify '{field}' for {model}: {path}.{field} is empty"
    if state.data_type == "TYPE_INVALID":
        yield f"sequence batching state '{state.input_name}' must specify 'data_type' for {model}: {path}.data_type"
    bad_dims = [dim for dim in state.dims if dim < 1 and dim != -1]
    if bad_dims:
        yield (
            f"sequence batching state '{state.input_name}' dimension must be integer >= 1, or -1 to indicate a "
            f"variable-size dimension for {model}: {path}.dims {list(state.dims)} holds {bad_dims[0]}"
        )
    if state.use_growable_memory and not state.use_same_buffer_for_input_output:
        yield (
            f"In order to 'use_growable_memory', you must also enable 'use_same_buffer_for_input_output' for state "
            f"input name '{state.input_name}' for {model}: {path}"
        )
    if len(state.initial_state) > 1:
        yield (
            f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
            f"Found '{len(state.initial_state)}' elements for {model}: {path}.initial_state"
        )
    for initial in state.initial_state[:1]:
        yield from _initial_state(initial, state, f"{model}: {path}.initial_state[0]")


def _initial_state(initial: InitialState, state: SequenceState, place: str) -> Iterator[str]:
    name = state.input_name
    if initial.data_type != state.data_type:
        yield (
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type for "
            f"{place}.data_type is {initial.data_type}, expected {state.data_type}"
        )
    if not initial.name:
        yield f"Field 'name' must be set when using initial_state for state input '{name}' for {place}"
    if initial.zero_data is None and initial.data_file is None:
        yield (
            f"initial_state setting expects state '{name}' to have state_data set for {place}: add zero_data or data_file"
        )
    if len(initial.dims) != len(state.dims):
        yield (
            f"Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial.dims)} != {len(state.dims)} for {place}.dims"
        )
        return
    if -1 in initial.dims:
        yield (
            f"'initial_state' field for state input name '{name}' contains variable dimensions for {place}.dims is "
            f"{list(initial.dims)}"
        )
    for found, expected in zip(initial.dims, state.dims, strict=True):
        if -1 not in {found, expected} and found != expected:
            yield (
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {found} != "
                f"{expected} for {place}.dims is {list(initial.dims)}, the state's are {list(state.dims)}"
            )
