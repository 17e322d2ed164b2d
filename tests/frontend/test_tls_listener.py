"""Listeners with TLS on real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading

import pytest
import uvloop

from bireme.frontend.http import HttpFrontend, HttpOptions, ListenOptions
from bireme.frontend.http.listener import HttpListener
from certificates import Authority, organization_of
from http_fakes import EchoRoute, FakeServer, echo, request, until

GET = request("/v2/health/live")


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def own_authority(tmp_path) -> Authority:
    """Return one whose files the test may change."""
    return Authority(tmp_path / "own")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Return a function that runs a scenario; whatever reaches the loop's exception handler fails it."""
    complaints = []

    def run_scenario(scenario):
        async def watched():
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            return await asyncio.wait_for(scenario(), 20)

        with asyncio.Runner(loop_factory=request.param) as runner:
            result = runner.run(watched())
        assert not complaints
        return result

    return run_scenario


def local(authority: Authority, *, mutual: bool = False) -> ListenOptions:
    return ListenOptions("127.0.0.1", 0, tls=authority.options(mutual=mutual))


def test_https_over_a_socket(run, authority):
    async def scenario():
        listener = HttpListener(lambda head: EchoRoute(1 << 30), local(authority))
        await listener.start()
        assert listener.url == f"https://127.0.0.1:{listener.port}"

        def client():
            connection = http.client.HTTPSConnection(
                "localhost", listener.port, context=authority.client(), timeout=10
            )
            for size in (0, 100, 2_000_000, 10):
                connection.request("POST", "/p", bytes(size))
                assert connection.getresponse().read() == b"POST /p " + bytes(size)
            connection.request("GET", "/g", headers={"Connection": "close"})
            assert connection.getresponse().read() == b"GET /g "
            connection.close()

        await asyncio.to_thread(client)
        await listener.stop(1)

    run(scenario)


def test_a_large_answer_is_complete_however_late_it_is_read(run, authority):
    """The end of the connection must not overtake what is still to be sent."""

    async def scenario():
        listener = HttpListener(lambda head: EchoRoute(1 << 30), local(authority))
        await listener.start()
        body = bytes(8_000_000)
        is_closing = threading.Event()

        def client():
            with (
                socket.create_connection(("127.0.0.1", listener.port)) as plain,
                authority.client().wrap_socket(plain, server_hostname="localhost") as secure,
            ):
                secure.sendall(request("/p", body, headers={"Connection": "close"}))
                assert is_closing.wait(10)
                received = 0
                while piece := secure.recv(1 << 16):
                    received += len(piece)
                return received

        asking = asyncio.ensure_future(asyncio.to_thread(client))
        await until(lambda: any(each._transport.is_closing() for each in listener.connections))
        is_closing.set()
        assert await asking > len(body)
        await listener.stop(1)

    run(scenario)


def test_certificates_change_under_open_connections(run, own_authority):
    async def scenario():
        own_authority.issue("server", "before")
        frontend = HttpFrontend(FakeServer(), HttpOptions("127.0.0.1", 0, tls=own_authority.options()))
        await frontend.start()

        async def connect():
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", frontend.port, ssl=own_authority.client(), server_hostname="localhost"
            )
            return reader, writer, organization_of(writer.get_extra_info("peercert"))

        async def ask(reader, writer):
            writer.write(GET)
            return await reader.readuntil(b"\r\n\r\n")

        reader, writer, organization = await connect()
        assert organization == "before"
        own_authority.issue("server", "after")
        context = frontend._listener._certificates.context
        frontend.reopen()
        await until(lambda: frontend._listener._certificates.context is not context)
        newer_reader, newer_writer, organization = await connect()
        assert organization == "after"
        assert b"200 OK" in await ask(reader, writer)
        assert b"200 OK" in await ask(newer_reader, newer_writer)
        for each in (writer, newer_writer):
            each.close()
            await each.wait_closed()
        await frontend.stop(1)

    run(scenario)


async def ask_in_vain(authority: Authority, port: int) -> None:
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=authority.client(), server_hostname="localhost"
    )
    writer.close()  # with TLS 1.3 a client learns of its refusal after its handshake
    await writer.wait_closed()
    raise ConnectionResetError


def test_clients_of_the_wrong_kind_never_reach_the_loop_s_exception_handler(run, authority):
    async def scenario():
        secure = HttpListener(echo, local(authority, mutual=True))
        plain = HttpListener(echo, ListenOptions("127.0.0.1", 0))
        await secure.start()
        await plain.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", secure.port)
        writer.write(GET)
        await reader.read()  # an alert
        writer.close()
        for port in (secure.port, plain.port):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask_in_vain(authority, port)
        with socket.create_connection(("127.0.0.1", secure.port)) as client:
            client.send(b"\x16\x03\x01")
            await until(lambda: len(secure.connections) == 1)
        await until(lambda: not secure.connections)
        await secure.stop(1)
        await plain.stop(1)

    run(scenario)


def test_stopping_cuts_handshakes(run, authority):
    async def scenario():
        listener = HttpListener(echo, local(authority))
        await listener.start()
        with socket.create_connection(("127.0.0.1", listener.port)):
            await until(lambda: listener.connections)
            await listener.stop(10)

    run(scenario)
