"""A batching strategy of the model's own: where it ends batches, and what it never does."""

import pytest
from hypothesis import given, strategies as st

from bireme.config.model_config import ModelConfig, ModelDynamicBatching
from bireme.scheduling import build_scheduler
from bireme.scheduling.batch_strategy import StrategicBatcher
from waiting import US, ids, make_request


class AtMost:
    """A batch's ids must not sum up to more than ``limit``."""

    def __init__(self, limit):
        self.limit = limit
        self.num_open = 0
        self.num_batches = 0

    def begin(self):
        self.num_open += 1
        self.num_batches += 1
        return {"sum": 0}

    def includes(self, request, batch):
        batch["sum"] += int(request.id)
        return batch["sum"] <= self.limit

    def end(self, batch):
        del batch["sum"]
        self.num_open -= 1


def batcher(strategy, max_batch_size=8, preferred=(), delay_us=0):
    return StrategicBatcher("model", ModelDynamicBatching(preferred, delay_us), max_batch_size, strategy)


def batches(scheduler, now_ns=0):
    written = []
    while (decision := scheduler.schedule(now_ns, instance_free=True)).batch is not None:
        written.append(f"{ids(decision.batch)}:{decision.close_reason}")
    return " ".join(written)


@pytest.mark.parametrize(
    ("settings", "waiting", "expected"),
    [
        ({}, "1111", "1111:instance_free"),
        ({}, "1234", "123:strategy 4:instance_free"),
        # The first goes in any case.
        ({}, "971", "9:strategy 7:strategy 1:instance_free"),
        # Size still counts.
        ({"max_batch_size": 2}, "11191", "11:full 1:strategy 9:strategy 1:instance_free"),
        # What the strategy ends is not held back for a delay.
        ({"delay_us": 100}, "3332", "33:strategy 32:delay"),
        # A preferred size comes first, as without a strategy.
        ({"preferred": (2,), "delay_us": 100}, "1114", "11:preferred 14:preferred"),
    ],
)
def test_a_strategy_ends_batches(settings, waiting, expected):
    strategy = AtMost(6)
    scheduler = batcher(strategy, **settings)
    for each in waiting:
        scheduler.enqueue(make_request(each), 0)

    assert f"{batches(scheduler)} {batches(scheduler, 100 * US)}".strip() == expected
    assert strategy.num_open == 0


def test_a_batch_that_is_held_back_begins_anew_with_each_look():
    strategy = AtMost(6)
    scheduler = batcher(strategy, delay_us=100)
    for each in "112":
        scheduler.enqueue(make_request(each), 0)
        assert scheduler.schedule(0, instance_free=True).batch is None

    decision = scheduler.schedule(100 * US, instance_free=True)

    assert (ids(decision.batch), decision.close_reason) == ("112", "delay")
    assert (strategy.num_batches, strategy.num_open) == (4, 0)


def test_other_shapes_end_a_batch_by_themselves():
    scheduler = batcher(AtMost(6))
    for each, key in (("1", None), ("1", "x"), ("1", "x")):
        scheduler.enqueue(make_request(each, key=key), 0)

    assert batches(scheduler) == "1:shape 11:instance_free"
    assert scheduler.statistics()["close_reasons"] == {
        "full": 0,
        "preferred": 0,
        "delay": 0,
        "shape": 1,
        "instance_free": 1,
        "strategy": 0,
    }


@given(
    st.lists(st.integers(0, 9), max_size=10),
    st.integers(0, 12),
    st.integers(1, 8),
    st.sampled_from([(), (2,), (1, 3)]),
    st.sampled_from([0, 10]),
)
def test_nothing_is_lost_or_turned_round_and_no_batch_breaks_the_rule(
    waiting, limit, max_rows, preferred, delay_us
):
    preferred = tuple(size for size in preferred if size <= max_rows)
    strategy = AtMost(limit)
    scheduler = batcher(strategy, max_rows, preferred, delay_us)
    for each in waiting:
        scheduler.enqueue(make_request(str(each)), 0)

    sent = []
    while (decision := scheduler.schedule(delay_us * US, instance_free=True)).batch is not None:
        numbers = [int(request.id) for request in decision.batch]
        assert len(numbers) == 1 or (sum(numbers) <= limit and len(numbers) <= max_rows)
        sent += numbers

    assert sent == waiting
    assert strategy.num_open == 0


def test_only_dynamic_batching_has_a_strategy():
    with_batching = ModelConfig("m", max_batch_size=8, dynamic_batching=ModelDynamicBatching())

    assert isinstance(build_scheduler(with_batching, strategy=AtMost(1)), StrategicBatcher)
    assert not isinstance(build_scheduler(with_batching), StrategicBatcher)
    assert not isinstance(build_scheduler(ModelConfig("m"), strategy=AtMost(1)), StrategicBatcher)
