"""What a file of PyTorch's is, told by what its zip archive holds, whatever it is called. Pure."""

from __future__ import annotations

import zipfile
from enum import Enum
from pathlib import Path
from typing import Final


class ArchiveKind(Enum):
    """The kinds of files that torch writes."""

    TORCHSCRIPT = "TorchScript"
    EXPORTED = "an exported program"
    AOTI = "an AOTInductor package"
    PICKLED = "a pickled object, such as a state dict"
    UNKNOWN = "a zip archive of something else"
    NO_ARCHIVE = "no zip archive"


_AOTI: Final = "/data/aotinductor/"


def read_kind(path: Path) -> ArchiveKind:
    """Return what the file at ``path`` is. One that is cut off has lost its directory and is no archive any more.

    A package that holds compiled code and the exported program too counts as compiled.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            start = min((entry.header_offset for entry in archive.infolist()), default=0)
    except zipfile.BadZipFile:
        return ArchiveKind.NO_ARCHIVE
    if start:  # of a file that is cut off, an archive in it: programs hold some, such as their weights
        return ArchiveKind.NO_ARCHIVE
    parts = [name.partition("/")[2] for name in names]  # without the archive's own folder
    if any(_AOTI in name for name in names):
        return ArchiveKind.AOTI
    if any(_is_program(name, part) for name, part in zip(names, parts, strict=True)):
        return ArchiveKind.EXPORTED
    if "constants.pkl" in parts or "model.json" in parts:  # the latter: before torch 1.4
        return ArchiveKind.TORCHSCRIPT
    return ArchiveKind.PICKLED if "data.pkl" in parts else ArchiveKind.UNKNOWN


def _is_program(name: str, part: str) -> bool:
    """Whether an entry is an exported program: ``…/models/<name>.json``, or as torch up to 2.7 wrote it."""
    is_model = part.startswith("models/") and part.endswith(".json")
    return is_model or name.endswith("serialized_exported_program.json")
