"""Credentials of object stores: which ones are for a location, from the environment or from a credential file.

``TRITON_CLOUD_CREDENTIAL_PATH`` names a JSON file such as

    {"gs": {"": "/keys/gcs.json"},
     "s3": {"s3://bucket/team": {"key_id": "…", "secret_key": "…", "region": "…"}},
     "as": {"": {"account_str": "…", "account_key": "…"}}}

whose entries are for the locations that begin with their name; the longest name wins. With it the environment's other
variables mean nothing. No secret is in any error, nor in the ``repr`` of anything here.

Source: Triton ``filesystem/api.cc`` (``LoadCredentials``, ``GetLongestMatchingNameIndex``) and the three
``*Credential`` classes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from bireme.repository.object_store.aws_profile import read_profile
from bireme.repository.object_store.location import SCHEMES
from bireme.types import InvalidArgument

log = logging.getLogger("bireme.repository")

CREDENTIAL_FILE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"

_FIELDS: Final = {
    "s3": {"secret_key", "key_id", "region", "session_token", "profile"},
    "as": {"account_str", "account_key", "auth_type", "client_id"},
}
_AUTH_TYPES: Final = ("", "key", "managed_identity", "default")


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Without a key: what the machine itself may do, or nobody in particular."""

    key_id: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""


@dataclass(frozen=True, slots=True)
class GcsCredentials:
    """Without a path: what the machine itself may do, or nobody in particular."""

    path: str = ""
    """Of the JSON file with a service account's or a user's key."""


@dataclass(frozen=True, slots=True)
class AzureCredentials:
    """Without a key: as ``auth_type`` says, or nobody in particular."""

    account: str = ""
    """Takes the place of the account in the location, if there is one."""
    account_key: str = field(default="", repr=False)
    auth_type: str = ""
    """``key``, ``managed_identity``, ``default`` (whatever the environment offers); empty: ``key`` if there is one."""
    client_id: str = ""
    """Of a managed identity that was assigned by a user."""


Credentials = S3Credentials | GcsCredentials | AzureCredentials


def find_credentials(location: str, environ: Mapping[str, str]) -> Credentials:
    """Return the credentials for a location. Reads files that the environment names; any thread, now.

    Raises:
        InvalidArgument: the credential file or a profile cannot be read, is malformed, or has none for this location.
    """
    scheme = location.partition("://")[0]
    file = environ.get(CREDENTIAL_FILE, "")
    if file:
        return _from_entry(scheme, _find_entry(scheme, location, Path(file)), environ, Path(file))
    if scheme == "gs":
        return GcsCredentials(environ.get("GOOGLE_APPLICATION_CREDENTIALS", ""))
    if scheme == "as":
        return _azure(
            AzureCredentials(
                environ.get("AZURE_STORAGE_ACCOUNT", ""),
                environ.get("AZURE_STORAGE_KEY", ""),
                environ.get("AZURE_STORAGE_AUTH_TYPE", ""),
                environ.get("AZURE_STORAGE_CLIENT_ID", ""),
            ),
            "AZURE_STORAGE_AUTH_TYPE",
        )
    given = S3Credentials(
        environ.get("AWS_ACCESS_KEY_ID", ""),
        environ.get("AWS_SECRET_ACCESS_KEY", ""),
        environ.get("AWS_SESSION_TOKEN", ""),
        environ.get("AWS_DEFAULT_REGION", "") or environ.get("AWS_REGION", ""),
    )
    return _s3(given, environ.get("AWS_PROFILE", ""), environ)


def _s3(given: S3Credentials, profile: str, environ: Mapping[str, str]) -> S3Credentials:
    """Return ``given`` if it is complete, else what the profile says. Without a name it is that called default, if any."""
    if given.key_id and given.secret_key:
        return given
    found = read_profile(profile, environ)
    return S3Credentials(found.key_id, found.secret_key, found.session_token, given.region or found.region)


def _azure(given: AzureCredentials, where: str) -> AzureCredentials:
    if given.auth_type not in _AUTH_TYPES:
        raise InvalidArgument(
            f"{where} is {given.auth_type!r}, expected one of {', '.join(filter(None, _AUTH_TYPES))}"
        )
    return given


def _find_entry(scheme: str, location: str, file: Path) -> tuple[str, Any]:
    """Return the entry of the credential file for ``location``, with its name."""
    try:
        content = orjson.loads(file.read_bytes())
    except OSError as error:
        raise InvalidArgument(
            f"cannot read the credential file that {CREDENTIAL_FILE} names: {error}"
        ) from error
    except orjson.JSONDecodeError as error:
        # Its text is not in the message: a position and no secret.
        raise InvalidArgument(
            f"credential file '{file}' is no JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    if not isinstance(content, dict):
        raise _malformed(file, "", "an object with the members gs, s3 and as", content)
    for unknown in content.keys() - set(SCHEMES):
        log.warning("credential file '%s': %r is ignored, expected gs, s3 or as", file, unknown)
    entries = content.get(scheme, {})
    if not isinstance(entries, dict):
        raise _malformed(file, scheme, "an object of entries by the beginning of a location", entries)
    matching = [name for name in entries if location.startswith(name)]
    if not matching:
        raise InvalidArgument(
            f"credential file '{file}' has no entry for '{location}': {scheme} has "
            f"{', '.join(map(repr, sorted(entries))) or 'none'}; an entry '' is for all locations"
        )
    name = max(matching, key=len)
    return name, entries[name]


def _from_entry(scheme: str, found: tuple[str, Any], environ: Mapping[str, str], file: Path) -> Credentials:
    name, entry = found
    where = f"{scheme}[{name!r}]"
    if scheme == "gs":
        if not isinstance(entry, str):
            raise _malformed(file, where, "the path of a key file", entry)
        return GcsCredentials(entry)
    if not isinstance(entry, dict):
        raise _malformed(file, where, f"an object with {', '.join(sorted(_FIELDS[scheme]))}", entry)
    for key, value in entry.items():
        if key not in _FIELDS[scheme]:
            log.warning(
                "credential file '%s': %s.%s is ignored, expected %s",
                file,
                where,
                key,
                ", ".join(sorted(_FIELDS[scheme])),
            )
        elif not isinstance(value, str):
            raise _malformed(file, f"{where}.{key}", "a string", value)
    text: dict[str, str] = {key: entry.get(key, "") for key in _FIELDS[scheme]}
    if scheme == "as":
        return _azure(
            AzureCredentials(text["account_str"], text["account_key"], text["auth_type"], text["client_id"]),
            f"credential file '{file}': {where}.auth_type",
        )
    if bool(text["key_id"]) != bool(text["secret_key"]):
        missing = "secret_key" if text["key_id"] else "key_id"
        raise InvalidArgument(f"credential file '{file}': {where} has no {missing}: they come together")
    given = S3Credentials(text["key_id"], text["secret_key"], text["session_token"], text["region"])
    return _s3(given, text["profile"], environ)


def _malformed(file: Path, where: str, expected: str, found: object) -> InvalidArgument:
    """Say of what type something is, never what it is."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    kind = kinds.get(type(found), "a number")
    return InvalidArgument(
        f"credential file '{file}': {where or 'its content'} is {kind}, expected {expected}"
    )
