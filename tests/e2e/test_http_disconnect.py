"""Case 6 of the users' list: an HTTP client leaves, and the server stops working for it."""

from __future__ import annotations

import asyncio
import json
import socket

import numpy as np
import tritonclient.http.aio as client_library

from e2e_server import RunningServer, fake_config, wait_until
from http_fakes import post_infer, request

BODY = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
SLOW = post_infer(BODY, path="/v2/models/slow/infer")


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http.port), timeout=10)


def test_a_client_that_leaves_gives_its_place_in_the_queue_back(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    first, second, third = (connect(server) for _ in range(3))
    model = server.engine.model("slow")

    first.sendall(SLOW)
    assert backend.started.acquire(timeout=5)
    second.sendall(SLOW)
    wait_until(lambda: model.num_in_flight == 2)
    first.close()
    second.close()
    wait_until(lambda: model.num_in_flight == 1)  # the queued one is gone while the running one still runs
    assert server.failures()["CANCELED"] == 1
    third.sendall(SLOW)
    wait_until(lambda: model.num_in_flight == 2)
    backend.gate.set()

    assert third.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
    third.close()
    assert len(backend.batches) == 2  # the one that left the queue never ran
    wait_until(lambda: model.num_in_flight == 0)


def test_all_pipelined_requests_of_a_client_are_cancelled(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")
    with connect(server) as client:
        client.sendall(SLOW * 5)
        wait_until(lambda: model.num_in_flight == 5)
    wait_until(lambda: model.num_in_flight == 1)
    backend.gate.set()
    wait_until(lambda: model.num_in_flight == 0)

    assert server.failures()["CANCELED"] >= 4
    assert len(backend.batches) == 1


def test_a_client_that_is_killed_counts_as_one_that_leaves(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")
    client = connect(server)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close sends a reset
    client.sendall(SLOW * 2)
    wait_until(lambda: model.num_in_flight == 2)
    client.close()
    wait_until(lambda: model.num_in_flight == 1)
    backend.gate.set()


def test_leaving_in_the_middle_of_a_body_or_an_answer_hurts_nobody(start_fake):
    server, _ = start_fake({"m": fake_config("m")})
    values = np.zeros(1_000_000, np.float32)
    item = {"name": "X", "datatype": "FP32", "shape": [values.size]}
    item["parameters"] = {"binary_data_size": values.nbytes}
    data = post_infer({"inputs": [item], "parameters": {"binary_data_output": True}}, values.tobytes())
    for sent in (50, 1000, 500_000, len(data)):
        with connect(server) as client:
            client.sendall(data[:sent])
            if sent == len(data):
                assert client.recv(1000)
    with connect(server) as client:
        client.sendall(request("/v2/health/ready", headers={"Connection": "close"}))
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    wait_until(lambda: server.http.num_connections == 0)
    assert server.engine.model("m").num_in_flight == 0


def test_a_cancelled_call_of_the_official_client_cancels_the_request(start_fake):
    server, backend = start_fake({"slow": fake_config("slow", dims="[16]")})
    backend.gate.clear()
    model = server.engine.model("slow")

    async def scenario():
        async with client_library.InferenceServerClient(server.address) as client:
            item = client_library.InferInput("X", [16], "FP32")
            item.set_data_from_numpy(np.zeros(16, np.float32))
            calls = [asyncio.ensure_future(client.infer("slow", [item])) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: model.num_in_flight == 2)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.to_thread(wait_until, lambda: model.num_in_flight == 1)

    asyncio.run(scenario())
    backend.gate.set()


def test_health_answers_while_large_json_is_on_its_way(server):
    """Not a matter of time here (the benchmark measures it) but of order: many probes within one request."""
    values = np.random.default_rng(0).random(400_000, dtype=np.float32)
    item = {"name": "X", "datatype": "FP32", "shape": [values.size], "data": values.tolist()}
    data = post_infer({"inputs": [item]}, path="/v2/models/plus_one/infer")
    with connect(server) as client, connect(server) as prober:
        client.sendall(data)
        client.setblocking(False)
        probes = 0
        received = b""
        while not received:
            prober.sendall(request("/v2/health/live"))
            assert prober.recv(1000).startswith(b"HTTP/1.1 200")
            probes += 1
            try:
                received = client.recv(65536)
            except BlockingIOError:
                continue
        client.settimeout(30)
        head, _, body = received.partition(b"\r\n\r\n")
        size = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
        while len(body) < size:
            body += client.recv(1 << 20)
    assert probes > 10
    (output,) = json.loads(body)["outputs"]
    np.testing.assert_allclose(output["data"], values + 1, rtol=1e-6)
