"""What a connection sends: windows, queues, turns, a paused transport."""

from __future__ import annotations

import tracemalloc

import h2.events
import h2.settings
import pytest
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame, RstStreamFrame

from bireme.wire.http2 import ErrorCode, Http2Limits, encode_block
from http2_client import RESPONSE_BLOCK, TRAILERS_BLOCK, Client, Server, parse_frames

INITIAL_WINDOW_SIZE = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE


def make_body(size):
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def open_calls(number=1, **settings):
    """Return a server, its client and the calls of some requests that wait for an answer."""
    server = Server()
    client = Client(server)
    if settings:
        client.h2.update_settings({getattr(h2.settings.SettingCodes, key): settings[key] for key in settings})
    stream_ids = [client.request() for _ in range(number)]
    client.exchange()
    return server, client, [server.handler.calls[stream_id] for stream_id in stream_ids]


def data_frames(output):
    return [(f.stream_id, len(f.data)) for f in parse_frames(output) if isinstance(f, DataFrame)]


@pytest.mark.parametrize("window", [1, 2, 1000, 65_535, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, 5000, 70_000])
def test_an_answer_arrives_through_any_window(window, size):
    size = min(size, window * 300)
    server, client, (call,) = open_calls(INITIAL_WINDOW_SIZE=window)
    body = make_body(size)
    pieces = [body[: size // 3], bytearray(body[size // 3 : size // 2]), memoryview(body)[size // 2 :]]

    server.connection.answer(call.stream, RESPONSE_BLOCK, pieces, size, TRAILERS_BLOCK)
    client.exchange()

    assert body == client.body_of(call.stream.id)
    assert [(b"grpc-status", b"0")] == client.trailers_of(call.stream.id)
    assert not server.connection.streams
    assert 0 == call.stream.unsent_size


def test_a_small_answer_is_one_piece_of_output():
    server, _, (call,) = open_calls()

    server.connection.answer(call.stream, RESPONSE_BLOCK, [b"a", b"b"], 2, TRAILERS_BLOCK)

    assert 1 == len(server.connection.take_output())


def test_small_messages_that_wait_take_little_more_than_their_bytes():
    """Views of their pieces would take seven times as much."""
    server, _, (call,) = open_calls(INITIAL_WINDOW_SIZE=0)
    message = bytes(range(100))
    tracemalloc.start()
    try:
        for _ in range(5000):
            server.connection.send_data(call.stream, [message[:5], message[5:]], 100)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 500_000 == call.stream.unsent_size
    assert held < 2 * 500_000


def test_large_pieces_are_not_copied():
    server, _, (call,) = open_calls(INITIAL_WINDOW_SIZE=1 << 20, MAX_FRAME_SIZE=1 << 20)
    body = make_body(50_000)
    view = memoryview(body)

    server.connection.answer(call.stream, RESPONSE_BLOCK, [b"\0" * 5, view], 50_005, TRAILERS_BLOCK)

    output = server.connection.take_output()
    assert any(
        isinstance(piece, memoryview) and piece.obj is body and len(piece) == 50_000 for piece in output
    )


def test_pieces_of_other_formats_are_sent_as_bytes():
    server, client, (call,) = open_calls(INITIAL_WINDOW_SIZE=10)
    numbers = memoryview(bytes(range(64))).cast("I", (4, 4))

    server.connection.answer(call.stream, RESPONSE_BLOCK, [numbers], 64, TRAILERS_BLOCK)
    client.exchange()

    assert bytes(range(64)) == client.body_of(call.stream.id)


def test_data_keeps_to_the_frame_size_of_the_client():
    server, client, (call,) = open_calls(INITIAL_WINDOW_SIZE=1 << 20)

    server.connection.answer(call.stream, RESPONSE_BLOCK, [make_body(40_000)], 40_000, TRAILERS_BLOCK)
    small = data_frames(server.take())
    server, client, (call,) = open_calls(INITIAL_WINDOW_SIZE=1 << 20, MAX_FRAME_SIZE=1 << 20)
    server.connection.answer(call.stream, RESPONSE_BLOCK, [make_body(40_000)], 40_000, TRAILERS_BLOCK)
    client.exchange()

    assert [(1, 16_384), (1, 16_384), (1, 7232)] == small
    assert make_body(40_000) == client.body_of(1)


def test_messages_of_a_stream_keep_their_order():
    server, client, (call,) = open_calls(INITIAL_WINDOW_SIZE=100)
    connection, stream = server.connection, call.stream

    connection.send_headers(stream, RESPONSE_BLOCK)
    for number in range(100):
        connection.send_data(stream, [b"%03d" % number, b"."], 4)
    connection.finish(stream, TRAILERS_BLOCK)
    waiting = stream.unsent_size
    client.exchange()

    assert 300 == waiting
    assert b"".join(b"%03d." % number for number in range(100)) == client.body_of(1)
    assert client.trailers_of(1) is not None


def test_the_front_end_learns_when_a_queue_has_drained():
    server, client, (waiting, direct) = open_calls(2, INITIAL_WINDOW_SIZE=10)
    connection = server.connection

    connection.send_headers(waiting.stream, RESPONSE_BLOCK)
    connection.send_data(waiting.stream, [bytes(30)], 30)
    connection.send_headers(direct.stream, RESPONSE_BLOCK)
    connection.send_data(direct.stream, [bytes(10)], 10)
    before = waiting.num_drained
    client.exchange()

    assert 0 == before
    assert 1 == waiting.num_drained
    assert 0 == direct.num_drained


def test_streams_take_turns_when_the_connection_window_opens():
    server, client, calls = open_calls(3, INITIAL_WINDOW_SIZE=1 << 24)
    size = 300_000
    for call in calls:
        server.connection.answer(call.stream, RESPONSE_BLOCK, [make_body(size)], size, TRAILERS_BLOCK)
    server.take()  # what the first window of 64 KB held

    client.h2.increment_flow_control_window(600_000)
    server.feed(client.h2.data_to_send())

    sent = dict.fromkeys((1, 3, 5), 0)
    for stream_id, num_bytes in data_frames(server.take()):
        sent[stream_id] += num_bytes
    assert 600_000 == sum(sent.values())
    assert min(sent.values()) >= 128 << 10


def test_a_stalled_stream_holds_up_no_other():
    server, client, (stalled, other) = open_calls(2, INITIAL_WINDOW_SIZE=0)
    for call in (stalled, other):
        server.connection.answer(call.stream, RESPONSE_BLOCK, [bytes(1000)], 1000, TRAILERS_BLOCK)

    client.h2.increment_flow_control_window(1000, other.stream.id)
    client.exchange()

    assert client.trailers_of(other.stream.id) is not None
    assert 1000 == stalled.stream.unsent_size


def test_a_smaller_initial_window_takes_back_what_was_granted():
    """The window may be negative then, and nothing is sent until it is positive again."""
    server, client, (call,) = open_calls(INITIAL_WINDOW_SIZE=100)
    connection, stream = server.connection, call.stream
    connection.send_headers(stream, RESPONSE_BLOCK)
    connection.send_data(stream, [bytes(90)], 90)
    server.take()
    client.h2.update_settings({INITIAL_WINDOW_SIZE: 20})
    server.feed(client.h2.data_to_send())

    connection.send_data(stream, [bytes(50)], 50)
    while_negative = data_frames(server.take())
    window = stream.window
    client.h2.increment_flow_control_window(100, 1)
    server.feed(client.h2.data_to_send())

    assert -70 == window
    assert [] == while_negative
    assert [(1, 30)] == data_frames(server.take())


def test_a_window_that_shrinks_under_a_waiting_stream_is_kept():
    server, client, calls = open_calls(2, INITIAL_WINDOW_SIZE=1 << 20)
    for call in calls:
        server.connection.answer(call.stream, RESPONSE_BLOCK, [bytes(100_000)], 100_000, TRAILERS_BLOCK)
    server.take()  # the connection's window is used up

    client.h2.update_settings({INITIAL_WINDOW_SIZE: 0})
    client.h2.increment_flow_control_window(1 << 20)
    server.feed(client.h2.data_to_send())

    assert calls[1].stream.window == 0
    assert [] == data_frames(server.take())[1:]


def test_a_paused_transport_gets_no_data():
    server, _, (call,) = open_calls()
    connection = server.connection
    connection.is_writable = False

    connection.answer(call.stream, RESPONSE_BLOCK, [bytes(100)], 100, TRAILERS_BLOCK)
    paused = parse_frames(server.take())
    unsent = call.stream.unsent_size
    connection.resume()

    assert [HeadersFrame] == [type(frame) for frame in paused]
    assert 100 == unsent
    assert [DataFrame, HeadersFrame] == [type(frame) for frame in parse_frames(server.take())]
    assert 1 == call.num_drained


def test_a_large_answer_is_handed_out_in_parts():
    """Between which the transport may be paused, and is respected then."""
    server = Server(Http2Limits(max_output_burst=100_000))
    client = Client(server)
    client.h2.update_settings({INITIAL_WINDOW_SIZE: 1 << 24})
    client.h2.increment_flow_control_window(1 << 24)
    stream_id = client.request()
    client.exchange()
    connection = server.connection
    stream = server.handler.calls[stream_id].stream

    connection.answer(stream, RESPONSE_BLOCK, [bytes(1_000_000)], 1_000_000, TRAILERS_BLOCK)
    parts = [sum(map(len, connection.take_output())) for _ in range(3)]
    connection.is_writable = False
    while_paused = connection.take_output()
    connection.resume()

    assert max(parts) < 101_000
    assert [] == while_paused
    assert 1_000_000 - 300_000 == sum(num_bytes for _, num_bytes in data_frames(server.take()))
    assert stream.is_closed


def test_a_reset_drops_what_waits():
    server, client, (by_client, by_server) = open_calls(2, INITIAL_WINDOW_SIZE=10)
    connection = server.connection
    for call in (by_client, by_server):
        connection.send_headers(call.stream, RESPONSE_BLOCK)
        connection.send_data(call.stream, [bytes(1000)], 1000)
    server.take()

    client.h2.reset_stream(by_client.stream.id)
    server.feed(client.h2.data_to_send())
    connection.reset(by_server.stream, ErrorCode.INTERNAL_ERROR)
    connection.send_data(by_client.stream, [bytes(10)], 10)

    assert [by_server.stream.id] == [f.stream_id for f in parse_frames(server.take())]
    assert [] == by_server.resets
    assert 1 == len(by_client.resets)
    assert 0 == by_client.stream.unsent_size == by_server.stream.unsent_size
    assert not connection.streams


def test_a_finished_call_is_not_told_of_a_reset():
    server, client, (call,) = open_calls(INITIAL_WINDOW_SIZE=10)
    server.connection.answer(call.stream, RESPONSE_BLOCK, [bytes(1000)], 1000, TRAILERS_BLOCK)

    client.h2.reset_stream(call.stream.id)
    server.feed(client.h2.data_to_send())

    assert [] == call.resets
    assert not server.connection.streams


def test_trailers_wait_behind_data_then_stop_a_client_that_goes_on():
    server = Server()
    client = Client(server)
    client.h2.update_settings({INITIAL_WINDOW_SIZE: 10})
    stream_id = client.open()
    client.exchange()
    call = server.handler.calls[stream_id]
    server.connection.answer(call.stream, RESPONSE_BLOCK, [bytes(20)], 20, TRAILERS_BLOCK)
    server.take()

    client.h2.send_data(stream_id, b"more")
    client.h2.increment_flow_control_window(100, stream_id)
    server.feed(client.h2.data_to_send())

    assert b"" == call.body
    assert [DataFrame, HeadersFrame, RstStreamFrame] == [type(f) for f in parse_frames(server.take())]


def test_long_trailers_are_cut_into_frames():
    server, client, (call,) = open_calls()
    block = encode_block(((b"grpc-status", b"3"), (b"grpc-message", b"x" * 40_000)))

    server.connection.send_headers(call.stream, RESPONSE_BLOCK)
    server.connection.finish(call.stream, block)
    output = server.take()

    types = [type(frame) for frame in parse_frames(output)]
    assert [HeadersFrame, HeadersFrame, ContinuationFrame, ContinuationFrame] == types
    events = client.h2.receive_data(output)
    assert any(isinstance(event, h2.events.TrailersReceived) for event in events)


def test_a_smaller_header_table_is_acknowledged_before_the_next_block():
    server, client, (call,) = open_calls(HEADER_TABLE_SIZE=0)

    server.connection.answer(call.stream, RESPONSE_BLOCK, [b"x"], 1, TRAILERS_BLOCK)
    first = server.take()
    client.h2.receive_data(first)
    stream_id = client.request()
    server.feed(client.h2.data_to_send())
    server.connection.answer(
        server.handler.calls[stream_id].stream, RESPONSE_BLOCK, [b"x"], 1, TRAILERS_BLOCK
    )

    assert b"\x20" + RESPONSE_BLOCK == parse_frames(first)[0].data
    assert RESPONSE_BLOCK == parse_frames(server.take())[0].data


def test_answers_to_a_client_that_does_not_read_are_bounded():
    server = Server(Http2Limits(max_unread_replies=2000))
    client = Client(server)
    server.connection.is_writable = False
    server.handler.on_end = lambda call: server.connection.send_headers(
        call.stream, RESPONSE_BLOCK, end_stream=True
    )

    for _ in range(200):
        client.request()
    server.feed(client.h2.data_to_send())

    assert server.connection.is_closed
    assert "does not read" in server.connection.close_reason
    assert len(server.take()) < 2100
