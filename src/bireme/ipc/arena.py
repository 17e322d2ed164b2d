"""Arena: memory for tensors that other processes read and write, without a name and without copies.

An arena is a set of large anonymous segments (`bireme.ipc.segment`), cut into blocks of a few sizes: quarters of powers
of two, all of whole pages. One process allocates; the others map the segments. A freed block is the next of its size
to be used, since its pages are in the caches, and mapped on the other side. A block's size never changes: what random
sizes come to is bounded by the most that each size had in use at one time, and of that only the pages that somebody
wrote to are memory. `Arena.trim` gives back those of blocks that nobody has needed for a while.

Nothing here waits for a lock, except where a segment is cut: taking a block is a ``list.pop``, and freeing one a
``list.append``, by the block's own end.
"""

from __future__ import annotations

import itertools
import mmap
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bireme.ipc.segment import Segment
from bireme.types import Unavailable

if TYPE_CHECKING:
    from bireme.ipc.ledger import Ledger

SEGMENTS_PER_OWNER: Final = 1 << 16
"""Ids that belong to one arena: its first one and those that follow."""

_MIN_SEGMENT: Final = 64 << 20
"""Bytes of address space; a page of it is memory only when somebody has written to it."""
_MAX_SEGMENT: Final = 1 << 30
"""Segments grow with the arena, as each is a descriptor in every process; above this only for a block that is larger."""
_PAGE: Final = mmap.PAGESIZE
_MADV_REMOVE: Final = getattr(mmap, "MADV_REMOVE", 9)
_UINT8: Final = np.dtype(np.uint8)

_owners = itertools.count(1)


def claim_segments() -> int:
    """Return the first of `SEGMENTS_PER_OWNER` segment ids that no other arena of this server uses. Any thread.

    Those below `SEGMENTS_PER_OWNER` are the server's own.
    """
    return next(_owners) * SEGMENTS_PER_OWNER


class Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """``uint8[nbytes]`` of an arena, own or foreign. Goes back when its last view dies, on whatever thread that is.

    Views of it are for others; they are plain arrays, or memoryviews, and end in it when their ``base`` (``obj``) is
    followed.
    """

    __slots__ = ("_give_back", "lease", "lender", "offset", "segment")

    segment: int
    """The id of the segment that it lies in."""
    offset: int
    """Where in the segment it begins."""
    lender: Ledger | None
    """Whose peer owns it; None: it is of this process's own arena."""
    lease: Any
    """What goes back: the lender's lease, or the arena's place."""
    _give_back: Callable[[Any], object]

    def __del__(self) -> None:
        try:
            self._give_back(self.lease)
        except AttributeError:  # a slice that numpy made of one, which owns nothing
            return


class ArenaStatistics(NamedTuple):
    """What an arena holds, in bytes."""

    num_segments: int
    reserved: int
    """Address space of all segments."""
    used: int
    """Blocks in use, rounded up to their sizes."""
    free: int
    """Blocks that wait for reuse and have not been trimmed."""


class _SizeClass:
    """The blocks of one size."""

    __slots__ = ("free", "low", "nbytes", "num_dry", "num_places")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.free: list[tuple[int, int, Segment]] = []
        """Places (segment id, offset, segment) from the longest unused one to the one used last."""
        self.low = 0
        """The fewest that were free at one time since the last trim: that many at the front were not needed."""
        self.num_dry = 0
        """How many at the front have no memory (or fewer, when ``low`` is lower)."""
        self.num_places = 0


