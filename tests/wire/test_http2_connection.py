"""Requests and answers over whole connections, with h2 as the client."""

from __future__ import annotations

import gc
import weakref

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hyperframe.frame import GoAwayFrame, RstStreamFrame

from bireme.wire.http2 import ErrorCode, Http2Limits
from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK, Client, Server, parse_frames

BODY = bytes(range(256)) * 150


@pytest.mark.parametrize("chunk_size", [1 << 30, 5000, 100, 10, 1])
@pytest.mark.parametrize("wants_memory", [False, True])
def test_requests_arrive_however_they_are_cut(chunk_size, wants_memory):
    server = Server()
    server.handler.wants_memory = wants_memory
    server.answer_all(b"hello")
    client = Client(server, chunk_size)
    body = BODY[: 20_000 if chunk_size < 10 else None]

    stream_ids = [client.request(body), client.request(b"short"), client.request()]
    client.exchange()

    calls = server.handler.calls
    assert stream_ids == list(calls)
    assert [body, b"short", b""] == [calls[stream_id].body for stream_id in stream_ids]
    assert [b"hello"] * 3 == [client.body_of(stream_id) for stream_id in stream_ids]
    assert all([(b"grpc-status", b"0")] == client.trailers_of(stream_id) for stream_id in stream_ids)
    assert not client.resets()
    assert not server.connection.streams


def test_the_head_tells_what_was_asked():
    server = Server()
    client = Client(server)

    stream_id = client.open((*REQUEST_HEADERS, (b"content-length", b"7"), (b"x-own", b"1")))
    client.exchange()

    head = server.handler.calls[stream_id].stream.head
    assert b"POST" == head.method
    assert b"/inference.GRPCInferenceService/ModelInfer" == head.path
    assert b"http" == head.scheme
    assert b"localhost:8001" == head.authority
    assert 7 == head.content_length
    assert (b"x-own", b"1") == tuple(head.headers[-1])


def test_requests_with_the_same_block_share_their_head():
    server = Server()
    client = Client(server)

    stream_ids = [client.request(), client.request(), client.request()]
    client.exchange()

    heads = [server.handler.calls[stream_id].stream.head for stream_id in stream_ids]
    assert heads[1] is heads[2]


@pytest.mark.parametrize("chunk_size", [1 << 30, 10_000])
def test_most_of_a_large_message_goes_straight_to_its_memory(chunk_size):
    server = Server()
    server.handler.wants_memory = True
    server.answer_all()
    client = Client(server, chunk_size)
    client.h2.max_outbound_frame_size = 1 << 20
    body = BODY * 25

    stream_id = client.request(body)
    client.exchange()

    call = server.handler.calls[stream_id]
    assert body == call.body
    assert call.num_direct > len(body) - (80 << 10)


def test_padding_is_not_data():
    server = Server()
    server.handler.wants_memory = True
    client = Client(server, 50)

    stream_id = client.open()
    client.h2.send_data(stream_id, bytes(100), pad_length=200)
    client.h2.send_data(stream_id, b"end", end_stream=True, pad_length=0)
    client.exchange()

    call = server.handler.calls[stream_id]
    assert bytes(100) + b"end" == call.body
    assert call.has_ended


def test_trailers_end_a_request():
    server = Server()
    client = Client(server)

    stream_id = client.open()
    client.h2.send_data(stream_id, b"data")
    client.h2.send_headers(stream_id, [(b"x-checksum", b"1")], end_stream=True)
    client.exchange()

    assert server.handler.calls[stream_id].has_ended


def test_receive_windows_are_opened_again_before_they_are_used_up():
    server = Server(Http2Limits(stream_window=100_000, connection_window=100_000))
    server.answer_all()
    client = Client(server)

    stream_id = client.open()
    for _ in range(50):
        client.h2.send_data(stream_id, bytes(16_000))
        client.exchange()
    client.h2.end_stream(stream_id)
    client.exchange()

    assert 50 * 16_000 == len(server.handler.calls[stream_id].body)
    assert client.trailers_of(stream_id) is not None


def test_small_requests_use_up_no_window():
    server = Server(Http2Limits(connection_window=100_000))
    server.answer_all()
    client = Client(server)

    for _ in range(50):
        client.request(bytes(10_000))
        client.exchange()

    assert 50 == sum(call.has_ended for call in server.handler.calls.values())
    assert client.goaway() is None


def test_a_reset_by_the_client_reaches_the_handler():
    server = Server()
    client = Client(server)
    stream_id = client.open()

    client.h2.reset_stream(stream_id, ErrorCode.CANCEL)
    client.exchange()

    assert [ErrorCode.CANCEL] == server.handler.calls[stream_id].resets
    assert not server.connection.streams


