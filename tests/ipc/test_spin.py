"""Spinning: a moment's look for what is expected at once, given up where it is in vain."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from bireme.ipc import spin
from bireme.ipc.spin import LoopSpin, SpinPolicy, window_ns


def test_it_spins_as_long_as_that_pays():
    policy = SpinPolicy(1000)

    for _ in range(100):
        assert policy.wants()
        policy.hit()


def test_what_is_in_vain_is_done_more_and_more_rarely():
    policy = SpinPolicy(1000)
    tried = []
    for index in range(3000):
        if policy.wants():
            tried.append(index)
            policy.miss()

    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert gaps[-1] > 500


def test_it_comes_back_when_it_pays_again():
    policy = SpinPolicy(1000)
    for _ in range(2):
        policy.wants()
        policy.miss()
    while not policy.wants():
        pass
    policy.hit()

    assert all(policy.wants() for _ in range(100))


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("50", 50_000), ("-1", 0)])
def test_the_environment_says_for_how_long(monkeypatch, text, expected):
    monkeypatch.setenv(spin.VARIABLE, text)

    assert window_ns() == expected


@pytest.mark.parametrize(("num_processors", "spins"), [(1, False), (2, True)])
def test_one_processor_alone_is_not_kept_busy(monkeypatch, num_processors, spins):
    monkeypatch.delenv(spin.VARIABLE, raising=False)
    monkeypatch.setattr(spin, "cpu_limit", lambda: num_processors)

    assert bool(window_ns()) is spins


class FakeLoop:
    def __init__(self) -> None:
        self.due: list = []

    def call_soon(self, callback) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


@pytest.fixture
def clock(monkeypatch):
    now = [0]
    monkeypatch.setattr(spin, "_now_ns", lambda: now[0])
    return now


def test_a_loop_stays_awake_until_the_window_is_over(clock):
    loop = FakeLoop()
    loop_spin = LoopSpin(loop, 100)
    loop_spin.expect()

    for clock[0] in range(0, 100, 10):
        loop.turn()
        assert loop.due
    clock[0] = 100
    loop.turn()
    assert not loop.due


def test_a_loop_that_is_awake_stays_so_for_what_is_sent_next(clock):
    loop = FakeLoop()
    loop_spin = LoopSpin(loop, 100)
    loop_spin.expect()
    clock[0] = 90
    loop_spin.expect()

    assert len(loop.due) == 1
    clock[0] = 150
    loop.turn()
    assert loop.due


def test_a_loop_whose_answers_take_their_time_is_left_asleep(clock):
    loop = FakeLoop()
    loop_spin = LoopSpin(loop, 100)
    for round_ in range(2):
        loop_spin.expect()
        clock[0] = (round_ + 1) * 1000
        loop.turn()

    loop_spin.expect()
    assert not loop.due


def test_every_loop_has_one_spin():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert spin.spin_of(loop) is spin.spin_of(loop)

    asyncio.run(main())
