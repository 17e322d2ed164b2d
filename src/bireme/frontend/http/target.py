"""Target: what a path names — model, version, repository. Paths are compared as received, undecoded."""

from __future__ import annotations

from typing import NamedTuple

from bireme.types import InvalidArgument

_INT64_MAX = (1 << 63) - 1


class Target(NamedTuple):
    """The variable parts of a path; empty where it has none."""

    model: str = ""
    version: str = ""
    repository: str = ""

    @property
    def version_number(self) -> int:
        """The version as a number; -1 (the latest) when the path has none.

        Raises:
            InvalidArgument: it is too large for a version.
        """
        if not self.version:
            return -1
        # int() of more than some thousand digits is an error of its own
        number = int(self.version) if len(self.version) <= len(str(_INT64_MAX)) + 20 else _INT64_MAX + 1
        if number > _INT64_MAX:
            raise InvalidArgument(
                f"failed to get model version from specified version string '{self.version}' (details: out of range), "
                f"version should be an integral value > 0"
            )
        return number


def text_of(segment: bytes) -> str:
    """Return a path segment as text: UTF-8, other bytes as surrogates, so that different segments stay different."""
    return segment.decode("utf-8", "surrogateescape")
