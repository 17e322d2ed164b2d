"""InferenceResponse, TritonError and the iterator over responses of a decoupled call."""

import asyncio
import gc

import numpy as np
import pytest

from bireme.backends.errors import ModelError
from bireme.backends.python import pb_utils
from bireme.types import (
    AlreadyExists,
    BackendFailed,
    Cancelled,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
)
from fake_runtime import FakeStream, answer

Y, Z = (pb_utils.Tensor(name, np.zeros(1)) for name in "YZ")


def test_a_response(server):
    response = pb_utils.InferenceResponse([Y, Z], parameters={"a": 1, "b": True, "c": "x"})
    made = response.to_response(server.incoming()._request, final=True)

    assert response.output_tensors() == [Y, Z]
    assert not response.has_error()
    assert response.error() is None
    assert response.parameters() == '{"a": 1, "b": true, "c": "x"}'
    assert made.outputs == [Y._tensor, Z._tensor]
    assert made.parameters == {"a": 1, "b": True, "c": "x"}
    assert (made.model_name, made.model_version, made.id, made.final) == ("asker", 1, "7", True)
    assert made.error is None
    assert "'Y'" in repr(response)


def test_an_empty_response(server):
    response = pb_utils.InferenceResponse()
    made = response.to_response(server.incoming()._request, final=False)

    assert response.output_tensors() == []
    assert response.parameters() == "{}"
    assert (list(made.outputs), made.parameters, made.final, made.flag_only) == ([], None, False, False)


def test_outputs_that_nobody_asked_for_are_dropped(server):
    request = server.incoming(outputs=["Z"])._request

    assert pb_utils.InferenceResponse((Y, Z)).to_response(request, final=True).outputs == [Z._tensor]


def test_an_output_of_a_wrong_name_is_told_once(server):
    request = server.incoming(outputs=["Y", "W"])._request
    for _ in range(2):
        pb_utils.InferenceResponse((Y, Z)).to_response(request, final=True)
    pb_utils.InferenceResponse((Y,)).to_response(request, final=True)

    ((_, line, _, _),) = server.lines
    assert "lacks output(s) ['W']" in line
    assert "has output(s) ['Z']" in line


def test_the_list_of_outputs_is_its_own():
    outputs = [Y]
    response = pb_utils.InferenceResponse(outputs)
    outputs.append(Z)

    assert response.output_tensors() == [Y]


def test_outputs_by_name():
    response = pb_utils.InferenceResponse([Y, Z])

    assert pb_utils.get_output_tensor_by_name(response, "Z") is Z
    assert pb_utils.get_output_tensor_by_name(response, "X") is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNKNOWN", ModelError),
        ("INTERNAL", BackendFailed),
        ("NOT_FOUND", NotFound),
        ("INVALID_ARG", InvalidArgument),
        ("UNAVAILABLE", Unavailable),
        ("UNSUPPORTED", Unsupported),
        ("ALREADY_EXISTS", AlreadyExists),
        ("CANCELLED", Cancelled),
    ],
)
def test_errors_keep_code_and_text(server, code, kind):
    error = pb_utils.TritonError("so it is", getattr(pb_utils.TritonError, code))
    response = pb_utils.InferenceResponse([Y], error)
    made = response.to_response(server.incoming()._request, final=True)

    assert response.has_error()
    assert response.error() is error
    assert (error.code().name, error.message()) == (code, "so it is")
    assert type(made.error) is kind
    assert made.error.code == code
    assert made.error.message == "so it is"
    assert list(made.outputs) == []
    back = pb_utils.InferenceResponse.from_response(made)

    assert (back.error().code(), back.error().message()) == (error.code(), "so it is")
    assert code in repr(response)


def test_errors_are_internal_unless_they_say_otherwise():
    assert pb_utils.TritonError("x").code() == pb_utils.TritonError.INTERNAL
    assert int(pb_utils.TritonError.CANCELLED) == 7


