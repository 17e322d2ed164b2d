"""Traffic that no library would send: broken frames of every type, and whatever hypothesis makes of valid ones.

Whatever comes, nothing is raised, what the server sends is a sound sequence of frames, every call ends once, and the result
does not depend on how the bytes are cut.
"""

from __future__ import annotations

import h2.config
import h2.connection
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, strategies as st

from bireme.wire.http2 import ErrorCode
from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK
from http2_peer import REQUEST, SMALL, START, Peer, check_sequence, headers, ping, request

FRAMES = {
    "DATA": DataFrame(1, data=b"hello", flags=["END_STREAM"]),
    "padded DATA": DataFrame(1, data=b"hello", pad_length=9, flags=["PADDED"]),
    "HEADERS": HeadersFrame(5, data=REQUEST, flags=["END_HEADERS", "END_STREAM"]),
    "padded HEADERS": HeadersFrame(
        5, data=REQUEST, pad_length=3, flags=["END_HEADERS", "PADDED", "PRIORITY"]
    ),
    "trailers": HeadersFrame(1, data=b"", flags=["END_HEADERS", "END_STREAM"]),
    "a part of HEADERS": HeadersFrame(5, data=REQUEST),
    "PRIORITY": PriorityFrame(1, depends_on=3, stream_weight=9),
    "RST_STREAM": RstStreamFrame(1, error_code=8),
    "SETTINGS": SettingsFrame(0, settings={4: 100, 5: 20_000}),
    "SETTINGS ACK": SettingsFrame(0, flags=["ACK"]),
    "PUSH_PROMISE": PushPromiseFrame(1, promised_stream_id=2, data=REQUEST, flags=["END_HEADERS"]),
    "PING": PingFrame(0, opaque_data=b"12345678"),
    "PING ACK": PingFrame(0, opaque_data=b"12345678", flags=["ACK"]),
    "GOAWAY": GoAwayFrame(0, last_stream_id=1, error_code=0, additional_data=b"bye"),
    "WINDOW_UPDATE": WindowUpdateFrame(0, window_increment=10),
    "WINDOW_UPDATE of a stream": WindowUpdateFrame(1, window_increment=10),
    "CONTINUATION": ContinuationFrame(1, data=REQUEST, flags=["END_HEADERS"]),
    "unknown": ExtensionFrame(type=0xFA, stream_id=1, flag_byte=0xFF, body=b"hello"),
}
BYTES = {name: made.serialize() for name, made in FRAMES.items()}
CUTS = [[1 << 20], [1], [9], [10, 1], [3, 7, 1 << 20], [8, 2]]

OPEN = START + headers(1) + headers(3)
"""Two requests have begun."""


REACTIONS = ["answer", "nothing", "reset at once", "answer at once", "go away"]


def react(peer, reaction):
    """Let the server do something about each request; return the set of those that it will have ended by itself."""
    ended = set()

    def end(call):
        ended.add(call.stream.id)
        if reaction == "reset at once":
            peer.connection.reset(call.stream, ErrorCode.CANCEL)
        else:
            peer.connection.answer(call.stream, RESPONSE_BLOCK, [b"reply"], 5, TRAILERS_BLOCK)

    if reaction == "answer":
        peer.handler.on_end = end
    elif reaction.endswith("at once"):
        peer.handler.on_open = end
    elif reaction == "go away":
        peer.handler.on_open = lambda call: peer.connection.go_away(ErrorCode.NO_ERROR)
    return ended


def run(sent, sizes=(1 << 20,), *, start=OPEN, reaction="answer", wants_memory=False):
    """Feed a server, look whether all is well, end the connection, and return what can be seen of all that."""
    peer = Peer(SMALL, start=b"", scratch_size=1 << 12)
    peer.handler.wants_memory = wants_memory
    ended = react(peer, reaction)
    peer.exchange(start)
    peer.feed_cut(sent, sizes)
    output = peer.take_frames()
    check_sequence(peer.frames)
    if peer.connection.is_closed:
        assert peer.goaway_code()
        assert peer.connection.close_reason
    peer.connection.connection_lost()
    assert not peer.connection.streams
    for stream_id, call in peer.calls.items():
        assert len(call.resets) == (0 if stream_id in ended else 1), "each call ends once"
    calls = {
        stream_id: (bytes(call.body), call.has_ended, call.resets) for stream_id, call in peer.calls.items()
    }
    return calls, [frame.serialize() for frame in output]


