"""Random events against the dynamic batcher, checked in two ways.

`NaiveBatcher` says the rules once more, as plainly as can be: one list, searched and sorted at each step; every
decision must be equal to its. Apart from that, promises that must hold whatever the rules are: nothing is lost,
nothing is sent twice, limits and deadlines are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bireme.config.model_config import ModelDynamicBatching, ModelQueuePolicy
from bireme.scheduling import DynamicBatcher
from bireme.types import QueueFull, RequestTimedOut
from waiting import US, make_request

policies = st.builds(
    ModelQueuePolicy,
    timeout_action=st.sampled_from(["REJECT", "DELAY"]),
    default_timeout_microseconds=st.sampled_from([0, 0, 10, 25]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 1, 3]),
)

arrivals = st.tuples(
    st.integers(1, 8),  # rows
    st.sampled_from([None, None, "x", "y"]),  # batch key
    st.integers(0, 4),  # priority
    st.sampled_from([0, 0, 5, 10, 40]),  # timeout in us
)


@st.composite
def batchings(draw):
    max_batch_size = draw(st.integers(1, 8))
    levels = draw(st.sampled_from([0, 0, 1, 3]))
    preferred = draw(st.lists(st.integers(1, max_batch_size), unique=True, max_size=3))
    batching = ModelDynamicBatching(
        preferred_batch_size=tuple(preferred),
        max_queue_delay_microseconds=draw(st.sampled_from([0, 5, 20])),
        priority_levels=levels,
        default_priority_level=draw(st.integers(1, levels)) if levels else 0,
        default_queue_policy=draw(st.none() | policies),
        priority_queue_policy=draw(st.dictionaries(st.integers(1, levels), policies)) if levels else {},
    )
    return batching, max_batch_size


@dataclass(eq=False)
class Waiting:
    request: object
    level: int
    queued_ns: int
    deadline_ns: int | None
    policy: ModelQueuePolicy
    delayed_at: tuple[int, int] | None = None  # when and as which one


class NaiveBatcher:
    """The rules of the module's text over one list."""

    def __init__(self, batching: ModelDynamicBatching, max_batch_size: int) -> None:
        self.batching = batching
        self.max_rows = max_batch_size
        self.preferred = set(batching.preferred_batch_size) or {max_batch_size}
        self.delay_ns = batching.max_queue_delay_microseconds * US
        self.waiting: list[Waiting] = []
        self.num_delayed = 0

    def enqueue(self, request, now_ns: int) -> bool:
        batching = self.batching
        level = request.priority if 0 < request.priority <= batching.priority_levels else None
        if level is None:
            level = batching.default_priority_level if batching.priority_levels else 0
        policy = (
            batching.priority_queue_policy.get(level, batching.default_queue_policy) or ModelQueuePolicy()
        )
        alive = [
            entry for entry in self.waiting if entry.level == level and not self.is_rejected(entry, now_ns)
        ]
        if policy.max_queue_size and len(alive) >= policy.max_queue_size:
            return False
        timeout_us = policy.default_timeout_microseconds
        if policy.allow_timeout_override and request.timeout_us:
            timeout_us = min(timeout_us, request.timeout_us)
        deadline_ns = now_ns + timeout_us * US if timeout_us else None
        self.waiting.append(Waiting(request, level, now_ns, deadline_ns, policy))
        return True

    @staticmethod
    def is_rejected(entry: Waiting, now_ns: int) -> bool:
        return (
            entry.policy.timeout_action == "REJECT"
            and entry.deadline_ns is not None
            and entry.deadline_ns <= now_ns
        )

    def cancel(self, request) -> None:
        self.waiting = [entry for entry in self.waiting if entry.request is not request]

    def expire(self, now_ns: int) -> list[object]:
        rejected = [entry for entry in self.waiting if self.is_rejected(entry, now_ns)]
        self.waiting = [entry for entry in self.waiting if entry not in rejected]
        expired = [
            entry for entry in self.waiting if entry.deadline_ns is not None and entry.deadline_ns <= now_ns
        ]
        for entry in sorted(expired, key=lambda entry: entry.deadline_ns):
            self.num_delayed += 1
            entry.delayed_at = (entry.deadline_ns, self.num_delayed)
            entry.deadline_ns = None
        return [entry.request for entry in sorted(rejected, key=lambda entry: entry.deadline_ns)]

    def candidates(self) -> list[Waiting]:
        """Walk over the groups of (level, on time or delayed); stop at the first that leaves somebody behind."""
        order = sorted(self.waiting, key=lambda entry: (entry.level, entry.delayed_at or (-1, 0)))
        key = order[0].request.batch_key
        found = []
        for group in dict.fromkeys((entry.level, entry.delayed_at is None) for entry in order):
            members = [entry for entry in order if (entry.level, entry.delayed_at is None) == group]
            joining = [entry for entry in members if entry.request.batch_key == key]
            found += joining
            if len(joining) < len(members):
                break
        return found

    def choose(self, now_ns: int) -> tuple[list[Waiting], str] | int:
        """Return what to send and why, or until when to wait."""
        candidates = self.candidates()
        pending = [candidates[0]]
        for entry in candidates[1:]:
            if rows(pending) + entry.request.batch_size > self.max_rows:
                break
            pending.append(entry)
        is_full = rows(pending) >= self.max_rows or len(pending) < len(candidates)
        due_ns = min(entry.queued_ns for entry in pending) + self.delay_ns
        if self.delay_ns == 0 or now_ns < due_ns:
            cut = self.preferred_cut(pending, candidates)
            if cut is not None:
                ends_there = len(cut) == len(pending) and len(cut) < len(candidates)
                overflows = ends_there and rows(candidates[: len(cut) + 1]) > self.max_rows
                return cut, "full" if rows(cut) >= self.max_rows or overflows else "preferred"
        if is_full:
            return pending, "full"
        if len(pending) < len(self.waiting):
            return pending, "shape"
        if self.delay_ns == 0:
            return pending, "preferred" if rows(pending) >= max(self.preferred) else "instance_free"
        if now_ns >= due_ns:
            return pending, "delay"
        return (pending, "preferred") if rows(pending) >= max(self.preferred) else due_ns

    def preferred_cut(self, pending: list[Waiting], candidates: list[Waiting]) -> list[Waiting] | None:
        prefixes = [pending[: count + 1] for count in range(len(pending))]
        exact = [prefix for prefix in prefixes if rows(prefix) in self.preferred]
        if exact:
            return exact[-1]
        for prefix in prefixes:
            following = candidates[len(prefix) : len(prefix) + 1]
            if following and rows(prefix) + rows(following) > max(self.preferred):
                return prefix
        return None


