"""HttpConnection: framing, order, limits, backpressure, timeouts and closing, over a fake transport."""

from __future__ import annotations

import asyncio
import gc
import logging
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.frontend.http.connection import CLIENT_LEFT, JOIN_LIMIT
from bireme.frontend.http.head import RequestHead
from bireme.types import InferenceRequest, InvalidArgument
from http_fakes import Client, EchoRoute, HoldRoute, echo, parse_replies, request, until

GET = request("/v2/health/live")
POST = request("/v2/models/m/infer", b"0123456789")
CHUNKED = b"POST /chunked HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6;x=y\r\n456789\r\n0\r\nT: v\r\n\r\n"


def held_client(**settings):
    route = HoldRoute()
    return Client(lambda head: route, **settings), route.held


def small_request() -> InferenceRequest:
    return InferenceRequest("m", {}, lambda request, response: None)


# Framing


@pytest.mark.parametrize("step", [None, 1, 2, 7, 64])
@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (GET, [b"GET /v2/health/live "]),
        (POST, [b"POST /v2/models/m/infer 0123456789"]),
        (CHUNKED, [b"POST /chunked 0123456789"]),
        (
            b"\r\n" + GET + POST + CHUNKED + b"\r\n\r\n" + POST + GET,
            [
                b"GET /v2/health/live ",
                b"POST /v2/models/m/infer 0123456789",
                b"POST /chunked 0123456789",
                b"POST /v2/models/m/infer 0123456789",
                b"GET /v2/health/live ",
            ],
        ),
    ],
    ids=["bodiless", "length", "chunked", "pipelined"],
)
def test_requests_are_found_wherever_the_reads_end(data, bodies, step):
    client = Client(echo)
    client.send(data, step)

    assert [reply.body for reply in client.replies] == bodies
    assert client.connection.is_idle
    assert not client.transport.is_closed


