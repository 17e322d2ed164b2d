"""The rules of sequence batching, one by one. Times are in µs; instances are free unless a test says otherwise."""

from __future__ import annotations

import pytest

from bireme.config.model_config import (
    ModelConfig,
    ModelSequenceBatching,
    StrategyDirect,
    StrategyOldest,
)
from bireme.scheduling.interface import CloseReason
from bireme.scheduling.sequence_batcher import SequenceBatcher
from bireme.scheduling.sequence_slots import DropReason
from bireme.types import Cancelled, InvalidArgument, QueueFull, RequestTimedOut, Unavailable
from waiting import US, make_request

IDLE_US = 1000


class Bench:
    """A batcher, its clock, and instances that run what they are given until told."""

    def __init__(
        self,
        strategy: StrategyDirect | StrategyOldest | None = None,
        *,
        rows: int = 4,
        num_instances: int = 1,
        iterative: bool = False,
        **settings: int,
    ) -> None:
        batching = ModelSequenceBatching(
            direct=strategy if isinstance(strategy, StrategyDirect) else None,
            oldest=strategy if isinstance(strategy, StrategyOldest) else None,
            max_sequence_idle_microseconds=IDLE_US,
            iterative_sequence=iterative,
        )
        config = ModelConfig("m", max_batch_size=rows, sequence_batching=batching)
        self.batcher = SequenceBatcher(config, num_instances, **settings)
        self.now_us = 0
        self.busy: set[int] = set()
        self.running = []
        self.refused = []
        self.dropped = []
        self.wake_us = None

    def send(self, name, sequence_id, flags="", **settings):
        """``flags``: S starts the sequence, E ends it."""
        request = make_request(
            name, sequence_id=sequence_id, sequence_start="S" in flags, sequence_end="E" in flags, **settings
        )
        request.queue_ns = self.now_us * US
        self.batcher.enqueue(request, self.now_us * US)
        return request

    def dispatch(self):
        """Return what begins to run, as one word a batch; a null request is a dot."""
        words = []
        while True:
            decision = self.batcher.schedule(self.now_us * US, lambda instance: instance not in self.busy)
            self.refused += decision.refused
            self.dropped += decision.dropped
            self.wake_us = None if decision.wake_at_ns is None else decision.wake_at_ns // US
            if decision.batch is None:
                return " ".join(words)
            self.busy.add(decision.instance)
            self.running.append(decision)
            words.append("".join("." if request is None else request.id for request in decision.batch))

    def finish(self):
        """End what runs, with its answers."""
        running, self.running = self.running, []
        for decision in running:
            self.busy.discard(decision.instance)
            self.batcher.end_execution(
                decision.instance, [request for request in decision.batch if request], self.now_us * US
            )
            for request in decision.batch:
                if request is not None:
                    self.batcher.end_request(request, self.now_us * US)

    def run(self):
        """Run all there is to the end."""
        words = []
        while word := self.dispatch():
            words.append(word)
            self.finish()
        return " ".join(words)

    def wait(self, us):
        self.now_us += us

    @property
    def names_refused(self):
        return "".join(request.id for request, _ in self.refused)


@pytest.fixture(params=["direct", "oldest"])
def bench(request):
    """A function that makes a bench of either strategy."""

    def make(*, slots=4, **settings):
        if request.param == "direct":
            return Bench(StrategyDirect(), rows=slots, **settings)
        return Bench(
            StrategyOldest(max_candidate_sequences=slots, preferred_batch_size=(slots,)),
            rows=slots,
            **settings,
        )

    return make


# Admission.


def test_a_request_has_one_row(bench):
    with pytest.raises(
        InvalidArgument, match="'m' must specify batch-size 1 due to requirements of sequence"
    ):
        bench().send("a", 1, "S", rows=2)


@pytest.mark.parametrize("nothing", [0, ""])
def test_a_request_has_an_id(bench, nothing):
    with pytest.raises(InvalidArgument, match="must specify a non-zero or non-empty correlation ID"):
        bench().send("a", nothing, "S")


