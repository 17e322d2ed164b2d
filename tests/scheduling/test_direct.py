from __future__ import annotations

from bireme.scheduling import NOTHING_TO_DO, CloseReason, DirectScheduler
from waiting import ids, make_request


def test_each_request_is_its_own_batch_in_arrival_order():
    scheduler = DirectScheduler("model")
    for name, rows in [("a", 1), ("b", 4), ("c", 1)]:
        scheduler.enqueue(make_request(name, rows=rows), 0)
    decisions = [scheduler.schedule(0, instance_free=True) for _ in range(3)]

    assert [ids(decision.batch) for decision in decisions] == ["a", "b", "c"]
    assert [decision.batch_size for decision in decisions] == [1, 4, 1]
    assert {decision.close_reason for decision in decisions} == {CloseReason.SINGLE}
    assert scheduler.schedule(0, instance_free=True) is NOTHING_TO_DO


def test_nothing_starts_while_no_instance_is_free():
    scheduler = DirectScheduler("model")
    scheduler.enqueue(make_request(), 0)

    assert scheduler.schedule(0, instance_free=False) is NOTHING_TO_DO
    assert scheduler.num_waiting == 1


def test_nothing_ever_expires():
    scheduler = DirectScheduler("model")
    scheduler.enqueue(make_request(timeout_us=1), 0)
    decision = scheduler.schedule(10**12, instance_free=False)

    assert (decision.refused, decision.wake_at_ns) == ((), None)


def test_cancelled_request_leaves_the_queue():
    scheduler = DirectScheduler("model")
    first, second = make_request("a"), make_request("b")
    scheduler.enqueue(first, 0)
    scheduler.enqueue(second, 0)

    assert scheduler.cancel(first)
    assert not scheduler.cancel(first)
    assert scheduler.schedule(0, instance_free=True).batch == [second]
    assert not scheduler.cancel(second)


def test_drain_returns_what_waits_in_order():
    scheduler = DirectScheduler("model")
    for name in "abc":
        scheduler.enqueue(make_request(name), 0)

    assert ids(scheduler.drain()) == "abc"
    assert scheduler.num_waiting == 0
    assert scheduler.drain() == []


def test_repr_and_statistics_show_the_state():
    scheduler = DirectScheduler("resnet")
    requests = [make_request(rows=2) for _ in range(4)]
    for request in requests:
        scheduler.enqueue(request, 0)
    scheduler.schedule(0, instance_free=True)
    scheduler.cancel(requests[-1])

    assert repr(scheduler) == "DirectScheduler('resnet', waiting=2, batches=1)"
    assert scheduler.statistics() == {
        "scheduler": "direct",
        "waiting": 2,
        "waiting_rows": 4,
        "batches": 1,
        "cancelled": 1,
    }