@pytest.mark.parametrize("arguments", [(None,), (ValueError("x"),), ("x", 1), ("x", "INTERNAL")])
def test_errors_of_the_wrong_type(arguments):
    with pytest.raises(TypeError, match="TritonError"):
        pb_utils.TritonError(*arguments)


def test_an_output_must_not_be_none():
    with pytest.raises(
        pb_utils.TritonModelException, match="Output tensor for inference response should not be empty"
    ):
        pb_utils.InferenceResponse([Y, None])


@pytest.mark.parametrize(
    "arguments",
    [
        {"output_tensors": [np.zeros(1)]},
        {"output_tensors": None},
        {"error": "text"},
        {"error": ValueError("x")},
    ],
)
def test_responses_of_the_wrong_type(arguments):
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse(**arguments)


@pytest.mark.parametrize("parameters", [[1], {1: 2}, {"a": 1.0}, {"a": None}, {"a": -(2**63) - 1}])
def test_parameters_of_the_wrong_type(parameters):
    with pytest.raises(pb_utils.TritonModelException):
        pb_utils.InferenceResponse(parameters=parameters)


def test_parameters_travel_as_plain_types():
    class Text(str):
        __slots__ = ()

    response = pb_utils.InferenceResponse(
        parameters={Text("t"): Text("x"), "n": pb_utils.TRITONSERVER_MEMORY_CPU}
    )

    assert [(type(key), type(value)) for key, value in response._parameters.items()] == [
        (str, str),
        (str, int),
    ]


# The iterator


def values(responses):
    return [response.output_tensors()[0].as_numpy().item() for response in responses]


def iterator(*responses):
    stream = FakeStream(responses)
    return stream, pb_utils.ResponseIterator(stream)


def test_responses_in_order_and_again():
    _, responses = iterator(answer(1.0, final=False), answer(2.0, final=False), answer(3.0))

    assert values(responses) == [1, 2, 3]
    assert values(responses) == [1, 2, 3]
    assert next(iter(responses)).output_tensors()[0].as_numpy().item() == 1
    assert values(responses) == [2, 3]
    with pytest.raises(StopIteration):
        next(responses)


def test_an_iteration_that_broke_off_goes_on():
    _, responses = iterator(answer(1.0, final=False), answer(2.0, final=False), answer(3.0))
    for _ in responses:
        break

    assert values(responses) == [2, 3]
    assert values(responses) == [1, 2, 3]


def test_the_last_response_may_be_empty():
    _, responses = iterator(answer(1.0, final=False), answer(flag_only=True))
    last = list(responses)[-1]

    assert last.output_tensors() == []
    assert not last.has_error()
    assert last.parameters() == "{}"


def test_a_stream_without_a_final_response_ends_too():
    _, responses = iterator(answer(1.0, final=False))

    assert values(responses) == [1]
    assert values(responses) == [1]


def test_responses_from_a_loop():
    async def read(responses):
        return values([response async for response in responses])

    _, responses = iterator(answer(1.0, final=False), answer(2.0))
    assert asyncio.run(read(responses)) == [1, 2]
    assert asyncio.run(read(responses)) == [1, 2]
    _, responses = iterator(answer(1.0, final=False))
    assert asyncio.run(read(responses)) == [1]


def test_cancelling_asks_the_server_until_the_end():
    stream, responses = iterator(answer(1.0, final=False), answer(2.0))
    next(responses)
    responses.cancel()

    assert stream.calls == ["cancel"]
    list(responses)
    responses.cancel()

    assert stream.calls == ["cancel"]


def test_an_iterator_that_is_dropped_early_closes_its_stream():
    stream, responses = iterator(answer(1.0, final=False), answer(2.0))
    next(responses)
    del responses
    gc.collect()

    assert stream.calls == ["close"]


def test_an_iterator_that_is_read_to_the_end_closes_nothing():
    stream, responses = iterator(answer(1.0))
    list(responses)
    del responses
    gc.collect()

    assert stream.calls == []
