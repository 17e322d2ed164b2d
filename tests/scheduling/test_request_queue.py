from __future__ import annotations

import pytest

from bireme.config.model_config import ModelQueuePolicy
from bireme.scheduling import RequestQueue
from bireme.types import QueueFull, RequestTimedOut
from waiting import US, ids, make_request

REJECT_300 = ModelQueuePolicy(default_timeout_microseconds=300, allow_timeout_override=True)
DELAY_300 = ModelQueuePolicy("DELAY", default_timeout_microseconds=300, allow_timeout_override=True)


def candidate_ids(queue: RequestQueue) -> str:
    return ids(request for request, _ in queue.candidates())


def drain_in_service_order(queue: RequestQueue) -> str:
    """Take single candidates until nothing is left."""
    return ids(queue.take(1)[0] for _ in range(queue.num_waiting))


# Order


def test_requests_of_one_level_come_in_arrival_order():
    queue = RequestQueue("model")
    for name in "abc":
        queue.push(make_request(name), 0)

    assert candidate_ids(queue) == "abc"
    assert ids(queue.take(2)) == "ab"
    assert (queue.num_waiting, queue.num_rows) == (1, 1)


def test_higher_levels_are_served_first():
    queue = RequestQueue("model", priority_levels=3, default_priority_level=2)
    for name, priority in [("a", 3), ("b", 2), ("c", 1), ("d", 3), ("e", 1)]:
        queue.push(make_request(name, priority=priority), 0)

    assert candidate_ids(queue) == "cebad"
    assert drain_in_service_order(queue) == "cebad"


@pytest.mark.parametrize(
    ("priority", "order"),
    [(0, "adb"), (1, "dab"), (2, "adb"), (3, "abd"), (4, "adb"), (2**64 - 1, "adb")],
)
def test_priority_0_or_above_the_levels_is_the_default_level(priority, order):
    queue = RequestQueue("model", priority_levels=3, default_priority_level=2)
    queue.push(make_request("a", priority=2), 0)
    queue.push(make_request("b", priority=3), 0)
    queue.push(make_request("d", priority=priority), 0)

    assert drain_in_service_order(queue) == order


def test_without_levels_priority_has_no_effect():
    queue = RequestQueue("model", default_priority_level=7)
    for name, priority in [("a", 9), ("b", 1), ("c", 0)]:
        queue.push(make_request(name, priority=priority), 0)

    assert drain_in_service_order(queue) == "abc"


def test_candidates_are_all_that_can_share_a_batch_with_the_first():
    queue = RequestQueue("model")
    for name, key in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"), ("e", "x")]:
        queue.push(make_request(name, key=key), 0)

    assert candidate_ids(queue) == "ace"
    assert ids(queue.take(2)) == "ac"
    assert candidate_ids(queue) == "bd"
    assert ids(queue.take(9)) == "bd"
    assert candidate_ids(queue) == "e"


@pytest.mark.parametrize(
    ("waiting", "candidates"),
    [
        ([("a", "x", 1), ("b", "x", 2)], "ab"),
        ([("a", "x", 1), ("b", "y", 2), ("c", "x", 2)], "ac"),
        ([("a", "x", 1), ("b", "y", 1), ("c", "x", 2)], "a"),  # b must not be overtaken by a lower level
        ([("a", "x", 1), ("b", "y", 2), ("c", "x", 3)], "a"),
    ],
)
def test_nobody_overtakes_a_request_of_a_higher_level(waiting, candidates):
    queue = RequestQueue("model", priority_levels=3, default_priority_level=1)
    for name, key, priority in waiting:
        queue.push(make_request(name, key=key, priority=priority), 0)

    assert candidate_ids(queue) == candidates


def test_uniform_queue_knows_its_oldest():
    queue = RequestQueue("model")
    assert queue.oldest_if_uniform_ns() is None
    queue.push(make_request("a"), 10)
    queue.push(make_request("b"), 20)
    assert queue.oldest_if_uniform_ns() == 10
    queue.push(make_request("c", key="other"), 30)
    assert queue.oldest_if_uniform_ns() is None


