"""The rate limiter's decisions: never more in use than there is, nobody overtaken by who comes later, nobody held up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from bireme.config.model_config import ModelRateLimiter, RateLimiterResource
from bireme.scheduling.rate_limiter import (
    ANY_DEVICE,
    GLOBAL,
    PATIENCE,
    Claim,
    RateLimiter,
    Resource,
    needs_of,
)
from bireme.types import InvalidArgument

R = Resource("r", ANY_DEVICE)
S = Resource("s", ANY_DEVICE)


def make(*claims, given_counts=None):
    limiter = RateLimiter(given_counts)
    limiter.add(claims)
    return limiter


def run(limiter, claim):
    assert limiter.take(claim)
    limiter.count(claim)
    limiter.free(claim)


def turn(limiter, *claims):
    """Let all want a turn, and the first have it; return whose it was."""
    for each in claims:
        limiter.wait(each)
    first = limiter.next_one()
    for each in claims:
        limiter.withdraw(each)
    run(limiter, first)
    return first.owner


def claim(owner="", priority=0, **needs):
    return Claim(owner, {Resource(name, ANY_DEVICE): count for name, count in needs.items()}, priority)


def test_there_is_as_much_as_the_neediest_instance_asks_for():
    small, other, large = claim("a", r=2), claim("b", r=1), claim("c", r=3)
    limiter = make(small, other, large)

    assert limiter.take(small)
    assert limiter.take(other)
    assert not limiter.take(large)
    limiter.free(small)
    assert not limiter.take(large)
    limiter.free(other)
    assert limiter.take(large)


def test_given_counts_are_all_there_are():
    limiter = RateLimiter({R: 2})
    limiter.add([claim(r=2)])

    with pytest.raises(InvalidArgument, match='Resource count for "s" is limited to 0 which will prevent'):
        limiter.add([claim(s=1)])
    with pytest.raises(InvalidArgument, match=r'"r" is limited to 2 .*, the minimum required count is 3'):
        limiter.add([claim(r=3)])


def test_a_device_has_its_own_count_or_that_of_all():
    limiter = RateLimiter({R: 2, Resource("r", 1): 5})

    limiter.add([Claim("", {Resource("r", 1): 5})])
    limiter.add([Claim("", {Resource("r", 0): 2})])
    with pytest.raises(InvalidArgument, match="limited to 2"):
        limiter.add([Claim("", {Resource("r", 0): 3})])


def test_devices_do_not_share_but_global_resources_are_one():
    per_device = [Claim(str(device), {Resource("r", device): 1}) for device in (0, 1)]
    shared = [Claim(str(index), {Resource("g", GLOBAL): 1}) for index in (0, 1)]
    limiter = make(*per_device, *shared)

    assert [limiter.take(each) for each in per_device] == [True, True]
    assert [limiter.take(each) for each in shared] == [True, False]


def test_a_name_is_global_or_a_devices_and_never_both():
    limiter = make(claim(r=1))

    with pytest.raises(InvalidArgument, match='"r" is present as both global and device-specific'):
        limiter.add([Claim("", {Resource("r", GLOBAL): 1})])


def test_who_lacks_something_holds_up_nobody_who_lacks_nothing():
    large, small, unlimited = claim("l", r=2), claim("s", r=1), claim("u")
    limiter = make(large, small, claim("x", r=1), unlimited)
    limiter.take(small)
    limiter.wait(large)

    another = claim("y", r=1)
    limiter.add([another])

    assert limiter.take(another)
    assert limiter.take(unlimited)


def test_the_smallest_number_of_executions_times_priority_goes_first():
    often, seldom = claim("o", priority=1, r=1), claim("s", priority=2, r=1)
    limiter = make(often, seldom)
    order = []
    for _ in range(9):
        limiter.wait(often)
        limiter.wait(seldom)
        chosen = limiter.next_one()
        assert limiter.take(chosen)
        limiter.withdraw(chosen)
        assert not limiter.take(seldom)
        limiter.count(chosen)
        order.append(chosen.owner)
        limiter.free(chosen)

    assert order.count("o") == 2 * order.count("s")


def test_who_was_idle_or_comes_late_has_no_turns_saved_up():
    busy, idle = claim("busy", r=1), claim("idle", r=1)
    limiter = make(busy, idle)
    for _ in range(1000):
        run(limiter, busy)
    late = claim("late", r=1)
    limiter.add([late])
    order = [turn(limiter, busy, idle, late) for _ in range(9)]

    for owner in ("busy", "idle", "late"):
        assert order.count(owner) == 3


def test_turns_that_others_have_while_one_waits_are_not_lost():
    large, small, other = claim("l", r=2), claim("s", r=1), claim("o", r=1)
    limiter = make(large, small, other)
    assert limiter.take(small)
    for _ in range(3):
        assert not limiter.take(large)
        limiter.wait(large)
        run(limiter, other)
        limiter.withdraw(large)  # its model has looked again
    limiter.free(small)

    assert limiter.rank(large) < limiter.rank(other)
    assert turn(limiter, large, small, other) == "l"


def test_who_lacks_something_is_overtaken_only_so_often():
    large, small, other, apart = claim("l", r=2), claim("s", r=1), claim("o", r=1), claim("x", s=1)
    limiter = make(large, small, other, apart)
    assert limiter.take(small)
    limiter.count(small)
    assert not limiter.take(large)
    limiter.wait(large)
    num_turns = 0
    while limiter.take(other):
        limiter.count(other)
        limiter.free(other)
        num_turns += 1

    assert PATIENCE <= num_turns <= PATIENCE + 2
    run(limiter, apart)
    limiter.wait(other)
    assert limiter.next_one() is None
    limiter.free(small)
    assert not limiter.take(other)
    assert limiter.next_one() is large


def test_nobody_takes_what_another_one_that_waits_and_goes_first_could_have():
    patient, greedy = claim("p", r=1), claim("g", r=1)
    limiter = make(patient, greedy)
    limiter.wait(patient)
    limiter.withdraw(patient)
    run(limiter, greedy)
    limiter.wait(patient)

    assert not limiter.take(greedy)
    limiter.withdraw(patient)
    assert limiter.take(greedy)


def test_what_is_lent_counts_as_free_and_is_taken_back_at_once():
    caller, callee = claim("a", r=1), claim("b", r=1)
    limiter = make(caller, callee)
    limiter.take(caller)
    limiter.free(caller)  # it waits for its call

    assert limiter.take(callee)
    limiter.take_back(caller)
    assert limiter.in_use() == {R: 2}
    limiter.free(callee)
    assert not limiter.take(callee)


def test_removed_instances_count_no_more():
    large, small = claim("l", r=4), claim("s", r=1)
    limiter = make(large, small)
    limiter.remove([large])

    assert limiter.take(small)
    assert not limiter.take(small)


def test_configs_say_what_instances_need():
    config = ModelRateLimiter(
        (RateLimiterResource("R", count=2), RateLimiterResource("g", global_=True, count=1)), 3
    )

    assert needs_of(config, None) == {R: 2, Resource("g", GLOBAL): 1}
    assert needs_of(config, 1) == {Resource("r", 1): 2, Resource("g", GLOBAL): 1}
    assert needs_of(None, None) == {}
    both = ModelRateLimiter(
        (RateLimiterResource("r", count=2), RateLimiterResource("R", global_=True, count=1))
    )
    with pytest.raises(InvalidArgument, match="both global and device-specific"):
        needs_of(both, None)


@given(
    needs=st.lists(
        st.dictionaries(st.sampled_from("rs"), st.integers(1, 3), max_size=2), min_size=1, max_size=5
    ),
    priorities=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    steps=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60),
)
def test_whatever_comes_the_limits_hold_and_the_first_one_can_always_go(needs, priorities, steps):
    claims = [
        claim(str(index), priority, **each)
        for index, (each, priority) in enumerate(zip(needs, priorities, strict=False))
    ]
    limiter = make(*claims)
    most = {name: max((each.get(name, 0) for each in needs), default=0) for name in "rs"}
    running = []
    for index, ends in steps:
        chosen = claims[index % len(claims)]
        if ends and running:
            limiter.free(running.pop(0))
        elif chosen not in running:
            limiter.withdraw(chosen)
            if limiter.take(chosen):
                limiter.count(chosen)
                running.append(chosen)
            else:
                limiter.wait(chosen)
        in_use = limiter.in_use()
        for name, count in most.items():
            assert in_use.get(Resource(name, ANY_DEVICE), 0) <= count
        first = limiter.next_one()
        if first is not None:
            limiter.withdraw(first)
            assert limiter.take(first)
            limiter.count(first)
            running.append(first)
    while running:
        limiter.free(running.pop())
    assert limiter.in_use() == {}
    # With nothing running, everybody who waits gets a turn.
    while (first := limiter.next_one()) is not None:
        assert limiter.take(first)
        limiter.withdraw(first)
        limiter.free(first)
    assert limiter.num_waiting == 0


CLIENTS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("rs"), st.integers(1, 3), min_size=1, max_size=2),  # needs
        st.integers(1, 4),  # priority
        st.integers(1, 5),  # how long it runs
    ),
    min_size=2,
    max_size=5,
)


@settings(max_examples=40)
@given(clients=CLIENTS, wakes=st.lists(st.integers(0, 60), min_size=5, max_size=5))
def test_whoever_wants_to_run_does_soon_however_long_others_or_it_were_idle(clients, wakes):
    """Every client begins to want turns at some time, and then wants the next one as soon as one has ended."""
    claims = [claim(str(index), priority, **needs) for index, (needs, priority, _) in enumerate(clients)]
    limiter = make(*claims)
    ends = dict.fromkeys(claims, 0)  # of the last turn
    wakes = dict(zip(claims, wakes, strict=False))
    last = dict(wakes)  # when it has last begun to run or to want it
    most = sum(priority for _, priority, _ in clients)
    for now in range(250):
        for each in [each for each, end in ends.items() if end and end == now]:
            limiter.free(each)
            ends[each] = 0
        for each in claims:
            if not ends[each] and wakes[each] <= now:
                limiter.wait(each)
        while (first := limiter.next_one()) is not None:
            limiter.withdraw(first)
            assert limiter.take(first)
            limiter.count(first)
            ends[first] = now + clients[claims.index(first)][2]
            last[first] = now
        for each in claims:
            # Each of the others may have PATIENCE turns for one of its own, in proportion to their priorities.
            assert now - last[each] <= 5 * (PATIENCE + 2 * most) * len(claims)


@given(
    priorities=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    idle=st.integers(0, 100),
    num_turns=st.integers(1, 60),
)
def test_turns_are_shared_by_priority_from_the_moment_that_all_want_them(priorities, idle, num_turns):
    claims = [claim(str(index), priority, r=1) for index, priority in enumerate(priorities)]
    limiter = make(*claims)
    for _ in range(idle):
        run(limiter, claims[0])
        for each in claims:
            limiter.rest(each)
    order = [turn(limiter, *claims) for _ in range(num_turns)]

    shares = [order.count(each.owner) * each.priority for each in claims]
    assert max(shares) - min(shares) <= 2 * max(priorities)
