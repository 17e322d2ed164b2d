"""The dynamic batcher's rules, case by case.

A waiting queue is written as letters with their rows, `"a1 b2"`; a capital X or Y after the rows is the batch key.
"""

from __future__ import annotations

import pytest

from bireme.config.model_config import ModelDynamicBatching, ModelQueuePolicy
from bireme.scheduling import NOTHING_TO_DO, CloseReason, Decision, DynamicBatcher
from bireme.types import QueueFull
from waiting import US, ids, make_request

DELAY_US = 100


def batcher(max_batch_size: int = 8, preferred: tuple[int, ...] = (), delay_us: int = 0, **settings):
    hold_until = settings.pop("hold_until", 0)
    batching = ModelDynamicBatching(preferred, delay_us, **settings)
    return DynamicBatcher("model", batching, max_batch_size, hold_until=hold_until)


def enqueue(scheduler: DynamicBatcher, waiting: str, now_ns: int = 0, **fields):
    requests = [
        make_request(item[0], rows=int(item[1]), key=item[2:] or None, **fields) for item in waiting.split()
    ]
    for request in requests:
        scheduler.enqueue(request, now_ns)
    return requests


def batches(scheduler: DynamicBatcher, now_ns: int = 0) -> str:
    """Schedule until nothing more starts; write the batches as ids and close reasons."""
    written = []
    while (decision := scheduler.schedule(now_ns, instance_free=True)).batch is not None:
        assert decision.batch_size == sum(request.batch_size for request in decision.batch)
        written.append(f"{ids(decision.batch)}:{decision.close_reason}")
    return " ".join(written)


# Without a delay


@pytest.mark.parametrize(
    ("max_batch_size", "preferred", "waiting", "expected"),
    [
        # Everything that waits, up to the limit.
        (8, (), "a1", "a:instance_free"),
        (8, (), "a1 b1 c1", "abc:instance_free"),
        (4, (), "a1 b1 c1 d1", "abcd:full"),
        (4, (), "a1 b1 c1 d1 e1 f1", "abcd:full ef:instance_free"),
        (8, (8,), "a1 b1 c1", "abc:instance_free"),
        # Rows are counted, not requests, and no request is split.
        (4, (), "a3 b2 c2", "a:full bc:full"),
        (4, (), "a2 b1 c2", "ab:full c:instance_free"),
        (4, (), "a4 b4", "a:full b:full"),
        # The largest preferred size within reach is taken.
        (8, (2, 6), "a1 b1 c1 d1 e1 f1", "abcdef:preferred"),
        (8, (2, 6), "a1 b1 c1", "ab:preferred c:instance_free"),
        (8, (4,), "a1 b1 c1", "abc:instance_free"),
        (8, (4, 8), "a1 b1 c1 d1 e1 f1 g1 h1", "abcdefgh:full"),
        (16, (4, 6), "a1 b1 c1 d1 e1 f1 g1", "abcdef:preferred g:instance_free"),
        # Beyond the largest preferred size nothing is added, exact or not.
        (16, (4,), "a1 b1 c1 d1 e1 f1 g1 h1 i1", "abcd:preferred efgh:preferred i:instance_free"),
        (16, (4,), "a3 b3 c3", "a:preferred b:preferred c:instance_free"),
        (8, (2, 6), "a3 b4", "a:preferred b:instance_free"),
        (8, (2, 6), "a7 b1", "a:preferred b:instance_free"),
        (8, (2, 6), "a7", "a:preferred"),
        (8, (4, 8), "a4 b2 c3", "a:preferred bc:instance_free"),
        (8, (4, 8), "a4 b5", "a:full b:instance_free"),
        # A model that does not batch gets single requests.
        (0, (), "a1 b1", "a:full b:full"),
        (1, (), "a1 b1", "a:full b:full"),
    ],
)
def test_batch_without_delay(max_batch_size, preferred, waiting, expected):
    scheduler = batcher(max_batch_size, preferred)
    enqueue(scheduler, waiting)

    assert batches(scheduler) == expected


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ("a1X b1X c1X", "abc:instance_free"),
        ("a1X b1Y", "a:shape b:instance_free"),
        # Requests of one shape are found whatever waits between them; batches go by their oldest request.
        ("a1X b1Y c1X d1Y e1X", "ace:shape bd:instance_free"),
        ("a1X b1Y c1Z d1Y", "a:shape bd:shape c:instance_free"),
        ("a2X b1Y c2X d2X", "ac:full b:shape d:instance_free"),
        ("a1 b1X c1", "ac:shape b:instance_free"),
    ],
)
def test_only_equal_keys_share_a_batch(waiting, expected):
    scheduler = batcher(4)
    enqueue(scheduler, waiting)

    assert batches(scheduler) == expected


