"""The routes of the shared memory extensions, and inference through regions, over a fake engine."""

from __future__ import annotations

import asyncio
import base64
import json

import numpy as np
import pytest

from bireme.engine.validation import MAX_INLINE_BYTES
from bireme.ipc.shared_memory import SharedMemoryRegions
from bireme.types import encode_bytes
from bireme.wire.encoded import MAX_COPY_BYTES
from http_fakes import Scene, post_infer, request, tensor, until
from shm_objects import ShmObjects

DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
TOO_SMALL = "shared memory size specified with the request for output 'X' (7 bytes) should be at least 8 bytes to hold the results"
HANDLE = base64.b64encode(bytes(64)).decode()
CUDA = {"raw_handle": {"b64": HANDLE}, "device_id": 0, "byte_size": 8}


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def make_shm():
    with ShmObjects() as objects:
        yield objects.make


def post(path: str, document: object = b"") -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return request(path, body, method="POST")


def register(scene: Scene, name: str, key: str, byte_size: int, offset: int = 0) -> None:
    document = {"key": key, "offset": offset, "byte_size": byte_size}
    reply = scene.ask(post(f"/v2/systemsharedmemory/region/{name}/register", document))
    assert (reply.status, reply.body) == (200, b"")


def error(reply) -> tuple[int, str]:
    return reply.status, json.loads(reply.body)["error"]


# Routes


def test_regions_come_and_go(scene, make_shm):
    shm = make_shm(100)
    register(scene, "b", shm.key, 10, offset=90)
    register(scene, "a", shm.key, 100)
    a = {"name": "a", "key": shm.key, "offset": 0, "byte_size": 100}
    b = {"name": "b", "key": shm.key, "offset": 90, "byte_size": 10}

    reply = scene.ask(request("/v2/systemsharedmemory/status"))
    assert (reply.status, json.loads(reply.body)) == (200, [a, b])
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(scene.ask(request("/v2/systemsharedmemory/region/b/status")).body) == [b]
    assert json.loads(scene.ask(request("/v2/cudasharedmemory/status")).body) == []

    for path in ("/v2/systemsharedmemory/region/b/unregister", "/v2/systemsharedmemory/region/b/unregister"):
        reply = scene.ask(post(path))
        assert (reply.status, reply.body) == (200, b"")
    assert json.loads(scene.ask(request("/v2/systemsharedmemory/status")).body) == [a]
    assert scene.ask(post("/v2/cudasharedmemory/unregister")).status == 200
    assert scene.ask(post("/v2/cudasharedmemory/region/a/unregister")).status == 200
    assert len(scene.server.shared_memory) == 1
    assert scene.ask(post("/v2/systemsharedmemory/unregister")).status == 200
    assert json.loads(scene.ask(request("/v2/systemsharedmemory/status")).body) == []


def test_a_region_s_name_is_compared_as_received(scene, make_shm):
    register(scene, "a%20b", make_shm(8).key, 8)

    assert scene.ask(request("/v2/systemsharedmemory/region/a%20b/status")).status == 200
    assert scene.ask(request("/v2/systemsharedmemory/region/ab/status")).status == 404


def test_unknown_names_and_other_kinds_have_no_status(scene, make_shm):
    register(scene, "r", make_shm(8).key, 8)

    assert error(scene.ask(request("/v2/systemsharedmemory/region/x/status"))) == (
        404,
        "Unable to find system shared memory region: 'x'",
    )
    assert error(scene.ask(request("/v2/cudasharedmemory/region/x/status"))) == (
        404,
        "Unable to find cuda shared memory region: 'x'",
    )
    assert error(scene.ask(request("/v2/cudasharedmemory/region/r/status"))) == (
        404,
        "The region named 'r' is registered as system shared memory, not CUDA shared memory",
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "Shared Memory register request has no 'key' field"),
        ({"byte_size": 8}, "Shared Memory register request has no 'key' field"),
        ({"key": "/k"}, "Shared Memory register request has no 'byte_size' field"),
        ({"key": 1, "byte_size": 8}, "Unable to parse 'key': expected a string, found the integer 1"),
        (
            {"key": "/k", "byte_size": "8"},
            "Unable to parse 'byte_size': expected an unsigned integer, found the string \"8\"",
        ),
        (
            {"key": "/k", "byte_size": 8, "offset": -1},
            "Unable to parse 'offset': expected an unsigned integer, found the integer -1",
        ),
        (
            {"key": "/k", "byte_size": 8, "offset": None},
            "Unable to parse 'offset': expected an unsigned integer, found null",
        ),
        ({"key": "//", "byte_size": 8}, "cannot register shared memory region 'r' - invalid shm key '//'"),
        ([], "the request must be a JSON object, found an array"),
        (b"{", "failed to parse the request JSON buffer: "),
    ],
)
def test_malformed_registrations_are_refused(scene, document, message):
    status, text = error(scene.ask(post("/v2/systemsharedmemory/region/r/register", document)))

    assert status == 400
    assert text.startswith(message)


