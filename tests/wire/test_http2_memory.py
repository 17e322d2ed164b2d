"""RFC 9113 section 10.5: what a client can make a connection hold, whatever it floods it with.

The floods keep below the allowances, which are lower than by default, so that they may go on for several ticks, with the client
reading what it is sent or not. What is counted is the memory of the connection; the calls keep nothing. That floods
end is `test_http2_limits`' matter.
"""

from __future__ import annotations

import itertools
import tracemalloc

import pytest

from bireme.wire.http2 import Http2Connection, Http2Limits, encode_block
from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK
from http2_peer import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    PADDED,
    PRIORITY,
    START,
    continuation,
    data,
    frame,
    goaway,
    headers,
    ping,
    priority,
    rst_stream,
    settings,
    window_update,
)

KB, MB = 1 << 10, 1 << 20
PLAIN_REQUEST = encode_block(REQUEST_HEADERS)
BIG_ENTRY = b"\x40" + encode_block([(b"a", bytes(4000))])[1:]
"""A field that is added to the table, and all but fills it."""
WHOLE = END_HEADERS | END_STREAM
SCRATCH = memoryview(bytearray(64 * KB))
BODY = memoryview(bytes(MB))
NUM_TICKS = 6
PIECES_PER_TICK = 200
LIMITS = Http2Limits(
    reset_allowance=PIECES_PER_TICK,
    reset_refill=PIECES_PER_TICK,
    frame_allowance=10 * PIECES_PER_TICK,
    frame_refill=10 * PIECES_PER_TICK,
)


class Sink:
    """Receives and forgets."""

    def receive(self, view):
        pass

    def get_target(self, size):
        return None

    def advance(self, num_bytes):
        pass

    def end(self):
        pass


class Handler:
    """A front end that keeps nothing; with a body, it answers each request when it opens."""

    def __init__(self, body=None):
        self.body = body
        self.connection = None
        self.sink = Sink()

    def open_stream(self, stream):
        if self.body is not None:
            size = len(self.body)
            self.connection.answer(stream, RESPONSE_BLOCK, [self.body], size, TRAILERS_BLOCK)
        return self.sink

    def reset_stream(self, stream, code):
        pass

    def stream_drained(self, stream):
        pass

    def ping_acknowledged(self, payload):
        pass

    def ping_received(self):
        return True


def numbers():
    """Return stream numbers of a client."""
    return itertools.count(1, 2)


def distinct(number):
    """Return a request's block that no other has."""
    return PLAIN_REQUEST + encode_block([(b"x-request-id", b"%08d" % number)])


def indexed(number):
    """Return a request's block that adds an entry to the table."""
    return PLAIN_REQUEST + b"\x40\x04x-id\x08%08d" % number


def few_fields(number, count=60):
    """Return a request's block that may be kept to be found again."""
    return PLAIN_REQUEST + b"".join(
        b"\x00\x03x%02d\x04%04d" % (index % 100, number) for index in range(count)
    )


def many_fields(number):
    return few_fields(number, 380)


def big_fields(number):
    return PLAIN_REQUEST + encode_block([(b"x-big", b"%08d" % number + bytes(range(97, 122)) * 600)])


