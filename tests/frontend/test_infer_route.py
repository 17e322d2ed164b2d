"""The infer route over a fake engine: JSON and binary both ways, compression, headers, limits, errors."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import threading
import zlib
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from bireme.config import parse_text
from bireme.engine.validation import RequestValidator
from bireme.types import (
    BackendFailed,
    InferenceResponse,
    Internal,
    InvalidArgument,
    QueueFull,
    Unavailable,
    encode_bytes,
)
from http_fakes import FakeConfig, FakeModel, FakeServer, Reply, Scene, post_infer, request, tensor

VALUES = np.arange(4, dtype=np.float32)


def an_input(name: str = "X", values: np.ndarray = VALUES, **parameters) -> dict:
    item = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
    return item | ({"parameters": parameters} if parameters else {"data": values.ravel().tolist()})


def binary_input(name: str = "X", values: np.ndarray = VALUES) -> dict:
    return an_input(name, values, binary_data_size=values.nbytes)


BINARY_OUT = {"parameters": {"binary_data_output": True}}


@pytest.fixture
def scene():
    return Scene()


def run(scenario) -> None:
    asyncio.run(scenario())


# The usual request


def test_json_in_json_out(scene):
    reply = scene.ask(post_infer({"id": "r1", "inputs": [an_input()]}))

    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in reply.headers
    assert json.loads(reply.body) == {
        "id": "r1",
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "X", "datatype": "FP32", "shape": [4], "data": [0, 1, 2, 3]}],
    }


def test_binary_in_binary_out(scene):
    reply = scene.ask(post_infer({"inputs": [binary_input()]} | BINARY_OUT, VALUES.tobytes()))
    length = int(reply.headers["inference-header-content-length"])

    assert reply.headers["content-type"] == "application/octet-stream"
    assert json.loads(reply.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert reply.body[length:] == VALUES.tobytes()


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", ""])
def test_content_type_does_not_matter(scene, content_type):
    assert scene.ask(post_infer({"inputs": [an_input()]}, Content_Type=content_type)).status == 200


def test_versions_reach_the_engine(scene):
    scene.ask(post_infer({"inputs": [an_input()]}))
    scene.ask(post_infer({"inputs": [an_input()]}, path="/v2/models/m/versions/3/infer"))

    assert [each.model_version for each in scene.server.submitted] == [-1, 3]


def test_chunked_bodies_are_taken_too():
    async def scenario():
        scene = Scene()
        text = json.dumps({"inputs": [binary_input()]} | BINARY_OUT).encode()
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (text, VALUES.tobytes()))
        headers = {"Transfer-Encoding": "chunked", "Inference-Header-Content-Length": len(text)}
        head = request("/v2/models/m/infer", method="POST", headers=headers)
        reply = await scene.ask_later(head + chunks + b"0\r\n\r\n")
        assert reply.status == 200
        assert reply.body.endswith(VALUES.tobytes())
        await scene.api.stop()

    run(scenario)


def test_large_binary_tensors_are_not_copied_and_are_aligned(scene):
    scene.server.holds = True
    values = np.arange(100_000, dtype=np.float32)
    text = json.dumps({"inputs": [binary_input("X", values)]} | BINARY_OUT).encode()
    data = post_infer(text, values.tobytes())
    scene.client.send(data[:1000])
    target = np.frombuffer(scene.client.connection.get_buffer(-1), np.uint8)
    scene.client.send(data[1000:])
    (inference,) = scene.server.held
    array = inference.inputs["X"].to_numpy()

    num_behind_tensor_start = len(target) - values.nbytes
    assert array.ctypes.data == target.ctypes.data + num_behind_tensor_start
    assert array.ctypes.data % 64 == 0
    np.testing.assert_array_equal(array, values)

    scene.server.answer(inference)
    (buffers,) = scene.client.transport.writes
    assert np.frombuffer(buffers[-1], np.float32).ctypes.data == array.ctypes.data


def test_raw_requests_have_no_json():
    async def scenario():
        scene = Scene()
        scene.server.models["m"].inputs = {
            "X": SimpleNamespace(name="X", datatype="FP32", dims=(-1,), shape=(-1,))
        }
        data = request("/v2/models/m/infer", VALUES.tobytes(), headers={"Inference-Header-Content-Length": 0})
        reply = await scene.ask_later(data)
        assert reply.status == 200
        assert reply.body.endswith(VALUES.tobytes())
        await scene.api.stop()

    run(scenario)


def test_classification_uses_the_labels_and_the_batch_dimension_of_the_model(scene):
    scene.server.models["m"] = FakeModel(max_batch_size=8, labels={"X": ["a", "b", "c", "d"]})
    outputs = [{"name": "X", "parameters": {"classification": 2}}]
    reply = scene.ask(post_infer({"inputs": [an_input(values=VALUES.reshape(1, 4))], "outputs": outputs}))
    (output,) = json.loads(reply.body)["outputs"]

    assert output == {
        "name": "X",
        "datatype": "BYTES",
        "shape": [1, 2],
        "data": ["3.000000:3:d", "2.000000:2:c"],
    }


# Errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidArgument("[request id: a] unexpected shape"), 400),
        (QueueFull("exceeds maximum queue size"), 503),
        (Internal("bug"), 500),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_engine_errors_keep_their_text_and_status(scene, error, status, later):
    if later:
        scene.server.holds = True
        scene.client.send(post_infer({"inputs": [an_input()]}))
        (inference,) = scene.server.held
        scene.server.answer(inference, [], error=error)
        reply = scene.client.reply()
    else:
        scene.server.submit_error = error
        reply = scene.ask(post_infer({"inputs": [an_input()]}))

    assert (reply.status, json.loads(reply.body)) == (status, {"error": error.message})
    assert reply.headers.get("retry-after") == ("1" if status == 503 else None)


def test_unknown_model_comes_before_whatever_is_wrong_with_the_body(scene):
    reply = scene.ask(post_infer(b"{nonsense", path="/v2/models/x/infer"))

    assert (reply.status, json.loads(reply.body)["error"]) == (
        404,
        "Request for unknown model: 'x' is not found",
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (post_infer(b"{nonsense"), "failed to parse the request JSON buffer:"),
        (request("/v2/models/m/infer", method="POST"), "failed to parse the request JSON buffer:"),
        (post_infer([]), "must be a JSON object"),
        (post_infer({}), "Unable to parse 'inputs'"),
        (
            post_infer({"inputs": [binary_input()]}, b"short"),
            "unexpected size for input 'X', expecting 11 additional",
        ),
        (
            post_infer({"inputs": [binary_input()]}, bytes(17)),
            "unexpected additional input data for model 'm'",
        ),
        (
            post_infer({"inputs": [an_input()]}, Inference_Header_Content_Length="9999"),
            "inference header size should be in range (0, ",
        ),
        (
            post_infer({"inputs": [an_input()]}, Inference_Header_Content_Length="x"),
            "Unable to parse Inference-Header-Content-Length, got: x",
        ),
        (
            post_infer({"inputs": [an_input()]}, path="/v2/models/m/versions/99999999999999999999/infer"),
            "failed to get model version from specified version string",
        ),
    ],
)
def test_wrong_requests_are_a_400(data, text):
    async def scenario():
        scene = Scene()
        reply = await scene.ask_later(data)
        assert reply.status == 400
        assert text in json.loads(reply.body)["error"]
        assert not scene.server.submitted
        await scene.api.stop()

    run(scenario)


def test_decoupled_models_are_a_501(scene):
    class Decoupled:
        decoupled = True

    scene.server.models["m"].config = FakeConfig(Decoupled())
    reply = scene.ask(post_infer({"inputs": [an_input()]}))

    assert reply.status == 501
    assert "doesn't support models with decoupled transaction policy" in reply.body.decode()


def test_more_than_one_response_is_a_500_and_the_rest_is_dropped(scene):
    scene.server.holds = True
    scene.client.send(post_infer({"inputs": [an_input()]}))
    (inference,) = scene.server.held
    scene.server.answer(inference, final=False)
    scene.server.answer(inference)

    assert scene.client.reply().status == 500
    assert "expected a single response" in scene.client.reply().body.decode()


def test_unforeseen_exceptions_are_a_500_on_the_way_in_and_out(scene, caplog):
    scene.server.submit_error = ZeroDivisionError("secret")
    assert scene.ask(post_infer({"inputs": [an_input()]})).status == 500
    scene.server.submit_error = None
    scene.server.holds = True
    scene.client.send(post_infer({"inputs": [an_input()]}))
    (inference,) = scene.server.held
    inference.respond(inference, InferenceResponse("m", 1, "", [object()]))

    assert [reply.status for reply in scene.client.replies] == [500, 500]
    assert b"secret" not in scene.client.transport.written
    assert "ZeroDivisionError: secret" in caplog.text


def test_a_failed_model_is_a_500_with_its_reason(scene):
    scene.server.submit_error = BackendFailed("model 'm' version 1 failed: bad kernel")
    reply = scene.ask(post_infer({"inputs": [an_input()]}))

    assert (reply.status, json.loads(reply.body)["error"]) == (500, "model 'm' version 1 failed: bad kernel")


def test_requests_of_a_client_that_left_are_cancelled(scene):
    scene.server.holds = True
    scene.client.send(post_infer({"inputs": [an_input()]}) * 3)
    first, second, third = scene.server.held
    scene.server.answer(second)
    scene.client.leave()
    scene.server.answer(first)

    assert scene.server.cancelled == [first, third]
    assert scene.client.transport.written == b""


def test_answered_inferences_leave_no_garbage(scene):
    data = post_infer({"inputs": [binary_input()]} | BINARY_OUT, VALUES.tobytes())
    scene.ask(data)
    scene.server.submitted.clear()
    gc.collect()
    gc.disable()
    try:
        scene.client.send(data * 10)
        scene.server.submitted.clear()
        assert gc.collect() == 0
    finally:
        gc.enable()


# Header forwarding


def test_matching_headers_become_parameters_after_those_of_the_body():
    scene = Scene(header_forward_pattern="^x-|agent")
    document = {"inputs": [an_input()], "parameters": {"p": 1, "X-Team": "body"}}
    scene.ask(post_infer(document, X_Team="blue", USER_AGENT="me", Other="no"))
    (inference,) = scene.server.submitted

    assert inference.parameters == {"p": 1, "X-Team": "blue", "USER-AGENT": "me"}


def test_without_a_pattern_no_header_is_forwarded(scene):
    scene.ask(post_infer({"inputs": [an_input()]}, X_Team="blue"))

    assert scene.server.submitted[0].parameters is None


def test_a_pattern_that_is_none_is_an_error():
    with pytest.raises(InvalidArgument, match="header_forward_pattern"):
        Scene(header_forward_pattern="(")


@pytest.mark.parametrize("name", ["priority", "Timeout", "triton_trace"])
def test_headers_named_like_reserved_parameters_are_refused(name):
    async def scenario():
        scene = Scene(header_forward_pattern=".*")
        reply = await scene.ask_later(request("/v2/models/m/infer", b"{}", headers={name: "1"}))
        assert reply.status == 400
        assert json.loads(reply.body)["error"] == (
            f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
        )
        await scene.api.stop()

    run(scenario)


# Compression


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity", "GZIP"])
@pytest.mark.parametrize("num_values", [4, 50_000])
def test_compressed_requests(encoding, num_values):
    async def scenario():
        scene = Scene()
        values = np.arange(num_values, dtype=np.float32)
        text = json.dumps({"inputs": [binary_input("X", values)]} | BINARY_OUT).encode()
        pack = {"gzip": gzip.compress, "deflate": zlib.compress}.get(encoding.lower(), bytes)
        body = pack(text + values.tobytes())
        headers = {"Content-Encoding": encoding, "Inference-Header-Content-Length": len(text)}
        reply = await scene.ask_later(request("/v2/models/m/infer", body, headers=headers))
        assert reply.status == 200
        assert reply.body.endswith(values.tobytes())
        await scene.api.stop()

    run(scenario)


@pytest.mark.parametrize(("accepted", "used"), [("gzip", "gzip"), ("gzip;q=0.5, deflate", "deflate")])
@pytest.mark.parametrize("num_values", [4, 50_000])
def test_compressed_responses(accepted, used, num_values):
    async def scenario():
        scene = Scene()
        values = np.arange(num_values, dtype=np.float32)
        data = post_infer(
            {"inputs": [binary_input("X", values)]} | BINARY_OUT, values.tobytes(), Accept_Encoding=accepted
        )
        reply = await scene.ask_later(data)
        assert reply.headers["content-encoding"] == used
        plain = zlib.decompress(reply.body, zlib.MAX_WBITS | 32)
        length = int(reply.headers["inference-header-content-length"])
        assert json.loads(plain[:length])["outputs"][0]["name"] == "X"
        assert plain[length:] == values.tobytes()
        await scene.api.stop()

    run(scenario)


def test_errors_are_never_compressed(scene):
    reply = scene.ask(post_infer(b"{", Accept_Encoding="gzip"))

    assert reply.status == 400
    assert "content-encoding" not in reply.headers
    assert json.loads(reply.body)["error"]


def test_unknown_encodings_are_a_501_that_names_the_known_ones():
    async def scenario():
        scene = Scene()
        reply = await scene.ask_later(post_infer(b"{}", Content_Encoding="br"))
        assert reply.status == 501
        assert reply.headers["accept-encoding"] == "gzip, deflate"
        assert "Unsupported compression type" in json.loads(reply.body)["error"]
        await scene.api.stop()

    run(scenario)


@pytest.mark.parametrize("body", [b"not gzip", gzip.compress(b"{}")[:-3], gzip.compress(bytes(100_000))])
def test_broken_or_exploding_compressed_bodies_are_a_400(body):
    async def scenario():
        scene = Scene(max_input_size=50_000)
        reply = await scene.ask_later(
            request("/v2/models/m/infer", body, headers={"Content-Encoding": "gzip"})
        )
        assert reply.status == 400
        assert "ecompress" in json.loads(reply.body)["error"]
        await scene.api.stop()

    run(scenario)


# Limits


def test_the_input_limit_counts_json_and_not_binary_tensors():
    scene = Scene(max_input_size=2000)
    large = np.arange(10_000, dtype=np.float32)
    assert scene.ask(post_infer({"inputs": [binary_input("X", large)]}, large.tobytes())).status == 200
    reply = scene.ask(request("/v2/models/m/infer", b" " * 2001))

    assert reply.status == 400
    assert "exceeds the maximum allowed input size of 2000 bytes" in json.loads(reply.body)["error"]


def test_bodies_beyond_any_reason_are_refused_before_they_are_sent():
    scene = Scene(max_body_size=1 << 20)
    headers = {"Content-Length": 1 << 40, "Inference-Header-Content-Length": 100, "Expect": "100-continue"}
    reply = scene.ask(request("/v2/models/m/infer", method="POST", headers=headers))

    assert reply.status == 413
    assert reply.headers["connection"] == "close"


# Large JSON


def test_large_json_responses_let_the_loop_do_other_things():
    async def scenario():
        scene = Scene()
        values = np.arange(300_000, dtype=np.float32)
        scene.client.send(
            post_infer({"inputs": [binary_input("X", values)]}, values.tobytes()) + request("/v2/health/live")
        )
        turns = 0
        while not scene.client.replies:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 3
        first, second = scene.client.replies
        assert json.loads(first.body)["outputs"][0]["data"] == values.tolist()
        assert second.status == 200
        await scene.api.stop()

    run(scenario)


class FakeOffload:
    """Stands in for the worker process."""

    def __init__(self, error=None):
        self.error = error
        self.jobs: list[tuple[int, int | None, str]] = []

    async def rewrite(self, body, json_length, model_name):
        self.jobs.append((len(body), json_length, model_name))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        text = json.dumps({"inputs": [binary_input()]}).encode()
        return memoryview(text + VALUES.tobytes()), len(text)

    async def stop(self):
        pass


@pytest.mark.parametrize("error", [None, Unavailable("the worker died")])
def test_large_json_requests_are_rewritten_elsewhere(error):
    async def scenario():
        scene = Scene(offload_size=100)
        scene.api.offload = FakeOffload(error)
        small = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
        assert scene.ask(post_infer(small)).status == 200
        data = post_infer({"inputs": [an_input()], "x": " " * 100_000})
        reply = await scene.ask_later(data)
        assert reply.status == (503 if error else 200)
        ((size, json_length, name),) = scene.api.offload.jobs
        assert (size > 100_000, json_length, name) == (True, None, "m")

    run(scenario)


def test_large_json_of_an_unknown_model_is_not_worth_the_work():
    async def scenario():
        scene = Scene(offload_size=100)
        scene.api.offload = FakeOffload()
        reply = await scene.ask_later(post_infer({"x": " " * 1000}, path="/v2/models/x/infer"))
        assert reply.status == 404
        assert not scene.api.offload.jobs

    run(scenario)


def test_a_client_that_leaves_while_its_body_is_rewritten_submits_nothing():
    async def scenario():
        scene = Scene(offload_size=100)
        scene.api.offload = FakeOffload()
        scene.client.send(post_infer({"x": " " * 1000}))
        await asyncio.sleep(0)
        scene.client.leave()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert scene.api.offload.jobs
        assert not scene.server.submitted

    run(scenario)


def test_a_response_that_comes_within_submit_is_sent(scene):
    class Inline(FakeServer):
        def submit(self, request):
            self.answer(request, [tensor("Y", VALUES * 2)])

    scene = Scene(Inline())
    reply = scene.ask(post_infer({"inputs": [an_input()]}))

    assert json.loads(reply.body)["outputs"][0]["data"] == [0, 2, 4, 6]


# Large BYTES


class ThreadNotingValidator(RequestValidator):
    """Notes where BYTES are decoded."""

    threads: ClassVar[list[int]] = []

    def check_bytes(self, request):
        self.threads.append(threading.get_ident())
        super().check_bytes(request)


def ask_with_bytes(body: bytes, num_elements: int) -> tuple[Reply, list[int]]:
    """Send a binary BYTES tensor; return the answer and the threads that decoded it."""
    config = parse_text(
        'name: "m" input [{ name: "X" data_type: TYPE_STRING dims: [-1] }] '
        'output [{ name: "Y" data_type: TYPE_STRING dims: [-1] }]',
        "config.pbtxt",
    )
    ThreadNotingValidator.threads = []

    async def scenario():
        scene = Scene()
        scene.server.models["m"].validator = ThreadNotingValidator(config)
        tensor = {
            "name": "X",
            "datatype": "BYTES",
            "shape": [num_elements],
            "parameters": {"binary_data_size": len(body)},
        }
        reply = await scene.ask_later(post_infer({"inputs": [tensor]}, body))
        await scene.api.stop()
        return reply

    return asyncio.run(scenario()), ThreadNotingValidator.threads


def test_large_bytes_are_decoded_beside_the_loop():
    """A million elements take 0.3 s."""
    reply, threads = ask_with_bytes(encode_bytes([b"ab"] * 20_000), 20_000)

    assert reply.status == 200
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_a_fault_of_large_bytes_is_told_as_of_small_ones():
    reply, _ = ask_with_bytes(encode_bytes([b"ab"] * 20_000)[:-1], 20_000)

    assert reply.status == 400
    assert b"incomplete BYTES data for input 'X': element 19999 at offset 119994" in reply.body
    assert b"for model 'm'" in reply.body
