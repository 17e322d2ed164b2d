"""The TLS layer between transport and protocol, fed by hand: handshakes, both directions, every kind of end."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import replace

import pytest

from bireme.frontend import tls_connection
from bireme.frontend.http import ConnectionLimits, ListenOptions
from bireme.frontend.http.listener import HttpListener
from bireme.frontend.tls_connection import HANDSHAKE_TIMEOUT_S, TlsConnection
from certificates import Authority
from http_fakes import EchoRoute, FakeTransport, HoldRoute, QuietListener, echo, parse_replies, request, until

GET = request("/v2/health/live")
LOGGER = "bireme.frontend"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Authority:
    """Return an authority that the server does not trust."""
    return Authority(tmp_path_factory.mktemp("stranger"))


class TlsPeer:
    """The client's end of a `TlsConnection` under test."""

    def __init__(self, listener: HttpListener, context: ssl.SSLContext, *, step: int | None = None) -> None:
        self.listener = listener
        self.transport = FakeTransport()
        self.connection = listener._protocol_factory()()
        assert isinstance(self.connection, TlsConnection)
        self.connection.connection_made(self.transport)
        self._step = step
        self._num_taken = 0
        self._from_server = ssl.MemoryBIO()
        self._to_server = ssl.MemoryBIO()
        self.object = context.wrap_bio(self._from_server, self._to_server, server_hostname="localhost")
        self.received = b""
        self.has_ended = False
        """Whether the server has said goodbye."""

    def shake_hands(self) -> None:
        while True:
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                self.exchange()
            else:
                self.exchange()
                return

    def send(self, data: bytes) -> None:
        self.object.write(data)
        self.exchange()

    def exchange(self) -> None:
        """Carry what is on its way to either side, and read."""
        self.deliver(self._to_server.read())
        written = bytes(self.transport.written)
        self._from_server.write(written[self._num_taken :])
        self._num_taken = len(written)
        try:
            while piece := self.object.read(1 << 16):
                self.received += piece
            self.has_ended = True
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True

    def deliver(self, data: bytes) -> None:
        """Let encrypted ``data`` arrive at the server, in reads of at most ``step`` bytes."""
        view = memoryview(data)
        while view:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), self._step or len(view), len(view))
            buffer[:size] = view[:size]
            self.connection.buffer_updated(size)
            view = view[size:]

    @property
    def replies(self):
        return list(parse_replies(self.received))


def connect(authority, resolve=echo, *, step=None, identity=(), mutual=False, **limits) -> TlsPeer:
    listener = QuietListener(
        resolve,
        ListenOptions(tls=authority.options(mutual=mutual)),
        limits=replace(ConnectionLimits(), **limits),
    )
    return TlsPeer(listener, authority.client(*identity, alpn=("h2", "http/1.1")), step=step)


def test_after_its_time_a_flood_is_decrypted_behind_the_other_connections(authority, monkeypatch):
    monkeypatch.setattr(tls_connection, "_TURN_S", 0.0)

    async def run() -> None:
        peer = connect(authority)
        peer.shake_hands()
        for _ in range(10):
            peer.object.write(GET)

        peer.exchange()
        assert len(peer.replies) == 1
        assert peer.transport.is_reading_paused
        peer.connection.pause_reading()
        await asyncio.sleep(0)
        assert peer.transport.is_reading_paused
        peer.connection.resume_reading()
        await until(lambda: peer.exchange() or len(peer.replies) == 10)

        assert not peer.transport.is_reading_paused

    asyncio.run(run())


@pytest.mark.parametrize("step", [None, 1, 100])
def test_requests_are_answered_however_their_bytes_arrive(authority, step):
    peer = connect(authority, step=step)
    peer.shake_hands()
    peer.send(GET + request("/p", b"hello", method="POST"))

    assert [reply.body for reply in peer.replies] == [b"GET /v2/health/live ", b"POST /p hello"]
    assert peer.object.selected_alpn_protocol() == "http/1.1"
    assert peer.connection.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


def test_large_bodies_go_both_ways(authority):
    async def scenario():
        peer = connect(authority, lambda head: EchoRoute(1 << 30))
        peer.shake_hands()
        body = os.urandom(3_000_000)
        peer.send(request("/p", body))
        await until(lambda: peer.exchange() or peer.replies)

        assert peer.replies[0].body == b"POST /p " + body
        assert max(len(buffer) for buffers in peer.transport.writes for buffer in buffers) < 300_000

    asyncio.run(scenario())


def test_what_arrives_while_reading_is_paused_is_kept(authority):
    async def scenario():
        route = HoldRoute()
        peer = connect(authority, lambda head: route, max_pipelined=1)
        peer.shake_hands()
        for _ in range(3):
            peer.object.write(GET)
        peer.exchange()
        for num_answered in range(3):
            await until(lambda n=num_answered: len(route.held) > n)
            assert len(route.held) == num_answered + 1
            assert peer.transport.is_reading_paused
            route.held[num_answered].reply(200, b"%d" % num_answered)
        peer.exchange()
        assert [reply.body for reply in peer.replies] == [b"0", b"1", b"2"]
        assert not peer.transport.is_reading_paused

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_client_that_does_not_read_pauses_the_protocol(authority):
    async def scenario():
        peer = connect(authority, lambda head: EchoRoute(1 << 20))
        peer.shake_hands()
        peer.connection.pause_writing()
        assert peer.transport.is_reading_paused
        peer.connection.resume_writing()
        assert not peer.transport.is_reading_paused
        peer.transport.num_unsent = 7
        assert peer.connection.get_write_buffer_size() == 7

    asyncio.run(scenario())