def patched(frame_bytes, *, length=None, kind=None, flags=None, stream_id=None):
    """Return a frame with another header."""
    changed = bytearray(frame_bytes)
    if length is not None:
        changed[:3] = length.to_bytes(3, "big")
    if kind is not None:
        changed[3] = kind
    if flags is not None:
        changed[4] = flags
    if stream_id is not None:
        changed[5:9] = stream_id.to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize("name", BYTES)
def test_a_frame_that_stops_midway_waits_for_its_rest(name):
    sent = BYTES[name]
    whole = run(sent + ping())
    for cut in range(len(sent)):
        assert run(sent + ping(), [cut or 1 << 20, 1 << 20]) == whole
        run(sent[:cut])


@pytest.mark.parametrize("name", BYTES)
def test_a_frame_that_says_it_is_shorter_than_it_is_ends_well_or_ends_the_connection(name):
    sent = BYTES[name]
    for length in range(len(sent) - 9):
        shortened = patched(sent[: 9 + length], length=length) + ping() + request(9)
        whole = run(shortened)
        assert all(run(shortened, sizes) == whole for sizes in CUTS)


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("extra", [1, 5, 255, 20_000])
def test_a_frame_that_is_too_long_ends_well_or_ends_the_connection(name, extra):
    sent = BYTES[name]
    lengthened = patched(sent, length=len(sent) - 9 + extra) + bytes(extra) + ping()
    whole = run(lengthened)
    assert all(run(lengthened, sizes) == whole for sizes in ([1], [9], [5000]))


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("stream_id", [0, 1, 2, 3, 4, 7, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_frame_on_another_stream_ends_well_or_ends_the_connection(name, stream_id):
    moved = patched(BYTES[name], stream_id=stream_id) + ping()
    whole = run(moved)
    assert all(run(moved, sizes) == whole for sizes in CUTS)


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("flags", [0, 1, 4, 5, 8, 0x20, 0x2D, 0xFF])
def test_a_frame_with_other_flags_ends_well_or_ends_the_connection(name, flags):
    changed = patched(BYTES[name], flags=flags) + ping()
    whole = run(changed)
    assert all(run(changed, sizes) == whole for sizes in CUTS)


@pytest.mark.parametrize("first", BYTES)
@pytest.mark.parametrize("second", BYTES)
def test_any_frame_after_any_other_ends_well_or_ends_the_connection(first, second):
    sent = BYTES[first] + BYTES[second] + ping()
    whole = run(sent)
    assert all(run(sent, sizes) == whole for sizes in CUTS)


@pytest.mark.parametrize("name", BYTES)
def test_a_frame_in_place_of_the_first_settings_ends_the_connection(name):
    peer = Peer(SMALL, start=START[:24])
    peer.exchange(BYTES[name])

    assert name == "SETTINGS" or peer.goaway_code() in (ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR)


MESSAGES = {1: b"message 1", 3: bytes(range(256)) * 20, 5: b""}


def h2_traffic():
    """Return what `h2` sends for a few requests, by itself a sound conversation, in its frames."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
    client.initiate_connection()
    pieces = [client.data_to_send()]

    def add():
        pieces.append(client.data_to_send())

    for stream_id in (1, 3, 5):
        client.send_headers(stream_id, list(REQUEST_HEADERS))
        add()
        client.send_data(stream_id, MESSAGES[stream_id], pad_length=stream_id)
        add()
    client.ping(b"12345678")
    add()
    client.increment_flow_control_window(1000)
    add()
    client.prioritize(3, weight=7, depends_on=1)
    add()
    client.reset_stream(3, 8)
    add()
    client.end_stream(1)
    add()
    client.send_headers(5, [(b"x-checksum", b"0")], end_stream=True)
    add()
    client.update_settings({4: 10})
    add()
    client.close_connection()
    add()
    return pieces


TRAFFIC = h2_traffic()
small_cuts = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 3000)), min_size=1, max_size=20)


@pytest.mark.slow
@given(sizes=small_cuts, wants_memory=st.booleans())
def test_sound_traffic_is_taken_however_it_is_cut(sizes, wants_memory):
    sent = b"".join(TRAFFIC)
    calls, output = run(sent, sizes, start=b"", wants_memory=wants_memory)

    assert (calls, output) == run(sent, start=b"")
    assert calls == {
        1: (MESSAGES[1], True, []), 3: (MESSAGES[3], False, [8]), 5: (MESSAGES[5], True, []),
    }  # fmt: skip


@pytest.mark.slow
@given(
    sent=st.binary(max_size=300),
    start=st.sampled_from([b"", START[:24], START, OPEN]),
    sizes=small_cuts,
)
def test_arbitrary_bytes_end_well(sent, start, sizes):
    assert run(sent, sizes, start=start) == run(sent, start=start)


@pytest.mark.slow
@given(st.data(), st.sampled_from(REACTIONS), small_cuts, st.booleans())
def test_mutated_frames_end_well(draw, reaction, sizes, wants_memory):
    """Sound frames in any order, some of them repeated, with bytes changed, removed or added."""
    pieces = draw.draw(st.lists(st.sampled_from([*TRAFFIC[1:], *BYTES.values()]), min_size=1, max_size=12))
    sent = bytearray(b"".join(pieces))
    for _ in range(draw.draw(st.integers(0, 4))):
        position = draw.draw(st.integers(0, len(sent)))
        change = draw.draw(st.sampled_from(["set", "remove", "insert"]))
        if change == "set" and position < len(sent):
            sent[position] = draw.draw(st.integers(0, 255))
        elif change == "remove":
            del sent[position : position + draw.draw(st.integers(1, 9))]
        else:
            sent[position:position] = draw.draw(st.binary(min_size=1, max_size=9))
    whole = run(bytes(sent), reaction=reaction)

    assert run(bytes(sent), sizes, reaction=reaction, wants_memory=wants_memory) == whole


stream_ids = st.sampled_from([0, 1, 2, 3, 5, 7, 0x7FFFFFFF])
lengths = st.one_of(st.integers(0, 20), st.sampled_from([100, 1024, 5000, 1 << 14, (1 << 14) + 1]))


@pytest.mark.slow
@given(
    headers_and_sizes=st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 255), stream_ids, lengths), min_size=1, max_size=8
    ),
    fill=st.sampled_from([0, 1, 0x20, 0x80, 0x82, 0xFF]),
    sizes=small_cuts,
    reaction=st.sampled_from(REACTIONS),
)
def test_frames_of_any_kind_flags_stream_and_size_end_well(headers_and_sizes, fill, sizes, reaction):
    sent = b"".join(
        length.to_bytes(3, "big")
        + bytes((kind, flags))
        + stream_id.to_bytes(4, "big")
        + bytes((fill,)) * length
        for kind, flags, stream_id, length in headers_and_sizes
    )

    assert run(sent, sizes, reaction=reaction) == run(sent, reaction=reaction)


@pytest.mark.slow
@given(st.data())
def test_one_connection_never_notices_another(draw):
    """Two connections share their scratch memory; what one is sent changes nothing for the other."""
    scratch = memoryview(bytearray(1 << 12))
    sound, other = Peer(SMALL, start=b""), Peer(SMALL, start=OPEN)
    sound.scratch = other.scratch = scratch
    for piece in TRAFFIC:
        cut = draw.draw(st.integers(0, len(piece)))
        sound.feed(piece[:cut])
        other.feed(draw.draw(st.one_of(st.binary(max_size=30), st.sampled_from(list(BYTES.values())))))
        scratch[:] = b"\xee" * len(scratch)
        sound.feed(piece[cut:])

    assert {stream_id: bytes(call.body) for stream_id, call in sound.calls.items()} == MESSAGES
    assert not sound.connection.is_closed