FLOODS = {
    "rapid reset": lambda: (headers(number, PLAIN_REQUEST) + rst_stream(number) for number in numbers()),
    "rapid reset, each request another": lambda: (
        headers(number, distinct(number)) + rst_stream(number) for number in numbers()
    ),
    "rapid reset, each request changes the table": lambda: (
        headers(number, indexed(number)) + rst_stream(number) for number in numbers()
    ),
    "rapid reset of large requests": lambda: (
        headers(number, big_fields(number)) + rst_stream(number) for number in numbers()
    ),
    "malformed requests": lambda: (headers(number, b"\x83") for number in numbers()),
    "resets provoked by WINDOW_UPDATE": lambda: (
        headers(number, PLAIN_REQUEST) + window_update(number, 0) for number in numbers()
    ),
    "resets provoked by DATA": lambda: (
        headers(number, PLAIN_REQUEST, WHOLE) + data(number, b"x") for number in numbers()
    ),
    "resets provoked by PRIORITY": lambda: (
        headers(number, PLAIN_REQUEST) + frame(PRIORITY, 0, number, b"?") for number in numbers()
    ),
    "streams over the limit": lambda: (headers(number, PLAIN_REQUEST) for number in numbers()),
    "half-open streams": lambda: (headers(number, distinct(number)) for number in range(1, 2048, 2)),
    "half-open streams with data": lambda: (
        headers(number, PLAIN_REQUEST) + data(number, bytes(1000)) for number in range(1, 2048, 2)
    ),
    "streams far apart": lambda: (
        headers(number, PLAIN_REQUEST, WHOLE) + rst_stream(number) for number in itertools.count(1, 1000)
    ),
    "CONTINUATION": lambda: (
        continuation(1, b"\x00\x01a\x01b" * 20) if index else headers(1, PLAIN_REQUEST, 0)
        for index in itertools.count()
    ),
    "empty CONTINUATION": lambda: (
        continuation(1) if index else headers(1, PLAIN_REQUEST, 0) for index in itertools.count()
    ),
    "CONTINUATION that does not come": lambda: [frame(CONTINUATION, 0, 1, length=4 * MB - 1)],
    "a bomb of references": lambda: (
        headers(number, PLAIN_REQUEST + (BIG_ENTRY if number == 1 else b"") + b"\xbe" * 12_000, WHOLE)
        for number in numbers()
    ),
    "a bomb of static fields": lambda: (headers(number, b"\x82" * 16_000, WHOLE) for number in numbers()),
    "table updates": lambda: (
        headers(number, b"\x20\x3f\xe1\x1f" + indexed(number), WHOLE) + rst_stream(number)
        for number in numbers()
    ),
    "requests to remember": lambda: (
        headers(number, few_fields(number)) + rst_stream(number) for number in range(1, 350, 2)
    ),
    "SETTINGS": lambda: itertools.repeat(settings()),
    "full SETTINGS": lambda: itertools.repeat(settings(*((0x100 + index, index) for index in range(30)))),
    "SETTINGS that move windows": lambda: (settings((4, index % 1000)) for index in itertools.count()),
    "SETTINGS ACK": lambda: itertools.repeat(settings(flags=ACK)),
    "PING": lambda: itertools.repeat(ping() * 10),
    "PING ACK": lambda: itertools.repeat(ping(flags=ACK) * 10),
    "PRIORITY": lambda: (priority(number, number + 2) for number in numbers()),
    "WINDOW_UPDATE": lambda: itertools.repeat(window_update(0, 1)),
    "GOAWAY": lambda: itertools.repeat(goaway(0, 0, bytes(1000))),
    "RST_STREAM": lambda: (
        rst_stream(1) if index else headers(1, PLAIN_REQUEST) for index in itertools.count()
    ),
    "empty DATA": lambda: (data(1) if index else headers(1, PLAIN_REQUEST) for index in itertools.count()),
    "DATA of padding": lambda: (
        frame(DATA, PADDED, 1, b"\xff" + bytes(255)) if index else headers(1, PLAIN_REQUEST)
        for index in itertools.count()
    ),
    "DATA of one byte": lambda: (
        data(1, b"x") if index else headers(1, PLAIN_REQUEST) for index in range(20_000)
    ),
    "unknown frames": lambda: itertools.repeat(frame(0xFA, 0, 0, b"?" * 100)),
    "a large unknown frame": lambda: [frame(0xFA, 0, 0, bytes(4 * MB))],
    "a large GOAWAY": lambda: [frame(GOAWAY, 0, 0, bytes(4 * MB))],
    "the beginning of a large GOAWAY": lambda: [frame(GOAWAY, 0, 0, b"1234567", length=4 * MB)],
    "the beginning of a large DATA frame": lambda: [
        headers(1, PLAIN_REQUEST) + frame(DATA, 0, 1, b"x", length=4 * MB)
    ],
    "the beginning of large HEADERS": lambda: [frame(1, 0, 1, b"x", length=16 * KB)],
}


def flood(pieces, *, body=None, is_read=True, start=START):
    """Send a flood; return the connection, what it holds in the end, and the most it has held."""
    handler = Handler(body)
    handler.connection = connection = Http2Connection(handler, LIMITS)
    feed(connection, start)
    connection.take_output()
    connection.is_writable = is_read
    pieces = iter(pieces)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(NUM_TICKS):
            for piece in itertools.islice(pieces, PIECES_PER_TICK):
                feed(connection, piece)
                if is_read:
                    connection.take_output()
            connection.tick()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return connection, held - before, peak - before


def feed(connection, sent):
    position = 0
    while position < len(sent) and not connection.is_closed:
        buffer = connection.get_buffer(SCRATCH)
        num_bytes = min(len(buffer), len(sent) - position)
        buffer[:num_bytes] = sent[position : position + num_bytes]
        connection.received(num_bytes)
        position += num_bytes


@pytest.mark.parametrize("is_read", [True, False], ids=["reading", "not reading"])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_takes_little_memory(name, is_read):
    _, held, peak = flood(FLOODS[name](), is_read=is_read)

    assert held < 2 * MB
    assert peak < 3 * MB


@pytest.mark.parametrize("size", [0, 100, MB])
def test_answers_that_nobody_reads_take_little_memory_beside_their_bytes(size):
    """Views of the bytes wait, however many they are: how many may is for the front end to say."""
    requests = (headers(number, PLAIN_REQUEST, WHOLE) for number in numbers())
    connection, held, peak = flood(requests, body=BODY[:size], is_read=False)

    assert held < 4 * MB
    assert peak < 5 * MB
    assert len(connection.streams) <= LIMITS.max_concurrent_streams


@pytest.mark.parametrize("window", [0, 1])
def test_answers_that_no_window_lets_through_take_little_memory_beside_their_bytes(window):
    requests = (headers(number, PLAIN_REQUEST, WHOLE) for number in numbers())
    connection, held, peak = flood(requests, body=BODY, start=START + settings((4, window)))

    assert held < 3 * MB
    assert peak < 4 * MB
    assert len(connection.streams) == LIMITS.max_concurrent_streams


@pytest.mark.parametrize("make_block", [many_fields, big_fields])
def test_the_fields_of_requests_in_flight_take_at_most_four_times_their_size(make_block):
    num_streams = 20
    requests = (headers(number, make_block(number)) for number in range(1, 2 * num_streams, 2))
    connection, held, _ = flood(requests)

    assert len(connection.streams) == num_streams
    assert held < num_streams * 4 * LIMITS.max_header_list_size


def test_nothing_is_left_of_requests_that_have_been_answered():
    requests = [headers(number, many_fields(number), WHOLE) for number in range(1, 60, 2)]
    connection, held, _ = flood(requests, body=b"reply")

    assert not connection.streams
    assert held < 50 * KB  # one of them would take as much
