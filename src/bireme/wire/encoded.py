"""`Encoded`: a reply's bytes while they are made, in steps if there is much to do, and the parts both protocols share.

What is large goes through `Encoded.advance` in bounded steps, so that the caller's loop can do other things in between.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TypeVar

from bireme.types import Buffer, InferenceResponse, Tensor, encode_bytes
from bireme.wire.classification import classify
from bireme.wire.regions import OutputRegion
from bireme.wire.wanted_outputs import WantedOutput

SMALL_BYTES = 4096
"""Up to here, copying all binary outputs behind what describes them (50 ns each) is cheaper than views of them (160 ns
each) and the vectored write that they cause."""
MAX_SLICE_ELEMENTS = 1 << 16
"""A step deals with at most so many elements: about 2 ms of work for numbers."""
MAX_COPY_BYTES = 8 << 20
"""A step copies at most about so many bytes: 2 ms."""
_MAX_FRAGMENTS = 4096

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")


class Encoded:
    """Bytes to send. While they are not `is_complete`, call `advance`; only then read the rest."""

    __slots__ = ("_steps", "is_heavy", "nbytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        """What to send, in order: flat buffers. Views among them borrow the outputs' memory."""
        self.nbytes = 0
        """Total size of the pieces."""
        self.is_heavy = False
        """Whether steps may take long, and let go of the GIL meanwhile (sorting): `advance` belongs on a thread."""
        self._steps: Iterator[None] | None = None

    def start(self, steps: Iterator[None]) -> None:
        """Take the first of ``steps``, which fill this in; when they are heavy, only get ready to."""
        self._steps = steps
        if not self.is_heavy:
            self.advance()

    @property
    def is_complete(self) -> bool:
        """Whether the pieces can be sent."""
        return self._steps is None

    def advance(self) -> bool:
        """Do the next piece of work, about 2 ms at most unless it `is_heavy`; return `is_complete`.

        Raises:
            InvalidArgument: an output cannot be sent as the request asked.
        """
        if self._steps is not None and next(self._steps, self) is self:
            self._steps = None
        return self._steps is None


def takes_long(response: InferenceResponse, by_name: Mapping[str, WantedOutput] | None) -> bool:
    """Whether the outputs are wanted in a way that takes long and lets go of the GIL: see `Encoded.is_heavy`."""
    return by_name is not None and (sorts_much(response, by_name) or copies_much(response, by_name))


def sorts_much(response: InferenceResponse, by_name: Mapping[str, WantedOutput]) -> bool:
    """Whether an output is to be classified that takes long to sort."""
    for tensor in response.outputs:
        choice = by_name.get(tensor.name)
        if choice is not None and choice.classification and tensor.num_elements > MAX_SLICE_ELEMENTS:
            return True
    return False


def classify_in_steps(
    tensor: Tensor, choice: WantedOutput, labels: Mapping[str, Sequence[str]], *, has_batch_dim: bool
) -> Generator[None, None, Tensor]:
    """Return the classes of ``tensor`` where ``choice`` wants those, else itself; yield between bounded pieces of work.

    Raises:
        InvalidArgument: it cannot be classified.
    """
    if choice.classification:
        names = labels.get(tensor.name, ())
        for classes in classify(tensor, choice.classification, names, has_batch_dim=has_batch_dim):
            if classes is not None:
                return classes
            yield
    return tensor


def slice_wire_form(tensor: Tensor) -> Iterator[Buffer]:
    """Yield the wire form of ``tensor`` in pieces: a view, except that BYTES which are objects are encoded."""
    if tensor.datatype != "BYTES" or tensor.is_encoded or tensor.num_elements <= MAX_SLICE_ELEMENTS:
        yield tensor.to_buffer()
        return
    flat = tensor.to_numpy().reshape(-1)
    for start in range(0, len(flat), MAX_SLICE_ELEMENTS):
        yield encode_bytes(flat[start : start + MAX_SLICE_ELEMENTS].tolist())


def copies_much(response: InferenceResponse, by_name: Mapping[str, WantedOutput]) -> bool:
    """Whether so much goes into shared memory that copying it takes long; it lets go of the GIL meanwhile."""
    num_bytes = 0
    for tensor in response.outputs:
        choice = by_name.get(tensor.name)
        if choice is not None and choice.region is not None:
            # BYTES that are to be encoded go in steps, each of which holds the GIL: they do not belong on a thread.
            is_copied = tensor.is_encoded if tensor.datatype == "BYTES" else not choice.region.has(tensor)
            num_bytes += tensor.nbytes if is_copied else 0
    return num_bytes > MAX_COPY_BYTES


def write_in_steps(region: OutputRegion, tensor: Tensor) -> Iterator[None]:
    """Copy the wire form of ``tensor`` to the start of ``region``; yield between the pieces of a long conversion.

    Raises:
        Internal, InvalidArgument: as `OutputRegion.write`.
    """
    if tensor.datatype != "BYTES":
        region.write(tensor)
        return
    pieces: list[Buffer] = []
    for piece in slice_wire_form(tensor):
        if pieces:
            yield
        pieces.append(piece)
    region.write_pieces(tensor.name, pieces)


def keep_fragment(fragments: dict[_Key, _Made], key: _Key, made: _Made) -> _Made:
    """Remember ``made``. Shapes come from clients, so the table is emptied when full; refilling it is cheap."""
    if len(fragments) >= _MAX_FRAGMENTS:
        fragments.clear()
    fragments[key] = made
    return made
