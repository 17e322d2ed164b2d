"""The parts of a serialised request: where each lies, in whatever order they come."""

from __future__ import annotations

import pytest

from bireme.types import InvalidArgument
from bireme.wire import grpc as wire_grpc
from bireme.wire.grpc import UnreadableMessage, request_parts
from bireme.wire.grpc.request_parts import split_request
from bireme.wire.grpc.wire_fields import read_varint, walk_fields, write_bytes, write_varint
from grpc_infer_messages import make_input, make_request

NAME, VERSION, ID, INPUT, RAW = b"\x0a", b"\x12", b"\x1a", b"\x2a", b"\x3a"


def field(tag: bytes, content: bytes) -> bytes:
    return write_bytes(tag, content)


def parts(message: bytes):
    head, request_id, starts, ends = split_request(message)
    return head, request_id, [message[start:end] for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152])
def test_raw_contents_of_any_length_are_found(size):
    head, content = field(NAME, b"m"), bytes(size)

    assert parts(head + field(RAW, content) + field(RAW, b"x")) == (head, "", [content, b"x"])


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384])
def test_head_fields_of_any_length_are_passed(size):
    head = field(NAME, b"n" * size) + field(INPUT, b"i" * size)

    assert parts(head + field(RAW, b"x")) == (head, "", [b"x"])


@pytest.mark.parametrize("request_id", ["", "7", "é" * 63, "x" * 127, "x" * 128, "x" * 20_000])
def test_the_id_is_cut_out_of_the_head(request_id):
    name, rest = field(NAME, b"m"), field(INPUT, b"i")
    message = name + field(ID, request_id.encode()) + rest + field(RAW, b"x")

    assert parts(message) == (name + rest, request_id, [b"x"])
    assert wire_grpc.peek_request_id(message) == request_id


def test_fields_in_any_order():
    message = b"".join(
        (
            field(RAW, b"one"),
            field(INPUT, b"i"),
            field(ID, b"first"),
            field(RAW, b""),
            b"\xf8\x01\x96\x01",  # field 31, a varint
            b"\xf1\x01" + bytes(8),  # field 30, 64 bits
            b"\xed\x01" + bytes(4),  # field 29, 32 bits
            b"\x38\x05",  # field 7 as a varint is no raw content
            b"\xba\x00\x01y",  # a tag in more bytes than it needs
            field(ID, b"last"),
            field(NAME, b"m"),
        )
    )
    head, request_id, raw = parts(message)

    assert raw == [b"one", b"", b"y"]
    assert request_id == "last"
    assert head == b"".join(
        (
            field(INPUT, b"i"),
            b"\xf8\x01\x96\x01",
            b"\xf1\x01" + bytes(8),
            b"\xed\x01" + bytes(4),
            b"\x38\x05",
            field(NAME, b"m"),
        )
    )


def test_an_overlong_length_is_a_length():
    assert parts(field(NAME, b"m") + RAW + b"\x81\x80\x80\x80\x00x") == (field(NAME, b"m"), "", [b"x"])
    assert parts(ID + b"\x81\x00x" + RAW + b"\x80\x00") == (b"", "x", [b""])
    assert parts(RAW + b"\x81" + b"\x80" * 8 + b"\x00x") == (b"", "", [b"x"])


WHOLE = make_request(
    make_input("A"), make_input("B", "INT8", (200,)), raw=[bytes(8), bytes(200)], id="17"
).SerializeToString()


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_the_kind_of_buffer_does_not_matter(make):
    assert split_request(make(WHOLE)) == split_request(WHOLE)


def is_whole(message: bytes) -> bool:
    try:
        split_request(message)
    except UnreadableMessage:
        return False
    return True


def test_a_message_cut_off_inside_a_field_is_refused():
    boundaries = {0} | {each.end for each in walk_fields(WHOLE)}

    assert {size for size in range(len(WHOLE) + 1) if is_whole(WHOLE[:size])} == boundaries


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0c", "wire type 4"),
        (b"\x3e", "wire type 6"),
        (b"\x3f", "wire type 7"),
        (RAW, "unfinished number"),
        (RAW + b"\xff" * 20, "unfinished number"),
        (RAW + b"\x80", "unfinished number"),
        (b"\xff" * 20, "unfinished number"),
        (RAW + b"\xff" * 9 + b"\x01", "ends 18446744073709551615 bytes past the end"),
        (RAW + b"\x05abc", "field 7 at byte 0 ends 2 bytes past the end"),
        (NAME + b"\x05abc", "field 1 at byte 0 ends 2 bytes past the end"),
        (b"\x09abc", "field 1 at byte 0 ends 5 bytes past the end"),
        (ID + b"\x01\xff", "the id is not UTF-8"),
        (field(RAW, b"") + ID + b"\x01\xff", "the id is not UTF-8"),
    ],
)
def test_what_is_no_message_is_refused(message, detail):
    with pytest.raises(UnreadableMessage) as caught:
        split_request(message)

    assert caught.value.message.startswith("Unable to parse request: ")
    assert detail in caught.value.message
    assert caught.value.code == "INTERNAL"
    assert wire_grpc.peek_request_id(message) == ""


@pytest.mark.parametrize("one", [field(RAW, b""), field(INPUT, b""), b"\xf8\x01\x00"])
def test_the_number_of_fields_is_limited(one):
    assert is_whole(one * request_parts.MAX_FIELDS)
    with pytest.raises(InvalidArgument, match="more than 16384 fields"):
        split_request(one * (request_parts.MAX_FIELDS + 1))


def test_where_raw_contents_begin_is_seen_in_the_first_bytes():
    expected = split_request(WHOLE)[2][0]
    found = {size: wire_grpc.raw_offset(memoryview(WHOLE)[:size]) for size in range(len(WHOLE) + 1)}

    assert set(found.values()) == {0, expected}
    assert all(offset == (expected if size >= expected else 0) for size, offset in found.items())
    assert wire_grpc.raw_offset(b"\x0b") == 0


def test_the_head_size_leaves_out_raw_contents():
    assert wire_grpc.head_size(make_request(raw=[bytes(1000)]).SerializeToString()) == 3


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63, 2**64 - 1])
def test_varints_go_round(value):
    written = write_varint(value)

    assert read_varint(b"\xff" + written + b"\xff", 1) == (value, 1 + len(written))
