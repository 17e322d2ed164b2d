from __future__ import annotations

import pytest

from bireme.scheduling import InlinePolicy

GOOD_NS, SLOW_NS, LONG_NS, TOO_LONG_NS = 60_000, 60_001, 300_001, 3_000_001


def observe(policy: InlinePolicy, duration_ns: int, times: int = 1) -> None:
    for _ in range(times):
        policy.observe(duration_ns, duration_ns)


def num_good_runs_until_inline(policy: InlinePolicy) -> int:
    count = 0
    while not policy.inline:
        policy.observe(GOOD_NS, GOOD_NS)
        count += 1
    return count


def test_goes_inline_after_eight_good_runs_in_a_row():
    policy = InlinePolicy()
    observe(policy, GOOD_NS, 7)
    assert not policy.inline
    observe(policy, GOOD_NS)
    assert policy.inline


def test_slower_run_starts_the_count_anew():
    policy = InlinePolicy()
    observe(policy, GOOD_NS, 7)
    observe(policy, SLOW_NS)

    assert num_good_runs_until_inline(policy) == 8


def test_a_run_that_another_process_interrupted_costs_nothing():
    policy = InlinePolicy()
    observe(policy, GOOD_NS, 7)
    policy.observe(TOO_LONG_NS, 1000)
    assert not policy.inline
    observe(policy, GOOD_NS)
    assert policy.inline
    for _ in range(100):
        policy.observe(TOO_LONG_NS, 1000)
        policy.observe(GOOD_NS, 1000)
    assert policy.inline


def test_a_model_that_begins_to_wait_leaves_the_loop():
    policy = InlinePolicy()
    observe(policy, GOOD_NS, 8)
    for _ in range(7):
        policy.observe(LONG_NS, 1000)
    assert policy.inline
    policy.observe(LONG_NS, 1000)
    assert not policy.inline


def test_one_run_that_waits_for_ever_so_long_ends_inline_mode():
    policy = InlinePolicy()
    observe(policy, GOOD_NS, 8)
    policy.observe(20_000_001, 1000)
    assert not policy.inline


def test_a_model_that_waits_without_using_the_cpu_never_goes_inline():
    policy = InlinePolicy()
    for _ in range(1000):
        policy.observe(SLOW_NS, 1000)
    assert not policy.inline


def test_one_run_that_is_no_accident_ends_inline_mode_at_once():
    policy = InlinePolicy()
    observe(policy, 1000, 8)
    observe(policy, TOO_LONG_NS - 1)
    assert policy.inline
    observe(policy, 1000, 32)
    observe(policy, TOO_LONG_NS)
    assert not policy.inline


@pytest.mark.parametrize(("num_between", "stays"), [(0, False), (30, False), (31, True)])
def test_two_long_runs_close_together_end_inline_mode(num_between: int, stays: bool):
    policy = InlinePolicy()
    observe(policy, 1000, 8)
    observe(policy, LONG_NS)
    observe(policy, 1000, num_between)
    assert policy.inline
    observe(policy, LONG_NS)
    assert policy.inline is stays


def test_a_long_run_weighs_no_more_than_its_limit_in_the_average():
    policy = InlinePolicy()
    observe(policy, 50_000, 8)
    observe(policy, TOO_LONG_NS - 1)
    assert policy.inline


def test_rising_average_ends_inline_mode():
    policy = InlinePolicy()
    observe(policy, GOOD_NS, 8)
    observe(policy, 100_000, 100)
    assert policy.inline
    observe(policy, 120_000, 3)
    assert not policy.inline


def test_a_loss_after_a_long_good_time_is_forgiven():
    policy = InlinePolicy()
    needed = []
    for num_inline_runs in (0, 0, 0, 1023, 1024):
        needed.append(num_good_runs_until_inline(policy))
        observe(policy, 1000, num_inline_runs)
        observe(policy, TOO_LONG_NS)

    assert needed == [8, 64, 128, 256, 64]
    assert num_good_runs_until_inline(policy) == 64


def test_each_loss_makes_it_harder_to_return_up_to_a_limit():
    policy = InlinePolicy()
    needed = []
    for _ in range(10):
        needed.append(num_good_runs_until_inline(policy))
        observe(policy, TOO_LONG_NS)

    assert needed == [8, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]


@pytest.mark.parametrize(
    ("durations", "text"),
    [
        ([], "InlinePolicy(not inline, 0 of 8 good runs)"),
        ([1000] * 3, "InlinePolicy(not inline, 3 of 8 good runs)"),
        ([16_000] * 9, "InlinePolicy(inline, average 16 us, lost 0 times)"),
        ([16_000] * 8 + [4_000_000] + [17_000] * 64, "InlinePolicy(inline, average 17 us, lost 1 times)"),
        ([16_000] * 8 + [4_000_000], "InlinePolicy(not inline, 0 of 64 good runs)"),
    ],
)
def test_repr_shows_the_state(durations, text):
    policy = InlinePolicy()
    for duration_ns in durations:
        policy.observe(duration_ns, duration_ns)

    assert repr(policy) == text