def test_an_answer_before_the_request_has_ended_stops_the_client():
    """And what it had sent by then is neither an error nor reported."""
    server = Server()
    client = Client(server)
    stream_id = client.open()
    client.exchange()
    call = server.handler.calls[stream_id]

    server.connection.answer(call.stream, RESPONSE_BLOCK, [], 0, TRAILERS_BLOCK)
    last = parse_frames(server.take())[-1]
    client.h2.send_data(stream_id, b"late")
    client.h2.send_headers(stream_id, [(b"x-late", b"1")], end_stream=True)
    client.exchange()

    assert isinstance(last, RstStreamFrame)
    assert (stream_id, ErrorCode.NO_ERROR) == (last.stream_id, last.error_code)
    assert b"" == call.body
    assert not call.has_ended
    assert not call.resets
    assert client.goaway() is None


def test_the_table_survives_a_block_on_a_stream_that_was_reset():
    server = Server()
    client = Client(server)
    stream_id = client.open()
    client.exchange()
    server.connection.reset(server.handler.calls[stream_id].stream, ErrorCode.CANCEL)

    client.h2.send_headers(stream_id, [(b"x-new", b"value")], end_stream=True)
    next_id = client.open((*REQUEST_HEADERS, (b"x-new", b"value")))
    client.exchange()

    assert (b"x-new", b"value") == tuple(server.handler.calls[next_id].stream.head.headers[-1])


def test_a_handler_may_refuse_when_a_stream_opens():
    server = Server()
    server.handler.on_open = lambda call: server.connection.send_headers(
        call.stream, RESPONSE_BLOCK, end_stream=True
    )
    client = Client(server)

    stream_ids = [client.request(), client.request(b"body")]
    client.exchange()

    ended = [event.stream_id for event in client.events if isinstance(event, h2.events.StreamEnded)]
    assert stream_ids == ended
    assert not any(call.has_ended or call.body for call in server.handler.calls.values())


def test_pings_are_answered_both_ways():
    server = Server()
    client = Client(server)

    client.h2.ping(b"question")
    server.connection.send_ping(b"12345678")
    client.exchange()

    assert [b"question"] == [
        event.ping_data for event in client.events if isinstance(event, h2.events.PingAckReceived)
    ]
    assert [b"12345678"] == server.handler.pings


def test_a_handler_may_leave_a_ping_unanswered():
    server = Server()
    server.handler.answers_pings = False
    client = Client(server)

    client.h2.ping(b"question")
    client.exchange()

    assert not [event for event in client.events if isinstance(event, h2.events.PingAckReceived)]


def test_a_stream_too_many_is_refused():
    server = Server(Http2Limits(max_concurrent_streams=2))
    client = Client(server)
    client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 3
    client.h2.remote_settings.acknowledge()

    stream_ids = [client.open() for _ in range(3)]
    client.exchange()

    assert [(stream_ids[2], ErrorCode.REFUSED_STREAM)] == client.resets()
    assert 2 == len(server.connection.streams)


def test_going_away_refuses_what_comes_later_and_finishes_the_rest():
    server = Server()
    server.answer_all()
    client = Client(server)
    first_id = client.open()
    client.exchange()

    server.connection.go_away(ErrorCode.NO_ERROR, b"bye")
    client.open()  # sent before the client knows
    server.feed(client.h2.data_to_send())
    client.h2.end_stream(first_id)
    server.feed(client.h2.data_to_send())
    answers = parse_frames(server.take())

    assert [first_id] == [frame.last_stream_id for frame in answers if isinstance(frame, GoAwayFrame)]
    assert [first_id + 2] == [frame.stream_id for frame in answers if isinstance(frame, RstStreamFrame)]
    assert [first_id] == list(server.handler.calls)
    assert server.handler.calls[first_id].has_ended
    assert server.connection.is_going_away
    assert not server.connection.is_closed


def test_going_away_in_two_steps_takes_streams_between_them():
    server = Server()
    server.answer_all()
    client = Client(server)

    server.connection.go_away(ErrorCode.NO_ERROR, last_stream_id=2**31 - 1)
    client.request()
    server.feed(client.h2.data_to_send())
    server.connection.go_away(ErrorCode.NO_ERROR)
    answers = parse_frames(server.take())

    assert [2**31 - 1, 1] == [frame.last_stream_id for frame in answers if isinstance(frame, GoAwayFrame)]
    assert server.handler.calls[1].has_ended


