"""BusyPoll: the loop stays awake exactly as long as it was told to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bireme.frontend import busy_poll
from bireme.frontend.busy_poll import BusyPoll


class FakeLoop:
    """Holds what is due, until the test turns it."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now_ns = [0]
    monkeypatch.setattr(busy_poll, "_now_ns", lambda: now_ns[0])
    return now_ns


def test_the_loop_turns_until_the_time_after_the_last_answer_is_over(clock: list[int]) -> None:
    loop = FakeLoop()
    poll = BusyPoll(loop, 50)  # type: ignore[arg-type]
    assert not loop.due

    poll.extend()
    for clock[0] in (0, 30_000):
        loop.turn()
        assert len(loop.due) == 1
    poll.extend()
    poll.extend()
    for clock[0], is_awake in ((79_999, True), (80_000, False)):
        loop.turn()
        assert bool(loop.due) is is_awake

    poll.extend()
    assert len(loop.due) == 1
