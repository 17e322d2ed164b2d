"""ModelStatistics: the numbers add up after every event, and the JSON is Triton's."""

import time

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bireme.scheduling.interface import CloseReason
from bireme.telemetry import FAILURE_REASONS, PHASES, ModelStatistics
from telemetry_events import INFER_NS, INPUT_NS, OUTPUT_NS, QUEUE_NS, count_failure, count_success, executed

TOTAL_NS = QUEUE_NS + INPUT_NS + INFER_NS + OUTPUT_NS


def test_fresh_statistics_have_every_field_at_zero():
    zero = {"count": 0, "ns": 0}

    assert ModelStatistics("m", 3).to_json() == {
        "name": "m",
        "version": "3",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {
            "success": zero,
            "fail": zero,
            "queue": zero,
            "compute_input": zero,
            "compute_infer": zero,
            "compute_output": zero,
            "cache_hit": zero,
            "cache_miss": zero,
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def test_json_counts_requests_rows_and_executions():
    statistics = ModelStatistics("m", 1)
    count_success(statistics, executed(4))
    count_success(statistics, executed(1, 3))
    count_success(statistics, executed(1))
    count_failure(statistics, "REJECTED", 50)

    found = statistics.to_json()
    assert (found["inference_count"], found["execution_count"]) == (9, 3)
    assert found["inference_stats"] == {
        "success": {"count": 4, "ns": 4 * TOTAL_NS},
        "fail": {"count": 1, "ns": 50},
        "queue": {"count": 4, "ns": 4 * QUEUE_NS},
        "compute_input": {"count": 4, "ns": 4 * INPUT_NS},
        "compute_infer": {"count": 4, "ns": 4 * INFER_NS},
        "compute_output": {"count": 4, "ns": 4 * OUTPUT_NS},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }
    assert found["batch_stats"] == [
        {
            "batch_size": rows,
            "compute_input": {"count": count, "ns": count * INPUT_NS},
            "compute_infer": {"count": count, "ns": count * INFER_NS},
            "compute_output": {"count": count, "ns": count * OUTPUT_NS},
        }
        for rows, count in ((1, 1), (4, 2))
    ]


def test_a_failed_request_adds_nothing_to_the_phases():
    statistics = ModelStatistics("m", 1)
    execution = executed(1, 1)
    for _ in execution.requests:
        statistics.accept()
    statistics.start(2)
    statistics.finish_execution(execution)
    statistics.fail("BACKEND", 70, was_pending=False)
    statistics.succeed(execution.requests[1], execution.compute_end_ns)

    found = statistics.to_json()
    assert found["inference_stats"]["queue"]["count"] == found["inference_stats"]["success"]["count"] == 1
    assert found["inference_count"] == 1
    assert [statistics.request.count, statistics.compute_infer.count] == [1, 1]
    assert statistics.failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 1, "OTHER": 0}


def test_last_inference_is_the_wall_clock_time_of_the_last_batch_end():
    statistics = ModelStatistics("m", 1)
    before_ms = time.time_ns() // 1_000_000
    count_success(statistics, executed(1, start_ns=time.monotonic_ns() - TOTAL_NS))

    assert before_ms - 1 <= statistics.last_inference_ms <= time.time_ns() // 1_000_000 + 1


def test_every_batch_is_counted_under_its_close_reason():
    statistics = ModelStatistics("m", 1)
    for reason in (CloseReason.DELAY, CloseReason.FULL, CloseReason.DELAY):
        count_success(statistics, executed(1, close_reason=reason))

    expected = {reason.value: 0 for reason in CloseReason} | {"delay": 2, "full": 1}
    assert statistics.close_reasons == expected


def test_bounds_are_settable_per_phase():
    statistics = ModelStatistics("m", 1, bounds_ns={"queue": (QUEUE_NS - 1, QUEUE_NS, QUEUE_NS + 1)})
    count_success(statistics, executed(1))

    assert statistics.queue.counts == [0, 1, 0, 0]
    assert len(statistics.request.bounds_ns) == 18


def test_repr_tells_where_the_requests_are():
    statistics = ModelStatistics("m", 2)
    statistics.accept()

    assert (
        repr(statistics)
        == "ModelStatistics('m' v2: accepted=1, succeeded=0, failed=0, pending=1, executing=0)"
    )


class Life(RuleBasedStateMachine):
    """Any order of events that an engine can cause."""

    def __init__(self):
        super().__init__()
        self.statistics = ModelStatistics("m", 1)
        self.running = []
        self.expected_failures = dict.fromkeys(FAILURE_REASONS, 0)
        self.num_batches = 0

    @rule(num=st.integers(1, 8))
    def accept(self, num):
        for _ in range(num):
            self.statistics.accept()

    @precondition(lambda self: self.statistics.num_pending)
    @rule(reason=st.sampled_from(FAILURE_REASONS), duration_ns=st.integers(0, 10**10))
    def refuse(self, reason, duration_ns):
        self.statistics.fail(reason, duration_ns, was_pending=True)
        self.expected_failures[reason] += 1

    @precondition(lambda self: self.statistics.num_pending)
    @rule(data=st.data(), reason=st.sampled_from(list(CloseReason)))
    def start(self, data, reason):
        num = data.draw(st.integers(1, self.statistics.num_pending))
        rows = data.draw(st.lists(st.integers(1, 4), min_size=num, max_size=num))
        durations = st.integers(0, 10**11)
        self.running.append(
            executed(
                *rows,
                close_reason=reason,
                queue_ns=data.draw(durations),
                input_ns=data.draw(durations),
                infer_ns=data.draw(durations),
                output_ns=data.draw(durations),
            )
        )
        self.statistics.start(num)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        execution = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.statistics.finish_execution(execution)
        self.num_batches += 1
        for request in execution.requests:
            reason = data.draw(st.sampled_from([None, "BACKEND", "OTHER"]))
            if reason is None:
                self.statistics.succeed(request, execution.compute_end_ns)
            else:
                self.statistics.fail(reason, 1, was_pending=False)
                self.expected_failures[reason] += 1

    @invariant()
    def nothing_is_lost_or_counted_twice(self):
        found = self.statistics
        assert found.num_accepted == (
            found.num_succeeded + found.num_failed + found.num_pending + found.num_executing
        )
        assert found.num_executing == sum(len(execution.requests) for execution in self.running)
        assert min(found.num_pending, found.num_executing) >= 0
        assert found.failures == self.expected_failures

    @invariant()
    def histograms_and_sums_agree_with_the_counters(self):
        found = self.statistics
        for phase in PHASES:
            assert getattr(found, phase).count == found.num_succeeded
        phases_ns = sum(getattr(found, phase).total_ns for phase in PHASES if phase != "request")
        assert found.request.total_ns == phases_ns
        assert sum(found.close_reasons.values()) == sum(found.batch_sizes.values()) == self.num_batches
        assert found.execution_count == self.num_batches


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=25, stateful_step_count=30)
