"""Fakes for tests of the HTTP front end: a transport fed by hand, routes that echo or hold, an engine that answers on cue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from bireme.engine.server_state import ServerState
from bireme.frontend.http.api import Api
from bireme.frontend.http.connection import HttpConnection
from bireme.frontend.http.exchange import Exchange, Route
from bireme.frontend.http.head import RequestHead
from bireme.frontend.http.listener import HttpListener
from bireme.frontend.http.options import ConnectionLimits, HttpOptions
from bireme.frontend.http.routes import Router
from bireme.frontend.options import ListenOptions
from bireme.ipc.arena import Arena
from bireme.ipc.shared_memory import SharedMemoryRegions
from bireme.telemetry import ServerMetrics
from bireme.telemetry.tracing import TraceOptions, Tracing
from bireme.types import BiremeError, InferenceRequest, InferenceResponse, NotFound, Tensor


class FakeTransport(asyncio.Transport):
    """Remembers what a protocol does to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes: list[list[Any]] = []
        """The buffers of every write, as they were given."""
        self.is_closed = False
        self.is_aborted = False
        self.has_written_eof = False
        self.is_reading_paused = False
        self.num_unsent = 0

    def write(self, data):
        self.writelines([data])

    def writelines(self, list_of_data):
        assert not self.is_closed
        assert not self.has_written_eof
        self.writes.append(list(list_of_data))
        for data in self.writes[-1]:
            self.written += data

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.has_written_eof = True

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = self.is_aborted = True

    def is_closing(self):
        return self.is_closed

    def pause_reading(self):
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self):
        assert self.is_reading_paused
        self.is_reading_paused = False

    def get_write_buffer_size(self):
        return self.num_unsent

    def get_extra_info(self, name, default=None):
        return ("192.0.2.1", 4711) if name == "peername" else default


class QuietListener(HttpListener):
    """A listener without a socket and without a timer: tests call `HttpConnection.sweep`."""

    def _start_sweeping(self) -> None:
        pass


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until ``condition`` holds."""
    while not condition():  # noqa: ASYNC110 (what the tests wait for is not all theirs to signal)
        await asyncio.sleep(0.001)


@dataclass
class Reply:
    """One parsed answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_complete: bool = True
    """False for one in chunks that goes on."""

    @property
    def events(self) -> list[Any]:
        """The data of its server-sent events."""
        *events, rest = self.body.split(b"\n\n")
        assert not rest
        assert all(event.startswith(b"data: ") for event in events)
        return [json.loads(event[6:]) for event in events]


class Client:
    """The other end of a connection under test."""

    def __init__(
        self,
        resolve: Callable[[RequestHead], Route],
        *,
        cancel: Callable[[InferenceRequest], None] | None = None,
        log_access: Callable[[Exchange, int], None] | None = None,
        **limits: Any,
    ) -> None:
        self.listener = QuietListener(
            resolve,
            ListenOptions(),
            limits=replace(ConnectionLimits(), **limits),
            cancel=cancel,
            log_access=log_access,
        )
        self.transport = FakeTransport()
        self.connection = HttpConnection(self.listener)
        self.connection.connection_made(self.transport)

    def send(self, data: bytes, step: int | None = None) -> None:
        """Let ``data`` arrive, in reads of at most ``step`` bytes."""
        view = memoryview(data)
        position = 0
        while position < len(data):
            buffer = self.connection.get_buffer(-1)
            assert len(buffer) > 0
            piece = view[position : position + min(len(buffer), step or len(data))]
            buffer[: len(piece)] = piece
            position += len(piece)
            self.connection.buffer_updated(len(piece))

    def leave(self) -> None:
        """Close the connection."""
        assert not self.connection.eof_received()
        self.transport.close()
        self.connection.connection_lost(None)

    @property
    def replies(self) -> list[Reply]:
        """All complete answers so far, interim ones included."""
        return list(parse_replies(bytes(self.transport.written)))

    def reply(self) -> Reply:
        """The one answer so far."""
        (reply,) = self.replies
        return reply


def parse_replies(data: bytes, *, methods: Iterator[str] | None = None) -> Iterator[Reply]:
    """Split a stream of answers; an answer to HEAD (by ``methods``) has no body."""
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"twice: {line}"
            headers[name.lower()] = value
        version, status, _ = status_line.split(" ", 2)
        assert version == "HTTP/1.1"
        is_bodiless = (methods is not None and next(methods) == "HEAD") or status == "100"
        if "transfer-encoding" in headers:
            assert "content-length" not in headers
            body, data, is_complete = take_chunks(data)
            yield Reply(int(status), headers, body, is_complete)
            continue
        size = 0 if is_bodiless else int(headers["content-length"])
        assert len(data) >= size
        yield Reply(int(status), headers, data[:size])
        data = data[size:]


def take_chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    """Return the body in the chunks that ``data`` begins with, what is behind it, and whether its end is there."""
    body = b""
    while data:
        size, separator, data = data.partition(b"\r\n")
        assert separator
        num_bytes = int(size, 16)
        assert data[num_bytes : num_bytes + 2] == b"\r\n"
        body += data[:num_bytes]
        data = data[num_bytes + 2 :]
        if not num_bytes:
            return body, data, True
    return body, data, False


