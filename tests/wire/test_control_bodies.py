"""Bodies of index, load, unload and logging, and of errors."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from bireme.types import InvalidArgument
from bireme.wire import http as wire_http
from bireme.wire.reserved_parameters import is_reserved_parameter
from infer_bodies import LIMITS, json_scalars

DECODERS = [
    wire_http.decode_index_request,
    wire_http.decode_load_request,
    wire_http.decode_unload_request,
    wire_http.decode_logging_request,
]


def body_of(value):
    return memoryview(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"", False), (b"{}", False), (b'{"ready":true}', True), (b'{"ready":false}', False)],
)
def test_index(body, expected):
    assert wire_http.decode_index_request(body, LIMITS) is expected


@pytest.mark.parametrize("ready", ["true", 1, None, []])
def test_index_refuses_what_is_no_boolean(ready):
    with pytest.raises(InvalidArgument, match="Invalid value for 'ready': expected a boolean, found "):
        wire_http.decode_index_request(body_of({"ready": ready}), LIMITS)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters":{}}', b'{"parameters":null}', b'{"other":1}'])
def test_a_plain_load(body):
    assert wire_http.decode_load_request(body, LIMITS) == wire_http.LoadParameters(None, {})


def test_a_load_with_config_and_files():
    encoded = base64.b64encode(b"\x00model\xff").decode()
    loaded = wire_http.decode_load_request(
        body_of({"parameters": {"config": "{}", "file:1/model.onnx": encoded, "file:a b": "YW\nI=\r\n "}}),
        LIMITS,
    )

    assert loaded == wire_http.LoadParameters("{}", {"1/model.onnx": b"\x00model\xff", "a b": b"ab"})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"config": {}}, "Unable to parse 'config': load parameter expects a string, found an object"),
        ({"file:x": 1}, "Unable to parse 'file:x': load parameter expects a string, found the integer 1"),
        ({"file:x": "a"}, "Unable to parse 'file:x': expected base64: "),
        ({"file:x": "Y*I="}, "Unable to parse 'file:x': expected base64: "),
        ({"file:x": "é"}, "Unable to parse 'file:x': expected base64: "),
        (
            {"files": "YWI="},
            "unexpected load parameter 'files': expected 'config' or 'file:<path in the model directory>'",
        ),
        ([], "Unable to parse 'parameters': expected an object, found an array"),
    ],
)
def test_a_bad_load_is_refused(parameters, message):
    with pytest.raises(InvalidArgument) as caught:
        wire_http.decode_load_request(body_of({"parameters": parameters}), LIMITS)

    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", False),
        (b'{"parameters":{}}', False),
        (b'{"parameters":{"unload_dependents":true}}', True),
        (b'{"parameters":{"unload_dependents":false,"x":1}}', False),
    ],
)
def test_unload(body, expected):
    assert wire_http.decode_unload_request(body, LIMITS) is expected


@pytest.mark.parametrize("value", [1, "true", None])
def test_unload_refuses_what_is_no_boolean(value):
    with pytest.raises(
        InvalidArgument, match="Unable to parse 'unload_dependents': expected a boolean, found "
    ):
        wire_http.decode_unload_request(body_of({"parameters": {"unload_dependents": value}}), LIMITS)


def test_logging_settings_are_handed_on():
    settings = {"log_info": False, "log_verbose_level": 2, "log_file": None}

    assert wire_http.decode_logging_request(body_of(settings), LIMITS) == settings
    assert wire_http.decode_logging_request(b"", LIMITS) == {}


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "the request must be a JSON object, found an array"),
        (b"null", "the request must be a JSON object, found null"),
        (b"{", "failed to parse the request JSON buffer: "),
        (b" ", "failed to parse the request JSON buffer: "),
    ],
)
def test_every_body_is_a_json_object(decode, body, message):
    with pytest.raises(InvalidArgument) as caught:
        decode(body, LIMITS)

    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("decode", DECODERS)
def test_every_body_is_limited(decode):
    decode(b"{}", wire_http.Limits(max_input_size=2))
    with pytest.raises(
        InvalidArgument, match="request JSON size of 3 bytes exceeds the maximum allowed input size of 2"
    ):
        decode(b"{ }", wire_http.Limits(max_input_size=2))


@pytest.mark.parametrize("decode", DECODERS)
@given(
    value=st.recursive(
        json_scalars,
        lambda inner: (
            st.dictionaries(
                st.sampled_from(["parameters", "ready", "config", "file:a", "unload_dependents", "x"]),
                inner,
                max_size=3,
            )
            | st.lists(inner, max_size=2)
        ),
    )
)
def test_arbitrary_json_is_read_or_refused(decode, value):
    with suppress(InvalidArgument):
        decode(json.dumps(value).encode(), LIMITS)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("plain", b'{"error":"plain"}'),
        ('quoted "é"\n', '{"error":"quoted \\"é\\"\\n"}'.encode()),
        ("null", b'{"error":"null"}'),
        ("\udcff", b'{"error":"\\udcff"}'),
        ("", b'{"error":""}'),
    ],
)
def test_error_bodies(message, expected):
    assert wire_http.error_body(message) == expected
    assert json.loads(wire_http.error_body(message)) == {"error": message}


@pytest.mark.parametrize(
    ("key", "expected"),
    [("priority", True), ("headers", True), ("triton_x", True), ("x_triton_", False), ("my_key", False)],
)
def test_reserved_parameters(key, expected):
    assert is_reserved_parameter(key) is expected


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 97, 98, 99])
def test_files_longer_than_a_slice_are_put_together(monkeypatch, size):
    monkeypatch.setattr("bireme.wire.http.control._SLICE_SIZE", 10)
    data = bytes(range(size))
    text = base64.encodebytes(data * 3).decode()

    assert wire_http.decode_load_request(body_of({"parameters": {"file:x": text}}), LIMITS).files == {
        "x": data * 3
    }


def test_padding_in_the_middle_of_a_long_file_is_refused(monkeypatch):
    monkeypatch.setattr("bireme.wire.http.control._SLICE_SIZE", 10)
    with pytest.raises(InvalidArgument, match="expected base64"):
        wire_http.decode_load_request(body_of({"parameters": {"file:x": "QQ==" * 10}}), LIMITS)


def test_a_load_that_is_no_config_and_no_files_is_refused_unparsed():
    with pytest.raises(InvalidArgument, match="has 100001 commas, expected at most 100000"):
        wire_http.decode_load_request(b'{"x":[' + b"0," * 100_001 + b"0]}", LIMITS)