@given(st.lists(st.sampled_from([GET, POST, CHUNKED]), max_size=6), st.data())
def test_any_split_of_a_stream_gives_the_same_answers(requests, data):
    whole, pieces = Client(echo), Client(echo)
    stream = b"".join(requests)
    whole.send(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        pieces.send(stream[start:stop])

    assert pieces.transport.written == whole.transport.written
    assert len(pieces.replies) == len(requests)


@given(st.binary(max_size=400), st.sampled_from([None, 1, 13]))
def test_arbitrary_bytes_after_a_request_line_are_answered_or_awaited(data, step):
    client = Client(echo)
    client.send(b"POST /v2/models/m/infer HTTP/1.1\r\n" + data, step)

    assert all(reply.status < 500 or reply.status in {501, 505} for reply in client.replies)


@pytest.mark.parametrize("step", [None, 1000, 65536])
def test_large_body_is_received_into_its_own_memory(step):
    client, held = held_client()
    body = np.random.default_rng(0).bytes(300_000)
    client.send(request("/", body) + POST, step)

    large, small = held
    assert bytes(large.body) == body
    assert isinstance(large.body, memoryview)
    assert bytes(small.body) == b"0123456789"


def test_the_rest_of_a_large_body_goes_straight_to_where_the_route_says():
    memory = np.zeros(200_000, np.uint8)

    class Route(HoldRoute):
        def allocate(self, size):
            assert size == 200_000
            return memory.data

    client = Client(lambda head: Route())
    client.send(b"POST / HTTP/1.1\r\nContent-Length: 200000\r\n\r\nabc")
    target = client.connection.get_buffer(-1)

    assert len(target) == 200_000 - 3
    assert np.frombuffer(target, np.uint8).ctypes.data == memory.ctypes.data + 3
    assert bytes(memory[:3]) == b"abc"


def test_body_memory_that_is_not_to_be_had_is_a_503():
    class Route(EchoRoute):
        def allocate(self, size):
            raise MemoryError

    client = Client(lambda head: Route(1 << 40))
    client.send(b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\nabc")

    assert client.reply().status == 503
    assert "99999999 bytes" in client.reply().body.decode()


def test_heads_seen_before_are_resolved_once():
    resolved: list[RequestHead] = []

    def resolve(head):
        resolved.append(head)
        return EchoRoute(100)

    client = Client(resolve)
    client.send(POST * 3 + GET)
    client.send(POST)

    assert [head.path for head in resolved] == [b"/v2/models/m/infer", b"/v2/health/live"]
    assert len(client.replies) == 5


# Order


def test_answers_are_written_in_the_order_of_the_requests():
    client, held = held_client()
    client.send(GET * 4)
    for index in (2, 1, 3):
        held[index].reply(200, b"%d" % index)
        assert client.transport.written == b""
    held[0].reply(200, b"0")

    assert [reply.body for reply in client.replies] == [b"0", b"1", b"2", b"3"]


def test_reading_stops_while_too_many_requests_wait():
    client, held = held_client(max_pipelined=3)
    client.send(GET * 2)
    assert not client.transport.is_reading_paused
    client.send(GET)
    assert client.transport.is_reading_paused
    held[0].reply(200)

    assert not client.transport.is_reading_paused


def test_pipelined_requests_beyond_the_limit_wait_for_their_turn():
    async def scenario():
        client, held = held_client(max_pipelined=3)
        client.send(GET * 7 + CHUNKED)
        for num_answered in range(8):
            await until(lambda n=num_answered: len(held) >= min(n + 3, 8))
            assert len(held) == min(num_answered + 3, 8)
            assert client.transport.is_reading_paused == (num_answered + 3 <= 8)
            held[num_answered].reply(200, b"%d" % num_answered)
        return client

    client = asyncio.run(scenario())

    assert [reply.body for reply in client.replies] == [b"%d" % index for index in range(8)]
    assert not client.transport.is_reading_paused


def test_pipelined_requests_are_held_while_the_client_does_not_read():
    async def scenario():
        client = Client(lambda head: EchoRoute(1 << 20))
        write, client.transport.write = client.transport.write, lambda data: (write(data), pause())
        pause = client.connection.pause_writing
        client.send(GET * 3)
        assert len(client.replies) < 3
        client.transport.write = write
        client.connection.resume_writing()
        return client

    assert len(asyncio.run(scenario()).replies) == 3


def test_many_pipelined_requests_let_the_loop_turn(monkeypatch):
    monkeypatch.setattr("bireme.frontend.http.receiver._TURN_NS", 0)

    async def scenario():
        client = Client(echo)
        client.send(GET * 50)
        first = len(client.replies)
        await until(lambda: len(client.replies) == 50)
        return first

    assert asyncio.run(scenario()) < 5


def test_a_thousand_chunked_requests_in_one_read_need_no_recursion():
    async def scenario():
        client = Client(echo)
        client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" * 1100)
        await until(lambda: client.transport.written.count(b"200 OK") == 1100)

    asyncio.run(scenario())


def test_an_exchange_is_answered_only_once():
    client, held = held_client()
    client.send(GET)
    held[0].reply(200)

    with pytest.raises(RuntimeError, match="twice"):
        held[0].reply(200)


# Writing


def test_small_answers_are_one_write_of_one_buffer():
    client, held = held_client()
    client.send(GET)
    held[0].send(b"HTTP/1.1 200 OK\r\n", [b"a" * 100, memoryview(b"b" * 100)], 200)

    assert [len(buffers) for buffers in client.transport.writes] == [1]
    assert client.reply().body == b"a" * 100 + b"b" * 100


def test_large_answers_are_gathered_without_a_copy():
    client, held = held_client()
    client.send(GET)
    array = np.zeros(JOIN_LIMIT, np.uint8)
    held[0].send(b"HTTP/1.1 200 OK\r\n", [b"head", array.data], 4 + array.nbytes)
    (buffers,) = client.transport.writes

    assert np.frombuffer(buffers[-1], np.uint8).ctypes.data == array.ctypes.data
    assert client.reply().headers["content-length"] == str(4 + array.nbytes)


def test_answer_to_head_has_no_body():
    client = Client(echo)
    client.send(request("/v2", method="HEAD") + GET)
    replies = list(parse_replies(bytes(client.transport.written), methods=iter(["HEAD", "GET"])))

    assert replies[0].headers["content-length"] == str(len(b"HEAD /v2 "))
    assert replies[1].body == b"GET /v2/health/live "


def test_a_client_that_does_not_read_is_not_read_from():
    client, held = held_client()
    client.send(GET)
    client.connection.pause_writing()
    assert client.transport.is_reading_paused
    held[0].reply(200)
    assert client.transport.is_reading_paused
    client.connection.resume_writing()

    assert not client.transport.is_reading_paused


# Errors of handlers


def test_errors_raised_by_a_route_are_answered():
    class Route(EchoRoute):
        def handle(self, exchange):
            raise InvalidArgument("no such thing")

    client = Client(lambda head: Route(100))
    client.send(GET)

    assert (client.reply().status, client.reply().body) == (400, b'{"error":"no such thing"}')
    assert not client.transport.is_closed


def test_an_unforeseen_exception_is_a_500_without_its_text_and_the_connection_lives_on(caplog):
    class Route(EchoRoute):
        def handle(self, exchange):
            if exchange.head.path == b"/boom":
                raise ZeroDivisionError("secret")
            super().handle(exchange)

    client = Client(lambda head: Route(100))
    with caplog.at_level(logging.ERROR):
        client.send(request("/boom") + GET)

    assert [reply.status for reply in client.replies] == [500, 200]
    assert b"secret" not in client.replies[0].body
    assert "ZeroDivisionError: secret" in caplog.text


# Refusals


@pytest.mark.parametrize("step", [None, 1, 11])
@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400, "Invalid method"),
        (b"GET /v2 HTTP/1.1\r\nbroken\r\n\r\n", 400, "malformed"),
        (b"GET /" + b"x" * 500 + b" HTTP/1.1\r\n\r\n", 414, "200 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 2000 + b"\r\n\r\n", 431, "1000 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 2000, 431, "1000 bytes"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400, "chunk size"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 6, 400, "maximum of 5"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n", 413, "100 bytes"),
        (b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", 400, "101 bytes exceeds .* 100 bytes"),
        (b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, 400, "101 bytes exceeds"),
    ],
)
def test_refused_requests_get_a_json_error_and_end_the_connection(data, status, text, step):
    client = Client(lambda head: EchoRoute(100), max_header_size=1000, max_url_size=200, max_chunks=5)
    client.send(GET + data + GET, step)
    first, refusal = client.replies

    assert first.status == 200
    assert refusal.status == status
    assert refusal.headers["content-type"] == "application/json"
    assert refusal.headers["connection"] == "close"
    assert re.search(text, refusal.body.decode())
    # The end is announced, but what the client still sends is read and thrown away, so that it sees no reset.
    assert client.transport.has_written_eof
    assert not client.transport.is_closed


def test_a_refusal_waits_for_the_answers_before_it():
    client, held = held_client()
    client.send(GET + b"nonsense\r\n\r\n")
    assert client.transport.written == b""
    held[0].reply(200, b"first")

    assert [reply.status for reply in client.replies] == [200, 400]
    assert client.transport.has_written_eof


# Expect: 100-continue


EXPECTING = request(
    "/v2/models/m/infer", headers={"Content-Length": 5, "Expect": "100-continue"}, method="POST"
)


def test_client_that_asks_is_told_to_go_on():
    client = Client(echo)
    client.send(EXPECTING)
    assert client.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"hello")

    assert [reply.status for reply in client.replies] == [100, 200]


