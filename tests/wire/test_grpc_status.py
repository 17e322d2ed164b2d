"""Statuses as header blocks: what a client's HPACK decoder makes of them."""

from __future__ import annotations

from urllib.parse import unquote

import grpc
import hpack
import pytest
from hypothesis import given, strategies as st

from bireme.wire.grpc import status as statuses
from bireme.wire.grpc.status import MAX_MESSAGE_SIZE, Refusal, Status


def decode(block):
    """Decode a block, which must leave the decoder's table as it is."""
    decoder = hpack.Decoder()
    fields = [tuple(field) for field in decoder.decode(block, raw=True)]
    assert not decoder.header_table.dynamic_entries
    return fields


def test_codes_are_those_of_grpc():
    assert {status.name: status.value for status in Status} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


def test_a_response_begins_with_200_and_the_content_type():
    start = [(b":status", b"200"), (b"content-type", b"application/grpc")]

    assert decode(statuses.RESPONSE_HEADERS) == start
    assert decode(statuses.GZIP_RESPONSE_HEADERS) == [*start, (b"grpc-encoding", b"gzip")]
    assert decode(statuses.DEFLATE_RESPONSE_HEADERS) == [*start, (b"grpc-encoding", b"deflate")]


@pytest.mark.parametrize("status", Status)
def test_trailers_carry_the_status_and_the_message(status):
    assert decode(statuses.trailers(status)) == [(b"grpc-status", b"%d" % status)]
    assert decode(statuses.trailers(status, "no such model")) == [
        (b"grpc-status", b"%d" % status),
        (b"grpc-message", b"no such model"),
    ]


def test_success_has_its_trailers_ready():
    assert decode(statuses.OK_TRAILERS) == [(b"grpc-status", b"0")]


def test_a_response_may_be_a_status_and_nothing_else():
    block = statuses.trailers_only(
        Status.UNIMPLEMENTED, "50% é", extra=[(b"grpc-accept-encoding", b"identity")]
    )

    assert decode(block) == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity"),
        (b"grpc-status", b"12"),
        (b"grpc-message", b"50%25 %C3%A9"),
    ]


@pytest.mark.parametrize("status", [200, 404, 415, 503])
def test_what_is_no_grpc_request_is_answered_by_an_http_status(status):
    assert decode(statuses.http_refusal(status)) == [(b":status", b"%d" % status)]


@given(message=st.text(max_size=200))
def test_a_message_survives_percent_encoding(message):
    encoded = statuses.encode_message(message)

    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode()) == message


def test_lone_surrogates_do_not_break_a_message():
    assert statuses.encode_message("a\ud800b") == b"a?b"


@pytest.mark.parametrize(
    "message",
    [
        "x" * MAX_MESSAGE_SIZE + "x",
        "é" * 1000,
        "日" * 100_000,
        "a" * 5000 + "日" * 50_000,
        "日" * 5000 + "a" * 99_999,
    ],
)
def test_a_long_message_is_cut_between_characters(message):
    encoded = statuses.encode_message(message)

    assert 500 < len(encoded) <= MAX_MESSAGE_SIZE
    assert encoded.endswith(b"...")
    assert message.startswith(unquote(encoded[:-3].decode(), errors="strict"))


def test_a_message_of_the_greatest_size_is_left_alone():
    message = "x" * MAX_MESSAGE_SIZE

    assert statuses.encode_message(message) == message.encode()


def test_a_refusal_reads_as_what_it_is():
    refusal = Refusal(Status.INTERNAL, "broken")

    assert (refusal.status, refusal.text, str(refusal)) == (Status.INTERNAL, "broken", "INTERNAL: broken")