def test_registrations_that_cannot_be(scene, make_shm):
    shm = make_shm(8)
    path = "/v2/systemsharedmemory/region/r/register"
    status, text = error(scene.ask(post(path, {"key": "/bireme_test_none", "byte_size": 8})))
    assert status == 500
    assert text.startswith("Unable to open shared memory region: '/bireme_test_none'")
    status, text = error(scene.ask(post(path, {"key": shm.key, "byte_size": 9})))
    assert status == 400
    assert text.startswith("failed to register shared memory region 'r': invalid args")
    register(scene, "r", shm.key, 8)
    assert error(scene.ask(post(path, {"key": shm.key, "byte_size": 8}))) == (
        400,
        "shared memory region 'r' already in manager",
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (CUDA, "failed to register CUDA shared memory region: 'r', GPUs not supported"),
        (b"", "Shared Memory register request has no 'raw_handle' field"),
        (
            CUDA | {"raw_handle": HANDLE[:4]},
            "Unable to parse 'raw_handle': expected an object with a string 'b64', found the string \"AAAA\"",
        ),
        (
            CUDA | {"raw_handle": {}},
            "Unable to parse 'raw_handle': expected an object with a string 'b64', found an object",
        ),
        (
            CUDA | {"raw_handle": {"b64": "é!"}},
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t: ",
        ),
        (
            CUDA | {"raw_handle": {"b64": ""}},
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t: expected 64 bytes, found 0",
        ),
        (
            {"raw_handle": {"b64": HANDLE}, "device_id": 0},
            "Shared Memory register request has no 'byte_size' field",
        ),
        (
            {"raw_handle": {"b64": HANDLE}, "byte_size": 8},
            "Shared Memory register request has no 'device_id' field",
        ),
        (
            CUDA | {"device_id": True},
            "Unable to parse 'device_id': expected an unsigned integer, found the boolean true",
        ),
    ],
)
def test_cuda_registrations_are_checked_and_refused(scene, document, message):
    status, text = error(scene.ask(post("/v2/cudasharedmemory/region/r/register", document)))

    assert status == 400
    assert text.startswith(message)


def test_registration_needs_a_name(scene):
    for kind, path in (("system", "systemsharedmemory"), ("cuda", "cudasharedmemory")):
        assert error(scene.ask(post(f"/v2/{path}/register"))) == (
            400,
            f"'region name' is necessary to register {kind} shared memory region",
        )


def test_a_server_that_does_not_allow_regions_says_how_to_change_that(scene):
    scene.server.shared_memory = SharedMemoryRegions(is_allowed=False)
    for path in ("systemsharedmemory", "cudasharedmemory"):
        for place in ("register", "region/r/register", "unregister", "region/r/unregister"):
            assert error(scene.ask(post(f"/v2/{path}/{place}", b"{"))) == (501, DISABLED)
        assert json.loads(scene.ask(request(f"/v2/{path}/status")).body) == []
        assert scene.ask(request(f"/v2/{path}/region/r/status")).status == 404


@pytest.mark.parametrize(
    ("method", "action"), [("POST", "status"), ("GET", "register"), ("GET", "unregister")]
)
def test_verbs(scene, method, action):
    assert scene.ask(request(f"/v2/systemsharedmemory/region/r/{action}", method=method)).status == 405


# Inference


def place(region: str, byte_size: int, offset: int = 0) -> dict:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
    }


def ask_for(shape: list[int], datatype: str, read: dict, write: dict, **more) -> dict:
    an_input = {"name": "X", "datatype": datatype, "shape": shape, "parameters": read}
    return {"inputs": [an_input], "outputs": [{"name": "X", "parameters": write}], **more}


def test_tensors_stay_in_shared_memory_both_ways(scene, make_shm):
    shm = make_shm(64)
    register(scene, "r", shm.key, 64)
    shm.memory[16:24] = np.array([1, 2], "<f4").tobytes()
    asked = post_infer(ask_for([2], "FP32", place("r", 8, 16), place("r", 16, 40), id="7"))
    for _ in range(2):
        reply = scene.ask(asked)

        assert json.loads(reply.body) == {
            "id": "7",
            "model_name": "m",
            "model_version": "1",
            "outputs": [{"name": "X", "datatype": "FP32", "shape": [2]}],
        }
        assert "inference-header-content-length" not in reply.headers
    assert shm.memory[40:48] == np.array([1, 2], "<f4").tobytes()


