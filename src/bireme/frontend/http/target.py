"""Target: what a path names — model, version, repository, region. Paths are compared as received, undecoded."""

from __future__ import annotations

from typing import NamedTuple

from bireme.wire.model_version import parse_model_version


class Target(NamedTuple):
    """The variable parts of a path; empty where it has none."""

    model: str = ""
    version: str = ""
    repository: str = ""
    region: str = ""

    @property
    def version_number(self) -> int:
        """The version as a number; -1 (the latest) when the path has none.

        Raises:
            InvalidArgument: it is too large for a version.
        """
        return parse_model_version(self.version)


def text_of(segment: bytes) -> str:
    """Return a path segment as text: UTF-8, other bytes as surrogates, so that different segments stay different."""
    return segment.decode("utf-8", "surrogateescape")
