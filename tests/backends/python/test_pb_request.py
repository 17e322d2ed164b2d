"""InferenceRequest: what comes in, and calls of other models."""

import asyncio
import json

import numpy as np
import pytest

from bireme.backends.python import pb_utils
from bireme.types import BackendFailed, InvalidArgument, NotFound
from fake_runtime import FakeRuntime, answer, tensor

TEXT = "BLS is only supported during the 'execute' function."


def ask(**changes):
    """Return a request for another model."""
    arguments = {
        "inputs": [pb_utils.Tensor("X", np.zeros(1))],
        "requested_output_names": ["Y"],
        "model_name": "asked",
    }
    return pb_utils.InferenceRequest(**arguments | changes)


# What comes in


def test_an_incoming_request(server):
    request = server.incoming(
        "A",
        "B",
        outputs=["Z"],
        parameters={"n": 1, "x": 2.5, "yes": True, "text": "ü"},
        timeout_us=5,
        sequence_id="s",
        sequence_start=True,
        sequence_end=True,
    )

    assert [found.name() for found in request.inputs()] == ["A", "B"]
    assert request.inputs() is request.inputs()
    assert request.request_id() == "7"
    assert request.correlation_id() == "s"
    assert request.flags() == 3
    assert request.timeout() == 5
    assert json.loads(request.parameters()) == {"n": 1, "x": 2.5, "yes": True, "text": "ü"}
    assert request.requested_output_names() == {"Z"}
    assert "asker" in repr(request)


def test_an_incoming_request_that_says_little(server):
    request = server.incoming()

    assert request.inputs() == []
    assert request.correlation_id() == 0
    assert request.flags() == 0
    assert request.parameters() == "{}"
    assert request.requested_output_names() == {"Y", "Z"}
    assert request.trace().get_context() is None
    assert request.release_flags == pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL


def test_inputs_by_name(server):
    request = server.incoming("A", "B")

    assert pb_utils.get_input_tensor_by_name(request, "B").name() == "B"
    assert pb_utils.get_input_tensor_by_name(request, "C") is None
    assert pb_utils.get_input_tensor_by_name(ask(), "X").name() == "X"


def test_inputs_of_a_stand_in_by_name():
    class StandIn:
        def inputs(self):
            return [pb_utils.Tensor("X", np.zeros(1))]

    assert pb_utils.get_input_tensor_by_name(StandIn(), "X").name() == "X"
    assert pb_utils.get_input_tensor_by_name(StandIn(), "Y") is None


def test_cancellation_is_asked_for(server):
    request = server.incoming()

    assert not request.is_cancelled()
    server.cancelled.add(request._request)

    assert request.is_cancelled()
    assert request.get_response_sender().is_cancelled()
    assert not ask().is_cancelled()


def test_release_flags(server):
    request = server.incoming()
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    assert request.release_flags == 2
    with pytest.raises(pb_utils.TritonModelException, match="3"):
        request.set_release_flags(3)


# Requests that models make


def test_a_request_reaches_the_server_as_it_was_made(server):
    server.answers = [answer(4.0)]
    request = ask(
        request_id="r",
        correlation_id=9,
        model_version=2,
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
        timeout=1000,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1),
        trace=pb_utils.InferenceTrace("{}"),
        parameters={"n": 1, "yes": True, "text": "t"},
    )
    response = request.exec()
    (sent,) = server.sent

    assert pb_utils.get_output_tensor_by_name(response, "Y").as_numpy().tolist() == [4.0]
    assert (sent.id, sent.model_name, sent.model_version) == ("r", "asked", 2)
    assert (sent.sequence_id, sent.sequence_start, sent.sequence_end) == (9, False, True)
    assert sent.timeout_us == 1000
    assert sent.outputs == ["Y"]
    assert sent.parameters == {"n": 1, "yes": True, "text": "t"}
    assert sent.trace_context == "{}"
    assert sent.inputs["X"] is request.inputs()[0]._tensor
    assert request.trace().get_context() == "{}"


def test_defaults(server):
    server.answers = [answer()]
    ask(requested_output_names=[]).exec()
    (sent,) = server.sent

    assert (sent.id, sent.model_version, sent.sequence_id, sent.timeout_us) == ("", -1, 0, 0)
    assert sent.outputs is None
    assert sent.parameters is None
    assert not sent.sequence_start
    assert not sent.sequence_end
    assert ask(requested_output_names=[]).requested_output_names() == set()


def test_a_trace_that_goes_to_a_file_has_no_context_and_is_handed_on():
    trace = pb_utils.InferenceTrace("17")

    assert trace.get_context() is None
    assert ask(trace=trace)._request.trace_context == "17"


