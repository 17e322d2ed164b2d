"""Bodies of the control routes: repository index, load, unload, log and trace settings, shared memory.

Source: Triton ``http_server.cc`` (``HandleRepositoryIndex``, ``HandleRepositoryControl``, ``HandleLogging``,
``HandleSystemSharedMemory``, ``HandleCudaSharedMemory``).
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bireme.types import Buffer, InvalidArgument
from bireme.wire.http.json_text import ABSENT, describe, parse_json
from bireme.wire.http.limits import Limits

_FILE_PREFIX = "file:"
_MAX_COMMAS = 100_000
"""In a load body. JSON parsers hold the GIL: 60 MB of text in few strings take 0.1 s, 60 MB of small numbers 2 s."""
_SLICE_SIZE = 1 << 20
"""Bytes that are decoded with the GIL held."""
_TRACE_SETTINGS = ("trace_level", "trace_rate", "trace_count", "log_frequency")
_WHITESPACE = dict.fromkeys(map(ord, " \t\r\n"))


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """What a load call brings along."""

    config: str | None = None
    """A whole ModelConfig as JSON text; None: the repository's own."""
    files: dict[str, bytes] = field(default_factory=dict)
    """File contents by path relative to the model's directory (``1/model.onnx``)."""


class SystemRegistration(NamedTuple):
    """Which part of a shared memory object a client registers."""

    key: str
    offset: int
    byte_size: int


class CudaRegistration(NamedTuple):
    """Which memory of a GPU a client registers."""

    handle: bytes
    device_id: int
    byte_size: int


def decode_index_request(body: Buffer, limits: Limits) -> bool:
    """Return whether only READY versions are wanted.

    Raises:
        InvalidArgument: no JSON object, or ``ready`` is no boolean.
    """
    ready = _parse_object(body, limits).get("ready", False)
    if type(ready) is not bool:
        raise InvalidArgument(f"Invalid value for 'ready': expected a boolean, found {describe(ready)}")
    return ready


