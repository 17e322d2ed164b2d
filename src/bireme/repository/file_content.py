"""Looks into files without the frameworks that wrote them: protobuf fields, archives, pickles, external data. Reads little.

Nothing here runs what a file holds; a pickle above all is read as data.
"""

from __future__ import annotations

import mmap
import pickletools
import re
import zipfile
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_MAX_FIELDS: Final = 20_000
_FIXED_SIZES: Final = {1: 8, 5: 4}
"""Bytes of a protobuf value by wire type."""
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_MAX_PICKLE_OPCODES: Final = 2_000

# TensorProto.external_data (field 13) with an entry whose key is "location": the path follows.
_EXTERNAL_LOCATION: Final = re.compile(
    rb"\x6a(?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])\x0a\x08location\x12(?P<size>[\x00-\x7f]|[\x80-\xff][\x00-\x7f])",
    re.DOTALL,
)


def protobuf_fields(path: Path) -> frozenset[int]:
    """Return the numbers of the top-level fields of a protobuf message; empty when the file is none.

    Values are skipped, not read: the time doesn't depend on their size.
    """
    size = path.stat().st_size
    found = set()
    with path.open("rb") as file:
        for _ in range(_MAX_FIELDS):
            if file.tell() == size:
                break
            tag = _read_varint(file)
            if tag is None or not _skip_value(file, tag & 7, size):
                return frozenset()
            found.add(tag >> 3)
    return frozenset(found - {0}) if 0 not in found else frozenset()


def _skip_value(file: BinaryIO, wire_type: int, size: int) -> bool:
    """Go behind a value; whether there was one."""
    if wire_type == _VARINT:
        return _read_varint(file) is not None
    length = _read_varint(file) if wire_type == _LENGTH_DELIMITED else _FIXED_SIZES.get(wire_type)
    if length is None or file.tell() + length > size:
        return False
    file.seek(length, 1)
    return True


def _read_varint(file: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None


def external_data(path: Path) -> list[str]:
    """Return the files that hold weights of the ONNX file at ``path``, as it names them, sorted."""
    if not path.stat().st_size:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = set()
        for match in _EXTERNAL_LOCATION.finditer(content):
            first, *second = match["size"]
            length = (first & 0x7F) | (second[0] << 7 if second else 0)
            found.add(content[match.end() : match.end() + length].decode("utf-8", "replace"))
    return sorted(found)


def archive_names(path: Path) -> list[str]:
    """Return the members of a zip archive; none when it can't be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError):
        return []


def pickled_modules(path: Path) -> list[str]:
    """Return the modules of the classes that a pickle (also joblib's) names, in their order, as far as it can be read.

    Compressed files are not looked into.
    """
    found: list[str] = []
    texts: list[str] = []
    try:
        with path.open("rb") as file:
            for index, (opcode, argument, _) in enumerate(pickletools.genops(file)):
                if opcode.name == "GLOBAL":
                    found.append(str(argument).split(" ", 1)[0])
                elif opcode.name == "STACK_GLOBAL" and len(texts) > 1:
                    found.append(texts[-2])
                elif isinstance(argument, str):
                    texts.append(argument)
                if index > _MAX_PICKLE_OPCODES:
                    break
    except (ValueError, OSError, EOFError, OverflowError):
        pass  # joblib writes arrays in between: what came before them is enough
    return found


class ForwardArgument(NamedTuple):
    """An argument of a TorchScript module's ``forward``."""

    name: str
    annotation: str


def torchscript_arguments(path: Path) -> list[ForwardArgument]:
    """Return what ``forward`` of the TorchScript archive at ``path`` takes, without the module; empty when it can't be told.

    The class is named by the archive's pickle; its code lies in the archive as text.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (data,) = (
                name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")
            )
            named = next(
                str(argument).split(" ", 1)
                for opcode, argument, _ in pickletools.genops(archive.read(data))
                if opcode.name == "GLOBAL" and str(argument).startswith("__torch__")
            )
            root = data.partition("/")[0]
            code = archive.read(f"{root}/code/{named[0].replace('.', '/')}.py").decode()
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, StopIteration):
        return []
    body = re.split(rf"^class {re.escape(named[1])}\b", code, maxsplit=1, flags=re.MULTILINE)[-1]
    body = re.split(r"^class ", body, maxsplit=1, flags=re.MULTILINE)[0]
    declared = re.search(r"def forward\(\w+:[^,)]*,?(.*?)\) -> ", body, re.DOTALL)
    if declared is None:
        return []
    arguments = re.findall(r"(\w+): ((?:[^,\[\]]|\[[^\]]*\](?:\])*)+)", declared[1])
    return [ForwardArgument(name, annotation.strip()) for name, annotation in arguments]