def test_positional_order():
    made = pb_utils.InferenceRequest(
        "r", "c", [], ["Y"], "m", 3, 1, 4, None, pb_utils.InferenceTrace('{"t":1}'), {"a": 1}
    )

    assert (made.request_id(), made.correlation_id(), made.requested_output_names()) == ("r", "c", {"Y"})
    assert (made._request.model_name, made._request.model_version) == ("m", 3)
    assert (made.flags(), made.timeout(), made.trace().get_context()) == (1, 4, '{"t":1}')
    assert made.parameters() == '{"a": 1}'


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": ()},
        {"requested_output_names": ("Y", "Y")},
        {"requested_output_names": iter(["Y"])},
        {"model_version": np.int64(3)},
        {"timeout": np.uint32(3)},
        {"correlation_id": True},
        {"correlation_id": pb_utils.TRITONSERVER_MEMORY_CPU},
        {"correlation_id": "text"},
        {"correlation_id": 2**64 - 1},
        {"model_name": np.str_("m")},
        {"parameters": {}},
    ],
)
def test_arguments_that_are_nearly_plain_become_plain(changes):
    request = ask(**changes)._request

    assert type(request.model_name) is str
    assert type(request.model_version) is int
    assert type(request.timeout_us) is int
    assert type(request.sequence_id) in {int, str}
    assert type(request.outputs) is list
    assert request.outputs == ["Y"]
    assert request.parameters is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"correlation_id": -1}, "Correlation ID must be integer or string"),
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        ({"correlation_id": None}, "Correlation ID must be integer or string"),
        ({"correlation_id": 2**64}, "Correlation ID must be integer or string"),
        (
            {"inputs": [None], "request_id": "r"},
            "Input tensor for request with id 'r' and model name 'asked' should not be empty.",
        ),
        ({"inputs": [pb_utils.Tensor("X", np.zeros(1))] * 2}, "should have different names, found"),
        (
            {"requested_output_names": [""]},
            "Requested output name for request with id '' and model name 'asked' should not be empty.",
        ),
        ({"parameters": [1]}, "Expect dict, got <class 'list'>"),
        (
            {"parameters": {1: 1}},
            "Expect parameters keys to have type str, found type <class 'int'>",
        ),
        (
            {"parameters": {"a": 1.5}},
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        ({"parameters": {"a": 2**63}}, "64 bits"),
    ],
)
def test_what_cannot_be_asked(changes, text):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        ask(**changes)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": ["X"]},
        {"inputs": None},
        {"inputs": "X"},
        {"requested_output_names": "Y"},
        {"requested_output_names": None},
        {"requested_output_names": [1]},
        {"model_name": None},
        {"model_version": "1"},
        {"model_version": None},
        {"flags": 1.0},
        {"request_id": 5},
        {"preferred_memory": pb_utils.TRITONSERVER_MEMORY_CPU},
        {"trace": "{}"},
    ],
)
def test_arguments_of_the_wrong_type(changes):
    with pytest.raises(TypeError, match="InferenceRequest"):
        ask(**changes)


def test_a_timeout_is_not_negative():
    with pytest.raises(ValueError, match="-1"):
        ask(timeout=-1)


def test_missing_arguments_are_named():
    with pytest.raises(TypeError, match="missing inputs, model_name"):
        pb_utils.InferenceRequest(requested_output_names=[])


def test_memory_types_are_checked():
    with pytest.raises(TypeError, match="TRITONSERVER_MEMORY_CPU"):
        pb_utils.PreferredMemory(1)


def test_a_request_that_is_sent_again_is_another_one(server):
    """The engine keeps its own notes on a request, and the first one may still be running."""
    server.answers = [answer(), answer(), answer()]
    request = ask(trace=pb_utils.InferenceTrace("t"), requested_output_names=["Y"], parameters={"a": 1})
    request.exec()
    server.sent[0].inputs["START"] = tensor("START")
    request.exec()
    request.set_flags(1)
    request.exec()
    first, second, third = server.sent

    assert first is not second
    assert list(second.inputs) == ["X"]
    assert (second.outputs, second.parameters, second.trace_context) == (["Y"], {"a": 1}, "t")
    assert (second.sequence_start, third.sequence_start, third.sequence_end) == (False, True, False)
    assert request.flags() == 1
    with pytest.raises(TypeError):
        request.set_flags("1")


def test_an_incoming_request_can_be_sent_on(server):
    server.answers = [answer()]
    request = server.incoming("A")
    request.set_flags(2)
    request.exec()
    (sent,) = server.sent

    assert sent is not request._request
    assert list(sent.inputs) == ["A"]
    assert sent.sequence_end
    assert not request._request.sequence_end