def rows(entries: list[Waiting]) -> int:
    return sum(entry.request.batch_size for entry in entries)


class BatcherMachine(RuleBasedStateMachine):
    @initialize(config=batchings())
    def start(self, config):
        self.batching, self.max_batch_size = config
        self.batcher = DynamicBatcher("model", *config)
        self.model = NaiveBatcher(*config)
        self.now_ns = 0
        self.accepted: list[object] = []
        self.left: list[object] = []

    # Events

    @rule(arrivals=st.lists(arrivals, min_size=1, max_size=5))
    def arrive(self, arrivals):
        for arrival in arrivals:
            self.arrive_one(*arrival)

    def arrive_one(self, num_rows, key, priority, timeout_us):
        request = make_request(
            str(len(self.accepted)),
            rows=min(num_rows, self.max_batch_size),
            key=key,
            priority=priority,
            timeout_us=timeout_us,
        )
        fits = self.model.enqueue(request, self.now_ns)
        try:
            self.batcher.enqueue(request, self.now_ns)
        except QueueFull:
            assert not fits, "refused although there is room"
        else:
            assert fits, "accepted although the queue is full"
            self.accepted.append(request)

    @rule(passed_us=st.integers(1, 12))
    def time_passes(self, passed_us):
        self.now_ns += passed_us * US

    @rule(instance_free=st.booleans())
    def schedule(self, instance_free):
        self.step(instance_free)

    @rule()
    def serve_all(self):
        """Instances enough for everything; afterwards only what may still wait does."""
        while self.step(instance_free=True).batch is not None:
            pass
        delay_ns = self.batching.max_queue_delay_microseconds * US
        assert all(self.now_ns - entry.queued_ns < delay_ns for entry in self.model.waiting)

    @rule(instance_free=st.booleans())
    def sleep_until_woken(self, instance_free):
        """Nothing happens before the time the batcher asks for, and something does then."""
        decision = self.step(instance_free)
        while decision.batch is not None:
            decision = self.step(instance_free)
        if decision.wake_at_ns is None:
            return
        assert decision.wake_at_ns > self.now_ns
        self.now_ns = decision.wake_at_ns - 1
        early = self.step(instance_free)
        assert (early.batch, early.wake_at_ns, len(early.refused)) == (None, decision.wake_at_ns, 0)
        num_delayed = self.model.num_delayed
        self.now_ns = decision.wake_at_ns
        woken = self.step(instance_free)
        assert woken.batch or woken.refused or self.model.num_delayed > num_delayed

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.accepted[-12:]))
        # What is overdue may have been taken out already, in favour of an arrival; it's refused at the next step.
        overdue = [
            entry.request for entry in self.model.waiting if self.model.is_rejected(entry, self.now_ns)
        ]
        if request in overdue:
            return
        was_waiting = request not in self.left
        assert self.batcher.cancel(request) == was_waiting
        if was_waiting:
            self.model.cancel(request)
            self.left.append(request)

    # Checks

    def step(self, instance_free: bool):
        decision = self.batcher.schedule(self.now_ns, instance_free=instance_free)
        self.check_refused(decision)
        if not self.model.waiting or not instance_free:
            assert decision.batch is None
            assert decision.wake_at_ns == self.next_deadline_ns({"REJECT"})
            return decision
        choice = self.model.choose(self.now_ns)
        if isinstance(choice, int):
            assert decision.batch is None
            deadline_ns = self.next_deadline_ns({"REJECT", "DELAY"})
            assert decision.wake_at_ns == (choice if deadline_ns is None else min(choice, deadline_ns))
            return decision
        chosen, reason = choice
        assert decision.batch == [entry.request for entry in chosen]
        assert decision.close_reason == reason
        self.check_batch(decision)
        self.model.waiting = [entry for entry in self.model.waiting if entry not in chosen]
        assert decision.wake_at_ns == self.next_deadline_ns({"REJECT"})
        return decision

    def check_refused(self, decision):
        expected = self.model.expire(self.now_ns)
        assert [request for request, _ in decision.refused] == expected
        assert all(isinstance(error, RequestTimedOut) for _, error in decision.refused)
        self.leave(expected)

    def check_batch(self, decision):
        assert decision.batch_size == sum(request.batch_size for request in decision.batch)
        assert 0 < decision.batch_size <= self.max_batch_size
        assert len({request.batch_key for request in decision.batch}) == 1
        self.leave(decision.batch)

    def leave(self, requests):
        for request in requests:
            assert request in self.accepted
            assert request not in self.left, "left twice"
            self.left.append(request)

    def next_deadline_ns(self, actions):
        return min(
            (
                entry.deadline_ns
                for entry in self.model.waiting
                if entry.deadline_ns is not None and entry.policy.timeout_action in actions
            ),
            default=None,
        )

    @invariant()
    def counts_are_exact(self):
        alive = [entry for entry in self.model.waiting if not self.model.is_rejected(entry, self.now_ns)]
        overdue = len(self.model.waiting) - len(alive)
        assert len(alive) <= self.batcher.num_waiting <= len(alive) + overdue
        if not overdue:
            statistics = self.batcher.statistics()
            assert statistics["waiting"] == len(alive)
            assert statistics["waiting_rows"] == rows(alive)
            levels = statistics["levels"].values()
            assert sum(level["waiting"] + level["delayed"] for level in levels) == len(alive)

    def teardown(self):
        if hasattr(self, "batcher"):
            self.leave(self.batcher.drain())
            assert len(self.left) == len(self.accepted), "lost"
            assert self.batcher.num_waiting == 0


TestBatcher = pytest.mark.slow(BatcherMachine.TestCase)
TestBatcher.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
