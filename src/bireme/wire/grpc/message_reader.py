"""Message framing: the DATA of one stream → whole messages.

A message is a flag byte (whether it is compressed), four bytes of length, and so many bytes. DATA frames cut the
sequence of messages anywhere. What matters for speed is the unary call, whose one small message comes in one piece;
and the large message, whose bytes are to be received into the place where they stay.

Source: gRPC over HTTP/2, "Length-Prefixed-Message".
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from bireme.types import Buffer
from bireme.wire.grpc.status import Refusal, Status

PREFIX_SIZE: Final = 5
SMALL_SIZE: Final = 4096
"""Messages of more bytes get memory of their own when so many have come; before that, what there is of one is held."""

_PREFIX = Struct(">BI")
_read_prefix = _PREFIX.unpack_from
_NOTHING = memoryview(b"")


def message_prefix(size: int, is_compressed: bool = False) -> bytes:  # noqa: FBT001, FBT002 (called for every message)
    """Return what stands before a message of ``size`` bytes."""
    return _PREFIX.pack(is_compressed, size)


class MessageReader:
    """Takes the DATA of one stream apart; a call derives from it and takes the messages.

    After `refuse` and after `stop` nothing more is reported, and what still comes is thrown away.
    """

    __slots__ = (
        "_held",
        "_is_compressed",
        "_is_stopped",
        "_is_whole",
        "_max_message_size",
        "_memory",
        "_target",
    )

    def __init__(self, max_message_size: int) -> None:
        self._max_message_size = max_message_size
        self._is_whole = True
        """Whether all messages so far are complete, and further ones are wanted: nothing is held, there is no target."""
        self._is_stopped = False
        self._held = bytearray()
        """What has come of a message that has no memory yet, its prefix included."""
        self._memory: memoryview | None = None
        """Where the message that is arriving stays."""
        self._target = _NOTHING
        """The part of `_memory` where the next bytes go."""
        self._is_compressed = False

    # What a call does with it

    def allocate(self, size: int, start: memoryview) -> memoryview:
        """Return memory for a message that is arriving; ``start``, borrowed, is what there is of it.

        Raises:
            Refusal: there's none; the reader gives it to `refuse`.
        """
        raise NotImplementedError

    def take_message(self, message: Buffer, is_compressed: bool) -> None:  # noqa: FBT001 (called for every message)
        """Take a complete message for good: a copy, or the memory that `allocate` returned for it."""
        raise NotImplementedError

    def take_end(self) -> None:
        """Take note that the client has sent its last message."""
        raise NotImplementedError

    def refuse(self, status: Status, text: str) -> None:
        """End the call, for what came is no message or too large a one."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let go of what has come of a message, and report nothing more."""
        self._is_stopped = True
        if self._is_whole:  # nothing has come of one
            self._is_whole = False
            return
        self._held = bytearray()
        self._memory = None
        self._target = _NOTHING

    # What the connection does with it

    def receive(self, data: memoryview) -> None:
        """Take the next bytes; they are borrowed for this call only."""
        size = len(data)
        if self._is_whole and size >= PREFIX_SIZE:
            flag, length = _read_prefix(data)
            if size - PREFIX_SIZE == length and flag <= 1 and length <= self._max_message_size:
                self.take_message(data[PREFIX_SIZE:].tobytes(), flag == 1)
                return
        while len(data) and not self._is_stopped:
            if self._memory is not None:
                data = self._fill(data)
            elif self._held:
                data = self._hold(data)
            else:
                data = self._take_whole(data)

    def get_target(self, size: int) -> memoryview | None:
        """Return where up to ``size`` bytes that have not come yet may be received to; None: nowhere, `receive` them."""
        target = self._target
        if not len(target):
            return None
        return target[:size]

    def advance(self, num_bytes: int) -> None:
        """Take note that so many bytes were received to where `get_target` said."""
        if self._is_stopped:
            return
        self._target = target = self._target[num_bytes:]
        if len(target):
            return
        message = self._memory
        assert message is not None
        self._memory = None
        self._is_whole = True
        self.take_message(message, self._is_compressed)

    def end(self) -> None:
        """Take note that nothing more comes."""
        if self._is_whole:
            self.take_end()
        elif not self._is_stopped:
            self._refuse(
                Status.INTERNAL, f"the client ended the call within a message: {self._describe_rest()}"
            )

    # How

    def _fill(self, data: memoryview) -> memoryview:
        """Move what belongs to the message that is arriving to its memory; return the rest."""
        target = self._target
        num_bytes = min(len(data), len(target))
        target[:num_bytes] = data[:num_bytes]
        self.advance(num_bytes)
        return data[num_bytes:]

    def _take_whole(self, data: memoryview) -> memoryview:
        """Take a message that is here as a whole, and return the rest; hold what there is of it when it is not."""
        size = len(data)
        if size >= PREFIX_SIZE:
            flag, length = _read_prefix(data)
            if not self._may_take(flag, length):
                return _NOTHING
            stop = PREFIX_SIZE + length
            if size >= stop:
                self._is_whole = True
                self.take_message(data[PREFIX_SIZE:stop].tobytes(), flag == 1)
                return data[stop:]
            if size >= PREFIX_SIZE + SMALL_SIZE:
                self._start(flag, length, data[PREFIX_SIZE:])
                return _NOTHING
        self._is_whole = False
        self._held += data
        return _NOTHING

    def _hold(self, data: memoryview) -> memoryview:
        """Add to what is held until that is a small message, or enough of a large one; return the rest."""
        held = self._held
        if len(held) < PREFIX_SIZE:
            data = _move(data, held, PREFIX_SIZE)
            if len(held) < PREFIX_SIZE:
                return _NOTHING
            flag, length = _read_prefix(held)
            if not self._may_take(flag, length):
                return _NOTHING
        else:
            flag, length = _read_prefix(held)
        goal = PREFIX_SIZE + min(length, SMALL_SIZE)
        data = _move(data, held, goal)
        if len(held) < goal:
            return _NOTHING
        self._held = bytearray()
        if length > SMALL_SIZE:
            self._start(flag, length, memoryview(held)[PREFIX_SIZE:])
        else:
            self._is_whole = True
            self.take_message(bytes(memoryview(held)[PREFIX_SIZE:]), flag == 1)
        return data

    def _start(self, flag: int, length: int, start: memoryview) -> None:
        """Get memory for a message of which there is enough to see how it is to be laid out."""
        self._is_whole = False
        try:
            memory = self.allocate(length, start)
        except Refusal as refusal:
            self._refuse(refusal.status, refusal.text)
            return
        memory[: len(start)] = start
        self._memory = memory
        self._target = memory[len(start) :]
        self._is_compressed = flag == 1

    def _may_take(self, flag: int, length: int) -> bool:
        """Whether a message may have this prefix; when not, the call has been refused."""
        if flag > 1:
            self._refuse(
                Status.INTERNAL, f"a message begins with the flags 0x{flag:02x}, expected 0x00 or 0x01"
            )
        elif length > self._max_message_size:
            text = f"Received message larger than max ({length} vs. {self._max_message_size})"
            self._refuse(Status.RESOURCE_EXHAUSTED, text)
        else:
            return True
        return False

    def _refuse(self, status: Status, text: str) -> None:
        self.stop()
        self.refuse(status, text)

    def _describe_rest(self) -> str:
        if self._memory is not None:
            size = len(self._memory)
            return f"{size - len(self._target)} of {size} bytes came"
        held = self._held
        if len(held) < PREFIX_SIZE:
            return f"{len(held)} bytes of a prefix of {PREFIX_SIZE} came"
        return f"{len(held) - PREFIX_SIZE} of {_read_prefix(held)[1]} bytes came"


def _move(data: memoryview, held: bytearray, goal: int) -> memoryview:
    """Add bytes to ``held`` until those are ``goal``; return the rest."""
    num_bytes = goal - len(held)
    held += data[:num_bytes]
    return data[num_bytes:]