def test_a_sequence_begins_with_start(bench):
    b = bench()
    with pytest.raises(
        InvalidArgument, match="sequence 7 to model 'm' must specify the START flag on the first"
    ):
        b.send("a", 7)
    b.send("a", 7, "S")
    b.send("b", 7)

    assert b.run() == "a b"


def test_numbers_and_texts_are_different_ids(bench):
    b = bench()
    b.send("a", 1, "S")
    with pytest.raises(InvalidArgument, match="START"):
        b.send("b", "1")


def test_no_sequence_begins_while_the_server_stops_and_those_that_have_go_on(bench):
    b = bench()
    b.send("a", 1, "S")
    b.batcher.stop_starts(5 * IDLE_US * US, 0)
    with pytest.raises(Unavailable, match="Server is stopping"):
        b.send("x", 2, "S")
    b.send("b", 1, "E")

    assert b.run() == "a b"
    assert b.batcher.num_live == 0


@pytest.mark.parametrize(
    ("grace_us", "ends"),
    [
        pytest.param(200, {849: [], 850: [1, 2]}, id="from now on"),
        pytest.param(500, {999: [], 1000: [1], 1149: [1], 1150: [1, 2]}, id="never longer than before"),
        pytest.param(5000, {999: [], 1000: [1], 1599: [1], 1600: [1, 2]}, id="never longer at all"),
    ],
)
def test_a_sequence_that_is_silent_while_the_server_stops_is_idle_soon(bench, grace_us, ends):
    b = bench()
    b.send("a", 1, "S")
    assert b.run() == "a"
    b.now_us = 600
    b.send("b", 2, "S")
    assert b.run().strip(".") == "b"
    b.now_us = 650
    b.batcher.stop_starts(grace_us * US, b.now_us * US)
    for b.now_us, ended in ends.items():
        assert b.dispatch() == ""
        assert [dropped.sequence_id for dropped in b.dropped] == ended
    assert {dropped.reason for dropped in b.dropped} == {DropReason.IDLE}


def test_a_sequence_that_goes_on_while_the_server_stops_is_not_idle(bench):
    b = bench()
    b.send("a", 1, "S")
    assert b.run() == "a"
    b.batcher.stop_starts(200 * US, 0)
    for b.now_us, name in ((150, "b"), (300, "c"), (450, "d")):
        b.send(name, 1)
        assert b.run() == name
    assert not b.dropped
    b.now_us = 650
    b.dispatch()
    assert [dropped.sequence_id for dropped in b.dropped] == [1]


def test_end_lets_the_id_be_forgotten_at_once(bench):
    b = bench()
    b.send("a", 1, "SE")
    with pytest.raises(InvalidArgument, match="START"):
        b.send("b", 1)


def test_a_sequence_with_the_id_of_one_that_is_not_over_waits_for_it(bench):
    """A model may keep what it knows by the id alone, so the two must not run side by side."""
    b = bench()
    for name, flags in (("a", "S"), ("b", "E"), ("c", "S"), ("d", "E")):
        b.send(name, 1, flags)

    assert b.run().replace(".", "") == "a b c d"


def test_start_on_an_active_id_begins_anew_behind_what_waits(bench):
    b = bench()
    b.send("a", 1, "S")
    b.send("b", 1)
    b.send("c", 1, "S")
    assert b.dispatch() == "a"
    (first,) = b.running[0].slots
    first.state = "old"
    b.finish()
    assert b.dispatch() == "b"
    assert b.running[0].slots == [first]
    b.finish()
    assert b.dispatch() == "c"
    (second,) = b.running[0].slots
    assert (second.is_start, second.state, second.number) == (True, None, first.number)
    assert [drop.reason for drop in b.dropped] == [DropReason.RESTARTED]