class Scene:
    """A whole front end over a `FakeServer`, without a socket. Work that takes turns of the loop needs `settle`."""

    def __init__(
        self, server: FakeServer | None = None, *, limits: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.server = server or FakeServer()
        self.api = Api(self.server, HttpOptions(**options))  # type: ignore[arg-type]
        self.client = Client(Router(self.api).resolve, cancel=self.server.cancel, **(limits or {}))

    def ask(self, data: bytes) -> Reply:
        """Send one request whose answer comes at once, and return it."""
        num_before = len(self.client.replies)
        self.client.send(data)
        (reply,) = self.client.replies[num_before:]
        return reply

    async def ask_later(self, data: bytes) -> Reply:
        """Send one request and wait for its answer."""
        num_before = len(self.client.replies)
        self.client.send(data)
        await until(lambda: len(self.client.replies) > num_before)
        return self.client.replies[num_before]


def post_infer(document: Any, *blobs: bytes, path: str = "/v2/models/m/infer", **headers: Any) -> bytes:
    """The bytes of an infer request: JSON, and binary tensors behind it. ``_`` in a header's name stands for ``-``."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if blobs:
        named.setdefault("Inference-Header-Content-Length", len(text))
    return request(path, text + b"".join(blobs), method="POST", headers=named)


class EchoRoute(Route):
    """Answers with what it was asked: method, path, body."""

    def handle(self, exchange):
        head = exchange.head
        exchange.reply(200, b"%s %s %s" % (head.method, head.path, bytes(exchange.body)), b"")


class HoldRoute(Route):
    """Keeps its exchanges for the test to answer."""

    def __init__(self, max_body_size=1 << 20):
        super().__init__(max_body_size)
        self.held: list[Exchange] = []

    def handle(self, exchange):
        self.held.append(exchange)


def echo(_head: RequestHead) -> Route:
    """Resolve every head to an `EchoRoute`."""
    return EchoRoute(1 << 20)


class Owner:
    """The engine's model, as a request that runs knows it; remembers when it began to wait and went on."""

    def __init__(self, request: InferenceRequest) -> None:
        self.events: list[str] = []
        request.owner = self

    def hold(self, request):
        if self.events[-1:] != ["hold"]:
            self.events.append("hold")

    def resume(self, request):
        self.events.append("resume")


@dataclass
class FakeConfig:
    """As much of a ModelConfig as the front end looks at."""

    model_transaction_policy: Any = None


@dataclass
class FakeModel:
    """As much of a Model as the front end looks at."""

    name: str = "m"
    version: int = 1
    max_batch_size: int = 0
    labels: dict[str, list[str]] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    config: FakeConfig = field(default_factory=FakeConfig)
    validator: Any = None

    @property
    def is_decoupled(self) -> bool:
        policy = self.config.model_transaction_policy
        return policy is not None and policy.decoupled


class FakeServer:
    """An engine whose model gives its inputs back; or raises, or holds requests until the test answers them."""

    def __init__(self) -> None:
        self.state = ServerState.READY
        self.shared_memory = SharedMemoryRegions(is_allowed=True)
        self.metrics = ServerMetrics()
        self.arena = Arena()
        self.tracing = Tracing(TraceOptions())
        self.is_ready = True
        self.has_sequences = False
        self.on_demand = None
        self.asks_models = False
        """Whether readiness is asked of the models: `check_ready` and `check_model_ready` then wait for ``hook``."""
        self.hook: asyncio.Future[bool] | None = None
        self.models = {"m": FakeModel()}
        self.submit_error: BiremeError | Exception | None = None
        self.holds = False
        self.held: list[InferenceRequest] = []
        self.submitted: list[InferenceRequest] = []
        self.cancelled: list[InferenceRequest] = []
        self.calls: list[tuple[Any, ...]] = []
        self.control_error: BiremeError | None = None
        self.load_gate: asyncio.Event | None = None

    def model(self, name, version=-1):
        if name not in self.models:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.models[name]

    def submit(self, request):
        if self.submit_error is not None:
            raise self.submit_error
        self.submitted.append(request)
        if self.holds:
            self.held.append(request)
        else:
            self.answer(request)

    def answer(self, request, outputs=None, **settings):
        """Answer ``request`` with its own inputs, or with ``outputs``."""
        tensors = list(request.inputs.values()) if outputs is None else outputs
        request.respond(request, InferenceResponse(request.model_name, 1, request.id, tensors, **settings))

    def cancel(self, request):
        self.cancelled.append(request)

    def is_model_ready(self, name, version=-1):
        return self.model(name, version).version > 0

    async def check_ready(self):
        return await self.hook

    async def check_model_ready(self, name, version=-1):
        self.model(name, version)
        return await self.hook

    def metadata(self):
        return {"name": "triton"}

    def model_metadata(self, name, version=-1):
        self.model(name, version)
        return {"metadata of": name, "version": version}

    def model_config(self, name, version=-1):
        self.model(name, version)
        return {"config of": name, "version": version}

    def model_statistics(self, name=None, version=-1):
        return {"statistics of": name, "version": version}

    has_remote_repositories = False

    def repository_index(self, ready=False):
        return [{"name": "m", "ready": ready}]

    async def load_model(self, name, config=None, files=None):
        self.calls.append(("load", name, config, files))
        if self.load_gate is not None:
            await self.load_gate.wait()
        if self.control_error is not None:
            raise self.control_error

    async def unload_model(self, name, *, unload_dependents=False):
        self.calls.append(("unload", name, unload_dependents))
        if self.control_error is not None:
            raise self.control_error


def tensor(name: str, array: Any) -> Tensor:
    """A tensor of an array."""
    return Tensor.from_numpy(name, array)


def request(
    path: str, body: bytes = b"", *, method: str | None = None, headers: dict[str, Any] | None = None
) -> bytes:
    """The bytes of a request; POST when it has a body."""
    lines = [f"{method or ('POST' if body else 'GET')} {path} HTTP/1.1", "Host: localhost"]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    lines.extend(f"{name}: {value}" for name, value in (headers or {}).items())
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
