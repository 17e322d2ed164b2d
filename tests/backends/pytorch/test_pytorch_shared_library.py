"""Libraries with weights in them: what is found and given back."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from bireme.backends.pytorch.shared_library import SharedLibrary, find_weights

LOAD, READ, RUN, WRITE = 1, 4, 5, 6
MIB = 1 << 20


def head(*segments: tuple[int, int, int, int]) -> bytes:
    """Begin a library with segments of kind, flags, offset and size."""
    table = [
        struct.pack("<IIQQQQQQ", kind, flags, offset, 0, 0, size, size, 4096)
        for kind, flags, offset, size in segments
    ]
    fixed = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(table), 0, 0, 0
    )
    return fixed + b"".join(table)


def test_weights_are_what_is_large_and_only_read():
    symbols, code, small = (LOAD, READ, 0, MIB), (LOAD, RUN, MIB, MIB), (LOAD, READ, 2 * MIB, 100)
    variables, weights, notes = (
        (LOAD, WRITE, 3 * MIB, MIB),
        (LOAD, READ, 4 * MIB, 9 * MIB),
        (4, READ, MIB, MIB),
    )

    found = find_weights(head(symbols, code, small, variables, notes, weights))

    assert found == [(4 * MIB, 9 * MIB)]


@pytest.mark.parametrize("content", [b"", b"MZ", b"\x7fELF\x01\x01", head((LOAD, READ, MIB, MIB))[:100]])
def test_other_files_have_none(content):
    assert find_weights(content) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="made for Linux")
def test_weights_are_given_back_though_the_library_stays(tmp_path):
    path = tmp_path / "m.so"
    source = 'const char weights[4 << 20] __attribute__((section(".lrodata"))) = {7};\nint first(void) { return weights[0]; }'
    command = ["cc", "-shared", "-fPIC", "-Wl,-z,nodelete", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    library = SharedLibrary(path)
    assert library.functions.first() == 7
    before = path.stat().st_blocks

    library.close()

    assert path.stat().st_blocks <= before - (3 << 20) // 512
