"""Keepalive by a clock told by hand: when to ping, when a peer is lost, and when it pings too often."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.frontend.grpc.keepalive import Due, Keepalive
from bireme.frontend.grpc.options import GrpcOptions

HOUR_MS = 3_600_000


def keepalive(**options: Any) -> Keepalive:
    settings = {"keepalive_time_ms": 1000, "keepalive_timeout_ms": 500, **options}
    return Keepalive(GrpcOptions(**settings), 0)


# Pings of ours


def look(clock: Keepalive, *times_ms: int, num_received: int = 0, has_calls: bool = True) -> list[Due]:
    """Look at these times, while the peer says nothing."""
    return [clock.look(now_ms, num_received, has_calls=has_calls) for now_ms in times_ms]


def test_a_silent_peer_is_pinged_and_then_lost():
    assert look(keepalive(), 0, 999, 1000, 1499, 1500) == [
        Due.NOTHING,
        Due.NOTHING,
        Due.PING,
        Due.NOTHING,
        Due.LOST,
    ]


def test_whatever_comes_is_an_answer():
    clock = keepalive()
    look(clock, 0, 1000)

    assert look(clock, 1400, 1500, 2399, 2400, num_received=1) == [
        Due.NOTHING,
        Due.NOTHING,
        Due.NOTHING,
        Due.PING,
    ]


def test_a_peer_that_talks_is_not_pinged():
    clock = keepalive()

    assert {clock.look(now_ms, now_ms, has_calls=True) for now_ms in range(0, 10_000, 900)} == {Due.NOTHING}


@pytest.mark.parametrize("is_permitted", [False, True])
def test_without_calls_pings_go_out_only_if_permitted(is_permitted):
    clock = keepalive(keepalive_permit_without_calls=is_permitted)

    assert look(clock, 0, 1000, has_calls=False)[-1] is (Due.PING if is_permitted else Due.NOTHING)


@pytest.mark.parametrize(("most", "expected"), [(2, 2), (0, 5)])
def test_pings_in_a_row_without_data_are_bounded(most, expected):
    clock = keepalive(http2_max_pings_without_data=most)

    due = []
    for start_ms in range(0, 10_000, 2000):
        due += look(clock, start_ms, start_ms + 1000, num_received=start_ms)  # an answer, then silence

    assert due.count(Due.PING) == expected


def test_data_allows_more_pings():
    clock = keepalive(http2_max_pings_without_data=1)
    assert look(clock, 0, 1000)[-1] is Due.PING
    assert look(clock, 1100, 2100, num_received=1)[-1] is Due.NOTHING

    clock.data_sent()

    assert look(clock, 2200) == [Due.NOTHING]  # the look that sees that the peer is there
    assert look(clock, 3200) == [Due.PING]


# Pings of the peer's


def pings(clock: Keepalive, *times_ms: int, has_calls: bool = True) -> list[bool]:
    return [clock.is_ping_welcome(now_ms, has_calls=has_calls) for now_ms in times_ms]


def test_two_strikes_are_borne_the_third_is_not():
    assert pings(keepalive(), 0, 1, 2, 3) == [True, True, True, False]


def test_the_default_interval_is_five_minutes_with_calls_and_two_hours_without():
    every_five_minutes = range(0, 10 * 300_000, 300_000)

    assert all(pings(keepalive(), *every_five_minutes))
    assert not all(pings(keepalive(), *every_five_minutes, has_calls=False))
    assert all(pings(keepalive(), *range(0, 20 * HOUR_MS, 2 * HOUR_MS), has_calls=False))


def test_the_interval_is_the_option_s_if_pings_without_calls_are_permitted():
    clock = keepalive(keepalive_permit_without_calls=True, http2_min_recv_ping_interval_without_data_ms=1000)

    assert all(pings(clock, *range(0, 20_000, 1000), has_calls=False))


def test_strikes_do_not_fade_by_themselves():
    clock = keepalive(http2_min_recv_ping_interval_without_data_ms=10)

    assert pings(clock, 0, 1, 100, 101, 200, 201) == [True, True, True, True, True, False]


def test_data_takes_the_strikes_back():
    clock = keepalive()
    assert pings(clock, 0, 1, 2) == [True] * 3

    clock.data_sent()

    assert pings(clock, 3, 4, 5, 6) == [True, True, True, False]


def test_any_number_may_be_tolerated():
    assert all(pings(keepalive(http2_max_ping_strikes=0), *range(100)))


def test_a_time_of_nothing_is_never():
    assert look(keepalive(keepalive_time_ms=0), 0, 1, 1 << 40) == [Due.NOTHING] * 3


def test_a_timeout_of_nothing_loses_nobody():
    due = look(keepalive(keepalive_timeout_ms=0), 0, 1000, 2000, 1 << 40)

    assert due == [Due.NOTHING, Due.PING, Due.NOTHING, Due.NOTHING]
