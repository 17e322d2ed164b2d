"""Metadata: binary values, and what becomes request parameters."""

from __future__ import annotations

import base64
import re
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from bireme.types import InvalidArgument
from bireme.wire.grpc.metadata import decode_binary, forwarded_parameters
from bireme.wire.grpc.status import Refusal, Status

EVERYTHING = re.compile("")


@given(value=st.binary(max_size=50))
def test_binary_values_come_with_padding_or_without(value):
    padded = base64.b64encode(value)

    assert decode_binary(padded) == value
    assert decode_binary(padded.rstrip(b"=")) == value


@pytest.mark.parametrize(
    "value", [b"a", b"ab?d", b"ab d", b"ab=d", b"=abc", b"\xff\xff\xff\xff", b"abcde", b"ab\n"]
)
def test_what_is_not_base64_is_refused(value):
    with pytest.raises(Refusal) as caught:
        decode_binary(value)

    assert caught.value.status is Status.INTERNAL


def test_metadata_becomes_parameters_where_the_pattern_is_found():
    headers = [(b"x-user", b"me"), (b"my-x-tag", b"1"), (b"other", b"2"), (b"x-empty", b"")]

    assert forwarded_parameters(headers, re.compile("x-")) == {"x-user": "me", "my-x-tag": "1", "x-empty": ""}
    assert forwarded_parameters(headers, re.compile("^x-")) == {"x-user": "me", "x-empty": ""}


def test_nothing_is_forwarded_without_a_pattern_or_a_match():
    headers = [(b"x-user", b"me")]

    assert forwarded_parameters(headers, None) is None
    assert forwarded_parameters(headers, re.compile("^y")) is None
    assert forwarded_parameters([], EVERYTHING) is None


def test_the_protocols_own_headers_are_never_forwarded():
    headers = [
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"grpc-timeout", b"1S"),
        (b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"gzip"), (b"user-agent", b"grpc-python"),
        (b"a", b"b"),
    ]  # fmt: skip

    assert forwarded_parameters(headers, EVERYTHING) == {"user-agent": "grpc-python", "a": "b"}


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output",
        "triton_", "triton_enable_empty_final_response", "triton_grpc_error",
    ],
)  # fmt: skip
def test_names_with_a_meaning_are_refused_where_they_would_be_forwarded(name):
    headers = [(name.encode(), b"true")]

    assert forwarded_parameters(headers, re.compile("^x-")) is None
    with pytest.raises(InvalidArgument) as caught:
        forwarded_parameters(headers, EVERYTHING)
    assert caught.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


def test_similar_names_are_not_reserved():
    headers = [
        (b"triton", b"1"),
        (b"x-triton_a", b"2"),
        (b"triton-grpc-protocol-k", b"3"),
        (b"timeouts", b"4"),
    ]

    assert forwarded_parameters(headers, EVERYTHING) == {
        name.decode(): value.decode() for name, value in headers
    }


def test_of_several_values_the_last_is_forwarded():
    assert forwarded_parameters([(b"k", b"1"), (b"k", b"2")], EVERYTHING) == {"k": "2"}


def test_binary_metadata_is_decoded():
    headers = [(b"a-bin", b"AP8="), (b"b-bin", b"AP8"), (b"c-bin", b"AQ, AP8"), (b"bin", b"AP8")]

    assert forwarded_parameters(headers, EVERYTHING) == {
        "a-bin": "\0\xff", "b-bin": "\0\xff", "c-bin": "\0\xff", "bin": "AP8",
    }  # fmt: skip


def test_binary_metadata_that_is_not_base64_is_refused_only_where_it_would_be_forwarded():
    headers = [(b"a-bin", b"???")]

    assert forwarded_parameters(headers, re.compile("^x-")) is None
    with pytest.raises(Refusal):
        forwarded_parameters(headers, EVERYTHING)


@given(name=st.binary(max_size=10), value=st.binary(max_size=10))
def test_whatever_bytes_a_header_has_it_is_forwarded_or_refused(name, value):
    with suppress(InvalidArgument, Refusal):
        forwarded_parameters([(name, value)], EVERYTHING)
