"""What a client may not do without end, and what it may."""

from __future__ import annotations

import struct

import pytest

from bireme.wire.http2 import ErrorCode, Http2Limits
from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK, Client, Server, parse_frames

PATIENCE = Http2Limits(frame_allowance=200, frame_refill=20, reset_allowance=50, reset_refill=5)
PACE = 1000


def frame(kind, flags=0, stream_id=0, payload=b""):
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


USELESS = {
    "DATA": frame(0, 0, 1),
    "padding": frame(0, 8, 1, b"\0"),
    "PRIORITY": frame(2, 0, 1, bytes(5)),
    "PRIORITY on idle streams": frame(2, 0, 1001, bytes(5)),
    "RST_STREAM": frame(3, 0, 3, bytes(4)),
    "SETTINGS": frame(4),
    "SETTINGS ACK": frame(4, 1),
    "PING": frame(6, 0, 0, bytes(8)),
    "PING ACK": frame(6, 1, 0, bytes(8)),
    "GOAWAY": frame(7, 0, 0, bytes(8)),
    "WINDOW_UPDATE": frame(8, 0, 0, b"\0\0\0\1"),
    "WINDOW_UPDATE of a stream": frame(8, 0, 1, b"\0\0\0\1"),
    "WINDOW_UPDATE of a closed stream": frame(8, 0, 3, b"\0\0\0\1"),
    "CONTINUATION": frame(9, 0, 5),
    "unknown": frame(99, 0, 0, b"?"),
}


def make_pair(limits=PATIENCE):
    """Return a server and its client; stream 1 is open, stream 3 was reset by the client."""
    server = Server(limits)
    client = Client(server)
    client.open()
    client.h2.reset_stream(client.open())
    client.exchange()
    return server, client


@pytest.mark.parametrize("name", USELESS)
def test_frames_without_use_are_not_taken_for_ever(name):
    server, _ = make_pair()
    if name == "CONTINUATION":
        server.feed(frame(1, 0, 5))

    for _ in range(PACE):
        server.feed(USELESS[name])
        if server.connection.is_closed:
            break

    assert server.connection.is_closed
    assert "too many frames without use" == server.connection.close_reason
    assert ErrorCode.ENHANCE_YOUR_CALM == parse_frames(server.take())[-1].error_code


def test_frames_without_use_are_taken_at_a_pace():
    server, _ = make_pair()

    for _ in range(PACE // 20):
        server.feed(USELESS["PING"] * 20)
        server.connection.tick()

    assert not server.connection.is_closed


def test_pings_and_windows_that_come_with_data_are_no_flood():
    """grpcio measures the bandwidth by a PING per read, and opens both windows as it reads answers."""
    server, client = make_pair()
    server.answer_all()

    for _ in range(PACE):
        client.request(b"data")
        client.h2.ping(b"12345678")
        client.exchange()  # with two WINDOW_UPDATE
    stream_id = client.open()
    for _ in range(PACE):
        client.h2.send_data(stream_id, b"data")
        client.h2.ping(b"12345678")
        client.exchange()

    assert not server.connection.is_closed


def test_windows_that_open_as_a_stream_is_read_are_no_flood():
    server, client = make_pair()
    stream = server.handler.calls[1].stream
    server.connection.send_headers(stream, RESPONSE_BLOCK)

    for _ in range(PACE):
        server.connection.send_data(stream, [b"message"], 7)
        client.exchange()

    assert PACE * 7 == len(client.body_of(1))
    assert not server.connection.is_closed


def test_rapid_resets_end_the_connection():
    server, client = make_pair()

    for _ in range(PACE):
        client.h2.reset_stream(client.open())
    server.feed(client.h2.data_to_send())

    assert server.connection.is_closed
    assert "too many streams reset" == server.connection.close_reason
    assert len(server.handler.calls) < 60


def test_errors_that_end_streams_count_as_resets():
    server, _ = make_pair()

    server.feed(b"".join(frame(1, 5, stream_id, b"\x83") for stream_id in range(5, 2 * PACE, 2)))

    assert "too many streams reset" == server.connection.close_reason


def test_cancelled_calls_among_others_are_no_flood():
    server, client = make_pair()
    server.answer_all()

    for _ in range(PACE // 2):
        client.request()
        client.h2.reset_stream(client.open())
        client.exchange()
        if len(server.handler.calls) % 5 == 0:
            server.connection.tick()

    assert not server.connection.is_closed


def test_streams_reset_over_time_are_no_flood():
    server, client = make_pair()

    for _ in range(PACE // 5):
        for _ in range(5):
            client.h2.reset_stream(client.open())
        client.exchange()
        server.connection.tick()

    assert not server.connection.is_closed


def test_the_defaults_bear_with_a_client_that_cancels_all_its_calls():
    server = Server()
    client = Client(server)
    stream_ids = [client.open() for _ in range(900)]
    client.exchange()

    for stream_id in stream_ids:
        client.h2.reset_stream(stream_id)
    client.exchange()

    assert not server.connection.is_closed
    assert not server.connection.streams


@pytest.mark.parametrize("size", [1, 1000])
def test_a_header_block_is_bounded_while_it_arrives(size):
    server = Server(Http2Limits(max_header_list_size=1000))
    Client(server)
    server.feed(frame(1, 0, 1, bytes(size)))

    num_bytes = 0
    while not server.connection.is_closed:
        server.feed(frame(9, 0, 1, bytes(size)))
        num_bytes += size

    assert 4000 - size <= num_bytes <= 4000
    assert "a header block of" in server.connection.close_reason


def test_a_header_frame_is_refused_before_it_has_come():
    server = Server(Http2Limits(max_header_list_size=5000))
    Client(server)

    server.feed(frame(1, 4, 1, bytes(21_000))[:9])

    assert server.connection.is_closed


@pytest.mark.parametrize("size", [1000, 3500])
def test_a_header_list_that_is_too_long_ends_only_its_stream(size):
    server = Server(Http2Limits(max_header_list_size=1000))
    server.answer_all()
    client = Client(server)

    refused_id = client.request(headers=(*REQUEST_HEADERS, (b"x-long", b"0" * size)))
    stream_id = client.request()
    client.exchange()

    assert [(refused_id, ErrorCode.ENHANCE_YOUR_CALM)] == client.resets()
    assert client.trailers_of(stream_id) is not None


def test_acknowledgements_do_not_pile_up_for_a_client_that_does_not_read():
    server = Server(Http2Limits(max_unread_replies=500))
    client = Client(server)
    server.connection.is_writable = False

    for _ in range(100):
        client.h2.ping(b"12345678")
    server.feed(client.h2.data_to_send())

    assert server.connection.is_closed
    assert len(server.take()) < 700


def test_queues_of_reset_streams_leave_nothing_behind():
    """A client that never opens the connection's window, and opens and resets streams."""
    server = Server(Http2Limits(reset_allowance=10_000))
    client = Client(server)
    server.handler.on_end = lambda call: server.connection.answer(
        call.stream, RESPONSE_BLOCK, [bytes(70_000)], 70_000, TRAILERS_BLOCK
    )

    for _ in range(300):
        stream_id = client.request()
        server.feed(client.h2.data_to_send())
        client.h2.reset_stream(stream_id)
        server.feed(client.h2.data_to_send())
    server.take()

    assert not server.connection._ready
    assert not server.connection.streams