class Arena:
    """Allocates from segments of its own. Any thread; one process."""

    def __init__(
        self, first_segment: int | None = None, announce: Callable[[int, Segment], None] | None = None
    ) -> None:
        """Start empty. Segments are numbered from ``first_segment`` on (None: a range of its own, `claim_segments`).

        ``announce`` is called for each new segment before any block of it is given out, by the allocating thread.
        """
        self._next_segment = claim_segments() if first_segment is None else first_segment
        self._announce = announce
        self._classes: dict[int, _SizeClass] = {}
        self._cutting = threading.Lock()
        self._segment: Segment | None = None
        """The one that is being cut; all are held by their places."""
        self._position = 0
        self._num_segments = 0
        self._reserved = 0

    def allocate(self, nbytes: int) -> Block:
        """Return a block of ``nbytes``, page-aligned, with anything in it.

        Raises:
            Unavailable: the system has no descriptor or no address space left.
        """
        # A whole page at least, and else a quarter of the power of two below.
        step = 1 << ((nbytes - 1).bit_length() - 3) if nbytes > 4 * _PAGE else _PAGE
        size = (nbytes + step - 1) & -step or step
        kind = self._classes.get(size)
        if kind is None:
            kind = self._classes.setdefault(size, _SizeClass(size))
        free = kind.free
        try:
            place = free.pop()
        except IndexError:
            place = self._cut(kind)
        if len(free) < kind.low:  # noqa: PLR1730 - min() takes three times as long
            kind.low = len(free)
        number, offset, segment = place
        block = Block((nbytes,), _UINT8, segment, offset)
        block.segment = number
        block.offset = offset
        block.lender = None
        block.lease = place
        block._give_back = free.append  # noqa: SLF001 (made here)
        return block

    def trim(self, max_nbytes: int = 32 << 20) -> int:
        """Give the memory of blocks that were not used since the last trim back to the system; return how much, in bytes.

        Their addresses stay, for every process that maps them. At most ``max_nbytes`` and one block more: a megabyte
        takes about a quarter of a millisecond.
        """
        trimmed = 0
        for kind in tuple(self._classes.values()):
            low, kind.low = kind.low, len(kind.free)
            kind.num_dry = min(kind.num_dry, low)
            while kind.num_dry < low:
                if trimmed >= max_nbytes:
                    kind.low = min(kind.low, low)  # as unused as before, for the next time
                    break
                trimmed += self._dry(kind)
        return trimmed

    def _dry(self, kind: _SizeClass) -> int:
        """Trim the first place that has memory."""
        try:
            place = kind.free.pop(kind.num_dry)  # nobody can take it meanwhile
        except IndexError:
            kind.num_dry += 1  # others were faster; `low` says so next time
            return 0
        _, offset, segment = place
        try:
            segment.madvise(_MADV_REMOVE, offset, kind.nbytes)
        finally:
            kind.free.insert(kind.num_dry, place)
            kind.num_dry += 1
        return kind.nbytes

    def _cut(self, kind: _SizeClass) -> tuple[int, int, Segment]:
        """Return a new place."""
        with self._cutting:
            segment = self._segment
            if segment is None or self._position + kind.nbytes > len(segment):
                segment = self._grow(kind.nbytes)
            offset = self._position
            self._position += kind.nbytes
            kind.num_places += 1
            return self._next_segment - 1, offset, segment

    def _grow(self, nbytes: int) -> Segment:
        size = max(nbytes, min(max(self._reserved, _MIN_SEGMENT), _MAX_SEGMENT))
        try:
            segment = Segment.allocate(size)
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"cannot get {size} bytes of memory to share between processes: {error}"
            ) from error
        if self._announce is not None:
            self._announce(self._next_segment, segment)
        self._segment = segment
        self._position = 0
        self._next_segment += 1
        self._num_segments += 1
        self._reserved += size
        return segment

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks in use, rounded up to their sizes."""
        return self.statistics().used

    @property
    def free_bytes(self) -> int:
        """Bytes of the blocks that wait for reuse and have not been trimmed."""
        return self.statistics().free

    def statistics(self) -> ArenaStatistics:
        """Return what the arena holds now."""
        used = free = 0
        for kind in tuple(self._classes.values()):
            num_free = len(kind.free)
            used += (kind.num_places - num_free) * kind.nbytes
            free += (num_free - min(kind.num_dry, kind.low, num_free)) * kind.nbytes
        return ArenaStatistics(self._num_segments, self._reserved, used, free)

    def __repr__(self) -> str:
        found = self.statistics()
        return f"Arena({found.num_segments} segments, {found.used} bytes used, {found.free} bytes free)"