def test_the_queue_has_a_limit(bench):
    b = bench(max_waiting=2)
    b.send("a", 1, "S")
    b.send("b", 1)
    with pytest.raises(QueueFull, match="Exceeds maximum queue size: 2 requests wait for model 'm'"):
        b.send("c", 1)
    assert b.run() == "a b"
    b.send("c", 1)


# Slots.


def test_sequences_take_the_lowest_slots_over_all_instances(bench):
    b = bench(slots=2, num_instances=2)
    for number in range(1, 5):
        b.send(str(number), number, "S")
    b.dispatch()

    places = [(place.sequence_id, place.instance, place.number) for run in b.running for place in run.slots]
    assert sorted(places) == [(1, 0, 0), (2, 1, 0), (3, 0, 1), (4, 1, 1)]


def test_a_sequence_too_many_waits_for_the_end_of_one(bench):
    b = bench(slots=1)
    b.send("a", 1, "S")
    b.send("x", 2, "S")
    b.send("y", 3, "S")
    b.send("z", 2, "E")
    assert b.run() == "a"
    assert b.batcher.statistics()["backlog"] == 2
    b.send("b", 1, "E")

    assert b.run() == "b x z y"


def test_requests_of_one_sequence_never_share_a_batch(bench):
    b = bench()
    for name in "abc":
        b.send(name, 1, "S" if name == "a" else "")
    assert b.dispatch() == "a"
    assert b.dispatch() == ""
    b.finish()
    assert b.run() == "b c"


def test_the_next_request_waits_for_the_answer_and_for_the_end_of_the_execution(bench):
    b = bench()
    first = b.send("a", 1, "S")
    b.send("b", 1)
    b.dispatch()
    b.batcher.end_request(first, 0)
    b.busy.clear()
    assert b.dispatch() == ""
    b.batcher.end_execution(0, [first], 0)
    assert b.dispatch() == "b"


# The direct strategy.


def test_the_row_is_the_slot_and_empty_ones_below_the_highest_are_null():
    b = Bench(StrategyDirect())
    for number, name in enumerate("abcd", 1):
        b.send(name, number, "S")
    assert b.run() == "abcd"
    b.send("f", 2)
    b.send("h", 4)
    assert b.run() == ".f.h"


def test_other_inputs_wait_for_the_next_batch():
    b = Bench(StrategyDirect())
    for number, (name, key) in enumerate([("a", "x"), ("b", "y"), ("c", "x")], 1):
        b.send(name, number, "S", key=key)

    assert b.run() == "a.c .b"


def test_without_a_strategy_it_is_direct():
    b = Bench()
    b.send("a", 1, "S")
    b.send("b", 2, "S")
    assert b.run() == "ab"
    b.send("c", 2)
    assert b.run() == ".c"


def test_too_few_slots_wait_for_others_or_for_the_delay():
    strategy = StrategyDirect(max_queue_delay_microseconds=100, minimum_slot_utilization=0.5)
    b = Bench(strategy)
    b.send("a", 1, "S")
    assert (b.dispatch(), b.wake_us) == ("", 100)
    b.wait(50)
    b.send("b", 2, "S")
    assert b.run() == "ab"
    b.send("c", 1)
    assert (b.dispatch(), b.wake_us) == ("", 150)
    b.wait(100)
    assert b.dispatch() == "c"
    assert b.running[0].close_reason is CloseReason.DELAY


def test_a_utilization_without_a_delay_has_no_effect():
    b = Bench(StrategyDirect(minimum_slot_utilization=1.0))
    b.send("a", 1, "S")
    assert b.run() == "a"


# The oldest strategy.


def test_batches_are_of_the_oldest_requests():
    b = Bench(StrategyOldest(max_candidate_sequences=4, preferred_batch_size=(2,)), rows=2)
    for number, name in enumerate("abcd", 1):
        b.send(name, number, "S")

    assert b.run() == "ab cd"
    b.send("g", 3)
    b.send("f", 2)
    assert b.run() == "gf"


