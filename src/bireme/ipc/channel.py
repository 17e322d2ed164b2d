"""Channel: one message in one datagram, both ways; the worker's end blocks, the server's end belongs to its loop.

Messages are `bireme.ipc.messages`, over a SEQPACKET socket. One that is larger than `MAX_MESSAGE` (hundreds of
tensors, long texts) lies in a block of shared memory instead, and a `Spilled` says where.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import Execute, FromWorker, Released, Reply, Soon, Spilled, ToWorker
from bireme.ipc.spin import LoopSpin, SpinPolicy, sched_yield, spin_of, window_ns
from bireme.types import BiremeError

MAX_MESSAGE: Final = 64 << 10
"""Bytes of a datagram. Below what every system's socket buffers take by default."""
NOTHING: Final = object()
"""What `Channel.receive_now` returns when no message is there."""

_SOCKET_BUFFER: Final = 1 << 20
"""For bursts; the system may allow less."""
_IDLE_S: Final = 1
_IDLE_ROUNDS: Final = 3
"""Without anything to give back, after which an idle worker is not woken any more. The first one only marks what is free."""

_MAX_BURST: Final = 16
"""Messages of one worker in one turn of the loop: then it is the others' turn."""
_SKIPS: Final = 15

log = logging.getLogger("bireme.ipc")

_now_ns = time.monotonic_ns


Message = ToWorker | FromWorker


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets for messages, or for introductions. Not inherited by other programs."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
    return pair


class _Codec:
    """What both ends do alike: between messages and datagrams."""

    __slots__ = ("_buffer", "_decode", "_encode", "_view", "ledger")

    def __init__(self, ledger: Ledger, receives: Any) -> None:
        self.ledger = ledger
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(receives).decode
        self._buffer = bytearray(MAX_MESSAGE)
        self._view = memoryview(self._buffer)

    def _pack(self, message: Message) -> bytes:
        """Return the datagram for ``message``."""
        data = self._encode(message)
        if len(data) <= MAX_MESSAGE:
            return data
        block = self.ledger.arena.allocate(len(data))
        memoryview(cast("Any", block))[:] = data
        return self._encode(Spilled(self.ledger.lend(block)))

    def _unpack(self, size: int) -> Any:
        """Return the message that lies in the buffer."""
        message = self._decode(self._view[:size])
        if type(message) is Spilled:
            ref = message.block
            block, offset = self.ledger.borrow(ref)
            return self._decode(memoryview(cast("Any", block))[offset : offset + ref.nbytes])
        return message


