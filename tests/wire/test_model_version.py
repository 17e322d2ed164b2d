"""Model versions as text."""

from __future__ import annotations

import pytest

from bireme.types import InvalidArgument
from bireme.wire.model_version import parse_model_version


@pytest.mark.parametrize(
    ("text", "version"),
    [("", -1), ("0", 0), ("1", 1), ("007", 7), ("9223372036854775807", (1 << 63) - 1), ("0" * 30 + "5", 5)],
)
def test_digits_are_a_version(text, version):
    assert parse_model_version(text) == version


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "failed to get model version from specified version string 'x' (details: not a number)"),
        ("1.5", "(details: not a number)"),
        ("1 ", "(details: not a number)"),
        ("-", "(details: not a number)"),
        ("--1", "(details: not a number)"),
        ("²", "(details: not a number)"),
        ("9223372036854775808", "(details: out of range), version should be an integral value > 0"),
        ("9" * 5000, "(details: out of range)"),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
        ("-0", "invalid model version specified '-0' "),
    ],
)
def test_other_text_is_refused(text, message):
    with pytest.raises(InvalidArgument) as raised:
        parse_model_version(text)

    assert message in raised.value.message