def test_a_batch_waits_for_its_delay():
    strategy = StrategyOldest(
        max_candidate_sequences=4, preferred_batch_size=(4,), max_queue_delay_microseconds=100
    )
    b = Bench(strategy)
    b.send("a", 1, "S")
    assert (b.dispatch(), b.wake_us) == ("", 100)
    b.wait(100)
    assert b.run() == "a"


# Silence, cancelling, timeouts.


def test_a_silent_sequence_is_dropped_and_its_slot_given_on(bench):
    b = bench(slots=1)
    b.send("a", 1, "S")
    b.send("x", 2, "S")
    assert b.run() == "a"
    assert b.wake_us == IDLE_US
    b.wait(IDLE_US)

    assert b.run() == "x"
    (drop,) = b.dropped
    assert (drop.sequence_id, drop.reason, drop.instance, drop.has_run) == (1, DropReason.IDLE, 0, True)
    with pytest.raises(InvalidArgument, match="START"):
        b.send("b", 1)


def test_a_sequence_is_not_silent_while_a_request_of_it_runs(bench):
    b = bench()
    b.send("a", 1, "S")
    b.dispatch()
    b.wait(3 * IDLE_US)
    b.finish()
    assert (b.dispatch(), b.wake_us) == ("", 4 * IDLE_US)
    b.send("b", 1)
    assert b.run() == "b"


def test_cancelling_takes_what_waits_behind_with_it_and_ends_the_sequence(bench):
    b = bench()
    for name in "abcd":
        request = b.send(name, 1, "S" if name == "a" else "")
        if name == "c":
            third = request
    b.dispatch()
    assert b.batcher.cancel(third, 0)
    assert b.dispatch() == ""
    assert (b.names_refused, type(b.refused[0][1])) == ("d", Cancelled)
    b.finish()
    assert b.run() == "b"
    assert [(drop.reason, drop.has_run) for drop in b.dropped] == [(DropReason.CANCELLED, True)]
    assert b.batcher.num_live == 0


def test_what_is_refused_with_a_cancelled_one_can_be_cancelled_too(bench):
    b = bench()
    first, second = b.send("a", 1, "S"), b.send("b", 1)
    assert b.batcher.cancel(first, 0)
    assert b.batcher.cancel(second, 0)
    assert not b.batcher.cancel(second, 0)
    b.dispatch()
    assert b.names_refused == ""
    assert [(drop.reason, drop.has_run) for drop in b.dropped] == [(DropReason.CANCELLED, False)]


def test_cancelling_spares_the_sequence_that_began_anew_behind(bench):
    b = bench()
    b.send("a", 1, "S")
    second = b.send("b", 1)
    b.send("c", 1, "S")
    b.batcher.cancel(second, 0)
    b.send("d", 1, "E")

    assert b.run() == "a c d"
    assert b.names_refused == ""


def test_in_the_backlog_the_earliest_timeout_is_that_of_the_sequence(bench):
    b = bench(slots=1)
    b.send("a", 1, "S", timeout_us=1)
    assert b.run() == "a"
    b.send("x", 2, "S", timeout_us=300)
    b.send("y", 2, timeout_us=100)
    b.send("z", 3, "S")
    b.dispatch()
    assert b.wake_us == 100
    b.wait(100)
    b.dispatch()

    assert b.names_refused == "xy"
    assert isinstance(b.refused[0][1], RequestTimedOut)
    assert "timeout of the corresponding sequence has been expired" in b.refused[0][1].message
    with pytest.raises(InvalidArgument, match="START"):
        b.send("w", 2)
    b.send("b", 1, "E")
    assert b.run() == "b z"


def test_a_cancelled_request_takes_its_timeout_with_it(bench):
    b = bench(slots=1)
    b.send("a", 1, "S")
    b.run()
    b.send("x", 2, "S")
    cancelled = b.send("y", 2, "S", timeout_us=100)
    b.batcher.cancel(cancelled, 0)
    b.wait(200)
    b.dispatch()
    assert b.names_refused == ""


