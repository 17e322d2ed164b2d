"""Message framing: whole messages out of DATA that is cut anywhere, within a limit."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, strategies as st

from bireme.wire.grpc.message_reader import PREFIX_SIZE, SMALL_SIZE, MessageReader, message_prefix
from bireme.wire.grpc.status import Refusal, Status

MAX_SIZE = 100_000


class Call(MessageReader):
    """Notes what is reported, and which memory was asked for."""

    def __init__(self, max_message_size=MAX_SIZE, *, stops_after=-1, refusal=None):
        super().__init__(max_message_size)
        self.messages = []
        self.flags = []
        self.num_ends = 0
        self.refusals = []
        self.allocations = []
        self.starts = []
        self.stops_after = stops_after
        self.refusal = refusal

    def allocate(self, size, start):
        if self.refusal is not None:
            raise self.refusal
        self.starts.append(bytes(start))
        self.allocations.append(memoryview(bytearray(size)))
        return self.allocations[-1]

    def take_message(self, message, is_compressed):
        self.messages.append(message)
        self.flags.append(is_compressed)
        if len(self.messages) == self.stops_after:
            self.stop()

    def take_end(self):
        self.num_ends += 1

    def refuse(self, status, text):
        self.refusals.append((status, text))


def feed(call, data, sizes=()):
    """Give ``data`` in pieces of ``sizes``, the last of which is repeated, in memory that is overwritten afterwards."""
    position = 0
    sizes = list(sizes)
    while position < len(data):
        size = (sizes.pop(0) if len(sizes) > 1 else sizes[0]) if sizes else len(data)
        piece = bytearray(data[position : position + size])
        call.receive(memoryview(piece))
        piece[:] = b"\xee" * len(piece)
        position += size


def frame(message, *, is_compressed=False):
    return message_prefix(len(message), is_compressed) + message


def pattern(size):
    return bytes(index * 7 % 251 for index in range(size))


def test_a_prefix_is_a_flag_and_four_bytes_of_length():
    assert message_prefix(0x01020304) == b"\x00\x01\x02\x03\x04"
    assert message_prefix(7, True) == b"\x01\x00\x00\x00\x07"


def test_one_message_in_one_piece_is_a_copy_of_its_own():
    call = Call()
    feed(call, frame(b"hello"))
    call.end()

    assert call.messages == [b"hello"]
    assert type(call.messages[0]) is bytes
    assert call.flags == [False]
    assert call.num_ends == 1
    assert not call.refusals


def test_no_message_at_all_is_an_end():
    call = Call()
    call.receive(memoryview(b""))
    call.end()

    assert (call.messages, call.num_ends) == ([], 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 9, 11, 100, 5000])
def test_messages_are_the_same_however_they_are_cut(size):
    expected = [
        b"", b"a", b"", pattern(4), pattern(SMALL_SIZE), pattern(SMALL_SIZE + 1), b"", pattern(9000), b"",
    ]  # fmt: skip
    call = Call()
    feed(call, b"".join(frame(message, is_compressed=len(message) % 2 == 1) for message in expected), [size])
    call.end()

    assert call.messages == expected
    assert call.flags == [len(message) % 2 == 1 for message in expected]
    assert call.num_ends == 1


@pytest.mark.parametrize("cut", range(1, PREFIX_SIZE + 1))
@pytest.mark.parametrize("message", [b"", b"abc"])
def test_a_prefix_may_be_cut_anywhere(cut, message):
    call = Call()
    feed(call, frame(message) + frame(b"next"), [cut, 1000])

    assert call.messages == [message, b"next"]


@pytest.mark.parametrize("flag", [2, 3, 0x80, 0xFF])
@pytest.mark.parametrize("piece_size", [1, 100])
def test_another_flag_is_refused(flag, piece_size):
    call = Call()
    feed(call, frame(b"good") + bytes([flag]) + b"\x00\x00\x00\x01x" + frame(b"not seen"), [piece_size])
    call.end()

    assert call.messages == [b"good"]
    [(status, text)] = call.refusals
    assert status is Status.INTERNAL
    assert f"0x{flag:02x}" in text
    assert not call.num_ends


@pytest.mark.parametrize("piece_size", [1, 5, 6, 10_000])
def test_a_message_over_the_limit_is_refused_at_its_prefix(piece_size):
    call = Call(max_message_size=10)
    feed(call, frame(b"0123456789"), [piece_size])
    call.receive(memoryview(message_prefix(11)))

    assert call.messages == [b"0123456789"]
    assert call.refusals == [(Status.RESOURCE_EXHAUSTED, "Received message larger than max (11 vs. 10)")]

    feed(call, pattern(11) + frame(b"x"))
    call.end()
    assert (len(call.messages), len(call.refusals), call.num_ends) == (1, 1, 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00", "1 bytes of a prefix of 5"),
        (b"\x00\x00\x00\x00", "4 bytes of a prefix of 5"),
        (message_prefix(3), "0 of 3 bytes"),
        (message_prefix(3) + b"ab", "2 of 3 bytes"),
        (message_prefix(50_000) + pattern(100), "100 of 50000 bytes"),
        (message_prefix(50_000) + pattern(30_000), "30000 of 50000 bytes"),
    ],
)
@pytest.mark.parametrize("sizes", [[100_000], [3, 4000]])
def test_an_end_within_a_message_is_refused(data, text, sizes):
    call = Call()
    feed(call, data, sizes)
    call.end()

    [(status, said)] = call.refusals
    assert status is Status.INTERNAL
    assert text in said
    assert not call.num_ends


def test_a_large_message_is_received_straight_into_its_memory():
    message = pattern(50_000)
    call = Call()
    assert call.get_target(1000) is None
    feed(call, message_prefix(50_000) + message[:10_000])
    position = 10_000
    for wanted in (1, 16_384, 20_000, 20_000):
        target = call.get_target(wanted)
        assert len(target) == min(wanted, 50_000 - position)
        target[:] = message[position : position + len(target)]
        call.advance(len(target))
        position += len(target)

    [memory] = call.allocations
    assert call.messages[0] is memory
    assert memory == message
    assert call.starts == [message[:10_000]]
    assert call.get_target(1) is None
    feed(call, frame(b"next"))
    assert call.messages[1] == b"next"


def test_a_target_may_be_filled_in_parts_and_by_received_data_in_turn():
    message = pattern(20_000)
    call = Call()
    feed(call, message_prefix(20_000, True) + message[:5000])
    target = call.get_target(10_000)
    target[:100] = message[5000:5100]
    call.advance(100)
    feed(call, message[5100:12_000])
    target = call.get_target(10_000)
    target[:] = message[12_000:]
    call.advance(8000)

    assert call.messages == [message]
    assert call.flags == [True]


def test_memory_is_asked_for_only_when_the_start_of_a_message_is_there():
    call = Call()
    feed(call, message_prefix(90_000) + pattern(SMALL_SIZE - 1), [100])
    assert not call.allocations
    assert call.get_target(10) is None

    feed(call, b"\0" * 10)
    assert [len(memory) for memory in call.allocations] == [90_000]
    assert call.starts == [pattern(SMALL_SIZE - 1) + b"\0"]


def test_an_announced_size_commits_nothing():
    call = Call(max_message_size=(1 << 31) - 1)
    tracemalloc.start()
    try:
        feed(call, message_prefix((1 << 31) - 1) + b"x" * 100, [1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


def test_memory_that_is_not_there_is_a_refusal():
    call = Call(refusal=Refusal(Status.RESOURCE_EXHAUSTED, "no memory"))
    feed(call, message_prefix(50_000) + pattern(50_000) + frame(b"x"), [20_000])
    call.end()

    assert call.refusals == [(Status.RESOURCE_EXHAUSTED, "no memory")]
    assert not call.messages
    assert not call.num_ends


@pytest.mark.parametrize("sizes", [[1], [1_000_000]])
def test_a_call_that_stops_is_told_nothing_more(sizes):
    call = Call(stops_after=2)
    feed(call, frame(b"a") + frame(b"b") + frame(b"c") + b"\xff" * 10, sizes)
    call.end()

    assert call.messages == [b"a", b"b"]
    assert not call.refusals
    assert not call.num_ends


def test_a_call_may_stop_while_a_message_is_being_received():
    call = Call()
    feed(call, message_prefix(50_000) + pattern(10_000))
    target = call.get_target(40_000)
    call.stop()
    target[:] = bytes(40_000)
    call.advance(40_000)
    call.end()

    assert call.get_target(10) is None
    assert not call.messages
    assert not call.refusals
    assert not call.num_ends


messages = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=20), st.sampled_from([4095, 4096, 4097, 9001]).map(pattern)),
        st.booleans(),
    ),
    max_size=6,
)


@given(messages=messages, cuts=st.lists(st.integers(1, 6000), max_size=30), by_target=st.booleans())
def test_nothing_is_lost_or_changed_whatever_the_cuts(messages, cuts, by_target):
    data = b"".join(frame(message, is_compressed=flag) for message, flag in messages)
    call = Call()
    position = 0
    for cut in [*cuts, len(data)]:
        end = min(position + cut, len(data))
        while position < end:
            target = call.get_target(end - position) if by_target else None
            if target is None:
                feed(call, data[position:end])
                position = end
            else:
                target[:] = data[position : position + len(target)]
                call.advance(len(target))
                position += len(target)
    call.end()

    assert [
        (bytes(message), flag) for message, flag in zip(call.messages, call.flags, strict=True)
    ] == messages
    assert call.num_ends == 1


@given(data=st.binary(max_size=200), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=10))
def test_whatever_comes_is_refused_once_or_taken_to_its_end(data, sizes):
    whole, cut = Call(max_message_size=50), Call(max_message_size=50)
    feed(whole, data)
    whole.end()
    feed(cut, data, sizes)
    cut.end()

    assert (whole.messages, whole.refusals, whole.num_ends) == (cut.messages, cut.refusals, cut.num_ends)
    assert len(whole.refusals) + whole.num_ends == 1
