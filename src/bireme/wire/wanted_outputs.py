"""How a request wants its outputs: which, in which form, and where. Both protocols keep it in the request's ``context``."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from bireme.types import InvalidArgument, Tensor


class Regions(Protocol):
    """The registered shared memory regions, as decoders see them."""

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a writable view of ``byte_size`` bytes of ``region``. The view keeps the memory mapped.

        Raises:
            NotFound: no such region.
            InvalidArgument: the range is not inside it.
        """
        ...


class OutputRegion(NamedTuple):
    """The part of a shared memory region that an output is to be written to."""

    name: str
    offset: int
    byte_size: int
    memory: memoryview
    """Writable; keeps the region mapped."""

    def write(self, tensor: Tensor) -> int:
        """Copy the wire form of ``tensor`` to the start of this part, once; return its size in bytes.

        Raises:
            InvalidArgument: it does not fit.
        """
        nbytes = tensor.nbytes
        if nbytes > self.byte_size:
            raise InvalidArgument(
                f"shared memory size specified with the request for output '{tensor.name}' ({self.byte_size} bytes) "
                f"should be at least {nbytes} bytes to hold the results"
            )
        if tensor.datatype == "BYTES":
            self.memory[:nbytes] = tensor.to_buffer()
        elif nbytes:
            array = tensor.to_numpy()
            np.copyto(np.ndarray(array.shape, array.dtype, self.memory), array)
        return nbytes


class WantedOutput:
    """How one listed output is to be sent."""

    __slots__ = ("binary", "classification", "region")

    def __init__(
        self, *, binary: bool = False, classification: int = 0, region: OutputRegion | None = None
    ) -> None:
        self.binary = binary
        """HTTP only: as binary data behind the JSON."""
        self.classification = classification
        """Number of classes to send instead of the tensor; 0: send the tensor."""
        self.region = region
        """Where the data goes instead of into the response."""


class WantedOutputs:
    """How the outputs of a request are to be sent: the request's ``context``."""

    __slots__ = ("by_name", "default_binary")

    def __init__(
        self, *, default_binary: bool = False, by_name: dict[str, WantedOutput] | None = None
    ) -> None:
        self.default_binary = default_binary
        """HTTP only: for outputs that were not listed."""
        self.by_name = by_name
        """The listed outputs in their order; None: none was listed, all are wanted."""


# Shared by all requests that ask for nothing special; nobody changes them.
AS_JSON, AS_BINARY = WantedOutput(), WantedOutput(binary=True)
ALL_AS_JSON, ALL_AS_BINARY = WantedOutputs(), WantedOutputs(default_binary=True)
