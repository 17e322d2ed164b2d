"""JSON text with bare NaN and infinity tokens, both ways."""

from __future__ import annotations

import json
import math
import tracemalloc
from contextlib import suppress

import orjson
import pytest
from hypothesis import given, strategies as st

from bireme.types import InvalidArgument
from bireme.wire.http.json_text import describe, parse_json, write_json
from infer_bodies import json_scalars

PREFIX = "failed to parse the request JSON buffer: "
INF = math.inf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[Inf,Infinity,-Inf,-Infinity]", [INF, INF, -INF, -INF]),
        (b'{"NaN":"NaN Inf","a\\"Inf":[1,Inf]}', {"NaN": "NaN Inf", 'a"Inf': [1, INF]}),
        (b'["\\\\",Inf,"\\\\\\"",-Inf]', ["\\", INF, '\\"', -INF]),
        (b'["\\ud83d\\ude00 \\u00e9",Inf]', ["\U0001f600 é", INF]),
        ('["é\U0001f600",Inf]'.encode(), ["é\U0001f600", INF]),
        (b"[Inf,18446744073709551615,-9223372036854775808]", [INF, 2**64 - 1, -(2**63)]),
        (b"[Inf,18446744073709551616,-9223372036854775809,1e2]", [INF, 2.0**64, -(2.0**63), 100.0]),
        (b"[Inf," + b"9" * 300 + b"]", [INF, float("9" * 300)]),
    ],
)
def test_bare_tokens_are_values_outside_of_strings(text, expected):
    parsed = parse_json(text)

    assert parsed == expected
    assert repr(parsed) == repr(expected)


@pytest.mark.parametrize("token", [b"NaN", b"-NaN"])
def test_not_a_number(token):
    (value,) = parse_json(b"[" + token + b"]")

    assert math.isnan(value)


BAD_TEXTS = {
    "empty": (b"", 0),
    "open": (b'{"a":1', 6),
    "trailing comma": (b"[1,]", 2),
    "after the end": (b"[1] x", 4),
    "offset in bytes": ('["é",x]'.encode(), 6),
    "not UTF-8": (b'["\xff"]', 2),
    "number too large": (b"[1e999]", 1),
    "lone surrogate": (b'["\\ud800"]', 2),
    "control character": (b'["\n"]', 2),
    "byte order mark": (b"\xef\xbb\xbf[1]", 0),
    "token: open": (b"[Inf", 4),
    "token: adjacent": (b"[InfInf]", 4),
    "token: after a number": (b"[1NaN]", 2),
    "token: as a key": (b"{NaN:1}", 1),
    "token: lower case": (b"[Inf,nan]", 5),
    "token: plus": (b"[+Inf]", 1),
    "token: cut short": (b"[-Infin]", 5),
    "token: not UTF-8": (b'[Inf,"\xff"]', 6),
    "token: lone surrogate": (b'[Inf,"\\ud800"]', 5),
    "token: lone low surrogate": (b'[Inf,"\\udc00\\ud800"]', 5),
    "token: open string": (b'[Inf,"a\\"b', 5),
    "token: bad escape": (b'[Inf,"\\u00"]', 7),
    "token: offset in bytes": ('["é",Inf,x]'.encode(), 10),
}


@pytest.mark.parametrize(("text", "offset"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_a_syntax_error_tells_reason_and_byte_offset(text, offset):
    with pytest.raises(InvalidArgument) as caught:
        parse_json(memoryview(text))

    message = caught.value.message
    assert message.startswith(PREFIX)
    assert message.endswith(f" at {offset}")
    assert len(message) > len(PREFIX) + len(f" at {offset}")


@pytest.mark.parametrize("head", [b"", b"[NaN,"])
@pytest.mark.parametrize("brace", [b"[", b'{"a":'])
def test_nesting_beyond_the_parser_is_an_error(head, brace):
    with pytest.raises(InvalidArgument, match=PREFIX):
        parse_json(head + brace * 100_000)


@pytest.mark.parametrize("unit", [b'"', b'\\"', b'"\\', b"Inf", b'"Inf', b"-", b"[NaN,"])
def test_the_search_for_tokens_takes_linear_time(unit):
    """A quadratic one would take minutes here."""
    with pytest.raises(InvalidArgument):
        parse_json(b'["' + unit * (1_000_000 // len(unit)) + b"Inf")


def test_a_number_too_large_beside_a_token_is_refused():
    with pytest.raises(InvalidArgument, match="number 1e999 is too large for a double"):
        parse_json(b"[NaN,1e999]")
    with pytest.raises(InvalidArgument, match=r"number 9{37}\.\.\. is too large for a double"):
        parse_json(b"[NaN," + b"9" * 10_000 + b"]")


@given(
    st.recursive(
        json_scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    )
)
def test_what_is_written_is_read_again(value):
    text = write_json(value)

    def same(left, right):
        if isinstance(left, float):
            return (math.isnan(left) and math.isnan(right)) or left == right
        if isinstance(left, int) and not isinstance(left, bool) and not -(2**63) <= left < 2**64:
            return right == float(left)
        if isinstance(left, list):
            return len(left) == len(right) and all(map(same, left, right))
        if isinstance(left, dict):
            return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
        return left == right and type(left) is type(right)

    assert same(value, parse_json(text))


@given(st.recursive(st.floats(), lambda inner: st.lists(inner, max_size=4)))
def test_both_ways_of_parsing_agree(value):
    """A document with a token goes another way than one without; a string in front makes no difference."""
    text = json.dumps(value)
    (alone,) = parse_json(f"[{text}]".encode())
    beside, _ = parse_json(f"[{text},NaN]".encode())

    assert repr(alone) == repr(beside)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_json_or_an_error(data):
    for text in (data, b"[NaN," + data):
        with suppress(InvalidArgument):
            parse_json(text)


def test_write_json_is_compact_and_keeps_text():
    assert write_json({"a": [1, "é", None, True]}) == '{"a":[1,"é",null,true]}'.encode()
    assert write_json({"a": float("nan"), "é": "é"}) == '{"a":NaN,"é":"é"}'.encode()
    assert write_json([INF, -INF]) == b"[Infinity,-Infinity]"


def test_write_json_never_fails_on_text():
    """Error messages may hold file names that are not UTF-8."""
    assert write_json({"error": "\udcff"}) == b'{"error":"\\udcff"}'
    assert write_json(2**70) == str(2**70).encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        ({}, "an object"),
        ([1], "an array"),
        (True, "the boolean true"),
        (5, "the integer 5"),
        (1.5, "the number 1.5"),
        (float("nan"), "the number NaN"),
        ('é"', 'the string "é\\""'),
        ("x" * 50, f'the string "{"x" * 36}...'),
    ],
)
def test_describe(value, expected):
    assert describe(value) == expected


def test_describe_does_not_copy_a_long_string():
    text = "x" * 10_000_000
    tracemalloc.start()
    describe(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 100_000


def test_plain_json_is_read_as_orjson_reads_it():
    text = b'{"a":[1,2.5,-3,"x",null,true],"b":{}}'

    assert parse_json(text) == orjson.loads(text)
