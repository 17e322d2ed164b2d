from __future__ import annotations

import pytest

from bireme.config.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelParameter,
    ModelSequenceBatching,
)
from bireme.scheduling import DirectScheduler, DynamicBatcher, build_scheduler
from bireme.scheduling.sequence_batcher import SequenceBatcher
from bireme.types import InvalidArgument, QueueFull
from waiting import make_request


def test_without_a_choice_requests_are_not_merged():
    scheduler = build_scheduler(ModelConfig("model", max_batch_size=8))

    assert isinstance(scheduler, DirectScheduler)


def test_dynamic_batching_is_configured_from_the_model():
    config = ModelConfig(
        "model", max_batch_size=8, dynamic_batching=ModelDynamicBatching(max_queue_delay_microseconds=5)
    )
    scheduler = build_scheduler(config, hold_until=1)

    assert isinstance(scheduler, DynamicBatcher)
    assert repr(scheduler) == (
        "DynamicBatcher('model', waiting=0, rows=0, max_batch_size=8, delay_us=5, closed={})"
    )


def test_hold_until_reaches_the_batcher():
    scheduler = build_scheduler(
        ModelConfig("model", max_batch_size=8, dynamic_batching=ModelDynamicBatching()), hold_until=2
    )
    scheduler.enqueue(make_request(), 0)

    assert scheduler.schedule(0, instance_free=True).batch is None


def sequence_config(**parameters: str) -> ModelConfig:
    return ModelConfig(
        "talker",
        sequence_batching=ModelSequenceBatching(),
        instance_group=(ModelInstanceGroup(count=2), ModelInstanceGroup(count=3, passive=True)),
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )


def test_sequences_have_slots_in_each_active_instance():
    scheduler = build_scheduler(sequence_config())

    assert isinstance(scheduler, SequenceBatcher)
    assert scheduler.statistics()["slots"] == 2


def test_the_queue_of_sequences_is_limited_by_a_parameter():
    scheduler = build_scheduler(sequence_config(SEQUENCE_MAX_QUEUE_SIZE="1"))
    scheduler.enqueue(make_request(sequence_id=1, sequence_start=True), 0)

    with pytest.raises(QueueFull, match="Exceeds maximum queue size"):
        scheduler.enqueue(make_request(sequence_id=2, sequence_start=True), 0)


def test_a_limit_that_is_no_number_is_refused():
    with pytest.raises(InvalidArgument, match="SEQUENCE_MAX_QUEUE_SIZE is 'many'"):
        build_scheduler(sequence_config(SEQUENCE_MAX_QUEUE_SIZE="many"))
