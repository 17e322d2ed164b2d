from __future__ import annotations

from hypothesis import given, strategies as st

from bireme.scheduling.lane_queue import LaneQueue
from waiting import ids, make_request


def filled(*keyed_ids: str) -> LaneQueue:
    """Make a queue of requests named by their second letter, with their first as key, queued at 0, 1, 2, …"""
    queue = LaneQueue()
    for queued_ns, (key, name) in enumerate(keyed_ids):
        queue.add(make_request(name, key=key), queued_ns)
    return queue


def test_equal_keys_form_one_lane_in_arrival_order():
    queue = filled("xa", "xb", "xc")

    assert queue.is_uniform
    assert queue.head.id == "a"
    assert queue.head_queued_ns == 0
    assert ids(queue.lane("x")) == "abc"
    assert ids(queue.lane("y")) == ""
    assert repr(queue) == "LaneQueue(3 requests, 1 lanes)"


def test_other_key_opens_a_lane_of_its_own():
    queue = filled("xa", "yb", "xc", "zd")

    assert not queue.is_uniform
    assert ids(queue) == "abcd"
    assert [ids(queue.lane(key)) for key in "xyz?"] == ["ac", "b", "d", ""]
    assert repr(queue) == "LaneQueue(4 requests, 3 lanes)"


def test_take_leaves_the_other_lanes_in_order():
    queue = filled("xa", "yb", "xc", "xd", "ye")

    assert ids(queue.take("x", 2)) == "ac"
    assert ids(queue) == "bde"
    assert queue.head.id == "b"
    assert ids(queue.take("y", 9)) == "be"
    assert queue.is_uniform
    assert ids(queue.take("x", 9)) == "d"
    assert len(queue) == 0


def test_take_of_an_unknown_key_takes_nothing():
    assert filled("xa").take("y", 1) == []
    assert filled("xa", "yb").take("z", 1) == []


def test_take_first_takes_from_a_uniform_queue_whatever_its_past():
    queue = filled("xa", "yb", "xc", "xd")
    queue.take("y", 1)

    assert queue.is_uniform
    assert ids(queue.take_first(2)) == "ac"
    assert ids(queue.take_first(2)) == "d"


def test_discard_returns_the_time_of_queueing():
    queue = LaneQueue()
    first, second, stranger = make_request("a"), make_request("b"), make_request("c")
    queue.add(first, 7)
    queue.add(second, 0)

    assert queue.discard(first) == 7
    assert queue.discard(second) == 0
    assert queue.discard(stranger) is None


def test_queue_that_ran_empty_takes_any_key_as_its_only_one():
    queue = filled("xa", "yb")
    for request in list(queue):
        queue.discard(request)
    queue.add(make_request("c", key="z"), 0)

    assert queue.is_uniform
    assert ids(queue.lane("z")) == "c"


def test_absent_and_present_keys_differ():
    queue = LaneQueue()
    queue.add(make_request("a", key=None), 0)
    queue.add(make_request("b", key=(1, 2)), 0)

    assert ids(queue.lane(None)) == "a"
    assert ids(queue.lane((1, 2))) == "b"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("xyz")),
            st.tuples(st.just("discard"), st.integers(0, 20)),
            st.tuples(st.just("take"), st.sampled_from("xyz"), st.integers(1, 4)),
        ),
        max_size=60,
    )
)
def test_behaves_like_a_list_that_is_filtered(steps):
    queue = LaneQueue()
    model = []
    for step in steps:
        match step:
            case ("add", key):
                request = make_request(key=key)
                queue.add(request, 0)
                model.append(request)
            case ("discard", index):
                if index < len(model):
                    assert queue.discard(model.pop(index)) == 0
            case (_, key, count):
                expected = [request for request in model if request.batch_key == key][:count]
                assert queue.take(key, count) == expected
                model = [request for request in model if request not in expected]
        assert list(queue) == model
        for key in "xyz":
            assert list(queue.lane(key)) == [request for request in model if request.batch_key == key]
        assert queue.is_uniform == (len({request.batch_key for request in model}) <= 1)
