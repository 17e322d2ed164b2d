"""Listener and the two front ends on real sockets: start, stop, timers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import replace

import pytest
import uvloop

from bireme.frontend.http import ConnectionLimits, HttpFrontend, HttpOptions, ListenOptions
from bireme.frontend.http.listener import HttpListener
from bireme.frontend.metrics import MetricsFrontend
from bireme.types import Unavailable
from http_fakes import EchoRoute, FakeServer, HoldRoute, echo, parse_replies, post_infer, request, until

GET = request("/v2/health/live")
LOCAL = ListenOptions("127.0.0.1", 0)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    def run_scenario(scenario):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(scenario(), 10))

    return run_scenario


async def ask(port: int, data: bytes) -> bytes:
    """Send ``data`` and read until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_requests_are_answered_over_a_socket(run):
    async def scenario():
        listener = HttpListener(echo, LOCAL)
        await listener.start()
        body = bytes(2_000_000)
        data = GET + request("/large", body, headers={"Connection": "close"})
        first, second = parse_replies(await ask(listener.port, data))
        assert first.body == b"GET /v2/health/live "
        assert second.status == 400  # EchoRoute takes 1 MB
        await listener.stop(0)

    run(scenario)


def test_an_answer_keeps_the_loop_awake_if_it_shall(run):
    async def scenario():
        for busy_poll_us, is_awake in ((0, False), (1_000_000, True)):
            listener = HttpListener(echo, replace(LOCAL, busy_poll_us=busy_poll_us))
            await listener.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            poll = listener.busy_poll
            assert (poll is not None and poll._is_turning) is is_awake
            writer.close()
            await listener.stop(1)

    run(scenario)


@pytest.mark.parametrize("size", [0, 1, 65_000, 70_000, 3_000_000])
def test_bodies_of_any_size_come_back(run, size):
    async def scenario():
        listener = HttpListener(lambda head: EchoRoute(1 << 30), LOCAL)
        await listener.start()
        body = b"x" * size
        data = request("/p", body, method="POST", headers={"Connection": "close"})
        (reply,) = parse_replies(await ask(listener.port, data))
        assert reply.body == b"POST /p " + body
        await listener.stop(0)

    run(scenario)


def test_a_taken_port_is_named(run):
    async def scenario():
        listener = HttpListener(echo, LOCAL)
        await listener.start()
        other = HttpListener(echo, replace(LOCAL, port=listener.port))
        with pytest.raises(
            Unavailable, match=f"cannot listen on '127.0.0.1:{listener.port}': Address already in use$"
        ):
            await other.start()
        nowhere = HttpListener(echo, replace(LOCAL, address="nowhere.invalid"))
        with pytest.raises(Unavailable, match=r"cannot listen on 'nowhere.invalid:0': [A-Z]"):
            await nowhere.start()
        await listener.stop(0)
        assert (listener.port, other.port) == (0, 0)

    run(scenario)


def test_a_port_can_be_shared(run):
    async def scenario():
        first = HttpListener(echo, replace(LOCAL, reuse_port=True))
        await first.start()
        second = HttpListener(echo, replace(LOCAL, reuse_port=True, port=first.port))
        await second.start()
        await first.stop(0)
        await second.stop(0)

    run(scenario)


def test_stop_closes_idle_connections_and_waits_for_the_others(run):
    async def scenario():
        route = HoldRoute()
        listener = HttpListener(lambda head: route, LOCAL)
        await listener.start()
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", listener.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GET)
        await until(lambda: route.held)
        stopping = asyncio.ensure_future(listener.stop(5))
        assert await idle_reader.read() == b""
        assert not stopping.done()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", listener.options.port or listener.port or 1)
        route.held[0].reply(200, b"done")
        (reply,) = parse_replies(await reader.read())
        assert (reply.body, reply.headers["connection"]) == (b"done", "close")
        await stopping
        for each in (idle_writer, writer):
            each.close()

    run(scenario)


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_stop_answers_what_was_sent_and_what_is_on_its_way(run, tmp_path, family):
    """The system would reset who waits to be accepted, or has sent what nobody has read."""
    path = str(tmp_path / "socket") if family == "unix" else ""

    def connect(listener):
        if path:
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
        else:
            client = socket.create_connection(("127.0.0.1", listener.port))
        client.settimeout(5)
        return client

    async def scenario():
        listener = HttpListener(echo, ListenOptions(f"unix:{path}", 0) if path else LOCAL)
        await listener.start()
        with contextlib.ExitStack() as clients:
            used, idle = (clients.enter_context(connect(listener)) for _ in range(2))
            await until(lambda: len(listener.connections) == 2)
            for client in (used, idle):
                client.sendall(GET)
                await asyncio.to_thread(client.recv, 4096)
            new, late = (clients.enter_context(connect(listener)) for _ in range(2))
            for client in (used, new):
                client.sendall(GET)  # from here on the loop has not looked
            stopping = asyncio.ensure_future(listener.stop(5))
            await until(lambda: len(listener.connections) == 1)  # they are answered, or were idle
            late.sendall(GET)
            await stopping
            for client in (used, new, late):
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
                assert client.recv(4096) == b""
            assert idle.recv(4096) == b""

    run(scenario)


def test_a_client_that_connects_and_says_nothing_does_not_hold_up_a_stop(run):
    async def scenario():
        listener = HttpListener(echo, LOCAL)
        await listener.start()
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        start_s = time.monotonic()
        await listener.stop(5)
        assert time.monotonic() - start_s < 2
        writer.close()

    run(scenario)