def test_what_tls_says_by_itself_is_bounded_for_a_client_that_does_not_read(authority):
    peer = connect(authority)
    peer.shake_hands()
    peer.connection._is_writing_paused = True
    peer.connection._outgoing.write(b"x" * 100)
    peer.deliver(b"\x17")
    assert not peer.transport.is_aborted
    peer.connection._outgoing.write(b"x" * (64 << 10))
    peer.deliver(b"\x03")

    assert peer.transport.is_aborted


def test_the_end_is_announced(authority):
    peer = connect(authority)
    peer.shake_hands()
    peer.send(request("/v2", headers={"Connection": "close"}))
    peer.exchange()

    assert peer.replies[0].status == 200
    assert peer.has_ended
    assert peer.transport.is_closed


def test_a_refused_client_gets_its_answer_and_what_it_still_sends_is_thrown_away(authority):
    peer = connect(authority)
    peer.shake_hands()
    peer.send(b"nonsense\r\n\r\n")
    peer.exchange()

    assert peer.replies[0].status == 400
    assert peer.has_ended
    assert (True, False) == (peer.transport.has_written_eof, peer.transport.is_closed)
    peer.deliver(b"anything")
    peer.connection.close()
    assert peer.transport.is_closed


@pytest.mark.parametrize("leaves_politely", [True, False])
def test_requests_of_a_client_that_left_are_cancelled(authority, leaves_politely):
    cancelled = []
    route = HoldRoute()
    listener = QuietListener(
        lambda head: route, ListenOptions(tls=authority.options()), cancel=cancelled.append
    )
    peer = TlsPeer(listener, authority.client())
    peer.shake_hands()
    peer.send(GET)
    route.held[0].request = "the request"
    if leaves_politely:
        with pytest.raises(ssl.SSLWantReadError):
            peer.object.unwrap()
        peer.exchange()
        assert peer.transport.is_closed
    else:
        assert not peer.connection.eof_received()
    peer.connection.connection_lost(None)

    assert ["the request"] == cancelled
    assert not listener.connections
    route.held[0].reply(200)  # goes nowhere


def test_garbage_after_the_handshake_cuts_that_connection(authority):
    peer = connect(authority)
    peer.shake_hands()
    peer.deliver(b"\x17\x03\x03\x00\x20" + bytes(32))

    assert peer.transport.is_aborted


# Handshakes that fail


def test_a_client_without_tls_costs_one_line_and_its_connection(authority, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    listener = QuietListener(echo, ListenOptions(tls=authority.options()))
    factory = listener._protocol_factory()
    for _ in range(3):
        transport = FakeTransport()
        connection = factory()
        connection.connection_made(transport)
        assert len(listener.connections) == 1
        connection.get_buffer(-1)[: len(GET)] = GET
        connection.buffer_updated(len(GET))
        assert transport.is_closed
        connection.buffer_updated(1)
        connection.connection_lost(None)
        assert not listener.connections

    assert [
        "TLS handshake with '192.0.2.1' failed: the client does not use TLS (1 failed so far)"
    ] == caplog.messages


def test_a_client_without_certificate_is_refused_where_one_is_needed(authority, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    peer = connect(authority, mutual=True)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        peer.shake_hands()

    assert peer.transport.is_closed
    assert "the client showed no certificate" in caplog.text


def test_a_client_with_a_stranger_s_certificate_is_refused(authority, stranger, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    peer = connect(authority, mutual=True, identity=stranger.issue("client"))
    with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        peer.shake_hands()

    assert peer.transport.is_closed
    assert "the client's certificate was not accepted: unable to get local issuer certificate" in caplog.text


def test_a_client_with_the_right_certificate_is_served(authority):
    peer = connect(authority, mutual=True, identity=authority.issue("client"))
    peer.shake_hands()
    peer.send(GET)

    assert peer.replies[0].status == 200


def test_a_client_that_does_not_trust_the_server_is_understood(authority, stranger, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    listener = QuietListener(echo, ListenOptions(tls=authority.options()))
    peer = TlsPeer(listener, stranger.client())
    with pytest.raises(ssl.SSLCertVerificationError):
        peer.shake_hands()
    peer.deliver(peer._to_server.read())

    assert "the client does not trust the server's certificate" in caplog.text
    assert peer.transport.is_closed


@pytest.mark.parametrize("end", ["leaves", "drained"])
def test_a_handshake_that_is_broken_off_leaves_nothing(authority, end):
    peer = connect(authority)
    with pytest.raises(ssl.SSLWantReadError):
        peer.object.do_handshake()
    peer.deliver(peer._to_server.read()[:50])
    assert peer.listener.connections == {peer.connection}
    peer.connection.retire()
    if end == "drained":
        peer.connection.drain()
        assert peer.transport.is_aborted
    assert not peer.connection.eof_received()
    peer.connection.connection_lost(None)

    assert not peer.listener.connections


def test_a_handshake_that_takes_too_long_is_cut(authority, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    peer = connect(authority, sweep_interval_s=1.0)
    for _ in range(int(HANDSHAKE_TIMEOUT_S) - 1):
        peer.connection.sweep()
    assert not peer.transport.is_aborted
    peer.connection.sweep()

    assert peer.transport.is_aborted
    assert "not done within 10 s" in caplog.text
