"""Inference-Header-Content-Length."""

from __future__ import annotations

import pytest

from bireme.types import InvalidArgument
from bireme.wire import http as wire_http


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), (b"0", 0), (b"10", 10), (b" 7 ", 7), (b"+3", 3), (b"007", 7)]
)
def test_a_number_within_the_body_is_taken(value, expected):
    assert wire_http.parse_header_length(value, 10) == expected


@pytest.mark.parametrize("value", [b"11", b"-1", b"2147483647"])
def test_a_number_outside_of_the_body_is_refused(value):
    with pytest.raises(InvalidArgument) as caught:
        wire_http.parse_header_length(value, 10)

    assert caught.value.message == f"inference header size should be in range (0, 10), got: {value.decode()}"


@pytest.mark.parametrize("value", [b"", b"abc", b"1.5", b"0x10", b"1_0", b"12abc", b"\xff", b"- 1"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InvalidArgument, match="Unable to parse Inference-Header-Content-Length, got: "):
        wire_http.parse_header_length(value, 10)


@pytest.mark.parametrize("value", [b"2147483648", b"-2147483649", b"9" * 5000])
def test_a_number_that_no_server_reads_is_refused(value):
    with pytest.raises(InvalidArgument, match=r"value is out of range \[ -2147483648, 2147483647 \], got: "):
        wire_http.parse_header_length(value, 10)


def test_a_body_above_two_gigabytes_may_have_its_length_named():
    assert wire_http.parse_header_length(b"3000000000", 4_000_000_000) == 3_000_000_000