def test_draining_takes_all_that_waits(bench):
    b = bench(slots=1)
    b.send("a", 1, "S")
    b.dispatch()
    b.send("b", 1)
    b.send("x", 2, "S")

    assert [request.id for request in b.batcher.drain()] == ["b", "x"]
    assert b.batcher.num_live == 1
    b.finish()
    assert b.batcher.num_live == b.batcher.num_waiting == 0


# Iterative sequences.


def test_a_request_without_an_id_gets_one_and_starts():
    b = Bench(StrategyOldest(max_candidate_sequences=4), iterative=True)
    mine = b.send("x", 2, "SE")
    first, second = b.send("a", 0), b.send("b", 0)
    assert [request.sequence_id for request in (mine, first, second)] == [2, 1, 2]
    assert first.sequence_start
    assert second.sequence_start


def test_a_request_runs_again_until_it_is_answered_and_then_its_slot_is_free():
    b = Bench(StrategyOldest(max_candidate_sequences=1), iterative=True)
    request = b.send("a", 0)
    b.send("b", 0)
    for _ in range(3):
        assert b.dispatch() == "a"
        assert b.batcher.reschedule(request)
        (decision,) = b.running
        b.running, b.busy = [], set()
        b.batcher.end_execution(0, decision.batch, 0)
    assert not request.sequence_start
    assert b.run() == "a b"
    assert b.batcher.num_live == 0
    assert b.dropped == []


def test_only_requests_of_iterative_sequences_run_again(bench):
    b = bench()
    request = b.send("a", 1, "S")
    b.dispatch()
    assert not b.batcher.reschedule(request)


def test_a_request_that_is_to_run_again_and_was_cancelled_is_refused():
    b = Bench(StrategyOldest(max_candidate_sequences=1), iterative=True)
    request = b.send("a", 0)
    b.dispatch()
    request.cancelled = True
    assert not b.batcher.cancel(request, 0)
    assert b.batcher.reschedule(request)
    b.batcher.end_execution(0, [request], 0)
    b.dispatch()
    assert b.names_refused == "a"
    assert b.batcher.num_live == 0


# Instances that die.


def test_sequences_are_lost_with_their_instance(bench):
    b = bench(slots=1, num_instances=2)
    b.send("a", 1, "S")
    b.send("x", 2, "S")
    b.send("b", 1)
    b.send("p", 3, "S")
    assert b.run() == "a x b"

    b.send("c", 1)
    b.batcher.lose(0, Unavailable("gone"), 0)
    b.busy.add(0)
    assert b.dispatch() == ""
    assert b.names_refused == "c"
    assert [(drop.sequence_id, drop.reason) for drop in b.dropped] == [(1, DropReason.LOST)]
    with pytest.raises(InvalidArgument, match="START"):
        b.send("d", 1)

    b.busy.clear()
    b.batcher.recover(0, 0)
    assert b.run() == "p"


def test_no_sequence_begins_on_an_instance_that_is_away(bench):
    b = bench(slots=1, num_instances=2)
    b.batcher.lose(0, Unavailable("gone"), 0)
    b.send("a", 1, "S")
    b.dispatch()
    assert b.running[0].instance == 1


def test_everything_is_held_until_enough_waits(bench):
    b = bench(hold_until=2)
    b.send("a", 1, "S")
    assert b.dispatch() == ""
    b.send("b", 2, "S")
    assert b.run() == "ab"
    b.send("c", 1)
    assert b.dispatch() == "c"


def test_its_text_tells_what_waits(bench):
    b = bench(slots=1)
    b.send("a", 1, "S")
    b.send("b", 2, "S")
    assert repr(b.batcher) == "SequenceBatcher('m', waiting=2, sequences=2, backlog=1)"