def test_client_that_asks_and_does_not_wait_gets_its_answer_only():
    client = Client(echo)
    client.send(EXPECTING + b"hello")

    assert client.reply().status == 200


def test_go_on_comes_after_the_answers_before_it():
    client, held = held_client()
    client.send(GET + EXPECTING)
    assert client.transport.written == b""
    held[0].reply(200)

    assert [reply.status for reply in client.replies] == [200, 100]


def test_client_that_asks_for_a_route_that_is_not_there_need_not_send_its_body():
    class NotThere(EchoRoute):
        is_final = True

        def handle(self, exchange):
            exchange.reply(404)

    client = Client(lambda head: NotThere(100))
    client.send(EXPECTING)

    assert client.reply().status == 404
    assert client.reply().headers["connection"] == "close"
    assert client.transport.has_written_eof


# Closing


def test_connection_ends_after_the_answer_when_the_client_says_so():
    client, held = held_client()
    client.send(request("/", headers={"Connection": "close"}) + GET)
    assert len(held) == 1
    assert not client.transport.is_closed
    held[0].reply(200)

    assert client.reply().headers["connection"] == "close"
    assert client.transport.is_closed


def test_http_1_0_keep_alive_is_confirmed():
    client = Client(echo)
    client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert client.reply().headers["connection"] == "keep-alive"
    client.send(b"GET / HTTP/1.0\r\n\r\n")

    assert client.replies[1].headers["connection"] == "close"
    assert client.transport.is_closed


def test_requests_of_a_client_that_left_are_cancelled_and_their_late_answers_dropped():
    cancelled = []
    client, held = held_client(cancel=cancelled.append)
    client.send(GET * 3)
    requests = [small_request() for _ in held]
    for exchange, its_request in zip(held, requests, strict=True):
        exchange.request = its_request
    held[1].reply(200)
    client.leave()

    assert cancelled == [requests[0], requests[2]]
    held[0].reply(200)
    assert client.transport.written == b""
    assert not client.listener.connections


