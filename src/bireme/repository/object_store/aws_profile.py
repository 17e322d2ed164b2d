"""Profiles: keys and regions in the files that AWS's own tools keep, ``~/.aws/credentials`` and ``~/.aws/config``."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bireme.types import InvalidArgument

_OTHER_WAYS: Final = (
    "role_arn",
    "sso_session",
    "sso_start_url",
    "credential_process",
    "web_identity_token_file",
)


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """What a profile says; empty where it says nothing."""

    key_id: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""


def read_profile(name: str, environ: Mapping[str, str]) -> AwsProfile:
    """Return profile ``name``; without a name the one called ``default``, which need not be there.

    Raises:
        InvalidArgument: the profile is in neither file, or gets its keys in a way that only AWS's own tools know; or a
            file is malformed.
    """
    home = Path(environ.get("HOME") or Path.home())
    shared = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials").expanduser()
    config = Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config").expanduser()
    section = name or "default"
    settings = _section(config, section if section == "default" else f"profile {section}")
    keys = _section(shared, section)
    if settings is None and keys is None:
        if not name:
            return AwsProfile()
        raise InvalidArgument(f"AWS profile '{name}' is neither in '{shared}' nor in '{config}'")
    merged = {**(settings or {}), **(keys or {})}
    found = AwsProfile(
        merged.get("aws_access_key_id", ""),
        merged.get("aws_secret_access_key", ""),
        merged.get("aws_session_token", ""),
        merged.get("region", ""),
    )
    other = next((way for way in _OTHER_WAYS if way in merged), None)
    if not (found.key_id and found.secret_key) and name and other:
        raise InvalidArgument(
            f"AWS profile '{name}' gets its keys by {other}, which is not supported here: a profile needs aws_access_key_id "
            "and aws_secret_access_key; 'aws configure export-credentials --format env' gives keys for the environment"
        )
    return found


def _section(path: Path, name: str) -> dict[str, str] | None:
    """Return one section of a file; None if it, or the file, is not there."""
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidArgument(f"cannot read AWS's file of profiles: {error}") from error
    except configparser.Error as error:  # its text quotes lines, which may be secrets
        raise InvalidArgument(f"'{path}' is no file of AWS profiles ({type(error).__name__})") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"'{path}' is no file of AWS profiles: it is not UTF-8 text") from None
    return dict(parser.items(name)) if parser.has_section(name) else None