def test_nothing_is_batched_while_no_instance_is_free_and_the_batch_keeps_growing():
    scheduler = batcher(4)
    for waiting in ("a1", "b1", "c1"):
        enqueue(scheduler, waiting)
        assert scheduler.schedule(0, instance_free=False).batch is None

    assert batches(scheduler) == "abc:instance_free"


def test_empty_queue_costs_no_decision():
    assert batcher().schedule(0, instance_free=True) is NOTHING_TO_DO


# With a delay


@pytest.mark.parametrize(
    ("max_batch_size", "preferred", "waiting", "at_once", "when_due"),
    [
        # Partial batches wait for the delay.
        (8, (), "a1", "", "a:delay"),
        (8, (), "a1 b1 c1", "", "abc:delay"),
        (8, (2, 6), "a1", "", "a:delay"),
        (8, (2, 6), "a4", "", "a:delay"),
        (8, (2, 6), "a1 b3", "", "ab:delay"),
        # A full batch does not.
        (4, (), "a1 b1 c1 d1", "abcd:full", ""),
        (4, (), "a3 b2", "a:full", "b:delay"),
        (4, (), "a1 b1 c1 d1 e1", "abcd:full", "e:delay"),
        # Nor does a preferred one, though more could come.
        (8, (2, 6), "a2", "a:preferred", ""),
        (8, (2, 6), "a1 b1", "ab:preferred", ""),
        (8, (2, 6), "a1 b1 c1", "ab:preferred", "c:delay"),
        (8, (2, 6), "a1 b1 c1 d1 e1 f1", "abcdef:preferred", ""),
        # Nor what is beyond the largest preferred size or would get there.
        (8, (2, 6), "a7", "a:preferred", ""),
        (8, (2, 6), "a3 b4", "a:preferred", "b:delay"),
        (8, (2, 6), "a3 b7", "a:full b:preferred", ""),
        (8, (2, 6), "a8", "a:full", ""),
        (8, (6,), "a4 b4", "a:preferred", "b:delay"),
        # Nor what a request of another shape closes.
        (8, (2, 6), "a1X b3X c1Y", "ab:shape", "c:delay"),
        (8, (2, 6), "a1X b3X c1Y d5Y", "ab:shape cd:preferred", ""),
        (8, (2, 6), "a1X b1Y c1X", "ac:preferred", "b:delay"),
        (8, (), "a1X b1Y c1X", "ac:shape", "b:delay"),
    ],
)
def test_batch_with_delay(max_batch_size, preferred, waiting, at_once, when_due):
    """Arrivals come one by one at time 0, while an instance is free only after the last."""
    scheduler = batcher(max_batch_size, preferred, DELAY_US)
    enqueue(scheduler, waiting)

    assert batches(scheduler) == at_once
    assert batches(scheduler, DELAY_US * US - 1) == ""
    assert batches(scheduler, DELAY_US * US) == when_due
    assert scheduler.num_waiting == 0


@pytest.mark.parametrize(
    ("max_batch_size", "preferred", "waiting", "expected"),
    [
        # Once the delay is over, preferred sizes bind nobody: everything goes, up to the maximum.
        (8, (2, 6), "a1 b1 c1", "abc:delay"),
        (8, (2, 6), "a3 b4", "ab:delay"),
        (8, (2, 6), "a3 b4 c1", "abc:full"),
        (8, (2,), "a1 b1 c1 d1 e1 f1 g1 h1 i1", "abcdefgh:full i:delay"),
        (8, (2,), "a7 b2", "a:full b:delay"),
        (8, (2,), "a1X b1Y c1X d1X", "acd:shape b:delay"),
        (8, (2,), "a7", "a:delay"),
    ],
)
def test_batch_of_requests_that_waited_longer_than_the_delay(max_batch_size, preferred, waiting, expected):
    scheduler = batcher(max_batch_size, preferred, DELAY_US)
    enqueue(scheduler, waiting)

    assert batches(scheduler, DELAY_US * US) == expected


