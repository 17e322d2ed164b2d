"""``grpc-timeout``: digits and a unit, or a refusal."""

from __future__ import annotations

import pytest

from bireme.wire.grpc.status import Refusal, Status
from bireme.wire.grpc.timeout import parse_timeout


@pytest.mark.parametrize(
    ("value", "expected_ns"),
    [
        (b"1H", 3_600_000_000_000),
        (b"2M", 120_000_000_000),
        (b"3S", 3_000_000_000),
        (b"100m", 100_000_000),
        (b"5u", 5_000),
        (b"1n", 1),
        (b"0n", 0),
        (b"00000010S", 10_000_000_000),
        (b"99999999H", 99_999_999 * 3_600_000_000_000),
        (b"99999999n", 99_999_999),
    ],
)
def test_digits_and_a_unit_are_a_timeout(value, expected_ns):
    assert parse_timeout(value) == expected_ns


@pytest.mark.parametrize(
    "value",
    [
        b"", b"S", b"1", b"10", b"1s", b"1h", b"1X", b"1 S", b" 1S", b"1S ", b"-1S", b"+1S", b"1.5S", b"1_0S",
        b"123456789S", b"0x1S", b"1SS", "１S".encode(), b"\xff\xffS", b"1" * 10_000,
    ],
)  # fmt: skip
def test_anything_else_is_refused(value):
    with pytest.raises(Refusal, match="grpc-timeout") as caught:
        parse_timeout(value)

    assert caught.value.status is Status.INTERNAL
    assert len(caught.value.text) < 300
