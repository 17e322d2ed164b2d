from __future__ import annotations

import pytest

from bireme.config.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelSequenceBatching,
)
from bireme.scheduling import DirectScheduler, DynamicBatcher, build_scheduler
from bireme.types import Unsupported
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


def test_scheduler_that_does_not_exist_yet_is_refused_by_name():
    with pytest.raises(
        Unsupported, match="model 'talker': 'sequence_batching' in its configuration is not supported"
    ):
        build_scheduler(ModelConfig("talker", sequence_batching=ModelSequenceBatching()))