def test_drain_empties_in_service_order():
    queue = RequestQueue("model", priority_levels=2, default_priority_level=2, default_policy=DELAY_300)
    for name, priority in [("a", 2), ("b", 1), ("c", 2)]:
        queue.push(make_request(name, priority=priority), 0)
    queue.expire(300 * US)
    queue.push(make_request("d", priority=2), 300 * US)

    assert ids(queue.drain()) == "bdac"
    assert (queue.num_waiting, queue.num_rows) == (0, 0)
    assert queue.next_deadline_ns() is None
    assert queue.drain() == []
    queue.push(make_request("e"), 400 * US)
    assert candidate_ids(queue) == "e"


# Limits


def test_queue_limit_is_exact_and_frees_a_place_at_once():
    queue = RequestQueue("model", default_policy=ModelQueuePolicy(max_queue_size=2))
    first, second, third = (make_request(name) for name in "abc")
    queue.push(first, 0)
    queue.push(second, 0)
    with pytest.raises(QueueFull) as failure:
        queue.push(third, 0)

    assert failure.value.message == (
        "[request id: c] Exceeds maximum queue size: 2 requests wait for model 'model', its max_queue_size is 2"
    )
    assert (queue.num_waiting, queue.num_rows) == (2, 2)
    queue.discard(first)
    queue.push(third, 0)
    assert candidate_ids(queue) == "bc"


def test_queue_limit_counts_requests_and_not_rows():
    queue = RequestQueue("model", default_policy=ModelQueuePolicy(max_queue_size=2))
    queue.push(make_request(rows=100), 0)
    queue.push(make_request(rows=100), 0)

    assert (queue.num_waiting, queue.num_rows) == (2, 200)


def test_limits_are_per_level_and_unnamed_levels_have_the_default():
    queue = RequestQueue(
        "model",
        default_policy=ModelQueuePolicy(max_queue_size=1),
        priority_levels=3,
        default_priority_level=2,
        policies={1: ModelQueuePolicy(max_queue_size=2)},
    )
    for priority in (1, 1, 2, 3):
        queue.push(make_request(priority=priority), 0)
    for priority in (1, 2, 3):
        with pytest.raises(QueueFull, match=f"at priority level {priority}, its max_queue_size"):
            queue.push(make_request(priority=priority), 0)


def test_delayed_requests_keep_their_place_in_the_limit():
    policy = ModelQueuePolicy("DELAY", default_timeout_microseconds=300, max_queue_size=1)
    queue = RequestQueue("model", default_policy=policy)
    queue.push(make_request("a"), 0)
    queue.expire(300 * US)

    with pytest.raises(QueueFull):
        queue.push(make_request("b"), 301 * US)


def test_overdue_request_holds_no_place_even_if_nobody_looked_yet():
    policy = ModelQueuePolicy(default_timeout_microseconds=300, max_queue_size=1)
    queue = RequestQueue("model", default_policy=policy)
    queue.push(make_request("a"), 0)
    with pytest.raises(QueueFull):
        queue.push(make_request("b"), 300 * US - 1)
    queue.push(make_request("c"), 300 * US)

    assert queue.num_waiting == 1
    assert ids(request for request, _ in queue.expire(300 * US)) == "a"
    assert candidate_ids(queue) == "c"


def test_drain_returns_overdue_requests_too():
    policy = ModelQueuePolicy(default_timeout_microseconds=300, max_queue_size=1)
    queue = RequestQueue("model", default_policy=policy)
    queue.push(make_request("a"), 0)
    queue.push(make_request("b"), 300 * US)

    assert ids(queue.drain()) == "ab"
    assert queue.expire(900 * US) == ()


