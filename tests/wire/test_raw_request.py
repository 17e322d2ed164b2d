"""The raw form of an infer body: no JSON at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from bireme.types import InvalidArgument
from bireme.wire import http as wire_http
from infer_bodies import LIMITS, respond

PREFIX = "[request id: <id_unknown>] "


@dataclass
class Spec:
    name: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]


def spec(datatype, dims, *, batches=False):
    return Spec("X", datatype, dims, (-1, *dims) if batches else dims)


def decode(data, *specs, limits=LIMITS):
    inputs = {each.name: each for each in specs}
    body = memoryview(bytearray(data))
    return wire_http.decode_raw_request(
        body, inputs, model_name="m", model_version=2, respond=respond, limits=limits
    )


@pytest.mark.parametrize(
    ("datatype", "dims", "batches", "size", "shape"),
    [
        ("FP32", (2, 3), False, 24, (2, 3)),
        ("FP32", (2, 3), True, 24, (1, 2, 3)),
        ("UINT8", (-1,), False, 7, (7,)),
        ("UINT8", (-1,), True, 0, (1, 0)),
        ("INT16", (2, -1, 3), True, 24, (1, 2, 2, 3)),
        ("FP64", (), True, 8, (1,)),
        ("BF16", (), False, 2, ()),
        ("INT8", (0, -1), False, 0, (0, 0)),
    ],
)
def test_the_shape_is_deduced(datatype, dims, batches, size, shape):
    data = bytes(range(size))
    request = decode(data, spec(datatype, dims, batches=batches))

    tensor = request.inputs["X"]
    assert (request.model_name, request.model_version, request.respond) == ("m", 2, respond)
    assert tensor.shape == tensor.to_numpy().shape == shape
    assert tensor.to_numpy().tobytes() == data
    assert request.context.default_binary
    assert request.outputs is None


def test_the_tensor_is_a_view_of_the_body():
    body = memoryview(bytearray(8))
    request = wire_http.decode_raw_request(
        body, {"X": spec("FP32", (2,))}, model_name="m", respond=respond, limits=LIMITS
    )

    assert np.shares_memory(request.inputs["X"].to_numpy(), np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    ("dims", "batches", "shape"),
    [((1,), False, (1,)), ((1,), True, (1, 1)), ((), True, (1,)), ((), False, ())],
)
@pytest.mark.parametrize("data", [b"", b"any bytes \xff"])
def test_a_bytes_input_takes_the_body_as_its_element(dims, batches, shape, data):
    tensor = decode(data, spec("BYTES", dims, batches=batches)).inputs["X"]

    assert tensor.shape == tensor.to_numpy().shape == shape
    assert tensor.to_numpy().reshape(-1).tolist() == [data]
    assert bytes(tensor.to_buffer()) == len(data).to_bytes(4, "little") + data


@pytest.mark.parametrize(
    ("data", "specs", "message"),
    [
        (
            b"",
            [],
            (
                f"{PREFIX}Raw request must only have 1 input (found 1) to be deduced but got 0 inputs in 'm' model "
                "configuration"
            ),
        ),
        (
            b"",
            [Spec("A", "INT8", (1,), (1,)), Spec("B", "INT8", (1,), (1,))],
            (
                f"{PREFIX}Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model "
                "configuration"
            ),
        ),
        (
            bytes(4),
            [spec("INT8", (-1, 2, -1))],
            (
                f"{PREFIX}The shape of the raw input 'X' can not be deduced because there are more than one variable-sized "
                "dimension: 'm' has [-1,2,-1]"
            ),
        ),
        (
            b"ab",
            [spec("BYTES", (2,))],
            f"{PREFIX}For BYTE datatype raw input 'X', the model must have input shape [1]: 'm' has [2]",
        ),
        (
            b"ab",
            [spec("BYTES", (-1,))],
            f"{PREFIX}For BYTE datatype raw input 'X', the model must have input shape [1]",
        ),
        (
            bytes(5),
            [spec("FP32", (2,))],
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 8, got 5",
        ),
        (
            bytes(10),
            [spec("INT16", (-1, 2))],
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected a multiple of 4, got 10",
        ),
        (
            bytes(3),
            [spec("INT16", (0, -1))],
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 0, got 3",
        ),
    ],
)
def test_what_does_not_fit_is_refused(data, specs, message):
    with pytest.raises(InvalidArgument) as caught:
        decode(data, *specs)

    assert caught.value.message.startswith(message)


def test_the_size_is_limited():
    limits = wire_http.Limits(max_input_size=7)
    decode(bytes(7), spec("INT8", (-1,)), limits=limits)
    with pytest.raises(InvalidArgument) as caught:
        decode(bytes(8), spec("INT8", (-1,)), limits=limits)

    assert caught.value.message == (
        "Raw input has a byte_size (8 bytes) that exceeds the maximum allowed value of 7 bytes. Use "
        "--http-max-input-size to increase the limit."
    )
