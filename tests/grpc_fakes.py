"""Fakes for tests of the gRPC front end: a whole front end over a `FakeServer`, and clients on transports fed by hand."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import Any

import numpy as np

from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.call import Call
from bireme.frontend.grpc.connection import GrpcConnection
from bireme.frontend.grpc.listener import GrpcListener
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.grpc.routes import Router
from grpc_calls import INFER, STREAM_INFER, infer_message
from grpc_infer_messages import Request, Response, StreamResponse
from grpc_socket import GRPC, Answer, GrpcSocket, framed
from http_fakes import FakeServer, FakeTransport, until

LIVE = "/inference.GRPCInferenceService/ServerLive"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


TEXTS = np.array([b"x" * 20] * 5000, dtype=np.object_)
"""More than is decoded on the loop."""
BYTES_MODEL = """
name: "m" max_batch_size: 0
input { name: "X" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "Y" data_type: TYPE_STRING dims: [ -1 ] }
"""
DECOUPLED = 'name: "m" model_transaction_policy { decoupled: true }'


class GrpcTransport(FakeTransport):
    """Remembers what a protocol does to it. ``ssl_object`` is what TLS agreed on, if there is TLS."""

    def __init__(self, ssl_object: Any = None) -> None:
        super().__init__()
        self.ssl_object = ssl_object

    def set_write_buffer_limits(self, high=None, low=None):
        self.write_limit = high

    def pause_reading(self):
        self.is_reading_paused = True  # may have been before, for FakeSocket heeds it not

    def resume_reading(self):
        self.is_reading_paused = False

    def get_extra_info(self, name, default=None):
        return self.ssl_object if name == "ssl_object" else super().get_extra_info(name, default)


class FakeSocket:
    """The client's end of a connection under test."""

    family = socket.AF_UNIX

    def __init__(self, connection: GrpcConnection, transport: GrpcTransport) -> None:
        self.connection = connection
        self.transport = transport
        self.step = 1 << 30
        """Bytes that arrive at once, at most."""
        self._num_read = 0

    def settimeout(self, timeout_s):
        pass

    def sendall(self, data):
        position = 0
        while position < len(data) and not self.transport.is_closed:
            buffer = self.connection.get_buffer(-1)
            assert len(buffer)
            piece = data[position : position + min(len(buffer), self.step)]
            buffer[: len(piece)] = piece
            position += len(piece)
            self.connection.buffer_updated(len(piece))

    def recv(self, size):
        data = bytes(self.transport.written[self._num_read :])
        self._num_read += len(data)
        if not data and not self.transport.is_closed:
            raise TimeoutError
        return data


class GrpcClient(GrpcSocket):
    """A client of one connection, which answers nothing later than the test lets it."""

    def __init__(self, listener: GrpcListener, ssl_object: Any = None, **options: Any) -> None:
        self.transport = GrpcTransport(ssl_object)
        self.connection = listener.make_connection()
        self.connection.connection_made(self.transport)
        super().__init__(FakeSocket(self.connection, self.transport), **options)  # type: ignore[arg-type]
        self.settle()

    def settle(self) -> None:
        """Take all that the server has written."""
        try:
            while not self.is_closed:
                self.pump()
        except TimeoutError:
            pass

    def open_grpc(self, path: str, *extra: tuple[str, str], is_end: bool = False) -> int:
        """Begin a call; return its stream."""
        return self.open(path, (*GRPC, *extra), is_end=is_end)

    def infer(self, *extra: tuple[str, str], path: str = INFER, **settings: Any) -> int:
        """Ask for an inference; return its stream."""
        return self.ask(path, make_infer(**settings), (*GRPC, *extra))

    def answer(self, stream_id: int) -> Answer:
        """What has come on a stream until now."""
        self.settle()
        return self.answers[stream_id]

    def leave(self) -> None:
        """Close the connection."""
        self.transport.close()
        self.connection.connection_lost(None)


class QuietGrpcListener(GrpcListener):
    """A listener without a socket and without a timer: tests call `GrpcConnection.sweep`."""

    def _start_sweeping(self) -> None:
        pass


class GrpcScene:
    """A whole front end over a `FakeServer`, without a socket, and one client. ``ended`` are the calls that are over."""

    def __init__(self, server: FakeServer | None = None, *, client: Any = None, **options: Any) -> None:
        self.server = server or FakeServer()
        self.api = GrpcApi(self.server, GrpcOptions(**options))  # type: ignore[arg-type]
        self.ended: list[dict[str, Any]] = []
        self.listener = QuietGrpcListener(
            Router(self.api).resolve, self.api.options, log_access=self._note if client is None else None
        )
        self.client = GrpcClient(self.listener, **(client or {}))

    def _note(self, call: Call) -> None:
        self.ended.append(
            {
                "path": call.route.path.decode(),
                "status": call.status,
                "error": call.error,
                "bytes_in": call.bytes_in,
                "bytes_out": call.bytes_out,
                "client": call.connection.peer,
                "request": call.request is not None,
            }
        )

    @property
    def connection(self) -> GrpcConnection:
        return self.client.connection

    @property
    def statuses(self) -> dict[int, int]:
        """How many calls ended with which status."""
        return {int(status): number for status, number in self.listener.statuses.items()}

    @property
    def num_held(self) -> int:
        """Bytes of messages that count."""
        return self.listener.memory.num_held

    def sweep(self, num_sweeps: int = 1) -> None:
        """Let so many sweep intervals pass."""
        for _ in range(num_sweeps):
            self.connection.sweep()
        self.client.settle()

    async def finish(self, stream_id: int) -> Answer:
        """Let the loop turn until a stream has ended."""
        await until(lambda: self.client.answer(stream_id).is_complete)
        return self.client.answers[stream_id]

    async def turn(self, condition: Any) -> None:
        """Let the loop turn until ``condition()`` holds."""
        await until(condition)


def make_infer(model: str = "m", **settings: Any) -> bytes:
    """A serialised request; arrays by name."""
    return infer_message(model, **settings).SerializeToString()


def typed_request(num_elements: int) -> bytes:
    """A serialised request with so many typed contents, named ``typed``."""
    message = Request(model_name="m", id="typed")
    item = message.inputs.add(name="X", datatype="FP32", shape=[num_elements])
    item.contents.fp32_contents.extend([1.0] * num_elements)
    return message.SerializeToString()


def classifying(k: int, size: int) -> bytes:
    """A serialised request for the ``k`` best classes of ``size``."""
    message = infer_message("m", X=np.arange(size, dtype=np.float32))
    message.outputs.add(name="X").parameters["classification"].int64_param = k
    return message.SerializeToString()


def read_infer(message: bytes) -> Any:
    return Response.FromString(message)


def read_stream(message: bytes) -> Any:
    return StreamResponse.FromString(message)


def in_loop(test: Any) -> Any:
    """Run an asynchronous test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def turns(number: int = 3) -> None:
    """Let the loop turn a few times."""
    for _ in range(number):
        await asyncio.sleep(0)


__all__ = [
    "BYTES_MODEL",
    "DECOUPLED",
    "INFER",
    "LIVE",
    "REFLECTION",
    "STREAM_INFER",
    "TEXTS",
    "WATCH",
    "GrpcClient",
    "GrpcScene",
    "classifying",
    "framed",
    "in_loop",
    "make_infer",
    "read_infer",
    "read_stream",
    "turns",
    "typed_request",
]