def test_levels_that_ran_empty_do_not_pile_up():
    queue = RequestQueue(
        "model", priority_levels=2**64 - 1, default_priority_level=1, default_policy=REJECT_300
    )
    requests = [make_request(priority=priority) for priority in range(1, 1501)]
    for request in requests:
        queue.push(request, 0)
    for request in requests[:500]:
        assert queue.discard(request)
    assert len(queue._levels) == 1000
    queue.take(500)
    assert len(queue._levels) == 500
    queue.expire(300 * US)

    assert queue.num_waiting == 0
    assert len(queue._levels) == len(queue._sorted_levels) <= 32


def test_level_that_still_holds_requests_stays_however_many_there_are():
    queue = RequestQueue("model", priority_levels=1000, default_priority_level=1)
    for priority in (*range(1, 100), *range(1, 100)):
        queue.push(make_request(str(priority), priority=priority), 0)
    taken = [queue.take(1)[0].priority for _ in range(198)]

    assert taken == sorted([*range(1, 100), *range(1, 100)])


# Timeouts


@pytest.mark.parametrize(
    ("policy", "request_timeout_us", "effective_us"),
    [
        (ModelQueuePolicy(), 0, None),
        (ModelQueuePolicy(allow_timeout_override=True), 100, None),  # no default: an override has no effect
        (ModelQueuePolicy(default_timeout_microseconds=300), 0, 300),
        (ModelQueuePolicy(default_timeout_microseconds=300), 100, 300),  # not allowed
        (REJECT_300, 0, 300),
        (REJECT_300, 100, 100),
        (REJECT_300, 299, 299),
        (REJECT_300, 300, 300),
        (REJECT_300, 301, 300),  # an override only shortens
        (DELAY_300, 100, 100),
    ],
)
def test_effective_timeout(policy, request_timeout_us, effective_us):
    queue = RequestQueue("model", default_policy=policy)
    queue.push(make_request(timeout_us=request_timeout_us), 7)

    assert queue.next_deadline_ns() == (None if effective_us is None else 7 + effective_us * US)
    assert queue.has_timeouts == (effective_us is not None)


def test_rejection_is_exactly_on_time_and_explains_itself():
    queue = RequestQueue("model", default_policy=REJECT_300)
    queue.push(make_request("a"), 50 * US)

    assert queue.next_rejection_ns() == 350 * US
    assert queue.expire(350 * US - 1) == ()
    [(request, error)] = queue.expire(352 * US)
    assert request.id == "a"
    assert isinstance(error, RequestTimedOut)
    assert error.message == (
        "[request id: a] Request timeout expired: it waited in the queue of model 'model' for 302 us, "
        "its limit is 300 us"
    )
    assert (queue.num_waiting, queue.num_rows) == (0, 0)
    assert queue.next_rejection_ns() is None


def test_rejections_come_in_the_order_of_their_deadlines():
    queue = RequestQueue("model", default_policy=REJECT_300)
    for name, timeout_us in [("a", 0), ("b", 200), ("c", 100), ("d", 200)]:
        queue.push(make_request(name, timeout_us=timeout_us), 0)

    assert ids(request for request, _ in queue.expire(250 * US)) == "cbd"
    assert ids(request for request, _ in queue.expire(300 * US)) == "a"


def test_delayed_requests_are_served_after_their_level_and_before_the_next():
    queue = RequestQueue("model", default_policy=DELAY_300, priority_levels=2, default_priority_level=1)
    for name, priority in [("a", 1), ("b", 2), ("c", 1)]:
        queue.push(make_request(name, priority=priority), 0)
    assert queue.expire(300 * US) == ()
    queue.push(make_request("d", priority=1), 300 * US)
    queue.push(make_request("e", priority=2), 300 * US)

    assert queue.oldest_if_uniform_ns() is None
    assert candidate_ids(queue) == "daceb"
    assert queue.statistics()["levels"] == {
        "1": {"waiting": 1, "delayed": 2},
        "2": {"waiting": 1, "delayed": 1},
    }
    assert drain_in_service_order(queue) == "daceb"


