"""The generate extension with a real server and real sockets: ONNX models, decoupled ones, curl, slow readers, shutdown."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.frontend.http import HttpOptions
from bireme.testing import FakeRequestBackend, FakeRequestInstance
from bireme.types import Internal
from e2e_server import RunningServer, fake_config, wait_until
from http_fakes import parse_replies, request

DECOUPLED = "model_transaction_policy { decoupled: true }"
WAIT_S = 10


class Decoupled:
    """A server of one decoupled model ``d``, the responses of which the test sends step by step."""

    def __init__(self, start_server: Callable[..., RunningServer], root: Path, **settings: Any) -> None:
        (root / "d" / "1").mkdir(parents=True)
        config = fake_config("d", datatype="BYTES", dims="[ 1 ]", more=DECOUPLED)
        (root / "d" / "config.pbtxt").write_text(config)
        self.backend = FakeRequestBackend(max_concurrent=64)
        self.server = start_server(root, backends={"fake": self.backend}, **settings)
        self.model = self.server.engine.model("d")

    @property
    def instance(self) -> FakeRequestInstance:
        (instance,) = self.backend.instances
        return instance

    def request(self, index: int = 0):
        """The request that came as number ``index``."""
        wait_until(lambda: len(self.instance.requests) > index)
        return self.instance.requests[index]

    def send(self, held, *texts: str, **settings: Any) -> None:
        """Answer with one response for each text."""

        async def work() -> None:
            for text in texts:
                self.instance.send(held, {"Y": np.array([text.encode()], object)}, **settings)

        self.server.call(work())

    def end(self, held, **settings: Any) -> None:
        """Send an error, or the mark alone that there are no more responses."""

        async def work() -> None:
            self.instance.send(held, **settings)

        self.server.call(work())

    def finish(self) -> None:
        """Be done with what is begun."""

        async def work() -> None:
            while self.instance.executions:
                self.instance.finish()

        self.server.call(work())


@pytest.fixture
def decoupled(start_server, tmp_path) -> Iterator[Callable[..., Decoupled]]:
    made: list[Decoupled] = []

    def make(**settings: Any) -> Decoupled:
        made.append(Decoupled(start_server, tmp_path, **settings))
        return made[-1]

    yield make
    for each in made:
        each.finish()


def connect(server: RunningServer, *, receive_buffer: int = 0) -> socket.socket:
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(WAIT_S)
    sock.connect(("127.0.0.1", server.http.port))
    return sock


def post(path: str, body: dict[str, Any], **headers: str) -> bytes:
    return request(path, json.dumps(body).encode(), method="POST", headers=headers)


def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = bytearray()
    while not data.endswith(end):
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return bytes(data)


STREAM = post("/v2/models/d/generate_stream", {"X": "hi"})


def ask(server: RunningServer, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", server.http.port, timeout=WAIT_S)
    try:
        client.request("POST", path, json.dumps(body))
        reply = client.getresponse()
        return reply.status, reply.headers["Content-Type"], reply.read()
    finally:
        client.close()


# Ordinary models


def test_generate_runs_an_onnx_model(server):
    status, content_type, body = ask(server, "/v2/models/plus_one/generate", {"X": [1, 2.5], "id": "r"})

    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {"id": "r", "model_name": "plus_one", "model_version": "1", "Y": [2, 3.5]}


def test_generate_stream_runs_an_onnx_model(server):
    status, content_type, body = ask(server, "/v2/models/identity_bytes/generate_stream", {"X": "hö"})

    assert (status, content_type) == (200, "text/event-stream; charset=utf-8")
    assert body.startswith(b"data: {")
    assert body.endswith(b"}\n\n")
    assert json.loads(body[6:]) == {"model_name": "identity_bytes", "model_version": "1", "Y": "hö"}


def test_a_batching_model_gets_rows(server):
    status, _, body = ask(server, "/v2/models/add_batch/generate", {"INPUT0": [2] * 32, "INPUT1": [1] * 32})

    assert (status, json.loads(body)["OUTPUT0"]) == (200, [3] * 32)


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_what_the_engine_refuses_is_a_json_error(server, path):
    status, content_type, body = ask(server, f"/v2/models/add/{path}", {"INPUT0": [1] * 16, "id": "r"})

    assert (status, content_type) == (400, "application/json")
    assert json.loads(body)["error"].startswith("[request id: r] expected 2 inputs but got 1 inputs")


def test_large_bodies_go_both_ways(server):
    values = np.random.default_rng(0).random(200_000, dtype=np.float32).tolist()
    status, _, body = ask(server, "/v2/models/plus_one/generate", {"X": values})

    assert status == 200
    np.testing.assert_allclose(json.loads(body)["Y"], np.array(values) + 1, rtol=1e-6)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("option", ["--http1.1", "--http1.0"])
def test_curl(server, option):
    url = f"http://{server.address}/v2/models/identity_bytes/generate_stream"
    command = ["curl", "-sSN", option, "-d", '{"X": "hi"}', url]
    done = subprocess.run(command, capture_output=True, timeout=30, check=True)

    assert json.loads(done.stdout.removeprefix(b"data: "))["Y"] == "hi"


# Decoupled models


def test_events_come_while_the_model_goes_on(decoupled):
    d = decoupled()
    with connect(d.server) as client:
        client.sendall(STREAM)
        held = d.request()
        received = b""
        for word in ("a", "b", "c"):
            d.send(held, word)
            received += read_until(client, b"\n\n\r\n")
            assert f'"Y":"{word}"'.encode() in received
        d.end(held)
        received += read_until(client, b"0\r\n\r\n")
        (reply,) = parse_replies(received)
        assert [event["Y"] for event in reply.events] == ["a", "b", "c"]
        client.sendall(request("/v2/health/live"))
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_an_error_is_an_event_or_the_status(decoupled):
    d = decoupled()
    with connect(d.server) as client:
        client.sendall(STREAM * 2)
        first, second = d.request(0), d.request(1)
        d.send(first, "a")
        d.end(first, error=Internal("no luck"), final=True)
        d.end(second, error=Internal("none at all"), final=True)
        received = read_until(client, b"0\r\n\r\n")
        if received.count(b"0\r\n\r\n") < 2:
            received += read_until(client, b"0\r\n\r\n")
        one, two = parse_replies(received)
    assert (one.status, [*one.events[1].values()]) == (200, ["no luck"])
    assert (two.status, two.events) == (500, [{"error": "none at all"}])


@pytest.mark.parametrize(("texts", "status"), [([], 500), (["a"], 200), (["a", "b"], 500)])
def test_generate_takes_a_decoupled_model_that_answers_once(decoupled, texts, status):
    d = decoupled()
    with connect(d.server) as client:
        client.sendall(post("/v2/models/d/generate", {"X": "hi"}))
        held = d.request()
        d.send(held, *texts)
        d.end(held)
        reply = http.client.HTTPResponse(client)
        reply.begin()
        body = json.loads(reply.read())
    assert reply.status == status
    if status == 200:
        assert body["Y"] == "a"
    else:
        assert body["error"].startswith("generate expects model to produce exactly 1 response")


def test_infer_refuses_decoupled_models(decoupled):
    d = decoupled()
    body = {"inputs": [{"name": "X", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]}
    status, _, text = ask(d.server, "/v2/models/d/infer", body)

    assert status == 501
    assert json.loads(text)["error"].startswith(
        "HTTP end point doesn't support models with decoupled transaction policy; generate_stream"
    )


@pytest.mark.parametrize("num_events", [0, 3])
def test_a_client_that_leaves_cancels_the_request(decoupled, num_events):
    d = decoupled()
    with connect(d.server) as client:
        client.sendall(STREAM)
        held = d.request()
        for _ in range(num_events):
            d.send(held, "a")
            read_until(client, b"\n\n\r\n")
    wait_until(lambda: held.cancelled)

    assert d.instance.cancelled == [held]
    d.end(held)
    wait_until(lambda: d.model.num_in_flight == 0)


def test_a_client_that_does_not_read_is_cut_and_hurts_nobody(decoupled, caplog):
    d = decoupled(http=HttpOptions(max_unsent_bytes=1 << 20))
    text = "x" * 65536
    with connect(d.server, receive_buffer=4096) as slow, connect(d.server) as other:
        slow.sendall(STREAM)
        slow_request = d.request(0)
        other.sendall(STREAM)
        other_request = d.request(1)
        num_sent = 0
        while not slow_request.cancelled and num_sent < 400:
            d.send(slow_request, text)
            num_sent += 1
        assert 16 <= num_sent < 300  # what systems buffer is on top of the limit
        d.send(other_request, "a", final=True)
        assert b'"Y":"a"' in read_until(other, b"0\r\n\r\n")
        d.end(slow_request)
        wait_until(lambda: d.model.num_in_flight == 0)
        received = b""
        while piece := slow.recv(1 << 20):
            received += piece
        assert not next(parse_replies(received[: received.rindex(b"\n\n\r\n") + 4])).is_complete
    assert "left more than 1048576 bytes of its events unread" in caplog.text


def test_a_client_that_reads_at_last_gets_everything(decoupled):
    d = decoupled()
    with connect(d.server, receive_buffer=65536) as client:
        client.sendall(STREAM)
        held = d.request()
        for number in range(100):
            d.send(held, f"{number:05}" + "x" * 65536)
        d.end(held)
        (reply,) = parse_replies(read_until(client, b"\r\n0\r\n\r\n"))
    assert [event["Y"][:5] for event in reply.events] == [f"{number:05}" for number in range(100)]


def test_a_shutdown_waits_for_streams(decoupled):
    d = decoupled()
    with connect(d.server) as client:
        client.sendall(STREAM)
        held = d.request()
        d.send(held, "a")
        stop = asyncio.run_coroutine_threadsafe(d.server.http.stop(WAIT_S), d.server._loop)
        d.send(held, "b")
        assert not stop.done()
        d.end(held)
        (reply,) = parse_replies(read_until(client, b"0\r\n\r\n"))
        assert client.recv(10) == b""
        stop.result(WAIT_S)
    assert [event["Y"] for event in reply.events] == ["a", "b"]


def test_many_streams_at_once(decoupled):
    d = decoupled()
    clients = [connect(d.server) for _ in range(50)]
    for client in clients:
        client.sendall(STREAM)
    d.request(len(clients) - 1)
    for number in range(5):
        for held in list(d.instance.requests):
            d.send(held, f"{number}")
    for held in list(d.instance.requests):
        d.end(held)
    for client in clients:
        with client:
            (reply,) = parse_replies(read_until(client, b"\r\n0\r\n\r\n"))
            assert [event["Y"] for event in reply.events] == list("01234")
    assert d.model.num_in_flight == 0
