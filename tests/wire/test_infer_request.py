"""Infer bodies in: what is read, and how everything wrong is refused."""

from __future__ import annotations

import numpy as np
import pytest

from bireme.types import InvalidArgument, datatypes, encode_bytes
from bireme.wire import http as wire_http
from infer_bodies import FIXED_SIZE_DATATYPES, LIMITS, decode, make_body, make_input, respond

X8 = make_input(size=8)
EIGHT = bytes(8)


def test_binary_inputs_are_read_in_their_order():
    first, second = np.arange(4, dtype="<f4"), np.arange(3, dtype="<i8")
    request = decode(
        {
            "id": "7",
            "inputs": [make_input("A", "FP32", [2, 2], size=16), make_input("B", "INT64", [3], size=24)],
        },
        first.tobytes(),
        second.tobytes(),
    )

    assert (request.model_name, request.model_version, request.id, request.respond) == ("m", 3, "7", respond)
    assert list(request.inputs) == ["A", "B"]
    np.testing.assert_array_equal(request.inputs["A"].to_numpy(), first.reshape(2, 2))
    np.testing.assert_array_equal(request.inputs["B"].to_numpy(), second)


@pytest.mark.parametrize("datatype", FIXED_SIZE_DATATYPES)
def test_a_binary_tensor_is_a_view_into_the_body(datatype):
    size = 4 * datatypes.ITEM_SIZES[datatype]
    body, json_length = make_body({"inputs": [make_input("X", datatype, [1, 4], size=size)]}, bytes(size))

    request = wire_http.decode_infer_request(
        body, json_length, model_name="m", respond=respond, limits=LIMITS
    )

    array = request.inputs["X"].to_numpy()
    whole = np.frombuffer(body, np.uint8)
    assert array.dtype == datatypes.NUMPY_DTYPES[datatype]
    assert array.shape == request.inputs["X"].shape == (1, 4)
    assert array.__array_interface__["data"][0] == whole.__array_interface__["data"][0] + json_length


def test_binary_bytes_stay_encoded_and_are_a_view():
    encoded = encode_bytes([b"ab", b"\xff"])
    body, json_length = make_body({"inputs": [make_input("X", "BYTES", [2], size=len(encoded))]}, encoded)

    request = wire_http.decode_infer_request(
        body, json_length, model_name="m", respond=respond, limits=LIMITS
    )

    tensor = request.inputs["X"]
    assert tensor.is_encoded
    assert tensor.to_buffer().obj is body.obj
    assert tensor.to_numpy().tolist() == [b"ab", b"\xff"]


def test_without_a_header_length_all_is_json():
    body, _ = make_body({"inputs": [make_input(data=[1, 2.5])]})
    request = wire_http.decode_infer_request(body, None, model_name="m", respond=respond, limits=LIMITS)

    assert request.inputs["X"].to_numpy().tolist() == [1.0, 2.5]
    assert (request.id, request.parameters, request.outputs) == ("", None, None)


def test_json_and_binary_inputs_mix_and_an_empty_one_consumes_nothing():
    request = decode(
        {
            "inputs": [
                make_input("A", "INT8", [0, 3], size=0),
                make_input("B", "INT8", [1], data=[5]),
                make_input("C", "INT8", [2], size=2),
                make_input("D", "FP32", [0], data="whatever"),
            ]
        },
        b"\x01\x02",
    )

    assert [tensor.shape for tensor in request.inputs.values()] == [(0, 3), (1,), (2,), (0,)]
    assert request.inputs["C"].to_numpy().tolist() == [1, 2]


def test_a_scalar_has_one_element():
    request = decode(
        {"inputs": [make_input("A", shape=[], data=[1.5]), make_input("B", shape=[], size=4)]}, bytes(4)
    )

    assert request.inputs["A"].to_numpy().shape == request.inputs["B"].to_numpy().shape == ()


