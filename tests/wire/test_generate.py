"""Bodies of the generate extension: which member becomes what, and how responses look."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bireme.types import InferenceResponse, InvalidArgument, Tensor
from bireme.wire.encoded import MAX_SLICE_ELEMENTS
from bireme.wire.http import (
    Limits,
    decode_generate_request,
    decode_rewritten,
    describe_inputs,
    encode_error_event,
    encode_generate_response,
    rewrite_generate,
)


class Spec(NamedTuple):
    datatype: str
    shape: tuple[int, ...]


LLM = {
    "text": Spec("BYTES", (-1, 1)),
    "max_tokens": Spec("INT32", (-1, 1)),
    "stream": Spec("BOOL", (-1, 1)),
}


def ignore(request, response):
    pass


def decode(body, inputs=LLM, limits=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_generate_request(
        data, inputs, model_name="m", model_version=3, respond=ignore, limits=limits or Limits()
    )


def fault_of(body, inputs=LLM, limits=None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        decode(body, inputs, limits)
    return caught.value.message


def values_of(request) -> dict:
    return {name: tensor.to_numpy().tolist() for name, tensor in request.inputs.items()}


def encode(response, **settings) -> bytes:
    encoded = encode_generate_response(response, **settings)
    while not encoded.advance():
        pass
    assert encoded.nbytes == sum(map(len, encoded.pieces))
    return b"".join(encoded.pieces)


def respond(outputs=(), **settings) -> InferenceResponse:
    tensors = [Tensor.from_numpy(name, np.array(values)) for name, values in dict(outputs).items()]
    return InferenceResponse("m", 1, settings.pop("id", ""), tensors, **settings)


# Requests


def test_members_become_inputs_parameters_and_the_id():
    request = decode(
        {
            "text": "hi",
            "max_tokens": 12,
            "stream": True,
            "id": "r1",
            "temperature": 0.5,
            "stop": "x",
            "n": 2,
            "b": False,
        }
    )

    assert (request.model_name, request.model_version, request.id) == ("m", 3, "r1")
    assert values_of(request) == {"text": [[b"hi"]], "max_tokens": [[12]], "stream": [[True]]}
    assert [t.datatype for t in request.inputs.values()] == ["BYTES", "INT32", "BOOL"]
    assert list(request.parameters.items()) == [
        ("id", "r1"),
        ("temperature", 0.5),
        ("stop", "x"),
        ("n", 2),
        ("b", False),
    ]


@pytest.mark.parametrize("body", [b"", b"{}", b' {"parameters": {}} ', b'{"parameters": null}'])
def test_no_members_are_no_inputs(body):
    request = decode(body)

    assert (request.inputs, request.parameters, request.id) == ({}, None, "")


def test_members_of_parameters_count_as_if_they_stood_beside_it():
    request = decode({"parameters": {"text": "hi", "seed": 1}, "top_k": 5})

    assert values_of(request) == {"text": [[b"hi"]]}
    assert request.parameters == {"seed": 1, "top_k": 5}


def test_the_id_may_be_an_input_too():
    request = decode({"id": "r1"}, {"id": Spec("BYTES", (1,))})

    assert (request.id, request.parameters, values_of(request)) == ("r1", None, {"id": [b"r1"]})


def test_nothing_has_a_meaning_of_its_own():
    body = {"sequence_id": 7, "sequence_start": True, "priority": 3, "timeout": 9, "triton_x": 1}
    request = decode(body)

    assert request.parameters == body
    assert (request.sequence_id, request.sequence_start, request.priority, request.timeout_us) == (
        0,
        False,
        0,
        0,
    )


def test_an_integer_above_int64_is_a_float_parameter():
    assert decode({"n": 1 << 63}).parameters == {"n": float(1 << 63)}


@pytest.mark.parametrize(
    ("shape", "count", "expected"),
    [
        ((-1,), 5, (5,)),
        ((4,), 4, (4,)),
        ((1,), 1, (1,)),
        ((-1, -1), 5, (1, 5)),
        ((-1, -1, -1), 6, (1, 1, 6)),
        ((-1, 4), 8, (2, 4)),  # of a batching model: two rows
        ((-1, 4), 4, (1, 4)),
        ((-1, 2, -1), 6, (1, 2, 3)),
        ((-1, -1, 2), 6, (1, 3, 2)),
        ((-1,), 0, (0,)),
        ((-1, -1), 0, (1, 0)),
        ((0, -1), 0, (0, 1)),
        ((), 1, ()),
    ],
)
def test_the_innermost_variable_dimension_takes_what_the_fixed_ones_leave(shape, count, expected):
    request = decode({"X": list(range(count))}, {"X": Spec("INT64", shape)})

    assert request.inputs["X"].shape == expected
    assert request.inputs["X"].to_numpy().ravel().tolist() == list(range(count))


@pytest.mark.parametrize(
    ("shape", "count"), [((4,), 5), ((4,), 8), ((-1, 4), 6), ((1,), 0), ((0,), 1), ((), 2)]
)
def test_a_number_of_elements_that_fits_no_shape_is_refused(shape, count):
    message = fault_of({"X": [0] * count}, {"X": Spec("INT64", shape)})

    assert message.startswith("The schema can not convert input 'X' to tensor with proper shape")
    assert f"got {count} elements" in message


def test_half_precision_comes_as_numbers():
    inputs = {"h": Spec("FP16", (-1,)), "b": Spec("BF16", (-1,)), "f": Spec("FP32", (-1,))}
    request = decode(b'{"h": 1.5, "b": [1, -2], "f": [NaN, Infinity]}', inputs)

    assert values_of(request)["h"] == [1.5]
    assert values_of(request)["b"] == [0x3F80, 0xC000]
    assert np.isnan(request.inputs["f"].to_numpy()[0])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "failed to parse the request JSON buffer:"),
        (b" ", "failed to parse the request JSON buffer:"),
        ([], "the request must be a JSON object, found an array"),
        ({"id": 7}, "Unable to parse 'id': expected a string, found the integer 7"),
        ({"text": 7}, "input 'text' of type BYTES expects a string, found the integer 7"),
        ({"text": None}, "found null"),
        ({"text": {"a": 1}}, "found an object"),
        ({"stream": "false"}, "input 'stream' of type BOOL expects true or false"),
        ({"max_tokens": 1.5}, "input 'max_tokens' of type INT32 expects an integer"),
        ({"max_tokens": [[1, 2]]}, "'data' has 2; generate takes flat lists, infer any shape"),
        ({"other": None}, "parameter 'other' has invalid type: found null"),
        ({"other": [1]}, "parameter 'other' has invalid type: found an array"),
        ({"txet": [1]}, "model 'm' has no input of that name, it has ['text','max_tokens','stream']"),
        ({"parameters": [1]}, "Expected JSON object for keyword: 'parameters', found an array"),
        ({"parameters": {"a": {}}}, "Converting keyword: 'parameters': parameter 'a' has invalid type"),
        ({"parameters": {"parameters": {}}}, "parameter 'parameters' has invalid type"),
        (
            {"id": "q", "text": "a", "parameters": {"text": "b"}},
            "[request id: q] input 'text' already exists",
        ),
    ],
)
def test_what_is_wrong_is_named(body, text):
    assert text in fault_of(body)


def test_an_input_called_parameters_is_a_conflict():
    message = fault_of({"parameters": {"a": 1}}, {"parameters": Spec("BYTES", (1,))})

    assert message == "Keyword 'parameters' for nested schema also given as input tensor name"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"text": "a", "stream": false, "text": "b"}', "text"),
        (b'{"text": "a", "stream": false, "stream": false}', "stream"),
        (b'{"text": "a", "stream": false, "stream": true, "text": "b"}', "stream"),
    ],
)
def test_an_input_that_is_there_twice_is_refused(body, name):
    assert fault_of(body) == f"[request id: <id_unknown>] input '{name}' already exists in request"


@pytest.mark.parametrize(
    "body", [b'{"text": "text"}', b'{"text": "\\"text\\"", "x": "text"}', b'{"text": "text", "y": Inf}']
)
def test_a_value_may_be_the_name_of_an_input(body):
    assert list(decode(body).inputs) == ["text"]


def test_inputs_are_limited_together():
    inputs = {"a": Spec("FP64", (-1,)), "b": Spec("BYTES", (-1,))}
    limits = Limits(max_input_size=120)

    assert decode({"a": [0] * 10, "b": "x" * 36}, inputs, limits).inputs
    assert fault_of({"a": [0] * 10, "b": "x" * 37}, inputs, limits) == (
        "request size of 80 bytes with input 'b' of size 41 bytes exceeds the maximum allowed input size of 120. "
        "Use --http-max-input-size to increase the limit."
    )
    assert "exceeds the maximum allowed" in fault_of({"a": "x" * 120}, inputs, limits)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ["hi", "hö"], "max_tokens": [1, 2], "id": "r", "n": 1, "s": "x", "f": 0.5, "b": True},
        {"parameters": {"sequence_id": 7, "priority": 1, "triton_x": "y", "binary_data_output": 3}},
    ],
)
def test_a_request_that_another_process_has_parsed_is_the_same(body):
    data = json.dumps(body).encode()
    described = json.loads(json.dumps(describe_inputs(LLM)))
    rewritten, length = rewrite_generate(data, described, Limits(), model_name="m")
    request = decode_rewritten(
        memoryview(rewritten), length, model_name="m", model_version=3, respond=ignore, limits=Limits()
    )
    expected = decode(data)

    assert values_of(request) == values_of(expected)
    assert [t.shape for t in request.inputs.values()] == [t.shape for t in expected.inputs.values()]
    for name in ("id", "parameters", "model_version", "sequence_id", "priority", "outputs", "context"):
        assert getattr(request, name) == getattr(expected, name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LLM, "id", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from([*LLM, "id", "parameters", "x"]), JSON))
def test_any_json_is_a_request_or_an_invalid_argument(body):
    try:
        names = set(decode(json.dumps(body).encode()).inputs)
    except InvalidArgument:
        names = set()

    assert names <= set(LLM)


# Responses


def test_keys_are_sorted_and_tensors_of_one_element_are_scalars():
    response = respond(
        {"text": [b"h\xc3\xb6"], "n": [[3]], "a": [1, 2]}, id="r1", parameters={"p": True, "Z": 0.5}
    )

    assert encode(response) == (
        '{"Z":0.5,"a":[1,2],"id":"r1","model_name":"m","model_version":"1","n":3,"p":true,"text":"hö"}'.encode()
    )


def test_without_an_id_there_is_none():
    assert json.loads(encode(respond())) == {"model_name": "m", "model_version": "1"}


def test_metadata_win_over_parameters_and_those_over_tensors():
    outputs = {"model_name": [1], "id": [2], "x": [3], "y": [4]}
    found = json.loads(encode(respond(outputs, parameters={"model_version": 9, "x": "p", "id": "p"})))

    assert found == {"model_name": "m", "model_version": "1", "x": "p", "y": 4, "id": "p"}
    assert json.loads(encode(respond(outputs, id="r")))["id"] == "r"


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((0, 4), np.float32), b"[]"),
        (np.array([0.1], np.float32), b"0.1"),
        (np.arange(6, dtype=np.int8).reshape(2, 3)[:, ::2], b"[0,2,3,5]"),
        (np.array([b"null", b"x"], object), b'["null","x"]'),
        (np.array([True]), b"true"),
        (np.array([[True, False]]), b"[true,false]"),
        (np.array([1.5], np.float16), b"1.5"),
        (np.array([np.nan], np.float32), b"NaN"),
        (np.array([np.inf, -np.inf]), b"[Infinity,-Infinity]"),
        (np.array([b"a", b"\xff"], object), '["a","�"]'.encode()),
        (np.array([b"line\nline"], object), b'"line\\nline"'),
        (np.array([(1 << 64) - 1], np.uint64), b"18446744073709551615"),
    ],
)
def test_values(array, text):
    response = InferenceResponse("m", 1, "", [Tensor.from_numpy("a", array)])

    assert encode(response) == b'{"a":%b,"model_name":"m","model_version":"1"}' % text


def test_bf16_is_a_number():
    response = InferenceResponse("m", 1, "", [Tensor.from_numpy("a", np.array([0x3FC0], np.uint16), "BF16")])

    assert json.loads(encode(response))["a"] == 1.5


@pytest.mark.parametrize("number", [2, 64, 65, 1000])
def test_numbers_of_any_count_look_the_same(number):
    values = np.arange(number, dtype=np.float32) / 10
    text = encode(respond({"a": values}))

    assert text.startswith(b'{"a":[0.0,0.1')
    assert json.loads(text)["a"] == [float(str(value)) for value in values]


def test_an_event_is_one_line_of_data():
    assert encode(respond({"t": [b"a\n\nb"]}), is_event=True) == (
        b'data: {"model_name":"m","model_version":"1","t":"a\\n\\nb"}\n\n'
    )
    assert encode_error_event('no "luck"') == b'data: {"error":"no \\"luck\\""}\n\n'


def test_large_outputs_are_encoded_in_steps():
    values = np.arange(4 * MAX_SLICE_ELEMENTS)
    encoded = encode_generate_response(respond({"a": values}))
    num_steps = 1
    while not encoded.advance():
        num_steps += 1

    assert num_steps > 2
    assert json.loads(b"".join(encoded.pieces))["a"] == values.tolist()