def test_delay_is_measured_from_the_oldest_request():
    scheduler = batcher(8, delay_us=DELAY_US)
    enqueue(scheduler, "a1", 0)
    enqueue(scheduler, "b1", 60 * US)

    assert scheduler.schedule(60 * US, instance_free=True) == Decision(wake_at_ns=DELAY_US * US)
    assert batches(scheduler, DELAY_US * US) == "ab:delay"


def test_oldest_request_counts_wherever_it_stands_in_the_batch():
    """A newer request of a higher level comes first and does not restart the delay."""
    scheduler = batcher(8, delay_us=DELAY_US, priority_levels=2, default_priority_level=2)
    enqueue(scheduler, "a1", 0)
    enqueue(scheduler, "b1", 60 * US, priority=1)

    assert scheduler.schedule(60 * US, instance_free=True).wake_at_ns == DELAY_US * US
    assert batches(scheduler, DELAY_US * US) == "ba:delay"


@pytest.mark.parametrize(
    ("second", "expected"),
    [("b1", "ab:preferred"), ("b4", "ab:preferred"), ("b7", "a:full b:full"), ("b1X", "a:shape")],
)
def test_arrival_during_the_delay_can_close_the_batch(second, expected):
    scheduler = batcher(7, (2, 5), DELAY_US)
    enqueue(scheduler, "a1", 0)
    assert batches(scheduler, 0) == ""
    enqueue(scheduler, second, 1)

    assert batches(scheduler, 1) == expected


def test_wake_time_is_the_nearest_deadline_when_that_is_earlier_than_the_delay():
    policy = ModelQueuePolicy("REJECT", 70, allow_timeout_override=True)
    scheduler = batcher(8, delay_us=DELAY_US, default_queue_policy=policy)
    enqueue(scheduler, "a1", 0)
    assert scheduler.schedule(0, instance_free=True).wake_at_ns == 70 * US
    enqueue(scheduler, "b1", 0, timeout_us=30)
    assert scheduler.schedule(0, instance_free=True).wake_at_ns == 30 * US
    decision = scheduler.schedule(30 * US, instance_free=True)

    assert ids(request for request, _ in decision.refused) == "b"
    assert (decision.batch, decision.wake_at_ns) == (None, 70 * US)


def test_cancelled_request_no_longer_drives_the_delay():
    scheduler = batcher(8, delay_us=DELAY_US)
    [first] = enqueue(scheduler, "a1", 0)
    enqueue(scheduler, "b1", 60 * US)
    scheduler.cancel(first)

    assert batches(scheduler, DELAY_US * US) == ""
    assert batches(scheduler, 160 * US) == "b:delay"


# Queue policies


def test_expired_request_is_refused_while_every_instance_is_busy():
    scheduler = batcher(8, default_queue_policy=ModelQueuePolicy("REJECT", 300))
    enqueue(scheduler, "a1", 0)

    assert scheduler.schedule(0, instance_free=False) == Decision(wake_at_ns=300 * US)
    decision = scheduler.schedule(300 * US, instance_free=False)
    assert ids(request for request, _ in decision.refused) == "a"
    assert (decision.batch, decision.wake_at_ns) == (None, None)
    assert scheduler.statistics()["expired"] == 1


def test_decision_with_a_batch_also_says_when_the_next_request_expires():
    scheduler = batcher(1, default_queue_policy=ModelQueuePolicy("REJECT", 300))
    enqueue(scheduler, "a1", 0)
    enqueue(scheduler, "b1", 50 * US)
    decision = scheduler.schedule(50 * US, instance_free=True)

    assert ids(decision.batch) == "a"
    assert decision.wake_at_ns == 350 * US


def test_expired_and_batched_in_one_step():
    scheduler = batcher(8, default_queue_policy=ModelQueuePolicy("REJECT", 300))
    enqueue(scheduler, "a1", 0)
    enqueue(scheduler, "b1", 200 * US)
    decision = scheduler.schedule(300 * US, instance_free=True)

    assert ids(request for request, _ in decision.refused) == "a"
    assert ids(decision.batch) == "b"


def test_delayed_request_is_batched_after_the_others_and_asks_for_no_wake_up_while_busy():
    scheduler = batcher(8, default_queue_policy=ModelQueuePolicy("DELAY", 300))
    enqueue(scheduler, "a1", 0)
    enqueue(scheduler, "b1", 200 * US)

    assert scheduler.schedule(200 * US, instance_free=False).wake_at_ns is None
    assert batches(scheduler, 300 * US) == "ba:instance_free"


