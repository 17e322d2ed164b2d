"""PollTracker: what may be acted on, given a series of looks."""

import pytest
from hypothesis import given, strategies as st

from bireme.repository import Changes, Fingerprint, PollTracker, Snapshot

NOTHING = Changes([], [], [])


def look(*, unreadable=(), is_complete=True, **models):
    """A snapshot in which the state of each model is one number."""
    marks = {name: Fingerprint({"file": (state, 0)}) for name, state in models.items()}
    return Snapshot(marks, unreadable=frozenset(unreadable), is_complete=is_complete)


def settled(**models):
    tracker = PollTracker()
    tracker.observe(look(**models))
    tracker.observe(look(**models))
    return tracker


def test_a_model_is_added_when_two_looks_agree():
    tracker = PollTracker()
    assert tracker.observe(look(m=1)) == NOTHING
    assert tracker.observe(look(m=1)) == Changes(["m"], [], [])
    assert tracker.observe(look(m=1)) == NOTHING


def test_a_model_that_is_still_being_copied_is_left_alone():
    tracker = PollTracker()
    for state in range(5):
        assert tracker.observe(look(m=state)) == NOTHING
    assert tracker.observe(look(m=4)).added == ["m"]


def test_a_modification_counts_when_it_has_settled():
    tracker = settled(m=1)
    assert tracker.observe(look(m=2)) == NOTHING
    assert tracker.observe(look(m=3)) == NOTHING
    assert tracker.observe(look(m=3)) == Changes([], ["m"], [])


def test_a_change_that_was_taken_back_is_none():
    tracker = settled(m=1)
    assert tracker.observe(look(m=2)) == NOTHING
    assert tracker.observe(look(m=1)) == NOTHING
    assert tracker.observe(look(m=1)) == NOTHING


def test_a_model_is_deleted_when_two_looks_missed_it():
    tracker = settled(m=1, n=1)
    assert tracker.observe(look(n=1)) == NOTHING
    assert tracker.observe(look(n=1)) == Changes([], [], ["m"])
    assert tracker.observe(look(n=1)) == NOTHING


def test_a_folder_that_is_replaced_is_modified_not_deleted():
    tracker = settled(m=1)
    assert tracker.observe(look()) == NOTHING
    assert tracker.observe(look(m=2)) == NOTHING
    assert tracker.observe(look(m=2)) == Changes([], ["m"], [])


@pytest.mark.parametrize("blind", [look(is_complete=False), look(unreadable=["m"])])
def test_what_could_not_be_read_is_neither_gone_nor_changed(blind):
    tracker = settled(m=1)
    for _ in range(3):
        assert tracker.observe(blind) == NOTHING
    assert tracker.observe(look(m=1)) == NOTHING
    assert tracker.observe(look(m=2)) == NOTHING
    assert tracker.observe(look(m=2)).modified == ["m"]


def test_a_failed_load_is_tried_again_ever_more_rarely():
    tracker = settled(m=1)
    tracker.mark_failed("m")
    tries = []
    for poll in range(1, 40):
        if tracker.observe(look(m=1)).modified:
            tries.append(poll)
            tracker.mark_failed("m")
    assert tries == [1, 3, 7, 15, 31]


def test_a_retry_is_not_repeated_while_it_is_under_way():
    tracker = settled(m=1)
    tracker.mark_failed("m")
    assert tracker.observe(look(m=1)).modified == ["m"]
    for _ in range(5):
        assert tracker.observe(look(m=1)) == NOTHING


def test_a_success_or_a_change_ends_the_retries():
    tracker = settled(m=1)
    tracker.mark_failed("m")
    tracker.mark_loaded("m")
    assert tracker.observe(look(m=1)) == NOTHING
    tracker.mark_failed("m")
    tracker.observe(look(m=2))
    assert tracker.observe(look(m=2)).modified == ["m"]
    for _ in range(5):
        assert tracker.observe(look(m=2)) == NOTHING


def test_changes_are_true_when_there_are_any():
    assert not NOTHING
    assert Changes([], ["m"], [])


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)), max_size=20))
def test_what_was_acted_on_always_ends_up_as_what_is_there(looks):
    """Replaying the changes gives the repository's state once it is quiet, and never anything seen only once."""
    tracker = PollTracker()
    loaded = {}
    previous = {}
    for states in [*looks, *[looks[-1] if looks else {}] * 2]:
        changes = tracker.observe(look(**states))
        for name in changes.added:
            assert name not in loaded
            loaded[name] = states[name]
        for name in changes.modified:
            assert loaded[name] != states[name]
            loaded[name] = states[name]
        for name in changes.deleted:
            assert name not in states
            del loaded[name]
        for name in (*changes.added, *changes.modified, *changes.deleted):
            assert previous.get(name) == states.get(name)
        previous = states
    assert loaded == (looks[-1] if looks else {})
