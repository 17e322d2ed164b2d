"""Whatever comes, is cancelled, falls silent or dies: sequences keep their order and slots, and nothing is lost."""

from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bireme.config.model_config import (
    ModelConfig,
    ModelSequenceBatching,
    StrategyDirect,
    StrategyOldest,
)
from bireme.scheduling.sequence_batcher import SequenceBatcher
from bireme.scheduling.sequence_slots import DropReason
from bireme.types import BiremeError, InferenceRequest, Unavailable

pytestmark = pytest.mark.slow

IDLE_US = 1_000
IDS = (1, 2, 3, "1", "b")


class SequenceMachine(RuleBasedStateMachine):
    """An engine around a batcher that does everything an engine may do, at any time."""

    @initialize(
        strategy=st.sampled_from(
            [
                StrategyDirect(),
                StrategyDirect(max_queue_delay_microseconds=100, minimum_slot_utilization=0.6),
                StrategyOldest(max_candidate_sequences=2, preferred_batch_size=(2,)),
                StrategyOldest(
                    max_candidate_sequences=3, preferred_batch_size=(3,), max_queue_delay_microseconds=100
                ),
            ]
        ),
        num_instances=st.integers(1, 3),
        max_batch_size=st.sampled_from([0, 1, 3]),
        is_iterative=st.booleans(),
    )
    def begin(self, strategy, num_instances, max_batch_size, is_iterative):
        oldest = isinstance(strategy, StrategyOldest)
        batching = ModelSequenceBatching(
            direct=None if oldest else strategy,
            oldest=strategy if oldest else None,
            max_sequence_idle_microseconds=IDLE_US,
            iterative_sequence=is_iterative,
        )
        config = ModelConfig(name="m", max_batch_size=max_batch_size, sequence_batching=batching)
        self.is_direct, self.is_iterative = not oldest, is_iterative
        self.batcher = SequenceBatcher(config, num_instances)
        self.num_instances = num_instances
        self.now_ns = 0
        self.accepted, self.answered = [], []
        self.waiting: list[InferenceRequest] = []
        self.executions: list[tuple[int, list[InferenceRequest | None]]] = []
        self.unanswered: list[InferenceRequest] = []
        self.places = {}
        self.away = set()
        self.began = defaultdict(list)
        self.order = defaultdict(list)

    @rule(
        sequence_id=st.sampled_from(IDS),
        start=st.booleans(),
        end=st.booleans(),
        timeout_us=st.sampled_from([0, 0, 50]),
        key=st.sampled_from(["a", "a", "a", "b"]),
        anonymous=st.booleans(),
    )
    def send(self, sequence_id, start, end, timeout_us, key, anonymous):
        if self.is_iterative and anonymous:
            sequence_id, start, end = 0, False, False
        request = InferenceRequest("m", {}, lambda *_: None, sequence_id=sequence_id, timeout_us=timeout_us)
        request.sequence_start, request.sequence_end = start, end
        request.batch_key, request.queue_ns = key, self.now_ns
        try:
            self.batcher.enqueue(request, self.now_ns)
        except BiremeError:
            return
        self.accepted.append(request)
        self.waiting.append(request)
        self.order[request.sequence_id].append(request)

    @rule()
    def dispatch(self):
        while True:
            decision = self.batcher.schedule(self.now_ns, self.is_free)
            for request, _error in decision.refused:
                self.waiting.remove(request)
                self.answered.append(request)
            for dropped in decision.dropped:
                if dropped.has_run and dropped.reason in {DropReason.IDLE, DropReason.CANCELLED}:
                    self.check_nothing_runs(dropped.sequence_id)
            if decision.batch is None:
                return
            self.execute(decision)

    def check_nothing_runs(self, sequence_id):
        """A model that is told of a dropped sequence may forget it at once."""
        running = [request for _, batch in self.executions for request in batch if request is not None]
        assert all(request.sequence_id != sequence_id for request in (*running, *self.unanswered))

    def is_free(self, instance):
        return instance not in self.away and all(busy != instance for busy, _ in self.executions)

    def execute(self, decision):
        batch = decision.batch
        real = [request for request in batch if request is not None]
        assert real
        assert batch[-1] is not None
        assert self.is_free(decision.instance)
        assert len({request.sequence_id for request in real}) == len(real)
        assert len({request.batch_key for request in real}) == 1
        for row, (request, slot) in enumerate(zip(batch, decision.slots, strict=True)):
            assert (request is None) == (slot is None)
            if request is None:
                assert self.is_direct
                continue
            self.waiting.remove(request)
            assert slot.instance == decision.instance
            assert not self.is_direct or slot.number == row
            # Never beside another of its sequence, and never before an earlier one of its id.
            for other in self.unanswered:
                assert other.sequence_id != request.sequence_id
            assert not any(
                request in running
                or any(r is not None and r.sequence_id == request.sequence_id for r in running)
                for _, running in self.executions
            )
            earlier = self.order[request.sequence_id]
            assert all(before in self.answered for before in earlier[: earlier.index(request)])
            if request.sequence_start:
                assert slot.is_start
                assert slot.state is None
                slot.state = request.sequence_id
                self.places[request.sequence_id] = slot
            else:
                assert not slot.is_start
                assert slot is self.places[request.sequence_id]
                assert slot.state == request.sequence_id
        self.executions.append((decision.instance, batch))
        self.unanswered += real

    @precondition(lambda self: self.executions)
    @rule(data=st.data(), answers_first=st.booleans(), again=st.booleans())
    def finish(self, data, answers_first, again):
        index = data.draw(st.integers(0, len(self.executions) - 1))
        instance, batch = self.executions.pop(index)
        real = [request for request in batch if request is not None]
        for request in real:
            if again and request in self.unanswered and self.batcher.reschedule(request):
                assert self.is_iterative
                self.unanswered.remove(request)
                self.waiting.append(request)
            elif answers_first and request in self.unanswered:
                self.answer(request)
        self.batcher.end_execution(instance, batch, self.now_ns)
        for request in real:
            if request in self.unanswered and data.draw(st.booleans()):
                self.answer(request)

    def answer(self, request):
        self.unanswered.remove(request)
        self.answered.append(request)
        self.batcher.end_request(request, self.now_ns)

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def answer_late(self, data):
        self.answer(data.draw(st.sampled_from(self.unanswered)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.waiting))
        request.cancelled = True
        assert self.batcher.cancel(request, self.now_ns)
        self.waiting.remove(request)
        self.answered.append(request)

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def cancel_running(self, data):
        request = data.draw(st.sampled_from(self.unanswered))
        request.cancelled = True
        assert not self.batcher.cancel(request, self.now_ns)

    @rule(us=st.sampled_from([10, 60, 200, IDLE_US + 1]))
    def wait(self, us):
        self.now_ns += us * 1000

    @rule(data=st.data())
    def die(self, data):
        instance = data.draw(st.integers(0, self.num_instances - 1))
        self.away.add(instance)
        for entry in [entry for entry in self.executions if entry[0] == instance]:
            self.executions.remove(entry)
            for request in entry[1]:
                if request in self.unanswered:
                    self.answer(request)
            self.batcher.end_execution(instance, entry[1], self.now_ns)
        self.batcher.lose(instance, Unavailable("died"), self.now_ns)

    @precondition(lambda self: self.away)
    @rule()
    def come_back(self):
        self.batcher.recover(self.away.pop(), self.now_ns)

    @rule()
    def drain(self):
        for request in self.batcher.drain():
            self.waiting.remove(request)
            self.answered.append(request)

    @invariant()
    def nothing_is_lost_or_answered_twice(self):
        if not hasattr(self, "batcher"):
            return
        assert self.batcher.num_waiting == len(self.waiting)
        assert len(set(self.answered)) == len(self.answered)
        assert sorted(map(id, self.accepted)) == sorted(
            map(id, [*self.answered, *self.waiting, *self.unanswered])
        )

    def teardown(self):
        """When all instances are back and everyone falls silent, everything is answered and no sequence is left."""
        if not hasattr(self, "batcher"):
            return
        for instance in list(self.away):
            self.batcher.recover(instance, self.now_ns)
        self.away.clear()
        for _ in range(2 * len(self.accepted) + 3):
            self.now_ns += 2 * IDLE_US * 1000
            self.dispatch()
            while self.executions:
                instance, batch = self.executions.pop()
                self.batcher.end_execution(instance, batch, self.now_ns)
            while self.unanswered:
                self.answer(self.unanswered[0])
        assert not self.waiting
        statistics = self.batcher.statistics()
        assert statistics["sequences"] == statistics["backlog"] == 0
        assert len(self.batcher._table._free) == statistics["slots"]
        assert not self.batcher._table._ending
        assert not self.batcher._table.known
        assert not self.batcher._running
        assert self.batcher.schedule(self.now_ns, self.is_free).wake_at_ns is None


SequenceMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestSequences = SequenceMachine.TestCase