def test_stop_cuts_what_takes_too_long(run, caplog):
    async def scenario():
        route = HoldRoute()
        listener = HttpListener(lambda head: route, LOCAL)
        await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GET)
        await until(lambda: route.held)
        await listener.stop(0.01)
        assert not listener.connections
        route.held[0].reply(200)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    run(scenario)
    assert "cutting 1 connections" in caplog.text


def test_one_timer_watches_all_connections_and_rests_when_there_are_none(run):
    async def scenario():
        limits = ConnectionLimits(sweep_interval_s=0.01, keepalive_timeout_s=0.03)
        listener = HttpListener(echo, LOCAL, limits=limits)
        await listener.start()
        assert listener._sweep_timer is None
        start = time.monotonic()
        assert await asyncio.gather(*(ask(listener.port, b"") for _ in range(3))) == [b""] * 3
        assert time.monotonic() - start < 5
        await until(lambda: not listener.connections)
        assert listener._sweep_timer is None
        await listener.stop(0)

    run(scenario)


def test_a_client_that_leaves_is_noticed_at_once(run):
    async def scenario():
        server = FakeServer()
        server.holds = True
        frontend = HttpFrontend(server, HttpOptions("127.0.0.1", 0))
        await frontend.start()
        body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}'
        with socket.create_connection(("127.0.0.1", frontend.port)) as client:
            client.sendall(request("/v2/models/m/infer", body) * 2)
            await until(lambda: len(server.held) == 2)
        start = time.monotonic()
        await until(lambda: len(server.cancelled) == 2)
        assert server.cancelled == server.held
        assert time.monotonic() - start < 1
        await frontend.stop(0)

    run(scenario)


# The front ends


def test_http_frontend_writes_its_access_log(run, tmp_path):
    async def scenario():
        path = tmp_path / "access.log"
        options = HttpOptions("127.0.0.1", 0, access_log=str(path), access_log_json=True)
        frontend = HttpFrontend(FakeServer(), options)
        await frontend.start()
        body = b'{"id":"r1","inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}'
        data = request("/v2/models/m/infer", body) + request("/v2/none", headers={"Connection": "close"})
        await ask(frontend.port, data)
        await frontend.stop(0)
        first, second = path.read_text().splitlines()
        assert '"client":"127.0.0.1"' in first
        assert '"method":"POST","route":"/v2/models/m/infer","status":200' in first
        assert '"model":"m","version":1,"id":"r1"' in first
        assert '"route":"/v2/none","status":404' in second

    run(scenario)


def test_frontends_start_stop_and_say_where_they_listen(run):
    async def scenario():
        frontend = HttpFrontend(FakeServer(), HttpOptions("127.0.0.1", 0))
        assert frontend.port == 0
        await frontend.start()
        assert frontend.port > 0
        assert str(frontend.port) in repr(frontend)
        (reply,) = parse_replies(await ask(frontend.port, request("/v2", headers={"Connection": "close"})))
        assert reply.status == 200
        await frontend.stop(1)
        assert frontend.num_connections == 0

    run(scenario)


class FakeMetrics:
    def __init__(self):
        self.metrics = self

    def expose(self):
        return b"# HELP a b\n"


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/metrics", 200, b"# HELP a b\n"),
        ("GET", "/metrics/", 200, b"# HELP a b\n"),
        ("GET", "/metrics?name=x", 200, b"# HELP a b\n"),
        ("GET", "/", 200, b""),
        ("GET", "/v2/health/live", 200, b""),
        ("POST", "/metrics", 405, None),
        ("DELETE", "/", 405, None),
    ],
)
def test_metrics_page(run, method, path, status, body):
    async def scenario():
        frontend = MetricsFrontend(FakeMetrics(), LOCAL)
        await frontend.start()
        data = request(path, method=method, headers={"Connection": "close"})
        (reply,) = parse_replies(await ask(frontend.port, data))
        assert reply.status == status
        if body is None:
            assert b"Method Not Allowed" in reply.body
        else:
            assert reply.body == body
            assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        await frontend.stop(0)

    run(scenario)


def test_retiring_cuts_off_nobody_between_two_requests(run):
    async def scenario():
        front_end = HttpFrontend(FakeServer(), HttpOptions("127.0.0.1", 0))
        await front_end.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
        writer.write(GET)
        (before,) = parse_replies(await reader.readuntil(b"\r\n\r\n"))
        await front_end.retire(1)
        writer.write(GET)  # on the connection that was idle
        (after,) = parse_replies(await reader.read())
        (of_new,) = parse_replies(await ask(front_end.port, GET))
        writer.close()
        await front_end.stop(1)
        return before, after, of_new

    before, after, of_new = run(scenario)
    assert "connection" not in before.headers
    assert after.status == of_new.status == 200
    assert after.headers["connection"] == of_new.headers["connection"] == "close"


def test_retiring_waits_until_received_bodies_are_with_the_engine(run):
    """Otherwise a large JSON body that came before the signal would be refused after it."""

    async def scenario():
        server = FakeServer()
        server.holds = True
        front_end = HttpFrontend(server, HttpOptions("127.0.0.1", 0, offload_size=10))
        await front_end.start()
        tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
        _, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
        writer.write(post_infer({"inputs": [tensor]}))
        await until(lambda: front_end.num_connections)
        await until(lambda: front_end._work._preparations)
        assert not server.submitted
        await front_end.retire(10)
        assert len(server.submitted) == 1
        server.answer(server.held[0])
        writer.close()
        await front_end.stop(1)

    run(scenario)