def test_errors_of_regions_are_answered(scene, make_shm):
    shm = make_shm(64)
    register(scene, "r", shm.key, 64)

    for read, write, expected in (
        (place("x", 8), place("r", 8), (404, "Unable to find shared memory region: 'x'")),
        (place("r", 8), place("r", 8, 64), (400, "Invalid offset for shared memory region: 'r'")),
        (place("r", 8, 57), place("r", 8), (400, "Invalid offset + byte size for shared memory region: 'r'")),
        (
            place("r", 8),
            place("r", 7),
            (
                500,
                TOO_SMALL,
            ),
        ),
    ):
        assert error(scene.ask(post_infer(ask_for([2], "FP32", read, write)))) == expected


def test_a_region_unregistered_in_flight_is_used_to_the_end_and_then_unmapped(scene, make_shm):
    shm = make_shm(64)
    register(scene, "r", shm.key, 64)
    shm.memory[:8] = np.array([1, 2], "<f4").tobytes()
    scene.server.holds = True
    asked = post_infer(ask_for([2], "FP32", place("r", 8), place("r", 8, 8)))
    scene.client.send(asked)
    assert scene.server.shared_memory.system_status() != []
    scene.server.shared_memory.unregister_system("r")
    assert scene.server.shared_memory.system_status() == []

    assert shm.is_mapped()
    scene.server.answer(scene.server.held.pop())
    assert scene.client.replies[-1].status == 200
    assert shm.memory[8:16] == np.array([1, 2], "<f4").tobytes()
    scene.server.submitted.clear()
    assert not shm.is_mapped()
    assert error(scene.ask(asked)) == (404, "Unable to find shared memory region: 'r'")


def test_the_region_of_a_client_that_left_is_not_written_to(scene, make_shm):
    shm = make_shm(64)
    register(scene, "r", shm.key, 64)
    scene.server.holds = True
    scene.client.send(post_infer(ask_for([2], "FP32", place("r", 8), place("r", 8, 8))))
    scene.client.leave()
    (held,) = scene.server.held
    assert scene.server.cancelled == [held]
    scene.server.answer(held, [tensor("X", np.ones(2, np.float32))])

    assert shm.memory[:] == bytes(64)


def test_large_strings_in_a_region_are_decoded_beside_the_loop(scene, make_shm):
    elements = [b"x" * 60] * (MAX_INLINE_BYTES // 64 + 1)
    encoded = encode_bytes(elements)
    shm = make_shm(2 * len(encoded))
    shm.memory[: len(encoded)] = encoded
    checked = []

    class Validator:
        def check_bytes(self, request):
            checked.extend(request.inputs)

    scene.server.models["m"].validator = Validator()

    async def scenario():
        register(scene, "r", shm.key, 2 * len(encoded))
        read, write = place("r", len(encoded)), place("r", len(encoded), len(encoded))
        reply = await scene.ask_later(post_infer(ask_for([len(elements)], "BYTES", read, write)))
        assert reply.status == 200
        await scene.api.stop()

    asyncio.run(scenario())
    assert checked == ["X"]
    assert shm.memory[len(encoded) :] == encoded


def test_large_outputs_are_copied_beside_the_loop(scene, make_shm):
    size = MAX_COPY_BYTES + 4
    shm = make_shm(2 * size)
    shm.memory[:size] = bytes([1]) * size

    async def scenario():
        register(scene, "r", shm.key, 2 * size)
        asked = post_infer(ask_for([size], "UINT8", place("r", size), place("r", size, size)))
        scene.client.send(asked)
        answered_at_once = len(scene.client.replies) > 1
        await until(lambda: len(scene.client.replies) > 1)
        assert not answered_at_once
        assert scene.client.replies[-1].status == 200
        await scene.api.stop()

    asyncio.run(scenario())
    assert shm.memory[size:] == bytes([1]) * size


def test_places_survive_the_process_that_parses_large_json(make_shm):
    scene = Scene(offload_size=1000)
    shm = make_shm(64)
    shm.memory[:8] = np.array([1, 2], "<f4").tobytes()
    document = ask_for([2], "FP32", place("r", 8), place("r", 8, 8))
    document["inputs"].append({"name": "J", "datatype": "INT8", "shape": [1000], "data": [1] * 1000})

    async def scenario():
        register(scene, "r", shm.key, 64)
        reply = await scene.ask_later(post_infer(document))
        assert reply.status == 200
        assert json.loads(reply.body)["outputs"][0] == {"name": "X", "datatype": "FP32", "shape": [2]}
        await scene.api.stop()

    asyncio.run(scenario())
    assert shm.memory[8:16] == np.array([1, 2], "<f4").tobytes()
    assert list(scene.server.submitted[0].inputs) == ["X", "J"]
