"""A gRPC client of a few lines over a real socket, for what no library would send: made of `h2`, frame by frame."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

GRPC = (("content-type", "application/grpc"), ("te", "trailers"))
INITIAL_WINDOW_SIZE = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    """Put gRPC's five bytes before a message."""
    return struct.pack(">BI", is_compressed, len(message)) + message


@dataclass
class Answer:
    """What has come back on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    reset_code: int | None = None
    is_complete: bool = False

    @property
    def status(self) -> int | None:
        """The gRPC status, wherever it stands."""
        found = self.trailers.get("grpc-status", self.headers.get("grpc-status"))
        return None if found is None else int(found)

    @property
    def messages(self) -> list[bytes]:
        """All complete messages so far, as they came."""
        found, position = [], 0
        while len(self.data) >= position + 5:
            (size,) = struct.unpack_from(">I", self.data, position + 1)
            end = position + 5 + size
            if len(self.data) < end:
                break
            found.append(bytes(self.data[position + 5 : end]))
            position = end
        return found


class GrpcSocket:
    """One connection. ``opens_windows``: give back the window for what was received, as a client that reads does."""

    def __init__(
        self,
        target: str | socket.socket,
        *,
        settings: dict[h2.settings.SettingCodes, int] | None = None,
        opens_windows: bool = True,
        timeout_s: float = 10.0,
    ) -> None:
        self.sock = socket.create_connection(_split(target)) if isinstance(target, str) else target
        self.sock.settimeout(timeout_s)
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        configuration = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(configuration)
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self.answers: defaultdict[int, Answer] = defaultdict(Answer)
        self.goaway: h2.events.ConnectionTerminated | None = None
        self.is_closed = False
        self._opens_windows = opens_windows
        self._received = bytearray()
        self.h2.initiate_connection()
        if opens_windows:
            self.h2.increment_flow_control_window(1 << 30)
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Close by a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # Sending

    def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.sock.sendall(data)

    def open(
        self,
        path: str,
        extra: Iterable[tuple[str, str]] = GRPC,
        *,
        method: str = "POST",
        is_end: bool = False,
    ) -> int:
        """Send a request's headers; return its stream."""
        stream_id: int = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "test")]
        self.h2.send_headers(stream_id, [*head, *extra], end_stream=is_end)
        self.flush()
        return stream_id

    def send(self, stream_id: int, data: bytes, *, is_end: bool = False) -> None:
        """Send DATA as far as the server's windows go, waiting for them to open."""
        view = memoryview(data)
        while view or is_end:
            while (window := self.h2.local_flow_control_window(stream_id)) == 0 and view:
                self.pump()
            size = min(len(view), window, self.h2.max_outbound_frame_size)
            is_last = size == len(view)
            self.h2.send_data(stream_id, bytes(view[:size]), end_stream=is_end and is_last)
            self.flush()
            view = view[size:]
            if is_last:
                break

    def ask(self, path: str, message: bytes, extra: Iterable[tuple[str, str]] = GRPC) -> int:
        """Send a whole unary call; return its stream."""
        stream_id = self.open(path, extra)
        self.send(stream_id, framed(message), is_end=True)
        return stream_id

    # Receiving

    def call(self, path: str, message: bytes = b"", extra: Iterable[tuple[str, str]] = GRPC) -> Answer:
        """Make a unary call."""
        return self.wait(self.ask(path, message, extra))

    def wait(self, stream_id: int) -> Answer:
        """Wait for a stream's end; of the connection's, if that comes first."""
        answer = self.answers[stream_id]
        while not answer.is_complete and not self.is_closed:
            self.pump()
        return answer

    def wait_closed(self) -> None:
        """Read until the server closes the connection."""
        while not self.is_closed:
            self.pump()

    def pump(self) -> None:
        """Receive once and note what came.

        Raises:
            TimeoutError: nothing came in time.
        """
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed = True
            for answer in self.answers.values():
                answer.is_complete = True
            return
        for frame in self._split_frames(data):
            for event in self.h2.receive_data(frame):
                self._note(event)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.flush()

    def pump_for(self, seconds: float) -> None:
        """Receive whatever comes in this time."""
        end_s = time.monotonic() + seconds
        timeout_s = self.sock.gettimeout()
        while not self.is_closed and (left_s := end_s - time.monotonic()) > 0:
            self.sock.settimeout(left_s)
            with contextlib.suppress(TimeoutError):
                self.pump()
        self.sock.settimeout(timeout_s)

    def _note(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self.answers[event.stream_id].headers = dict(event.headers)
            case h2.events.TrailersReceived():
                self.answers[event.stream_id].trailers = dict(event.headers)
            case h2.events.DataReceived():
                self.answers[event.stream_id].data += event.data
                if self._opens_windows and event.flow_controlled_length:
                    self._open_windows(event)
            case h2.events.StreamEnded():
                self.answers[event.stream_id].is_complete = True
            case h2.events.StreamReset():
                answer = self.answers[event.stream_id]
                if not answer.is_complete:
                    answer.reset_code = int(event.error_code)
                answer.is_complete = True
            case h2.events.ConnectionTerminated():
                self.goaway = event
                # h2 takes nothing more after a GOAWAY; but what is open goes on.
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN

    def _split_frames(self, data: bytes) -> Iterator[bytes]:
        """Return the whole frames in what has come so far."""
        self._received += data
        while len(self._received) >= 9:
            end = 9 + int.from_bytes(self._received[:3], "big")
            if len(self._received) < end:
                return
            frame = bytes(self._received[:end])
            del self._received[:end]
            yield frame

    def _open_windows(self, event: h2.events.DataReceived) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):  # the stream is over
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)


def _split(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    return host, int(port)
