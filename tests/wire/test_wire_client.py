"""Our bodies against the official client's: what it writes we read, what we write it reads."""

from __future__ import annotations

import gzip
import zlib

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from bireme.types import InferenceResponse, Tensor
from bireme.wire import http as wire_http
from infer_bodies import LIMITS, joined, respond

OBJECTS = np.array([b"ab", "é".encode(), b""], np.object_)
ARRAYS = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([2**32 - 1], np.uint32),
    "UINT64": np.array([2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-1], np.int16),
    "INT32": np.arange(24, dtype=np.int32).reshape(2, 3, 4),
    "INT64": np.array([-(2**63)], np.int64),
    "FP16": np.array([1.5, -2], np.float16),
    "FP32": np.array([[0.1, np.inf, -np.inf]], np.float32),
    "FP64": np.array([0.1, 1e300]),
    "BYTES": OBJECTS,
    "BF16": np.array([1.5, -3.0], ml_dtypes.bfloat16),
}


def client_body(inputs, **members):
    body, json_length = InferenceServerClient.generate_request_body(inputs, **members)
    return memoryview(bytearray(body)), json_length


def client_input(name, datatype, array, *, binary=True):
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def read(body, json_length):
    return wire_http.decode_infer_request(body, json_length, model_name="m", respond=respond, limits=LIMITS)


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("binary", [True, False])
def test_inputs_of_the_client_are_read(datatype, binary):
    if datatype == "BF16" and not binary:
        return  # the client itself refuses
    array = ARRAYS[datatype]
    request = read(*client_body([client_input("X", datatype, array, binary=binary)]))

    found = request.inputs["X"].to_numpy()
    np.testing.assert_array_equal(found.view(array.dtype) if datatype == "BF16" else found, array)
    assert request.context.default_binary
    assert request.parameters is None


def test_a_whole_request_of_the_client_is_read():
    body, json_length = client_body(
        [client_input("A", "FP32", ARRAYS["FP32"]), client_input("B", "BYTES", OBJECTS)],
        outputs=[
            InferRequestedOutput("Y"),
            InferRequestedOutput("Z", binary_data=False, class_count=3),
        ],
        request_id="17",
        sequence_id=5,
        sequence_start=True,
        priority=2,
        timeout=1000,
        parameters={"mine": "x"},
    )
    request = read(body, json_length)

    assert (request.id, request.sequence_id, request.sequence_start, request.sequence_end) == (
        "17",
        5,
        True,
        False,
    )
    assert (request.priority, request.timeout_us, request.parameters) == (2, 1000, {"mine": "x"})
    wanted = {
        name: (choice.binary, choice.classification) for name, choice in request.context.by_name.items()
    }
    assert wanted == {"Y": (True, 0), "Z": (False, 3)}


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("binary", [True, False])
def test_outputs_are_read_by_the_client(datatype, binary):
    array = ARRAYS[datatype]
    tensor = Tensor.from_numpy("Y", array, datatype)
    reply = wire_http.encode_infer_response(
        InferenceResponse("m", 1, "17", [tensor]), wire_http.WantedOutputs(default_binary=binary)
    )
    result = InferResult.from_response_body(joined(reply), header_length=reply.json_length)

    assert result.get_response()["id"] == "17"
    found = result.as_numpy("Y")
    if datatype == "BYTES" and not binary:
        found = np.array([text.encode() for text in found], np.object_)
    np.testing.assert_array_equal(np.asarray(found, array.dtype), array)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_an_empty_output_is_read_by_the_client(binary, datatype):
    tensor = Tensor.from_numpy(
        "Y", np.empty((0, 2), np.object_ if datatype == "BYTES" else np.float32), datatype
    )
    reply = wire_http.encode_infer_response(
        InferenceResponse("m", 1, "", [tensor]), wire_http.WantedOutputs(default_binary=binary)
    )
    result = InferResult.from_response_body(joined(reply), header_length=reply.json_length)

    assert result.as_numpy("Y").shape == (0, 2)


def test_classes_are_read_by_the_client():
    request = read(
        *client_body(
            [client_input("X", "FP32", ARRAYS["FP32"])], outputs=[InferRequestedOutput("Y", class_count=2)]
        )
    )
    scores = Tensor.from_numpy("Y", np.array([[0.1, 0.9, 0.5]], np.float32))
    reply = wire_http.encode_infer_response(
        InferenceResponse("m", 1, "", [scores]), request.context, {"Y": ["a", "b"]}, has_batch_dim=True
    )
    result = InferResult.from_response_body(joined(reply), header_length=reply.json_length)

    assert result.as_numpy("Y").tolist() == [[b"0.900000:1:b", b"0.500000:2"]]


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies(encoding, compress):
    body, json_length = client_body([client_input("X", "FP32", ARRAYS["FP32"])])
    plain = wire_http.decompress(compress(bytes(body)), LIMITS.max_input_size)
    request = read(memoryview(plain), json_length)
    reply = wire_http.encode_infer_response(
        InferenceResponse("m", 1, "", [*request.inputs.values()]), request.context
    )
    pieces = wire_http.compress(reply.pieces, wire_http.choose_encoding(encoding.encode()))
    result = InferResult.from_response_body(
        b"".join(pieces), header_length=reply.json_length, content_encoding=encoding
    )

    np.testing.assert_array_equal(result.as_numpy("X"), ARRAYS["FP32"])
