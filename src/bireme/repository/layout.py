"""What a repository and a model directory look like: names, versions, the version policy, the config file.

Pure rules over names and one look at a directory; nothing here knows whether the directory is a local one or a copy of
something remote, and nothing is remembered.

Source: Triton ``model_repository_manager.cc`` and ``model_lifecycle.cc`` (``VersionsToLoad``).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bireme.config.backend_rules import RULES
from bireme.config.model_config import ModelVersionPolicy
from bireme.types import InvalidArgument

CONFIG_FILE = "config.pbtxt"
NAMED_CONFIGS_DIR = "configs"
RESERVED_DIRS = frozenset({"warmup", "initial_state", NAMED_CONFIGS_DIR})
"""Sub-directories of a model that hold something other than a version."""

# Neither a model nor part of one: what volumes, notebooks, editors and Python itself leave behind. Reading them would
# make a mounted disk fail to start, and a Python model reload itself for ever because importing it writes a cache.
_LEFTOVER_DIRS = frozenset({"lost+found", "__pycache__"})
_MAX_VERSION = 2**63 - 1


def check_model_name(name: str) -> None:
    """Check a name that a client gave.

    Raises:
        InvalidArgument: the name is blank, or could lead out of the repository.
    """
    trimmed = name.strip()
    if not trimmed:
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if trimmed in (".", "..") or any(character in name for character in "/\\\0"):
        raise InvalidArgument(
            f"invalid model name {name!r}, model name must not contain path traversal characters"
        )


def is_model_candidate(dir_name: str) -> bool:
    """Whether a sub-directory of a repository may be a model: a printable name that is no system's leftover."""
    return bool(dir_name.strip()) and dir_name.isprintable() and not is_leftover(dir_name)


def is_leftover(file_name: str) -> bool:
    """Whether a file or directory is what tools leave behind (hidden, backup, cache) and no part of a model."""
    return file_name.startswith(".") or file_name.endswith("~") or file_name in _LEFTOVER_DIRS


def parse_version(dir_name: str) -> int | None:
    """Return the version that a directory holds, None when its name is no positive integer without leading zero."""
    if not (dir_name.isascii() and dir_name.isdigit()) or dir_name.startswith("0"):
        return None
    version = int(dir_name) if len(dir_name) < 20 else _MAX_VERSION + 1
    return version if version <= _MAX_VERSION else None


@dataclass(frozen=True, slots=True)
class VersionDirs:
    """The sub-directories of a model directory."""

    versions: tuple[int, ...]
    """In ascending numeric order."""
    odd: tuple[str, ...]
    """Names that are neither a version nor reserved, sorted. They are ignored."""


def list_versions(model_dir: Path) -> VersionDirs:
    """Look which versions ``model_dir`` holds; symbolic links are followed.

    Raises:
        OSError: the directory cannot be read.
    """
    versions: list[int] = []
    odd: list[str] = []
    with os.scandir(model_dir) as entries:
        for entry in entries:
            if entry.name in RESERVED_DIRS or is_leftover(entry.name) or not entry.is_dir():
                continue
            version = parse_version(entry.name)
            if version is None:
                odd.append(entry.name)
            else:
                versions.append(version)
    return VersionDirs(tuple(sorted(versions)), tuple(sorted(odd)))


def select_versions(policy: ModelVersionPolicy | None, available: Iterable[int]) -> list[int]:
    """Return the versions that ``policy`` loads, ascending. No policy is ``latest { num_versions: 1 }``."""
    versions = sorted(available)
    if policy is not None and policy.all is not None:
        return versions
    if policy is not None and policy.specific is not None:
        wanted = set(policy.specific.versions)
        return [version for version in versions if version in wanted]
    num_versions = policy.latest.num_versions if policy is not None and policy.latest is not None else 1
    return versions[-num_versions:] if num_versions > 0 else []


def missing_versions(policy: ModelVersionPolicy | None, available: Iterable[int]) -> list[int]:
    """Return the versions that a ``specific`` policy names and that are not there, ascending."""
    if policy is None or policy.specific is None:
        return []
    return sorted(set(policy.specific.versions).difference(available))


def describe_policy(policy: ModelVersionPolicy | None) -> str:
    """Return the policy as a person would say it, for messages: ``latest 1``, ``all``, ``specific 3, 5``."""
    if policy is not None and policy.all is not None:
        return "all"
    if policy is not None and policy.specific is not None:
        return f"specific {', '.join(map(str, policy.specific.versions))}"
    return f"latest {policy.latest.num_versions if policy is not None and policy.latest is not None else 1}"


def config_path(model_dir: Path, config_name: str = "") -> Path:
    """Return the config file to read: ``configs/<config_name>.pbtxt`` if there is one, else ``config.pbtxt``."""
    if config_name:
        named = model_dir / NAMED_CONFIGS_DIR / f"{config_name}.pbtxt"
        if named.is_file():
            return named
    return model_dir / CONFIG_FILE


def misnamed_config(model_dir: Path) -> str | None:
    """Return the name of a file that was probably meant to be the config file; None where that one is there.

    Raises:
        OSError: the directory cannot be read.
    """
    if (model_dir / CONFIG_FILE).is_file():
        return None
    with os.scandir(model_dir) as entries:
        names = {entry.name.lower(): entry.name for entry in entries if entry.is_file()}
    near = difflib.get_close_matches(
        CONFIG_FILE, [name for name in names if not is_leftover(name)], n=1, cutoff=0.8
    )
    return names[near[0]] if near else None


def no_versions(
    name: str, policy: ModelVersionPolicy | None, model_dir: Path, available: Iterable[int]
) -> str:
    """Return why no version of a model can be loaded: what the policy wants, and what is there."""
    found = ", ".join(map(str, available))
    return (
        f"at least one version must be available under the version policy of model '{name}': the policy is "
        f"{describe_policy(policy)}, '{model_dir}' has {found or 'no version directories'}"
        f"{'' if found else misplaced_files(model_dir)}"
    )


def misplaced_files(model_dir: Path) -> str:
    """Return a hint, to follow a message, at model files that lie one level too high or too low; empty if none do."""
    files = [rule.filename for rule in RULES if (model_dir / rule.filename).exists()]
    if not files:
        return ""
    parent = model_dir.parent
    if parse_version(model_dir.name) is not None:
        return f"; '{parent}' seems to be a model, not a repository: the repository is '{parent.parent}'"
    return f"; '{files[0]}' lies in the model's own directory: move it into '{model_dir.name}/1'"
