"""Where `bireme infer` sends its request: a running server over HTTP, or a repository opened in this process."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import numpy as np
import orjson

from bireme.engine import BlockingServer, Server, ServerOptions
from bireme.types import BiremeError, Buffer, InvalidArgument, Parameter, Tensor, Unavailable, datatypes
from bireme.wire.classification import classify

_JSON_LENGTH_HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class SequencePlace:
    """Which sequence a request belongs to, and where in it."""

    id: int | str
    is_start: bool = False
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    model: str
    version: int
    """-1: the latest."""
    inputs: list[Tensor]
    outputs: tuple[str, ...]
    """The wanted ones."""
    num_classes: int = 0
    """Above 0: the highest values with their labels, instead of the outputs themselves."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    id: str = ""
    sequence: SequencePlace | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to one request."""

    model: str
    version: str
    outputs: list[Tensor]
    took_ms: float
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    id: str = ""


class Target(Protocol):
    """Something that knows models and answers requests."""

    def config(self, model: str, version: int) -> dict[str, Any]:
        """Return the model's config as JSON."""

    def infer(self, call: Call) -> Answer:
        """Answer ``call``."""


class RequestFailed(BiremeError):
    """The server answered with an error; the message is the server's own."""


class RemoteServer:
    """A server behind an ``http://`` address. One connection, blocking."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Remember the address; the first request connects.

        Raises:
            InvalidArgument: the address is not one of HTTP.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidArgument(f"--url {url}: expected http://HOST:PORT")
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = connect(parts.hostname, parts.port, timeout=timeout_s)
        self._prefix = parts.path.rstrip("/")
        self._url = url

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def config(self, model: str, version: int) -> dict[str, Any]:
        """Ask for the config of a model."""
        body, _ = self._request("GET", f"{_model_path(model, version)}/config")
        found: dict[str, Any] = orjson.loads(body)
        return found

    def infer(self, call: Call) -> Answer:
        """Send the request with binary tensors in both directions."""
        header, blobs = encode_call(call)
        start = time.perf_counter()
        body, json_length = self._request(
            "POST",
            f"{_model_path(call.model, call.version)}/infer",
            b"".join((header, *blobs)),
            {_JSON_LENGTH_HEADER: str(len(header)), "Content-Type": "application/octet-stream"},
        )
        return decode_answer(body, json_length, (time.perf_counter() - start) * 1e3)

    def _request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, int | None]:
        """Return the reply's body and the length of its JSON part, where it has others."""
        try:
            self._connection.request(method, self._prefix + path, body, dict(headers or {}))
            reply = self._connection.getresponse()
            content = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no answer from {self._url}: {str(error) or type(error).__name__}") from error
        if reply.status != 200:
            raise RequestFailed(f"{self._url} answered {reply.status}: {_error_text(content)}")
        length = reply.getheader(_JSON_LENGTH_HEADER)
        return content, None if length is None else int(length)


class LocalRepository:
    """A server of our own in this process, with one model or several loaded."""

    def __init__(self, server: BlockingServer) -> None:
        self._server = server

    @classmethod
    @contextmanager
    def open(cls, repository: str, models: tuple[str, ...]) -> Iterator[LocalRepository]:
        """Load ``models``, ``("*",)`` for all, and unload them at the end.

        Raises:
            BiremeError: one cannot be loaded; of all, those that can are enough.
        """
        options = ServerOptions(
            model_repository=(repository,),
            model_control_mode="explicit",
            load_model=models,
            exit_on_error=models != ("*",),
        )
        with Server(options=options) as server:
            yield cls(server)

    def config(self, model: str, version: int) -> dict[str, Any]:
        """Return the model's config."""
        return self._server.model_config(model, version)

    def infer(self, call: Call) -> Answer:
        """Run the model."""
        parameters: dict[str, Parameter] = dict(call.parameters)
        place = call.sequence or SequencePlace(0)
        start = time.perf_counter()
        result = self._server.infer(
            call.model,
            {tensor.name: tensor for tensor in call.inputs},
            version=call.version,
            outputs=list(call.outputs),
            parameters=parameters,
            id=call.id,
            sequence_id=place.id,
            sequence_start=place.is_start,
            sequence_end=place.is_end,
        )
        took_ms = (time.perf_counter() - start) * 1e3
        outputs = [result.tensor(name) for name in result]
        if call.num_classes:
            outputs = [self._classified(call, tensor) for tensor in outputs]
        return Answer(call.model, str(result.model_version), outputs, took_ms, result.parameters, call.id)

    def _classified(self, call: Call, tensor: Tensor) -> Tensor:
        config = self.config(call.model, call.version)
        labels = self._server.model(call.model, call.version).labels.get(tensor.name, ())
        steps = classify(tensor, call.num_classes, labels, has_batch_dim=config["max_batch_size"] > 0)
        return next(step for step in steps if step is not None)


def encode_call(call: Call) -> tuple[bytes, list[Buffer]]:
    """Return the JSON part and the binary tensors of a request's body."""
    blobs = [tensor.to_buffer() for tensor in call.inputs]
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": memoryview(blob).nbytes},
        }
        for tensor, blob in zip(call.inputs, blobs, strict=True)
    ]
    wanted: dict[str, Any] = {"binary_data": True}
    if call.num_classes:
        wanted["classification"] = call.num_classes
    request: dict[str, Any] = {
        "inputs": inputs,
        "outputs": [{"name": name, "parameters": wanted} for name in call.outputs],
    }
    if call.id:
        request["id"] = call.id
    parameters = dict(call.parameters)
    if call.sequence is not None:
        parameters["sequence_id"] = call.sequence.id
        parameters["sequence_start"] = call.sequence.is_start
        parameters["sequence_end"] = call.sequence.is_end
    if parameters:
        request["parameters"] = parameters
    return orjson.dumps(request), blobs


def decode_answer(body: bytes, json_length: int | None, took_ms: float) -> Answer:
    """Read a reply's body; binary outputs follow the JSON in their order."""
    header = orjson.loads(body[:json_length])
    offset = json_length or 0
    outputs = []
    for each in header["outputs"]:
        shape = tuple(each["shape"])
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs.append(_from_json(each["name"], each["datatype"], shape, each["data"]))
        else:
            blob = memoryview(body)[offset : offset + size]
            outputs.append(_from_binary(each["name"], each["datatype"], shape, blob))
            offset += size
    return Answer(
        header["model_name"],
        header["model_version"],
        outputs,
        took_ms,
        header.get("parameters", {}),
        header.get("id", ""),
    )


def _from_json(name: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> Tensor:
    return Tensor.from_numpy(name, np.array(data, datatypes.NUMPY_DTYPES[datatype]).reshape(shape), datatype)


def _from_binary(name: str, datatype: str, shape: tuple[int, ...], blob: memoryview) -> Tensor:
    if datatype == "BYTES":
        return Tensor(name, datatype, shape, encoded=blob)
    return Tensor(name, datatype, shape, np.frombuffer(blob, datatypes.NUMPY_DTYPES[datatype]).reshape(shape))


def _model_path(model: str, version: int) -> str:
    # The server compares a name as it comes, without percent-decoding; only what would break the request is quoted.
    path = f"/v2/models/{quote(model, safe='!$&()*+,;=:@~')}"
    return path if version < 0 else f"{path}/versions/{version}"


def _error_text(content: bytes) -> str:
    try:
        found = orjson.loads(content)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content[:200].decode(errors="replace")
    return str(found)
