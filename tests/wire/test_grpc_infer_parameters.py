"""Parameters of gRPC requests, of their tensors, and of responses."""

from __future__ import annotations

import pytest

from bireme.types import InferenceResponse, InvalidArgument, Unsupported
from bireme.wire import grpc as wire_grpc
from grpc_infer_messages import (
    FakeRegions,
    Response,
    decode,
    joined,
    make_input,
    make_output,
    make_request,
)


def read(**parameters):
    return decode(make_request(parameters=parameters))


def refusal(message) -> str:
    with pytest.raises(InvalidArgument) as caught:
        decode(message, FakeRegions(r=bytearray(8)))
    return caught.value.message


def test_parameters_with_a_meaning_are_not_forwarded():
    request = read(
        sequence_id=5,
        sequence_start=True,
        sequence_end=True,
        priority=3,
        timeout=1500,
        triton_enable_empty_final_response=True,
    )

    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (5, True, True)
    assert (request.priority, request.timeout_us, request.parameters) == (3, 1500, None)
    assert request.context.empty_final is True


@pytest.mark.parametrize(
    ("value", "expected"),
    [("s-1", "s-1"), (0, 0), (2**63 - 1, 2**63 - 1), (-1, 2**64 - 1), (-(2**63), 2**63)],
)
def test_a_sequence_id_is_a_string_or_64_bits(value, expected):
    assert read(sequence_id=value).sequence_id == expected


def test_a_priority_may_be_unsigned():
    assert read(priority=("uint64_param", 2**64 - 1)).priority == 2**64 - 1


def test_other_parameters_are_forwarded():
    parameters = {"a": True, "b": -3, "c": "text", "d": 1.5, "binary_data_output": True, "headers": "x"}

    assert read(**parameters).parameters == parameters
    assert read().parameters is None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("sequence_id", True, "int64_param or string_param."),
        ("sequence_id", ("uint64_param", 1), "int64_param or string_param."),
        ("sequence_id", None, "int64_param or string_param."),
        ("sequence_start", 1, "bool_param."),
        ("sequence_end", "true", "bool_param."),
        ("priority", 1.0, "int64_param or uint64_param."),
        ("timeout", ("uint64_param", 1), "int64_param."),
        ("triton_enable_empty_final_response", 1, "bool_param."),
        ("custom", ("uint64_param", 1), "int64_param, bool_param, or string_param."),
        ("custom", None, "int64_param, bool_param, or string_param."),
    ],
)
def test_a_parameter_of_the_wrong_type_is_refused(key, value, expected):
    text = refusal(make_request(parameters={key: value}))

    assert text == f"invalid value type for '{key}' parameter, expected {expected}"


@pytest.mark.parametrize("key", ["priority", "timeout"])
def test_negative_numbers_are_refused(key):
    assert refusal(make_request(parameters={key: -1})) == f"invalid value for '{key}', expected value >= 0."


def test_keys_that_begin_like_the_servers_own_are_reserved():
    text = refusal(make_request(parameters={"triton_x": 1}))

    assert text == (
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response; found 'triton_x'"
    )


def as_input(**parameters):
    return make_request(make_input("T", **parameters), raw=[bytes(8)])


def as_output(**parameters):
    return make_request(outputs=[make_output("T", **parameters)])


@pytest.mark.parametrize("make", [as_input, as_output])
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"shared_memory_offset": 0},
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            {"shared_memory_byte_size": 8},
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            {"shared_memory_region": "r"},
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            {"shared_memory_region": 1},
            "invalid value type for 'shared_memory_region' parameter for tensor 'T', expected string_param.",
        ),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": "8"},
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 'T', expected int64_param.",
        ),
        (
            {"shared_memory_region": "r", "shared_memory_offset": 0.0, "shared_memory_byte_size": 8},
            "invalid value type for 'shared_memory_offset' parameter for tensor 'T', expected int64_param.",
        ),
    ],
)
def test_shared_memory_parameters_stand_together_and_have_types(make, parameters, text):
    assert refusal(make(**parameters)) == text


@pytest.mark.parametrize("make", [as_input, as_output])
def test_other_tensor_parameters_have_no_meaning(make):
    assert decode(make(binary_data=True, binary_data_size=3, x="y"))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"classification": "1"},
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
        ({"classification": 0}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"classification": -2}, "invalid value for 'classification' parameter, expected >= 0"),
        (
            {"classification": 1, "shared_memory_region": "r", "shared_memory_byte_size": 8},
            "output can't set both 'shared_memory_region' and 'classification'",
        ),
    ],
)
def test_what_is_wrong_with_a_wanted_output_is_told(parameters, text):
    assert refusal(as_output(**parameters)).startswith(text)


# Responses


def write(**parameters):
    response = InferenceResponse("m", 1, parameters=parameters)
    message = wire_grpc.encode_infer_response(response, wire_grpc.GrpcWanted())
    return Response.FromString(joined(message)).parameters


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (True, "bool_param"),
        (False, "bool_param"),
        (0, "int64_param"),
        (-1, "int64_param"),
        (-(2**63), "int64_param"),
        (2**63 - 1, "int64_param"),
        (2**63, "uint64_param"),
        (2**64 - 1, "uint64_param"),
        (0.1, "double_param"),
        (float("-inf"), "double_param"),
        ("", "string_param"),
        ("é" * 200, "string_param"),
    ],
)
def test_response_parameters(value, choice):
    found = write(key=value)["key"]

    assert found.WhichOneof("parameter_choice") == choice
    assert getattr(found, choice) == value


def test_several_response_parameters_are_one_map():
    assert set(write(a=1, b="x", c=True)) == {"a", "b", "c"}


def test_text_that_is_no_unicode_does_not_break_the_response():
    assert write(key="a\ud800")["key"].string_param == "a?"


@pytest.mark.parametrize("value", [b"x", 2**64, -(2**63) - 1, None, [1]])
def test_other_response_parameters_are_not_supported(value):
    with pytest.raises(
        Unsupported, match=r"Response parameter 'key' of type '.*' is not currently supported"
    ):
        write(key=value)