def test_request_that_turns_delayed_can_make_a_preferred_size():
    """So a waiting batch is looked at again at that time."""
    scheduler = batcher(8, (2, 6), 10_000, default_queue_policy=ModelQueuePolicy("DELAY", 300))
    enqueue(scheduler, "a1", 0)
    enqueue(scheduler, "b2 c2", 200 * US)
    assert batches(scheduler, 200 * US) == ""
    decision = scheduler.schedule(200 * US, instance_free=True)
    assert decision.wake_at_ns == 300 * US

    assert batches(scheduler, 300 * US) == "b:preferred c:preferred"


def test_exact_queue_limit():
    """The running request does not count; waiting ones do, exactly."""
    scheduler = batcher(1, default_queue_policy=ModelQueuePolicy(max_queue_size=2))
    enqueue(scheduler, "a1")
    assert batches(scheduler) == "a:full"
    enqueue(scheduler, "b1 c1")
    with pytest.raises(QueueFull, match="Exceeds maximum queue size"):
        enqueue(scheduler, "d1")

    assert batches(scheduler) == "b:full c:full"


# Priorities


def test_higher_levels_enter_the_batch_first_and_lower_ones_fill_it():
    scheduler = batcher(3, priority_levels=2, default_priority_level=2)
    enqueue(scheduler, "a1 b1", priority=2)
    enqueue(scheduler, "c1 d1", priority=1)

    assert batches(scheduler) == "cda:full b:instance_free"


def test_lower_level_waits_behind_a_higher_one_of_another_shape():
    scheduler = batcher(3, priority_levels=2, default_priority_level=2)
    enqueue(scheduler, "a1X", priority=2)
    enqueue(scheduler, "b1X c1Y", priority=1)

    assert batches(scheduler) == "b:shape c:shape a:instance_free"


# The rest of the interface


def test_hold_until_holds_once():
    scheduler = batcher(2, hold_until=3)
    enqueue(scheduler, "a1 b1")
    assert batches(scheduler) == ""
    enqueue(scheduler, "c1")
    assert batches(scheduler) == "ab:full c:instance_free"
    enqueue(scheduler, "d1")
    assert batches(scheduler) == "d:instance_free"


def test_held_requests_expire_all_the_same():
    scheduler = batcher(2, hold_until=3, default_queue_policy=ModelQueuePolicy("REJECT", 300))
    enqueue(scheduler, "a1")

    assert scheduler.schedule(0, instance_free=True).wake_at_ns == 300 * US
    assert len(scheduler.schedule(300 * US, instance_free=True).refused) == 1


def test_cancelled_request_is_in_no_batch():
    scheduler = batcher(8)
    requests = enqueue(scheduler, "a1 b1 c1")

    assert scheduler.cancel(requests[1])
    assert not scheduler.cancel(requests[1])
    assert scheduler.num_waiting == 2
    assert batches(scheduler) == "ac:instance_free"
    assert not scheduler.cancel(requests[0])


def test_drain_returns_what_waits_in_order():
    scheduler = batcher(8)
    enqueue(scheduler, "a1X b1Y c1X")

    assert ids(scheduler.drain()) == "abc"
    assert scheduler.num_waiting == 0
    assert batches(scheduler) == ""


def test_repr_and_statistics_tell_what_waits_and_why_batches_were_closed():
    scheduler = batcher(4, (2,), DELAY_US)
    requests = enqueue(scheduler, "a2 b1 c4X d1Y")
    batches(scheduler)
    scheduler.cancel(requests[-1])
    enqueue(scheduler, "e1")

    assert repr(scheduler) == (
        "DynamicBatcher('model', waiting=1, rows=1, max_batch_size=4, delay_us=100, "
        "closed={full: 1, preferred: 1, shape: 1})"
    )
    assert scheduler.statistics() == {
        "scheduler": "dynamic_batching",
        "waiting": 1,
        "waiting_rows": 1,
        "levels": {"0": {"waiting": 1, "delayed": 0}},
        "batches": 3,
        "close_reasons": {"full": 1, "preferred": 1, "delay": 0, "shape": 1, "instance_free": 0},
        "expired": 0,
        "cancelled": 1,
    }


def test_close_reasons_are_plain_strings_for_json():
    assert [str(reason) for reason in CloseReason][:2] == ["full", "preferred"]
