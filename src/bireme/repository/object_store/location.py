"""Locations of repositories in object stores: their forms, and one spelling for each of them. Pure.

    s3://bucket/path                       Amazon S3
    s3://host:port/bucket/path             a store that speaks S3, over HTTP
    s3://https://host:port/bucket/path     the same over HTTPS (or ``http://``); here the port may be missing
    gs://bucket/path                       Google Cloud Storage
    as://account/container/path            Azure Blob Storage

Source: Triton ``filesystem/implementations/{s3,gcs,as}.h`` (``ParsePath``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bireme.types import InvalidArgument

SCHEMES: Final = ("s3", "gs", "as")

_FORMS: Final = {
    "s3": "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
    "gs": "gs://bucket/path",
    "as": "as://account/container/path",
}
_PROTOCOL: Final = re.compile(r"(https?)://(.*)")
_HOST: Final = re.compile(r"(?:[0-9a-zA-Z.\-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_BUCKET: Final = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z._\-]*")
_AZURE_HOST: Final = ".blob.core.windows.net"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where in which store a repository lies."""

    scheme: str
    """``s3``, ``gs`` or ``as``."""
    bucket: str
    """In Azure the container."""
    prefix: str = ""
    """What the keys of the repository begin with, without a slash at either end; empty: the whole bucket."""
    endpoint: str = ""
    """Base URL of a store that speaks S3; empty: the cloud's own."""
    account: str = ""
    """Of Azure."""

    @property
    def root(self) -> str:
        """The bucket, in its one spelling."""
        place = self.account or self.endpoint
        return f"{self.scheme}://{f'{place}/' if place else ''}{self.bucket}"

    @property
    def identity(self) -> str:
        """The location in its one spelling: two texts that mean the same repository have the same."""
        return self.url()

    def url(self, path: str = "") -> str:
        """Return how to name something in the repository to a person."""
        return "/".join(part for part in (self.root, self.prefix, path) if part)


def is_remote(location: str) -> bool:
    """Whether a repository's location, as the user gave it, is in an object store."""
    scheme, colon, _ = location.partition("://")
    return bool(colon) and scheme in SCHEMES


def parse_location(location: str) -> StoreLocation:
    """Return what ``location`` means. Slashes at the end, and several in a row, count as none and as one.

    Raises:
        InvalidArgument: it has none of the forms above; says what is wrong.
    """
    scheme, _, rest = location.partition("://")
    if "@" in rest:  # not repeated: it may be a password
        raise InvalidArgument(
            f"{scheme}:// location with '@': credentials belong in the environment or in the file that "
            "TRITON_CLOUD_CREDENTIAL_PATH names, not into a location"
        )
    if any(character in rest for character in "?#") or not rest.isprintable():
        raise _wrong(
            location, scheme, "it has a character that a location cannot have ('?', '#' or a control)"
        )
    if scheme == "s3":
        return _parse_s3(location, rest)
    parts = _split(rest)
    account = ""
    if scheme == "as":
        account = parts.pop(0).removesuffix(_AZURE_HOST) if parts else ""
        if not account or not re.fullmatch(r"[0-9a-zA-Z\-]+", account):
            raise _wrong(location, scheme, f"{account!r} is no storage account's name")
    return _finish(location, scheme, parts, account=account)


def _parse_s3(location: str, rest: str) -> StoreLocation:
    protocol, address = "http", rest.lstrip("/")
    has_protocol = _PROTOCOL.fullmatch(address)
    if has_protocol:
        protocol, address = has_protocol.groups()
    parts = _split(address)
    host = _HOST.fullmatch(parts[0]) if parts else None
    if not has_protocol and (host is None or host[1] is None):
        if parts and ":" in parts[0]:
            raise _wrong(location, "s3", f"{parts[0]!r} is no host and port")
        return _finish(location, "s3", parts)
    if host is None or not 0 < int(host[1] or 1) < 65536:
        raise _wrong(location, "s3", f"{parts[0] if parts else ''!r} is no host and port")
    return _finish(location, "s3", parts[1:], endpoint=f"{protocol}://{host[0].lower()}")


def _finish(
    location: str, scheme: str, parts: list[str], *, endpoint: str = "", account: str = ""
) -> StoreLocation:
    what = "container" if scheme == "as" else "bucket"
    if not parts:
        raise _wrong(location, scheme, f"it names no {what}")
    bucket, *path = parts
    if not _BUCKET.fullmatch(bucket):
        raise _wrong(location, scheme, f"{bucket!r} is no {what}'s name")
    if "." in path or ".." in path:
        raise _wrong(location, scheme, "a path in a store has no '.' and no '..'")
    return StoreLocation(scheme, bucket, "/".join(path), endpoint, account)


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _wrong(location: str, scheme: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"repository '{location}': {why}; expected {_FORMS[scheme]}")