def test_delayed_request_has_no_deadline_any_more():
    queue = RequestQueue("model", default_policy=DELAY_300)
    queue.push(make_request("a"), 0)

    assert queue.next_rejection_ns() is None
    assert queue.next_deadline_ns() == 300 * US
    queue.expire(300 * US)
    assert queue.next_deadline_ns() is None
    assert queue.expire(10**12) == ()
    assert candidate_ids(queue) == "a"


def test_delayed_request_keeps_its_time_of_queueing():
    queue = RequestQueue("model", default_policy=DELAY_300)
    queue.push(make_request("a"), 5)
    queue.expire(10**9)

    assert [queued_ns for _, queued_ns in queue.candidates()] == [5]


def test_nearest_deadline_is_that_of_any_level():
    queue = RequestQueue(
        "model",
        priority_levels=2,
        default_priority_level=1,
        policies={1: DELAY_300, 2: REJECT_300},
    )
    queue.push(make_request(priority=2), 10)
    assert queue.next_deadline_ns() == 10 + 300 * US
    queue.push(make_request(priority=1, timeout_us=100), 10)
    assert queue.next_deadline_ns() == 10 + 100 * US
    assert queue.next_rejection_ns() == 10 + 300 * US


@pytest.mark.parametrize("policy", [REJECT_300, DELAY_300])
def test_taken_and_discarded_requests_do_not_expire(policy):
    queue = RequestQueue("model", default_policy=policy)
    first, second = make_request("a"), make_request("b")
    queue.push(first, 0)
    queue.push(second, 0)
    queue.take(1)
    queue.discard(second)

    assert queue.expire(10**9) == ()
    assert queue.next_deadline_ns() is None


# Cancellation


def test_discard_finds_on_time_and_delayed_requests_of_any_level():
    queue = RequestQueue("model", default_policy=DELAY_300, priority_levels=2, default_priority_level=1)
    delayed, on_time = make_request("a", priority=1), make_request("b", priority=2, rows=3)
    queue.push(delayed, 0)
    queue.expire(300 * US)
    queue.push(on_time, 300 * US)

    assert queue.discard(delayed)
    assert queue.discard(on_time)
    assert not queue.discard(on_time)
    assert (queue.num_waiting, queue.num_rows) == (0, 0)


def test_discard_finds_requests_of_the_default_level():
    queue = RequestQueue("model", priority_levels=2, default_priority_level=2)
    requests = [make_request(priority=priority) for priority in (0, 2, 3)]
    for request in requests:
        queue.push(request, 0)

    assert all(queue.discard(request) for request in requests)
    assert queue.num_waiting == 0


def test_discard_of_a_stranger_does_nothing():
    queue = RequestQueue("model", priority_levels=2, default_priority_level=1)
    assert not queue.discard(make_request())
    queue.push(make_request("a"), 0)

    assert not queue.discard(make_request("a"))
    assert queue.num_waiting == 1


def test_request_may_come_back_after_it_left():
    """Its old deadline has no hold on it."""
    queue = RequestQueue("model", default_policy=REJECT_300)
    request = make_request("a")
    queue.push(request, 0)
    queue.discard(request)
    queue.push(request, 200 * US)

    assert queue.expire(300 * US) == ()
    assert ids(request for request, _ in queue.expire(500 * US)) == "a"


# For people


def test_repr_and_statistics_show_what_waits():
    queue = RequestQueue("resnet", default_policy=DELAY_300)
    assert repr(queue) == "RequestQueue('resnet', 0 waiting, 0 rows, {})"
    queue.push(make_request(rows=4), 0)
    queue.expire(300 * US)
    queue.push(make_request(), 0)

    assert repr(queue) == "RequestQueue('resnet', 2 waiting, 5 rows, {0: 1+1 delayed})"
    assert queue.statistics() == {
        "waiting": 2,
        "waiting_rows": 5,
        "levels": {"0": {"waiting": 1, "delayed": 1}},
    }
