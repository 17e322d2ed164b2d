"""The client half of the protocol: requests that the server's decoder reads, answers that its encoder wrote."""

from __future__ import annotations

import socket
from contextlib import closing

import numpy as np
import pytest

from bireme.cli.answers import describe, to_json
from bireme.cli.targets import Answer, Call, RemoteServer, decode_answer, encode_call
from bireme.types import InferenceResponse, InvalidArgument, Tensor, Unavailable
from bireme.wire.http import Limits, WantedOutputs, decode_infer_request, encode_infer_response

TENSORS = [
    Tensor.from_numpy("X", np.arange(6, dtype=np.float32).reshape(2, 3)),
    Tensor.from_numpy("T", np.array([b"one", "zwei"], np.object_)),
    Tensor.from_numpy("B", np.array([True])),
    Tensor.from_numpy("empty", np.zeros((0, 4), np.int16)),
]


def test_the_server_reads_what_the_client_wrote():
    call = Call("m", 3, TENSORS, ("Y",), num_classes=2, parameters={"p": 1}, id="7")
    header, blobs = encode_call(call)

    request = decode_infer_request(
        memoryview(b"".join((header, *blobs))),
        len(header),
        model_name="m",
        model_version=3,
        respond=lambda request, response: None,
        limits=Limits(),
    )

    assert [tensor.name for tensor in TENSORS] == list(request.inputs)
    for tensor in TENSORS:
        read = request.inputs[tensor.name]
        assert (tensor.datatype, tensor.shape) == (read.datatype, read.shape)
        assert tensor.to_numpy().tolist() == read.to_numpy().tolist()
    assert ("7", {"p": 1}, ["Y"]) == (request.id, request.parameters, list(request.outputs or ()))
    assert 2 == request.context.by_name["Y"].classification


@pytest.mark.parametrize("binary", [True, False])
def test_the_client_reads_what_the_server_wrote(binary):
    response = InferenceResponse("m", 2, "id", TENSORS, parameters={"p": True})
    body = encode_infer_response(response, WantedOutputs(default_binary=binary))

    answer = decode_answer(b"".join(body.pieces), body.json_length, 1.5)

    assert ("m", "2", "id", {"p": True}, 1.5) == (
        answer.model,
        answer.version,
        answer.id,
        answer.parameters,
        answer.took_ms,
    )
    for sent, read in zip(TENSORS, answer.outputs, strict=True):
        assert (sent.name, sent.datatype, sent.shape) == (read.name, read.datatype, read.shape)
        assert sent.to_numpy().tolist() == [
            element.encode() if isinstance(element, str) else element for element in read.to_numpy().tolist()
        ]


def test_json_output_is_the_protocol_s_response_object():
    answer = Answer("m", "1", TENSORS[:2], 2.0)

    assert (
        '{"model_name":"m","model_version":"1","outputs":['
        '{"name":"X","datatype":"FP32","shape":[2,3],"data":[0.0,1.0,2.0,3.0,4.0,5.0]},'
        '{"name":"T","datatype":"BYTES","shape":[2],"data":["one","zwei"]}]}'
    ) == to_json(answer).replace(" ", "")


@pytest.mark.parametrize(
    ("array", "datatype", "expected"),
    [
        (np.array([1.5, 2.0], np.float32), "FP32", "[1.5, 2. ]"),
        (np.array([0x3FC0], np.uint16), "BF16", "[1.5]"),
        (np.arange(100), "INT64", "0, 1, 2, 3, …  (min 0, mean 49.5, max 99)"),
        (np.arange(100) < 3, "BOOL", "1, 1, 1, 0, …  (3 of 100 true)"),
        (np.array([b"a", b"\xff"], np.object_), "BYTES", "a\n\\xff"),
        (np.array([b"x"] * 25, np.object_), "BYTES", "\n".join(["x"] * 20) + "\n… and 5 more"),
    ],
)
def test_values_are_shown_where_few_and_summed_up_where_many(array, datatype, expected):
    assert expected == describe(Tensor.from_numpy("Y", array, datatype))


@pytest.mark.parametrize("url", ["ftp://host", "http://"])
def test_an_address_that_is_none_is_explained(url):
    with pytest.raises(InvalidArgument, match="expected http://HOST:PORT"):
        RemoteServer(url, 1.0)


def test_a_server_that_is_not_there_is_named():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(Unavailable, match=f"no answer from http://127.0.0.1:{port}: .*refused"):
        RemoteServer(f"http://127.0.0.1:{port}", 1.0).config("m", -1)
