"""What happens to a model's own states: the variables (``ReadValue`` and ``Assign``) that it carries from run to run. Pure.

The server knows nothing of them, so by default every run begins with their initial values: what one client sent must not
show in the answer to another.

They are kept within a sequence where an instance has one sequence at a time: ``sequence_batching`` with the direct strategy
and a ``max_batch_size`` of 0 or 1, and a control input for CONTROL_SEQUENCE_START. The model file need not have that
input, nor the other controls: they are for the instance then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from bireme.backends.signature import Signature
from bireme.config import ModelConfig
from bireme.config.model_config import SequenceControl
from bireme.types import Array

_START: Final = "CONTROL_SEQUENCE_START"


class SequenceStart(NamedTuple):
    """The control input that says that a sequence begins."""

    name: str
    true: float

    def is_set(self, arrays: Mapping[str, Array]) -> bool:
        """Whether the inputs of a run are the first of their sequence."""
        control = arrays.get(self.name)
        return control is None or bool((control == self.true).any())


def find_start(config: ModelConfig) -> SequenceStart | None:
    """Return the control that begins the states anew; None: each run does."""
    batching = config.sequence_batching
    if batching is None or batching.oldest is not None or config.max_batch_size > 1:
        return None
    for entry in batching.control_input:
        for control in entry.control:
            if control.kind == _START:
                return SequenceStart(entry.name, _true_of(control))
    return None


def without_foreign_controls(config: ModelConfig, signature: Signature) -> ModelConfig:
    """Return ``config`` without the control inputs that the model file lacks."""
    batching = config.sequence_batching
    if batching is None:
        return config
    known = tuple(entry for entry in batching.control_input if entry.name in signature.inputs)
    return replace(config, sequence_batching=replace(batching, control_input=known))


def _true_of(control: SequenceControl) -> float:
    values = control.int32_false_true or control.fp32_false_true or control.bool_false_true
    return float(values[1]) if len(values) > 1 else 1.0
