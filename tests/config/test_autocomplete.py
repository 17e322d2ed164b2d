"""What a backend may change when it completes a config."""

from dataclasses import replace

import pytest

from bireme.config import ModelConfig, apply_autocomplete, normalise
from bireme.config.model_config import (
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    ModelTransactionPolicy,
)
from bireme.types import Internal

X = ModelInput("x", "TYPE_FP32", dims=(1,))
Y = ModelOutput("y", "TYPE_FP32", dims=(1,))
CONFIG = normalise(ModelConfig(name="m", backend="b", parameters={}))


def test_takes_batch_size_inputs_outputs_and_decoupled():
    policy = ModelTransactionPolicy(decoupled=True)
    completed = replace(CONFIG, max_batch_size=4, input=(X,), output=(Y,), model_transaction_policy=policy)

    assert apply_autocomplete(CONFIG, completed) == completed


def test_takes_nothing_else():
    completed = replace(
        CONFIG, name="other", backend="other", runtime="x", version_policy=None, optimization=None
    )

    assert apply_autocomplete(CONFIG, completed) == CONFIG


def test_takes_a_scheduling_choice_where_there_was_none():
    completed = replace(CONFIG, max_batch_size=4, dynamic_batching=ModelDynamicBatching())

    merged = apply_autocomplete(CONFIG, completed)

    assert merged.dynamic_batching == ModelDynamicBatching(preferred_batch_size=(4,))


def test_keeps_the_scheduling_choice_that_was_there():
    config = replace(CONFIG, dynamic_batching=ModelDynamicBatching(max_queue_delay_microseconds=7))
    completed = replace(
        config, max_batch_size=4, dynamic_batching=ModelDynamicBatching(preserve_ordering=True)
    )

    merged = apply_autocomplete(config, completed)

    assert merged.dynamic_batching == ModelDynamicBatching((4,), max_queue_delay_microseconds=7)


@pytest.mark.parametrize(
    ("after", "named"),
    [(ModelSequenceBatching(), "sequence_batching"), (None, "none")],
    ids=["other", "none"],
)
def test_changing_the_scheduling_choice_is_the_backends_fault(after, named):
    config = replace(CONFIG, dynamic_batching=ModelDynamicBatching())
    completed = replace(CONFIG, sequence_batching=after)

    with pytest.raises(Internal) as caught:
        apply_autocomplete(config, completed)

    assert caught.value.message == (
        f"Cannot update scheduling choice from dynamic_batching to {named} when auto-completing model 'm'"
    )


def test_absent_transaction_policy_leaves_the_old_one():
    config = replace(CONFIG, model_transaction_policy=ModelTransactionPolicy(decoupled=True))

    assert apply_autocomplete(config, CONFIG).model_transaction_policy == ModelTransactionPolicy(
        decoupled=True
    )