class Channel(_Codec):
    """A worker's end. `send` from any thread; one thread at a time receives."""

    __slots__ = ("_called", "_idle_rounds", "_receive_into", "_send", "_socket", "_spin")

    def __init__(self, connection: socket.socket, ledger: Ledger) -> None:
        """Take charge of ``connection``, a blocking socket."""
        super().__init__(ledger, ToWorker)
        self._socket = connection
        self._send = connection.send
        self._receive_into = connection.recv_into
        self._idle_rounds = 0
        self._spin = SpinPolicy(window_ns())
        self._called = SpinPolicy(window_ns())
        """Where a message is announced (`Soon`), it is looked for whatever came of other spins."""
        self._set_timeout(_IDLE_S)

    def fileno(self) -> int:
        """Return the descriptor to wait for: readable when `receive_now` returns something."""
        return self._socket.fileno()

    def send(self, message: FromWorker) -> None:
        """Send; waits while the server has not read what was sent before.

        Raises:
            OSError: the server is gone.
            Unavailable: the message is large, and there is no memory to share.
        """
        self._send(self._pack(message))

    def receive(self) -> Any:
        """Wait for the next message and return it; None: the server is gone.

        While nothing comes, unused memory goes back: to the server what it lent, to the system what is the arena's.
        """
        # A thread that spins keeps the model's others from running.
        may_spin = threading.active_count() == 1
        message = self._receive(self._spin if may_spin and self._spin.wants() else None)
        while type(message) is Soon:
            message = self._receive(self._called if may_spin else None)
        return message

    def _receive(self, spin: SpinPolicy | None) -> Any:
        size = None if spin is None else self._receive_soon(spin)
        while size is None:
            try:
                size = self._receive_into(self._buffer)
            except BlockingIOError:
                self._rest()
            except ConnectionResetError:  # it left without reading all; what it sent before is still there
                continue
        if self._idle_rounds:
            if self._idle_rounds == _IDLE_ROUNDS:
                self._set_timeout(_IDLE_S)
            self._idle_rounds = 0
        return self._unpack(size) if size else None

    def _receive_soon(self, spin: SpinPolicy) -> int | None:
        """Spin; return the size of the message that came, None if none did."""
        until_ns = _now_ns() + spin.window_ns
        while True:
            try:
                size = self._receive_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if _now_ns() >= until_ns:
                    spin.miss()
                    return None
                # The processor may be what the answer waits for.
                sched_yield()
            except ConnectionResetError:
                return None
            else:
                spin.hit()
                return size

    def receive_now(self) -> Any:
        """Return the next message if it is there, else `NOTHING`; None: the server is gone."""
        while True:
            try:
                size = self._receive_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return NOTHING
            except ConnectionResetError:
                continue
            return self._unpack(size) if size else None

    def _rest(self) -> None:
        """Nothing has come for a while."""
        if self.ledger.released:
            with contextlib.suppress(OSError):  # the server is gone: the next read says so
                self.send(Released(self.ledger.take_released()))
        self._idle_rounds = 1 if self.ledger.arena.trim() else self._idle_rounds + 1
        if self._idle_rounds == _IDLE_ROUNDS:
            self._set_timeout(0)

    def _set_timeout(self, seconds: int) -> None:
        # The system's own timeout: Python's would cost another system call for each message.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class LoopChannel(_Codec):
    """The server's end. Loop thread only; nothing here waits."""

    __slots__ = (
        "_loop",
        "_num_skips",
        "_on_lost",
        "_on_message",
        "_receive_into",
        "_send",
        "_socket",
        "_spin",
        "_unsent",
    )

    def __init__(self, connection: socket.socket, ledger: Ledger) -> None:
        """Take charge of ``connection``."""
        super().__init__(ledger, FromWorker)
        connection.setblocking(False)
        self._socket = connection
        self._send = connection.send
        self._receive_into = connection.recv_into
        self._unsent: deque[bytes] = deque()
        self._num_skips = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spin: LoopSpin
        self._on_message: Callable[[FromWorker], None]
        self._on_lost: Callable[[], None]

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[FromWorker], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Read from now on: ``on_message`` is called with each message, ``on_lost`` once when no more can come."""
        self._loop = loop
        self._spin = spin_of(loop)
        self._on_message = on_message
        self._on_lost = on_lost
        loop.add_reader(self._socket.fileno(), self._read)

    def send(self, message: ToWorker) -> None:
        """Send, or keep it until the worker has read what was sent before. To a worker that is gone: nothing.

        Raises:
            Unavailable: the message is large, and there is no memory to share.
        """
        data = self._pack(message)
        if self._unsent:
            self._unsent.append(data)
            return
        try:
            self._send(data)
            if type(message) is Execute or type(message) is Reply:
                self._spin.expect()
        except BlockingIOError:
            self._unsent.append(data)
            if self._loop is not None:
                self._loop.add_writer(self._socket.fileno(), self._write)
        except OSError:  # gone: the reader sees it, after the last messages
            return

    def _write(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                self._send(unsent[0])
                unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            unsent.clear()
        if self._loop is not None:
            self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        """Take a message; and more of them where that has paid lately.

        A try that finds nothing costs 2 µs, half of a turn of the loop: it is made again only after some turns.
        """
        if not self._take():
            return
        if self._num_skips:
            self._num_skips -= 1
            return
        for _ in range(_MAX_BURST):
            if not self._take():
                self._num_skips = _SKIPS
                return

    def _take(self) -> bool:
        """Handle one message; False: there was none, or there will be none."""
        if self._loop is None:  # not attached; or closed, by what the last message led to
            return False
        size = self._receive()
        if size is None:
            return False
        try:
            message = self._unpack(size) if size else None
        except (msgspec.MsgspecError, BiremeError) as error:
            # Without the traceback, which is of the reading and says nothing.
            log.error("a worker process sent what is no message: %s", str(error))  # noqa: TRY400
            message = None
        if message is None:
            self.close()
            self._on_lost()
            return False
        self._spin.arrived()
        self._on_message(message)
        return True

    def _receive(self) -> int | None:
        """Read a datagram into the buffer; return its size, 0 at the end, None if there is none."""
        while True:
            try:
                return self._receive_into(self._buffer)
            except BlockingIOError:
                return None
            except ConnectionResetError:  # it left without reading all; what it sent before is still there
                continue

    def drain(self) -> None:
        """Handle all messages that are there: the last ones of a worker that has ended."""
        while self._take():
            pass

    def close(self) -> None:
        """Stop reading, and close the connection."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())
        self._unsent.clear()
        self._socket.close()
