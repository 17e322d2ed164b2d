"""How a request wants its outputs: which, in which form, and where. Both protocols keep it in the request's ``context``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bireme.wire.regions import MIN_TARGET_BYTES, OutputRegion, Place, Regions

__all__ = [
    "ALL_AS_BINARY",
    "ALL_AS_JSON",
    "AS_BINARY",
    "AS_JSON",
    "KnownWishes",
    "OutputRegion",
    "Regions",
    "WantedOutput",
    "WantedOutputs",
    "find_targets",
]


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


def find_targets(
    regions: Regions, inputs: Iterable[Place], by_name: Mapping[str, WantedOutput]
) -> dict[str, memoryview] | None:
    """Return the memory into which a backend may write outputs while it runs, by name; None: there's none.

    That is where large outputs are wanted, unless one of ``inputs`` lies there, too: it would be written to while it's
    read.
    """
    large = {
        name: choice.region
        for name, choice in by_name.items()
        if choice.region is not None and choice.region.byte_size >= MIN_TARGET_BYTES
    }
    if not large:
        return None
    places = tuple(inputs)
    targets = {
        name: region.memory
        for name, region in large.items()
        if not any(regions.overlap(place, region.place) for place in places)
    }
    return targets or None


class KnownWishes:
    """The listed outputs of a request that may come again, without the memory that it wanted them in."""

    __slots__ = ("_choices", "_has_large")

    def __init__(self, by_name: Mapping[str, WantedOutput]) -> None:
        self._choices = tuple(
            (name, choice if choice.region is None else choice.region.place)
            for name, choice in by_name.items()
        )
        self._has_large = any(
            isinstance(choice, Place) and choice.byte_size >= MIN_TARGET_BYTES for _, choice in self._choices
        )

    def find(self, regions: Regions) -> dict[str, WantedOutput]:
        """Return the outputs, with their memory as ``regions`` has it now.

        Raises:
            NotFound, InvalidArgument, Unavailable: as `Regions.slice`.
        """
        return {
            name: choice
            if isinstance(choice, WantedOutput)
            else WantedOutput(region=OutputRegion(*choice, regions.slice(*choice)))
            for name, choice in self._choices
        }

    def find_targets(
        self, regions: Regions, inputs: Iterable[Place], by_name: Mapping[str, WantedOutput]
    ) -> dict[str, memoryview] | None:
        """Return what `find_targets` returns; sooner, if no output is large."""
        return find_targets(regions, inputs, by_name) if self._has_large else None