def test_leaving_in_the_middle_of_a_body_gives_its_memory_back():
    client = Client(echo)
    client.send(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\nabc")
    client.leave()

    assert client.connection.get_buffer(-1) is client.listener.scratch_view


@pytest.mark.parametrize("beginning", [b"", GET[:10], POST[:-3], CHUNKED[:-10]])
def test_draining_finishes_what_was_begun(beginning):
    client = Client(echo)
    client.send(GET + beginning)
    client.connection.drain()
    assert client.transport.is_closed == (not beginning)
    if beginning:
        whole = next(each for each in (GET, POST, CHUNKED) if each.startswith(beginning))
        client.send(whole[len(beginning) :] + GET)
        assert [reply.headers.get("connection") for reply in client.replies] == [None, "close"]
        assert client.transport.is_closed


def test_draining_says_close_on_the_last_answer_only():
    client, held = held_client()
    client.send(GET * 2)
    client.connection.drain()
    for exchange in held:
        exchange.reply(200)

    assert [reply.headers.get("connection") for reply in client.replies] == [None, "close"]
    assert client.transport.is_closed


def test_answered_requests_leave_no_garbage():
    client = Client(echo)
    client.send((GET + POST) * 2)
    gc.collect()
    gc.disable()
    try:
        client.send((GET + POST) * 10)
        assert gc.collect() == 0
    finally:
        gc.enable()


# Timeouts, counted in sweeps of one second


LIMITS = {
    "keepalive_timeout_s": 5.0,
    "header_timeout_s": 3.0,
    "stall_timeout_s": 2.0,
    "linger_timeout_s": 1.0,
    "sweep_interval_s": 1.0,
}


def sweep(client: Client, times: int) -> None:
    for _ in range(times):
        client.connection.sweep()


def test_idle_connection_is_closed_without_a_word():
    client = Client(echo, **LIMITS)
    sweep(client, 5)
    assert not client.transport.is_closed
    client.send(GET)
    sweep(client, 5)
    assert not client.transport.is_closed
    sweep(client, 1)

    assert client.transport.is_closed
    assert len(client.replies) == 1


def test_slow_head_is_refused_however_steadily_it_drips():
    client = Client(echo, **LIMITS)
    for index in range(4):
        assert client.transport.written == b""
        client.send(GET[index : index + 1])
        sweep(client, 1)

    assert client.reply().status == 408
    sweep(client, 2)
    assert client.transport.is_closed


@pytest.mark.parametrize(
    ("beginning", "more"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n", b"x"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n", b"x"),
    ],
)
def test_stalled_body_is_refused_and_a_slow_one_is_not(beginning, more):
    client = Client(echo, **LIMITS)
    client.send(beginning)
    for _ in range(10):
        client.send(more)
        sweep(client, 1)
    assert client.transport.written == b""
    sweep(client, 2)

    assert client.reply().status == 408


def test_client_that_stops_reading_is_cut_off_and_a_slow_one_is_not():
    client = Client(echo, **LIMITS)
    client.send(GET)
    for size in range(10, 0, -1):
        client.transport.num_unsent = size
        sweep(client, 1)
    assert not client.transport.is_closed
    sweep(client, 2)

    assert client.transport.is_aborted


def test_waiting_for_a_model_has_no_end():
    client, _ = held_client(**LIMITS)
    client.send(GET)
    sweep(client, 1000)

    assert not client.transport.is_closed


def test_timeouts_of_zero_are_none():
    client = Client(echo, keepalive_timeout_s=0, header_timeout_s=0)
    sweep(client, 1000)
    client.send(GET[:5])
    sweep(client, 1000)

    assert not client.transport.is_closed


# Access log


def test_every_answer_is_logged_with_its_size_and_a_client_that_left_too():
    lines = []
    client, held = held_client(log_access=lambda exchange, size: lines.append((exchange.status, size)))
    client.send(GET * 2)
    held[0].fail(InvalidArgument("no"))
    assert held[0].start_ns > 0
    size = len(client.transport.written)
    client.leave()

    assert lines == [(400, size), (CLIENT_LEFT, 0)]
    assert client.connection.peer == "192.0.2.1"


def test_repr_is_for_people():
    client, _ = held_client()
    client.send(GET)

    assert repr(client.connection) == "HttpConnection(head, requests 1, in flight 1)"
