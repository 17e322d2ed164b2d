from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from bireme.config.model_config import ModelConfig, ModelSequenceBatching, StrategyOldest
from bireme.scheduling import ResponseOrder, make_response_order
from bireme.scheduling.response_order import RunOrder
from bireme.types import BackendFailed, Cancelled, Execution, InferenceResponse, RequestTimedOut
from waiting import make_request


def admitted(order: ResponseOrder, names: str):
    requests = {name: make_request(name) for name in names}
    for request in requests.values():
        order.admit(request)
        request.execution = Execution([request], 1, "single")
    return requests


def answer(text: str = "", *, final: bool = True, error=None) -> InferenceResponse:
    return InferenceResponse("model", 1, text, error=error, final=final)


def sent(ready) -> str:
    return " ".join(request.id + response.id for request, response in ready)


def test_responses_leave_in_order_of_admission():
    order = ResponseOrder()
    requests = admitted(order, "abc")

    assert order.complete(requests["c"], answer()) == []
    assert order.complete(requests["b"], answer()) == []
    assert sent(order.complete(requests["a"], answer())) == "a b c"
    assert repr(order) == "ResponseOrder(0 open, 0 responses held)"


def test_release_stops_at_the_first_unfinished_request():
    order = ResponseOrder()
    requests = admitted(order, "abcd")
    order.complete(requests["b"], answer())
    order.complete(requests["d"], answer())

    assert sent(order.complete(requests["a"], answer())) == "a b"
    assert order.statistics() == {"open": 2, "held": 1}
    assert sent(order.complete(requests["c"], answer())) == "c d"


def test_failed_execution_keeps_its_place():
    order = ResponseOrder()
    requests = admitted(order, "ab")

    assert order.complete(requests["b"], answer(error=BackendFailed("no"))) == []
    assert sent(order.complete(requests["a"], answer())) == "a b"


@pytest.mark.parametrize("error", [RequestTimedOut("late"), Cancelled("gone")])
def test_request_that_never_ran_is_answered_at_once(error):
    order = ResponseOrder()
    requests = admitted(order, "abc")
    requests["b"].execution = None

    assert sent(order.complete(requests["b"], answer(error=error))) == "b"
    assert order.complete(requests["c"], answer()) == []
    assert sent(order.complete(requests["a"], answer())) == "a c"


def test_request_that_never_ran_frees_those_behind_it():
    order = ResponseOrder()
    requests = admitted(order, "abc")
    order.complete(requests["b"], answer())
    requests["a"].execution = None

    assert sent(order.complete(requests["a"], answer(error=Cancelled("gone")))) == "a b"


def test_response_without_execution_keeps_its_place_unless_it_is_an_error():
    """A cache hit is ordered like any other."""
    order = ResponseOrder()
    requests = admitted(order, "ab")
    requests["b"].execution = None

    assert order.complete(requests["b"], answer()) == []
    assert sent(order.complete(requests["a"], answer())) == "a b"


def test_partial_responses_of_the_first_request_pass_and_others_wait():
    order = ResponseOrder()
    requests = admitted(order, "abc")

    assert sent(order.complete(requests["a"], answer("1", final=False))) == "a1"
    assert order.complete(requests["b"], answer("1", final=False)) == []
    assert order.complete(requests["c"], answer("1")) == []
    assert order.statistics() == {"open": 3, "held": 2}
    assert sent(order.complete(requests["a"], answer("2"))) == "a2 b1"
    assert order._held[requests["b"]] == []  # what was sent is not kept alive
    assert sent(order.complete(requests["b"], answer("2", final=False))) == "b2"
    assert sent(order.complete(requests["b"], answer("3"))) == "b3 c1"
    assert order.statistics() == {"open": 0, "held": 0}


def test_error_after_partial_responses_stays_behind_them():
    order = ResponseOrder()
    requests = admitted(order, "ab")
    requests["b"].execution = None
    order.complete(requests["b"], answer("1", final=False))

    assert order.complete(requests["b"], answer("2", error=BackendFailed("no"))) == []
    assert sent(order.complete(requests["a"], answer())) == "a b1 b2"


def test_response_of_an_unknown_request_is_an_error():
    order = ResponseOrder()
    requests = admitted(order, "a")
    order.complete(requests["a"], answer())

    with pytest.raises(KeyError):
        order.complete(requests["a"], answer())
    with pytest.raises(KeyError):
        order.complete(make_request(), answer())


@given(st.data())
def test_any_order_of_completion_gives_the_order_of_admission(data):
    """What ran leaves in order; what did not run leaves at once; each exactly once."""
    order = ResponseOrder()
    requests = [make_request(str(index)) for index in range(data.draw(st.integers(1, 12)))]
    unfinished = []
    out = []
    for request in requests:
        order.admit(request)
        unfinished.append(request)
        for _ in range(data.draw(st.integers(0, 2))):
            if unfinished:
                chosen = unfinished.pop(data.draw(st.integers(0, len(unfinished) - 1)))
                out += complete(order, chosen, data.draw(st.booleans()))
    for chosen in data.draw(st.permutations(unfinished)):
        out += complete(order, chosen, data.draw(st.booleans()))

    assert sorted(out, key=requests.index) == requests
    executed = [request for request in out if request.execution]
    assert executed == [request for request in requests if request.execution]
    assert order.statistics() == {"open": 0, "held": 0}


def complete(order, request, ran):
    request.execution = Execution([request], 1, "single") if ran else None
    ready = order.complete(request, answer(error=None if ran else Cancelled("gone")))
    if not ran:
        assert ready[0][0] is request
    return [request for request, _ in ready]


class TestOrderOfRuns:
    """What `make_response_order` gives for sequences: places are given when a request begins to run."""

    @staticmethod
    def make() -> RunOrder:
        batching = ModelSequenceBatching(oldest=StrategyOldest(preserve_ordering=True))
        order = make_response_order(ModelConfig(sequence_batching=batching))
        assert isinstance(order, RunOrder)
        return order

    def test_a_request_that_never_ran_holds_nobody_up(self):
        order = self.make()
        waiting, running = make_request("w"), make_request("r")
        for request in (waiting, running):
            order.admit(request)
        order.start(running, 0)
        assert [request.id for request, _ in order.complete(running, answer())] == ["r"]
        assert [request.id for request, _ in order.complete(waiting, answer())] == ["w"]

    def test_requests_of_an_instance_are_answered_as_they_began(self):
        order = self.make()
        first, second, other = make_request("1"), make_request("2"), make_request("o")
        order.start(first, 0)
        order.start(second, 0)
        order.start(other, 1)
        order.start(first, 0)  # runs again
        assert order.complete(second, answer()) == []
        assert order.statistics() == {"open": 3, "held": 1}
        assert [request.id for request, _ in order.complete(other, answer())] == ["o"]
        assert [request.id for request, _ in order.complete(first, answer())] == ["1", "2"]
        assert order.statistics() == {"open": 0, "held": 0}

    def test_without_the_wish_there_is_no_order(self):
        assert make_response_order(ModelConfig(sequence_batching=ModelSequenceBatching())) is None
        assert make_response_order(ModelConfig()) is None