def decode_load_request(body: Buffer, limits: Limits) -> LoadParameters:
    """Return the config and the files of a load call. Paths are not checked here.

    Raises:
        InvalidArgument: no JSON object, an unknown parameter, one that is no string, or broken base64.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    _check_commas(body)
    for key, value in _parameters(body, limits).items():
        if key != "config" and not key.startswith(_FILE_PREFIX):
            raise InvalidArgument(
                f"unexpected load parameter '{key}': expected 'config' or 'file:<path in the model directory>'"
            )
        if type(value) is not str:
            raise InvalidArgument(
                f"Unable to parse '{key}': load parameter expects a string, found {describe(value)}"
            )
        if key == "config":
            config = value
        else:
            files[key.removeprefix(_FILE_PREFIX)] = _decode_base64(key, value)
    return LoadParameters(config, files)


def decode_unload_request(body: Buffer, limits: Limits) -> bool:
    """Return whether the models that depend on the unloaded one go too.

    Raises:
        InvalidArgument: no JSON object, or ``unload_dependents`` is no boolean.
    """
    dependents = _parameters(body, limits).get("unload_dependents", False)
    if type(dependents) is not bool:
        raise InvalidArgument(
            f"Unable to parse 'unload_dependents': expected a boolean, found {describe(dependents)}"
        )
    return dependents


def decode_logging_request(body: Buffer, limits: Limits) -> dict[str, Any]:
    """Return the settings to change; their keys and values are not checked here.

    Raises:
        InvalidArgument: no JSON object.
    """
    return _parse_object(body, limits)


def decode_trace_request(body: Buffer, limits: Limits) -> dict[str, list[str] | None]:
    """Return the texts of the trace settings to change; None takes one back. Keys and values are not checked here.

    Raises:
        InvalidArgument: no JSON object, or a value of the wrong type.
    """
    if not len(body):
        raise InvalidArgument("failed to parse the request JSON buffer: The document is empty. at 0")
    return {key: _trace_texts(key, value) for key, value in _parse_object(body, limits).items()}


def _trace_texts(key: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    if key not in _TRACE_SETTINGS:
        return []
    values = value if key == "trace_level" else [value]
    if type(values) is not list or any(type(text) is not str for text in values):
        expected = "an array of strings" if key == "trace_level" else "a string"
        raise InvalidArgument(f"Unable to parse '{key}': expected {expected}, found {describe(value)}")
    return values


def decode_system_registration(body: Buffer, limits: Limits) -> SystemRegistration:
    """Return what is to be registered; nothing is looked up here.

    Raises:
        InvalidArgument: no JSON object, or a member is absent or of the wrong type.
    """
    document = _parse_object(body, limits)
    key = _registered(document, "key")
    if type(key) is not str:
        raise InvalidArgument(f"Unable to parse 'key': expected a string, found {describe(key)}")
    offset = _unsigned("offset", document.get("offset", 0))
    return SystemRegistration(key, offset, _unsigned("byte_size", _registered(document, "byte_size")))


def decode_cuda_registration(body: Buffer, limits: Limits) -> CudaRegistration:
    """Return what is to be registered; the handle may be of any length.

    Raises:
        InvalidArgument: no JSON object, a member is absent or of the wrong type, or the handle is not base64.
    """
    document = _parse_object(body, limits)
    raw_handle = _registered(document, "raw_handle")
    text = raw_handle.get("b64", ABSENT) if type(raw_handle) is dict else ABSENT
    if type(text) is not str:
        raise InvalidArgument(
            f"Unable to parse 'raw_handle': expected an object with a string 'b64', found {describe(raw_handle)}"
        )
    try:
        handle = binascii.a2b_base64(text.encode(), strict_mode=True) if text else b""
    except ValueError as error:
        raise InvalidArgument(
            f"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t: {error}"
        ) from None
    byte_size = _unsigned("byte_size", _registered(document, "byte_size"))
    return CudaRegistration(handle, _unsigned("device_id", _registered(document, "device_id")), byte_size)


def _registered(document: dict[str, Any], key: str) -> Any:
    if key not in document:
        raise InvalidArgument(f"Shared Memory register request has no '{key}' field")
    return document[key]


def _unsigned(key: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise InvalidArgument(
            f"Unable to parse '{key}': expected an unsigned integer, found {describe(value)}"
        )
    return value


def _parameters(body: Buffer, limits: Limits) -> dict[str, Any]:
    parameters = _parse_object(body, limits).get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise InvalidArgument(
            f"Unable to parse 'parameters': expected an object, found {describe(parameters)}"
        )
    return parameters


def _parse_object(body: Buffer, limits: Limits) -> dict[str, Any]:
    """Return the JSON object in ``body``; an empty body counts as an empty object."""
    if len(body) > limits.max_input_size:
        raise InvalidArgument(
            f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of "
            f"{limits.max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    if not len(body):
        return {}
    document = parse_json(body)
    if type(document) is not dict:
        raise InvalidArgument(f"the request must be a JSON object, found {describe(document)}")
    return document


def _check_commas(body: Buffer) -> None:
    view = memoryview(body)
    num_commas = 0
    for start in range(0, len(view), _SLICE_SIZE):
        num_commas += view[start : start + _SLICE_SIZE].tobytes().count(b",")
    if num_commas > _MAX_COMMAS:
        raise InvalidArgument(
            f"the body of a load has {num_commas} commas, expected at most {_MAX_COMMAS}: a config, and files in base64"
        )


def _decode_base64(key: str, text: str) -> bytes:
    """Return the bytes of base64 ``text``; line breaks are allowed in it."""
    pieces: list[bytes] = []
    rest = ""
    try:
        for start in range(0, len(text), _SLICE_SIZE):
            rest += text[start : start + _SLICE_SIZE].translate(_WHITESPACE)
            # The last four characters wait for the end: only there may padding stand.
            whole = max(0, len(rest) - 4) // 4 * 4
            piece, rest = rest[:whole], rest[whole:]
            if "=" in piece:
                raise ValueError("data after the padding")
            pieces.append(binascii.a2b_base64(piece, strict_mode=True))
        pieces.append(binascii.a2b_base64(rest, strict_mode=True))
    except ValueError as error:
        raise InvalidArgument(f"Unable to parse '{key}': expected base64: {error}") from None
    return b"".join(pieces)
