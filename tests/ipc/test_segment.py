"""Segments: nameless memory, and that neither memory nor descriptors stay behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.ipc.segment import Segment


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_filled_in_can_be_read_and_mapped_again():
    segment = Segment.allocate(10_000)
    segment.fill(b"abc" * 1000)
    again = Segment.attach(os.dup(segment.fd), 10_000)

    assert bytes(memoryview(again)[:6]) == b"abcabc"
    memoryview(segment)[9_999] = 7
    assert again[9_999] == 7


def test_views_keep_the_memory_and_nothing_stays_behind():
    before = num_descriptors()
    view = memoryview(Segment.allocate(100))
    assert num_descriptors() > before
    view[0] = 1
    assert view[0] == 1
    del view

    assert num_descriptors() == before


def test_a_descriptor_that_cannot_be_mapped_is_closed():
    before = num_descriptors()
    fd = os.memfd_create("test")
    with pytest.raises(ValueError, match="mmap"):
        Segment.attach(fd, 100)  # longer than the file

    assert num_descriptors() == before
