"""Header blocks: which lists are requests, how blocks are decoded, remembered and bounded, and how ours are written."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, HPACKError
from hpack.struct import NeverIndexedHeaderTuple
from hypothesis import given, settings, strategies as st

from bireme.wire.http2.errors import ErrorCode, MalformedRequest, ProtocolViolation
from bireme.wire.http2.header_decoder import HeaderDecoder
from bireme.wire.http2.headers import check_trailers, encode_block, read_request

REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/b"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]
MAX_SIZE = 4096


def without(name):
    return [field for field in REQUEST if field[0] != name]


def replaced(name, value):
    return [(key, value if key == name else old) for key, old in REQUEST]


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST,
        without(b":authority"),
        replaced(b":scheme", b"https"),
        [*REQUEST, (b"host", b"LOCALHOST")],
        [*REQUEST, (b"content-length", b"0")],
        [*REQUEST, (b"content-length", b"17"), (b"content-length", b"17")],
        [*REQUEST, (b"x", b"")],
        [*REQUEST, (b"x-data-bin", b"\x80\xff")],
        [(b":method", b"OPTIONS"), (b":scheme", b"http"), (b":path", b"*")],
        [(b":method", b"CONNECT"), (b":authority", b"localhost:1")],
    ],
)
def test_sound_requests_are_taken(fields):
    assert dict(fields)[b":method"] == read_request(fields).method


@pytest.mark.parametrize(
    "fields",
    [
        [],
        without(b":method"),
        without(b":scheme"),
        without(b":path"),
        replaced(b":method", b""),
        replaced(b":scheme", b""),
        replaced(b":path", b""),
        replaced(b":path", b"a/b"),
        replaced(b":path", b"*"),
        replaced(b":path", b"/a\r\nb"),
        replaced(b":authority", b"me@localhost"),
        replaced(b"te", b"gzip"),
        [*REQUEST, (b":path", b"/c")],
        [(b":method", b"POST"), *REQUEST],
        [(b":status", b"200"), *REQUEST],
        [(b":protocol", b"websocket"), *REQUEST],
        [*REQUEST, (b"X-Upper", b"1")],
        [*REQUEST, (b"", b"1")],
        [*REQUEST, (b"x y", b"1")],
        [*REQUEST, (b"x:y", b"1")],
        [*REQUEST, (b"x\x80", b"1")],
        [*REQUEST, (b"x", b"a\nb")],
        [*REQUEST, (b"x", b"a\0b")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"keep-alive", b"1")],
        [*REQUEST, (b"proxy-connection", b"1")],
        [*REQUEST, (b"transfer-encoding", b"chunked")],
        [*REQUEST, (b"upgrade", b"h2c")],
        [*REQUEST, (b"host", b"elsewhere")],
        [*REQUEST, (b"content-length", b"-1")],
        [*REQUEST, (b"content-length", b"")],
        [*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")],
        [(b":method", b"CONNECT"), (b":authority", b"a:1"), (b":path", b"/")],
        [(b":method", b"CONNECT")],
    ],
)
def test_malformed_requests_are_told_apart(fields):
    with pytest.raises(MalformedRequest):
        read_request(fields)


def test_blanks_around_a_value_stay_for_grpc_allows_them_in_metadata():
    assert (b"x", b" a\t") in read_request([*REQUEST, (b"x", b" a\t")]).headers


def test_the_host_stands_in_for_the_authority():
    assert b"elsewhere" == read_request([*without(b":authority"), (b"host", b"elsewhere")]).authority


@pytest.mark.parametrize("field", [(b":path", b"/"), (b"X", b"1"), (b"connection", b"close"), (b"x", b"\n")])
def test_malformed_trailers_are_told_apart(field):
    check_trailers([(b"x-fine", b"1")])

    with pytest.raises(MalformedRequest):
        check_trailers([(b"x-fine", b"1"), field])


def test_our_blocks_say_what_they_are_meant_to():
    pairs = [
        (b":status", b"200"),
        (b":status", b"415"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"0"),
        (b"grpc-message", b"x" * 5000),
        (b"n" * 300, b""),
    ]
    decoder = Decoder()

    fields = decoder.decode(encode_block(pairs), raw=True)

    assert pairs == fields
    assert not decoder.header_table.dynamic_entries


# The decoder


def test_a_block_of_references_is_found_again():
    encoder, decoder = Encoder(), HeaderDecoder(MAX_SIZE)
    first, second = encoder.encode(REQUEST), encoder.encode(REQUEST)

    decoder.decode_request(first)
    head = decoder.decode_request(second)

    assert decoder.find(first) is None
    assert decoder.find(second) is head


def test_a_block_with_literals_is_found_again():
    """As clients on nghttp2 send their path, which they do not index."""
    decoder = HeaderDecoder(MAX_SIZE)
    block = Encoder().encode([NeverIndexedHeaderTuple(*field) for field in REQUEST])

    head = decoder.decode_request(block)

    assert decoder.find(block) is head


def test_blocks_are_forgotten_when_the_table_changes():
    """The same bytes refer to other entries then."""
    encoder, decoder = Encoder(), HeaderDecoder(MAX_SIZE)
    decoder.decode_request(encoder.encode(REQUEST))
    block = encoder.encode(REQUEST)
    decoder.decode_request(block)

    decoder.decode(encoder.encode([(b"x-new", b"1")]))
    moved = encoder.encode(REQUEST)

    assert decoder.find(block) is None
    assert block != moved
    assert b"/a/b" == decoder.decode_request(moved).path


def test_blocks_are_forgotten_when_the_table_is_resized():
    encoder, decoder = Encoder(), HeaderDecoder(MAX_SIZE)
    decoder.decode_request(encoder.encode(REQUEST))
    block = encoder.encode(REQUEST)
    decoder.decode_request(block)

    encoder.header_table_size = 100
    resizing = encoder.encode(REQUEST)
    head = decoder.decode_request(resizing)

    assert b"/a/b" == head.path
    assert decoder.find(block) is None
    assert decoder.find(resizing) is None


def test_malformed_requests_are_not_remembered():
    decoder = HeaderDecoder(MAX_SIZE)
    block = encode_block([(b":method", b"POST")])

    with pytest.raises(MalformedRequest):
        decoder.decode_request(block)

    assert decoder.find(block) is None


def test_what_is_remembered_is_bounded():
    decoder = HeaderDecoder(1 << 16)

    for number in range(1000):
        decoder.decode_request(encode_block([*REQUEST, (b"x-number", b"%d" % number)]))
    long = encode_block([*REQUEST, (b"x-long", bytes(2000).hex().encode())])
    decoder.decode_request(long)
    many = encode_block([*REQUEST, *[(b"x", b"")] * 100])
    decoder.decode_request(many)

    assert len(decoder._heads) <= 128
    assert decoder.find(long) is None
    assert decoder.find(many) is None


def test_a_list_that_is_too_long_ends_its_stream_and_leaves_the_table_right():
    encoder, decoder = Encoder(), HeaderDecoder(MAX_SIZE)
    block = encoder.encode([*REQUEST, (b"x-long", b"a" * MAX_SIZE)])

    with pytest.raises(MalformedRequest) as refusal:
        decoder.decode_request(block)

    assert ErrorCode.ENHANCE_YOUR_CALM is refusal.value.code
    assert b"/a/b" == decoder.decode_request(encoder.encode(REQUEST)).path


@pytest.mark.parametrize("count", [10, 60_000])
def test_a_bomb_ends_the_connection(count):
    """One large entry, referred to by one byte each time."""
    encoder, decoder = Encoder(), HeaderDecoder(MAX_SIZE)
    decoder.decode(encoder.encode([(b"x-large", b"a" * 2000)]))

    with pytest.raises(ProtocolViolation) as violation:
        decoder.decode(b"\xbe" * count)

    assert ErrorCode.ENHANCE_YOUR_CALM is violation.value.code


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # an index into an empty table
        b"\xff",  # an index cut off
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x40",  # a literal cut off
        b"\x00\x01",
        b"\x00\x01a\x05b",
        b"\x0f\x7fa",
        b"\x00\x81\x00\x01a",  # Huffman code that is none
        b"\x82\x20",  # a size update behind a field
        b"\x3f\xe2\x1f",  # a table larger than allowed
    ],
)
def test_broken_blocks_are_compression_errors(block):
    decoder = HeaderDecoder(MAX_SIZE)

    with pytest.raises(ProtocolViolation) as violation:
        decoder.decode(block)

    assert ErrorCode.COMPRESSION_ERROR is violation.value.code


names = st.sampled_from([b"x", b"content-type", b":path", b"user-agent", b"x-request-id"]) | st.binary(
    max_size=9
)
values = st.sampled_from([b"", b"/", b"gzip", b"a" * 126, b"a" * 127, b"b" * 300]) | st.binary(max_size=200)
lists = st.lists(st.tuples(names, values, st.booleans()), max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.lists(lists, min_size=1, max_size=6),
    huffman=st.booleans(),
    table_size=st.sampled_from([0, 90, 4096]),
)
def test_blocks_mean_what_the_library_says(blocks, huffman, table_size):
    encoder, decoder, model = Encoder(), HeaderDecoder(1 << 20), Decoder()
    encoder.header_table_size = table_size

    for fields in blocks:
        pairs = [NeverIndexedHeaderTuple(n, v) if is_secret else (n, v) for n, v, is_secret in fields]
        block = encoder.encode(pairs, huffman=huffman)

        assert list(model.decode(block, raw=True)) == decoder.decode(block)
        assert model.header_table.dynamic_entries == decoder._table.dynamic_entries


@settings(max_examples=300, deadline=None)
@given(blocks=st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_any_bytes_mean_what_the_library_says(blocks):
    decoder, model = HeaderDecoder(1 << 20), Decoder()

    for block in blocks:
        try:
            expected = list(model.decode(block, raw=True))
        except (HPACKError, IndexError):
            with pytest.raises(ProtocolViolation):
                decoder.decode(block)
            return
        assert expected == decoder.decode(block)
        assert model.header_table.dynamic_entries == decoder._table.dynamic_entries