@pytest.mark.parametrize(
    ("parameters", "outputs", "default_binary", "wanted"),
    [
        ({}, None, False, None),
        ({"binary_data_output": True}, None, True, None),
        ({"binary_data_output": False}, [], False, None),
        ({"binary_data_output": True}, [{"name": "Y"}], True, {"Y": (False, 0)}),
        (
            {},
            [
                {"name": "Y", "parameters": {"binary_data": True}},
                {"name": "Z", "parameters": {"binary_data": False, "classification": 3}},
                {"name": "V", "parameters": {"classification": 0, "other": 1}},
                {"name": "W", "parameters": None},
            ],
            False,
            {"Y": (True, 0), "Z": (False, 3), "V": (False, 0), "W": (False, 0)},
        ),
        (
            {},
            [{"name": "Y"}, *({"name": "Y", "parameters": {"classification": count}} for count in (2, 3))],
            False,
            {"Y": (False, 2)},
        ),
    ],
)
def test_wanted_outputs(parameters, outputs, default_binary, wanted):
    document = {"inputs": [X8], "parameters": parameters} | ({} if outputs is None else {"outputs": outputs})
    request = decode(document, EIGHT)

    by_name = request.context.by_name
    found = by_name and {name: (choice.binary, choice.classification) for name, choice in by_name.items()}
    assert found == wanted
    assert request.outputs == (wanted and list(wanted))
    assert request.context.default_binary is default_binary


def test_parameters_with_a_meaning_are_not_forwarded():
    request = decode(
        {
            "inputs": [X8],
            "parameters": {
                "sequence_id": 2**64 - 1,
                "sequence_start": True,
                "sequence_end": False,
                "priority": 3,
                "timeout": 1500,
                "binary_data_output": True,
            },
        },
        EIGHT,
    )

    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (2**64 - 1, True, False)
    assert (request.priority, request.timeout_us) == (3, 1500)
    assert request.parameters is None


def test_other_parameters_are_forwarded_in_their_order():
    request = decode(
        b'{"parameters":{"z":"s","a":-3,"m":true,"b":1.5,"i":Infinity,"u":9223372036854775808},"inputs":[]}'
    )

    assert list(request.parameters.items()) == [
        ("z", "s"),
        ("a", -3),
        ("m", True),
        ("b", 1.5),
        ("i", float("inf")),
        ("u", 2.0**63),  # as in Triton: no int64, so a double
    ]
    assert [type(value) for value in request.parameters.values()] == [str, int, bool, float, float, float]


def test_a_sequence_id_may_be_a_string():
    assert decode({"inputs": [X8], "parameters": {"sequence_id": "abc"}}, EIGHT).sequence_id == "abc"


def test_null_parameters_count_as_absent():
    request = decode({"inputs": [make_input(data=[1, 2], parameters=None)], "parameters": None})

    assert request.parameters is None


PREFIX = "[request id: <id_unknown>] "
SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'."
)