def test_inputs_are_taken_when_the_request_is_made(server):
    inputs = [pb_utils.Tensor("X", np.zeros(1))]
    request = ask(inputs=inputs)
    inputs.clear()

    assert len(request.inputs()) == 1


def test_errors_of_the_other_model_are_responses(server):
    server.answers = [answer(error=NotFound("no such thing"))]
    response = ask().exec()

    assert response.has_error()
    assert response.error().message() == "no such thing"
    assert response.error().code() == pb_utils.TritonError.NOT_FOUND
    assert response.output_tensors() == []


@pytest.mark.parametrize("decoupled", [False, True])
def test_models_are_asked_during_execute_only(server, decoupled):
    server.failure = RuntimeError("initialising")

    with pytest.raises(pb_utils.TritonModelException, match=TEXT.replace(".", r"\.")):
        ask().exec(decoupled=decoupled)


@pytest.mark.parametrize("decoupled", [False, True])
def test_outside_of_models_nobody_is_asked(nowhere, decoupled):
    async def call():
        await ask().async_exec(decoupled=decoupled)

    with pytest.raises(pb_utils.TritonModelException, match=TEXT):
        ask().exec(decoupled=decoupled)
    with pytest.raises(pb_utils.TritonModelException, match=TEXT):
        asyncio.run(call())


# From a loop


def test_async_calls_are_on_their_way_at_once(server):
    async def call():
        server.answers = [answer(1.0), answer(2.0)]
        first, second = ask().async_exec(), ask().async_exec()

        assert len(server.sent) == 2
        assert asyncio.isfuture(first)
        responses = await asyncio.gather(second, first)
        return [response.output_tensors()[0].as_numpy().item() for response in responses]

    assert asyncio.run(call()) == [2.0, 1.0]


def test_async_calls_of_decoupled_models(server):
    async def call():
        server.answers = [answer(1.0, final=False), answer(2.0)]
        responses = await ask().async_exec(decoupled=True)
        return [response.output_tensors()[0].as_numpy().item() async for response in responses]

    assert asyncio.run(call()) == [1.0, 2.0]


def test_a_stream_is_there_with_its_first_response(server):
    """Models written for Triton read it with a plain ``for``, which would hold up the loop."""

    async def call():
        server.answers = [answer(1.0, final=False), answer(2.0)]
        responses = await ask().async_exec(decoupled=True)
        assert len(server.stream_object.responses) == 1
        read = [response.output_tensors()[0].as_numpy().item() for response in responses]
        again = [response.output_tensors()[0].as_numpy().item() for response in responses]
        return read, again

    assert asyncio.run(call()) == ([1.0, 2.0], [1.0, 2.0])


def test_a_call_that_is_cancelled_is_taken_back(server):
    async def call():
        future = ask().async_exec()
        future.cancel()
        await asyncio.sleep(0)

        assert server.gate.cancelled()

    asyncio.run(call())


def test_an_answer_to_a_call_that_is_over_is_dropped(server):
    async def call():
        future = ask().async_exec()
        server.gate.set_exception(InvalidArgument("bad"))
        future.cancel()
        await asyncio.sleep(0)

        assert future.cancelled()

    asyncio.run(call())


def test_a_call_whose_answer_is_cancelled_is_cancelled(server):
    async def call():
        future = ask().async_exec()
        server.gate.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(call())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("finalising"), pb_utils.TritonModelException),
        (InvalidArgument("bad"), InvalidArgument),
    ],
)
def test_failures_of_a_call_are_raised_where_it_is_awaited(server, error, expected):
    async def call():
        future = ask().async_exec()
        server.gate.set_exception(error)
        with pytest.raises(expected):
            await future

    asyncio.run(call())


def test_a_loop_must_run(server):
    with pytest.raises(RuntimeError, match="no running event loop"):
        ask().async_exec()


def test_answers_belong_to_whoever_sends():
    """A request is given to the engine by the runtime, which puts its own receiver there."""
    request = ask()._request

    with pytest.raises(AssertionError, match="asked"):
        request.respond(request, answer())


def test_what_the_other_model_says(server):
    server.answers = [answer(1.0, parameters={"a": 1.5}), answer(error=BackendFailed("x"))]
    response = ask().exec()

    assert not response.has_error()
    assert response.error() is None
    assert json.loads(response.parameters()) == {"a": 1.5}
    assert ask().exec().error().code() == pb_utils.TritonError.INTERNAL


def test_senders_are_for_incoming_requests():
    with pytest.raises(pb_utils.TritonModelException, match="no reference to the decoupled state"):
        ask().get_response_sender()


def test_a_served_model_is_data():
    served = pb_utils.Served(FakeRuntime(), ("Y",), is_decoupled=True)

    assert (served.output_names, served.is_decoupled) == (("Y",), True)