def test_going_away_with_an_error_ends_the_connection():
    server = Server()
    client = Client(server)
    stream_id = client.open()
    client.exchange()

    server.connection.go_away(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
    client.exchange()

    assert server.connection.is_closed
    assert "too_many_pings" == server.connection.close_reason
    assert [ErrorCode.ENHANCE_YOUR_CALM] == server.handler.calls[stream_id].resets
    assert ErrorCode.ENHANCE_YOUR_CALM is client.goaway()


def test_losing_the_connection_ends_all_streams_once():
    server = Server()
    client = Client(server)
    stream_ids = [client.open(), client.open()]
    client.exchange()

    server.connection.connection_lost()
    server.connection.connection_lost()

    assert all(1 == len(server.handler.calls[stream_id].resets) for stream_id in stream_ids)
    assert not server.connection.streams
    assert server.connection.is_closed


def test_nothing_is_done_after_the_end():
    server = Server()
    client = Client(server)
    stream_id = client.open()
    client.exchange()
    stream = server.handler.calls[stream_id].stream
    connection = server.connection
    connection.connection_lost()

    connection.answer(stream, RESPONSE_BLOCK, [b"x"], 1, TRAILERS_BLOCK)
    connection.send_data(stream, [b"x"], 1)
    connection.reset(stream, ErrorCode.CANCEL)
    connection.send_ping(b"12345678")
    connection.go_away(ErrorCode.NO_ERROR)
    client.h2.ping(b"12345678")
    server.feed(client.h2.data_to_send())

    assert b"" == server.take()
    assert 0 == server.handler.num_pings_received


def test_a_client_that_says_goodbye_is_noticed():
    server = Server()
    client = Client(server)

    client.h2.close_connection(additional_data=bytes(5000))
    server.feed(client.h2.data_to_send(), 100)

    assert server.connection.is_peer_going_away
    assert not server.connection.is_closed


def test_what_is_not_http2_ends_the_connection():
    server = Server()

    server.feed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 4)

    assert server.connection.is_closed
    assert "the client does not speak HTTP/2" == server.connection.close_reason


def test_an_error_of_the_handler_ends_the_connection_and_is_raised():
    server = Server()

    def fail(call):
        raise RuntimeError("bug")

    server.handler.on_open = fail
    client = Client(server)
    client.request()

    with pytest.raises(RuntimeError, match="bug"):
        client.exchange()

    assert server.connection.is_closed


def test_unknown_frames_of_any_size_are_passed_over():
    server = Server()
    server.answer_all()
    client = Client(server, 1000)

    server.feed((3_000_000).to_bytes(3, "big") + b"\x77\0\0\0\0\1" + bytes(3_000_000), 60_000)
    stream_id = client.request(b"hi")
    client.exchange()

    assert b"hello" == client.body_of(stream_id)


def test_a_header_block_larger_than_the_scratch_buffer_is_taken():
    server = Server(Http2Limits(max_header_list_size=64 << 10), scratch_size=4096)
    client = Client(server, 500)
    client.h2.max_outbound_frame_size = 1 << 20

    stream_id = client.open((*REQUEST_HEADERS, (b"x-long", bytes(range(0x30, 0x50)) * 1000)))
    client.exchange()

    assert 32_000 == len(server.handler.calls[stream_id].stream.head.headers[-1][1])


@pytest.mark.parametrize("end", ["answer", "large answer", "finish", "reset", "by the client", "lost"])
def test_a_request_is_freed_when_it_ends_without_the_collector(end):
    """It may hold megabytes."""
    server = Server()
    client = Client(server)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    stream_id = client.request(b"body")
    client.exchange()
    call = server.handler.calls.pop(stream_id)
    server.handler.reset_stream = lambda stream, code: None
    server.handler.stream_drained = lambda stream: None
    connection, stream = server.connection, call.stream
    is_freed = weakref.ref(call)
    gc.disable()

    if end == "answer":
        connection.answer(stream, RESPONSE_BLOCK, [b"x"], 1, TRAILERS_BLOCK)
    elif end == "large answer":
        connection.answer(stream, RESPONSE_BLOCK, [bytes(1000)], 1000, TRAILERS_BLOCK)
        client.exchange()
    elif end == "finish":
        connection.finish(stream, RESPONSE_BLOCK)
    elif end == "reset":
        connection.reset(stream, ErrorCode.CANCEL)
    elif end == "by the client":
        client.h2.reset_stream(stream_id)
        client.exchange()
    else:
        connection.connection_lost()
    del call, stream

    assert is_freed() is None
    gc.enable()


def test_the_state_can_be_read():
    server = Server()
    client = Client(server)
    stream_id = client.open()
    client.exchange()

    assert "Http2Connection(open, last stream 1, in flight 1)" == repr(server.connection)
    assert repr(server.handler.calls[stream_id].stream).startswith("Stream(1, open, b'/inference.GRPC")


def test_an_error_after_going_away_names_no_later_stream():
    server = Server()
    client = Client(server)
    client.open()
    client.exchange()
    server.connection.go_away(ErrorCode.NO_ERROR)
    client.open()

    server.feed(client.h2.data_to_send() + bytes(9))  # DATA on stream 0

    goaways = [frame for frame in parse_frames(server.take()) if isinstance(frame, GoAwayFrame)]
    assert [1, 1] == [frame.last_stream_id for frame in goaways]


def test_small_windows_hold_for_streams_that_opened_before_the_client_knew():
    """It counts their windows down from 64 KB until it reads our settings, and from there on as we do."""
    server = Server(Http2Limits(stream_window=100))
    client = Client(Server())
    client.server = server
    client.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
    client.h2.initiate_connection()
    stream_id = client.open()
    server.feed(client.h2.data_to_send())
    client.exchange()

    for _ in range(10):
        client.h2.send_data(stream_id, bytes(60))
        client.exchange()

    assert 600 == len(server.handler.calls[stream_id].body)
    assert client.goaway() is None