BAD_DOCUMENTS = {
    "not an object": ([1], "the request must be a JSON object, found an array"),
    "null": (b"null", "the request must be a JSON object, found null"),
    "id": ({"id": 1, "inputs": [X8]}, "Unable to parse 'id': expected a string, found the integer 1"),
    "no inputs": ({}, "Unable to parse 'inputs': the request has no such member, expected an array"),
    "inputs": (
        {"inputs": {"a": 1}},
        "Unable to parse 'inputs': the request expects an array, found an object",
    ),
    "input": ({"inputs": ["a"]}, "Unable to parse 'inputs': expected objects, found the string \"a\""),
    "no source": ({"inputs": [make_input()]}, f"{SOURCES} But input 'X' set no field"),
    "no source, no name": ({"inputs": [{}]}, f"{SOURCES} But an input set no field"),
    "parameters are no object": (
        {"inputs": [make_input(parameters=5)]},
        f"{SOURCES} But input 'X' set no field",
    ),
    "two sources": (
        {"inputs": [make_input(size=8, data=[1, 2])]},
        f"{SOURCES} But input 'X' set 'data' 'binary_data_size'",
    ),
    "three sources": (
        {"inputs": [make_input(data=[], parameters={"binary_data_size": 0, "shared_memory_region": "r"})]},
        f"{SOURCES} But input 'X' set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
    "no name": (
        {"inputs": [{"datatype": "FP32", "shape": [2], "data": [1, 2]}]},
        "Unable to parse 'name': input 0 has no such member, expected a string",
    ),
    "name": (
        {"inputs": [make_input(None, data=[1, 2])]},
        "Unable to parse 'name': input 0 expects a string, found null",
    ),
    "no datatype": (
        {"inputs": [{"name": "X", "shape": [2], "data": [1, 2]}]},
        "Unable to parse 'datatype': input 'X' has no such member, expected a string",
    ),
    "datatype": (
        {"inputs": [make_input("X", ["FP32"], data=[1, 2])]},
        "Unable to parse 'datatype': input 'X' expects a string, found an array",
    ),
    "unknown datatype": (
        {"inputs": [make_input("X", "FP33", data=[1, 2])]},
        "invalid datatype for input X: found 'FP33', expected one of BOOL, UINT8,",
    ),
    "no shape": (
        {"inputs": [{"name": "X", "datatype": "FP32", "data": [1, 2]}]},
        "Unable to parse 'shape': input 'X' has no such member, expected an array",
    ),
    "shape": (
        {"inputs": [{"name": "X", "datatype": "FP32", "shape": 2, "data": [1, 2]}]},
        "Unable to parse 'shape': input 'X' expects an array, found the integer 2",
    ),
    "negative dimension": (
        {"inputs": [make_input(shape=[-1, 16], size=8)]},
        "Unable to parse 'shape': input 'X' expects unsigned integers, found the integer -1",
    ),
    "float dimension": (
        {"inputs": [make_input(shape=[2.0], size=8)]},
        "Unable to parse 'shape': input 'X' expects unsigned integers, found the number 2.0",
    ),
    "boolean dimension": (
        {"inputs": [make_input(shape=[True], size=8)]},
        "Unable to parse 'shape': input 'X' expects unsigned integers, found the boolean true",
    ),
    "too many dimensions": (
        {"inputs": [make_input(shape=[1] * 33, size=4)]},
        "invalid shape for input 'X': it has 33 dimensions, at most 32 are supported",
    ),
    "dimension above int64": (
        {"inputs": [make_input(shape=[2**63], data=[1])]},
        "invalid shape for input 'X': shape [9223372036854775808] contains one or more invalid dimensions",
    ),
    "element count above int64": (
        {"inputs": [make_input(shape=[2**32, 2**31], data=[1])]},
        (
            "invalid shape for input 'X': shape [4294967296,2147483648] causes total element count to exceed maximum size "
            "of 9223372036854775807"
        ),
    ),
    "a zero beside dimensions that no array has": (
        {"inputs": [make_input("X", "FP64", shape=[0, 2**62], size=0)]},
        "invalid shape for input 'X': shape [0,4611686018427387904] causes total element count to exceed maximum size",
    ),
    "input twice": (
        {"inputs": [make_input(data=[1, 2]), make_input(data=[1, 2])]},
        f"{PREFIX}input 'X' already exists in request",
    ),
    "binary size": (
        {"inputs": [make_input(size="8")]},
        "Unable to parse 'binary_data_size': input 'X' expects an unsigned integer, found the string \"8\"",
    ),
    "negative binary size": (
        {"inputs": [make_input(size=-8)]},
        "Unable to parse 'binary_data_size': input 'X' expects an unsigned integer, found the integer -8",
    ),
    "parameters": (
        {"inputs": [], "parameters": [1]},
        "failed to get request params.: expected an object, found an array",
    ),
    "reserved parameter": (
        {"inputs": [], "parameters": {"triton_x": 1}},
        (
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified: found "
            "'triton_x'"
        ),
    ),
    "parameter null": (
        {"inputs": [], "parameters": {"p": None}},
        "parameter 'p' has invalid type: found null, expected a string, an integer, a boolean or a number",
    ),
    "parameter object": (
        {"inputs": [], "parameters": {"p": {}}},
        "parameter 'p' has invalid type: found an object",
    ),
    "parameter array": (
        {"inputs": [], "parameters": {"p": [1]}},
        "parameter 'p' has invalid type: found an array",
    ),
    "sequence_id": (
        {"inputs": [], "parameters": {"sequence_id": -1}},
        "Unable to parse 'sequence_id': request parameter expects an unsigned integer or a string, found the integer -1",
    ),
    "sequence_id float": (
        {"inputs": [], "parameters": {"sequence_id": 1.0}},
        "Unable to parse 'sequence_id': request parameter expects an unsigned integer or a string, found the number 1.0",
    ),
    "sequence_start": (
        {"inputs": [], "parameters": {"sequence_start": 1}},
        "Unable to parse 'sequence_start': request parameter expects a boolean, found the integer 1",
    ),
    "sequence_end": (
        {"inputs": [], "parameters": {"sequence_end": "true"}},
        "Unable to parse 'sequence_end': request parameter expects a boolean, found the string \"true\"",
    ),
    "priority": (
        {"inputs": [], "parameters": {"priority": True}},
        "Unable to parse 'priority': request parameter expects an unsigned integer, found the boolean true",
    ),
    "timeout": (
        {"inputs": [], "parameters": {"timeout": 1.5}},
        "Unable to parse 'timeout': request parameter expects an unsigned integer, found the number 1.5",
    ),
    "binary_data_output": (
        {"inputs": [], "parameters": {"binary_data_output": 0}},
        "Unable to parse 'binary_data_output': request parameter expects a boolean, found the integer 0",
    ),
    "outputs": (
        {"inputs": [], "outputs": None},
        "Unable to parse 'outputs': the request expects an array, found null",
    ),
    "output": (
        {"inputs": [], "outputs": [1]},
        "Unable to parse 'outputs': expected objects, found the integer 1",
    ),
    "no output name": (
        {"inputs": [], "outputs": [{}]},
        "Unable to parse 'name': output 0 has no such member, expected a string",
    ),
    "binary_data": (
        {"inputs": [], "outputs": [{"name": "Y", "parameters": {"binary_data": 1}}]},
        "Unable to parse 'binary_data': output 'Y' expects a boolean, found the integer 1",
    ),
    "classification": (
        {"inputs": [], "outputs": [{"name": "Y", "parameters": {"classification": -1}}]},
        "Unable to set 'classification': output 'Y' expects an unsigned integer, found the integer -1",
    ),
    "classification false": (
        {"inputs": [], "outputs": [{"name": "Y", "parameters": {"classification": False}}]},
        "Unable to set 'classification': output 'Y' expects an unsigned integer, found the boolean false",
    ),
    "region and classification": (
        {
            "inputs": [],
            "outputs": [{"name": "Y", "parameters": {"shared_memory_region": "r", "classification": 1}}],
        },
        "Output can't set both 'shared_memory_region' and 'classification': output 'Y' does",
    ),
    "region and binary data": (
        {
            "inputs": [],
            "outputs": [{"name": "Y", "parameters": {"shared_memory_region": "r", "binary_data": True}}],
        },
        "Output can't set both 'shared_memory_region' and 'binary_data': output 'Y' does",
    ),
}


@pytest.mark.parametrize(("document", "message"), BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_a_bad_document_is_refused_with_its_reason(document, message):
    with pytest.raises(InvalidArgument) as caught:
        decode(document)

    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("inputs", "blob", "message"),
    [
        ([X8], b"1234", "unexpected size for input 'X', expecting 4 additional bytes for model 'm'"),
        ([X8], b"", "unexpected size for input 'X', expecting 8 additional bytes for model 'm'"),
        ([X8], bytes(9), "unexpected additional input data for model 'm'"),
        ([make_input(data=[1, 2])], b"x", "unexpected additional input data for model 'm'"),
        (
            [make_input("X", "UINT8", [2, 4], size=7)],
            bytes(7),
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 8, got 7",
        ),
        (
            [make_input("X", "FP32", [2], size=0)],
            b"",
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 8, got 0",
        ),
    ],
)
def test_binary_data_must_have_the_announced_size(inputs, blob, message):
    with pytest.raises(InvalidArgument) as caught:
        decode({"inputs": inputs}, blob)

    assert caught.value.message == message


def test_a_huge_binary_size_takes_no_memory():
    with pytest.raises(InvalidArgument, match="additional bytes"):
        decode({"inputs": [make_input(shape=[2**40], size=2**42)]}, EIGHT)


def test_a_shape_of_a_hundred_thousand_dimensions_takes_no_time():
    shape = ",".join(["9223372036854775807"] * 100_000)
    text = f'{{"inputs":[{{"name":"X","datatype":"FP32","shape":[{shape}],"data":[]}}]}}'
    with pytest.raises(InvalidArgument, match="100000 dimensions"):
        decode(text.encode())


def test_the_json_part_is_limited_and_the_binary_part_is_not():
    document = {"inputs": [make_input(shape=[100], size=400)]}
    json_length = make_body(document)[1]

    decode(document, bytes(400), limits=wire_http.Limits(max_input_size=json_length))
    with pytest.raises(InvalidArgument) as caught:
        decode(document, bytes(400), limits=wire_http.Limits(max_input_size=json_length - 1))

    assert caught.value.message == (
        f"request JSON size of {json_length} bytes exceeds the maximum allowed input size of {json_length - 1} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize("name", ["", 'é "quoted" \\ name', "a/b", "\u2028", "x" * 300])
def test_odd_names_are_names(name):
    request = decode({"inputs": [make_input(name, data=[1, 2])], "outputs": [{"name": name}]})

    assert list(request.inputs) == request.outputs == [name]
