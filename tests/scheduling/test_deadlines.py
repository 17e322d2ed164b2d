from __future__ import annotations

import gc
import weakref

from hypothesis import given, strategies as st

from bireme.scheduling import Deadlines


class Item:
    pass


def test_expires_at_the_deadline_and_not_before():
    deadlines = Deadlines()
    deadlines.add("a", 100)

    assert deadlines.pop_expired(99) == []
    assert deadlines.pop_expired(100) == [("a", 100)]
    assert deadlines.pop_expired(200) == []


def test_expired_come_earliest_first_and_equal_ones_in_the_order_added():
    deadlines = Deadlines()
    for item, at_ns in [("late", 9), ("b", 5), ("a", 5), ("early", 1)]:
        deadlines.add(item, at_ns)

    assert deadlines.nearest_ns() == 1
    assert deadlines.pop_expired(8) == [("early", 1), ("b", 5), ("a", 5)]
    assert deadlines.nearest_ns() == 9


def test_discarded_item_neither_expires_nor_counts_as_nearest():
    deadlines = Deadlines()
    deadlines.add("a", 1)
    deadlines.add("b", 2)
    deadlines.discard("a")
    deadlines.discard("never added")

    assert deadlines.nearest_ns() == 2
    assert deadlines.pop_expired(5) == [("b", 2)]
    assert deadlines.nearest_ns() is None


def test_discarded_item_is_skipped_among_the_expired():
    deadlines = Deadlines()
    deadlines.add("a", 1)
    deadlines.add("b", 2)
    deadlines.discard("a")

    assert deadlines.pop_expired(5) == [("b", 2)]


def test_adding_again_replaces_the_deadline():
    deadlines = Deadlines()
    deadlines.add("a", 1)
    deadlines.add("a", 7)

    assert len(deadlines) == 1
    assert deadlines.pop_expired(6) == []
    assert deadlines.pop_expired(7) == [("a", 7)]


def test_clear_forgets_everything():
    deadlines = Deadlines()
    deadlines.add("a", 1)
    deadlines.clear()

    assert len(deadlines) == 0
    assert deadlines.nearest_ns() is None
    deadlines.add("a", 2)
    assert deadlines.pop_expired(5) == [("a", 2)]


def test_memory_stays_bounded_when_items_leave_long_before_their_deadline():
    deadlines = Deadlines()
    deadlines.add("stays", 10**9)
    for serial in range(10_000):
        deadlines.add(serial, 10**6 + serial)
        deadlines.discard(serial)

    assert len(deadlines._heap) < 100
    assert deadlines.pop_expired(10**9) == [("stays", 10**9)]


def test_order_survives_the_giving_back_of_memory():
    deadlines = Deadlines()
    for at_ns in (*range(1, 999, 2), *range(998, 0, -2)):
        deadlines.add(at_ns, at_ns)
    for at_ns in range(1, 999):
        if at_ns % 5:
            deadlines.discard(at_ns)

    assert [item for item, _ in deadlines.pop_expired(999)] == list(range(5, 999, 5))


def test_keeps_no_item_alive_that_left():
    deadlines = Deadlines()
    item = Item()
    gone = weakref.ref(item)
    deadlines.add(item, 1)
    deadlines.discard(item)
    del item
    gc.collect()

    assert gone() is None


def test_repr_says_how_many_and_when():
    deadlines = Deadlines()
    deadlines.add("a", 5)

    assert repr(deadlines) == "Deadlines(1, nearest_ns=5)"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 9), st.integers(0, 50)),
            st.tuples(st.just("discard"), st.integers(0, 9)),
            st.tuples(st.just("expire"), st.integers(0, 50)),
        )
    )
)
def test_behaves_like_a_dict_that_is_searched(steps):
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for step in steps:
        match step:
            case ("add", item, at_ns):
                deadlines.add(item, at_ns)
                model.pop(item, None)
                model[item] = at_ns
            case ("discard", item):
                deadlines.discard(item)
                model.pop(item, None)
            case (_, now_ns):
                expired = sorted(
                    (pair for pair in model.items() if pair[1] <= now_ns), key=lambda pair: pair[1]
                )
                assert deadlines.pop_expired(now_ns) == expired
                for item, _ in expired:
                    del model[item]
        assert deadlines.nearest_ns() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
