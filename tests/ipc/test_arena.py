"""Arena: who owns memory and when it comes back, and that random sizes come to an end."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from bireme.ipc import arena as arena_module
from bireme.ipc.arena import Arena, Block, claim_segments
from bireme.ipc.ledger import block_of
from bireme.ipc.segment import Segment
from bireme.types import Unavailable

PAGE = 4096


def resident(arena: Arena) -> int:
    """Bytes of memory behind the arena's segments."""
    segments = {place[2] for kind in arena._classes.values() for place in kind.free}
    return sum(os.fstat(segment.fd).st_blocks * 512 for segment in segments)


@pytest.mark.parametrize("nbytes", [0, 1, 64, 4095, 4096, 4097, 20_000, 32_768, 32_769, 1_000_000, 6 << 20])
def test_a_block_has_the_size_that_was_asked_for_and_begins_on_a_page(nbytes):
    block = Arena(1).allocate(nbytes)

    assert (nbytes,) == block.shape
    assert np.uint8 == block.dtype
    assert block.offset % PAGE == 0
    assert block.flags.writeable


@pytest.mark.parametrize("nbytes", [1, 5000, 16_385, 100_000, 1_000_001, 100_000_000])
def test_a_block_takes_at_most_a_quarter_more_than_whole_pages(nbytes):
    arena = Arena(1)
    block = arena.allocate(nbytes)

    assert nbytes <= arena.used_bytes < nbytes * 1.25 + PAGE
    assert block.nbytes == nbytes


def test_blocks_that_live_do_not_overlap():
    arena = Arena(1)
    rng = random.Random(1)
    blocks = [arena.allocate(rng.randrange(1, 300_000)) for _ in range(300)]
    for index, block in enumerate(blocks):
        block[...] = index % 251
    for index, block in enumerate(blocks):
        assert (block == index % 251).all()


def test_what_was_freed_last_is_used_next():
    arena = Arena(1)
    first, second = arena.allocate(10_000), arena.allocate(10_000)
    places = first.offset, second.offset
    del second
    del first
    again = arena.allocate(9_000)  # of the same size class

    assert places[0] == again.offset


def test_any_view_keeps_a_block():
    arena = Arena(1)
    array = np.frombuffer(memoryview(arena.allocate(40_000))[400:800], np.float32).reshape(10, 10)[2:4]
    used = arena.used_bytes
    view = array.data
    del array
    assert used == arena.used_bytes > 0
    del view

    assert arena.used_bytes == 0


def test_slices_of_a_block_own_nothing():
    arena = Arena(1)
    block = arena.allocate(10_000)
    part = block[10:20]
    del part

    assert arena.used_bytes == 12_288
    assert block_of(block[10:20]) is block


def test_a_block_may_die_on_any_thread():
    arena = Arena(1)
    blocks = [arena.allocate(50_000) for _ in range(100)]
    thread = threading.Thread(target=blocks.clear)
    thread.start()
    thread.join()

    assert arena.used_bytes == 0


def test_threads_never_get_the_same_memory():
    arena = Arena(1)
    faults = []

    def work(mark: int) -> None:
        rng = random.Random(mark)
        for _ in range(300):
            block = arena.allocate(rng.choice([100, 5_000, 70_000]))
            block[:8] = mark
            arena.trim()
            if not (block[:8] == mark).all():
                faults.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert faults == []
    assert arena.used_bytes == 0


def test_segments_are_announced_before_their_first_block_and_numbered_on():
    announced = []
    arena = Arena(100, lambda number, segment: announced.append((number, len(segment))))
    blocks = [arena.allocate(size) for size in (10, 60 << 20, 60 << 20, 300 << 20)]

    numbers = [number for number, _ in announced]
    assert numbers == list(range(100, 100 + len(numbers)))
    assert {block.segment for block in blocks} <= set(numbers)
    assert announced[-1][1] >= 300 << 20
    assert arena.statistics().reserved == sum(size for _, size in announced)


def test_arenas_have_ids_of_their_own():
    assert len({claim_segments() // arena_module.SEGMENTS_PER_OWNER for _ in range(10)}) == 10
    assert Arena().allocate(1).segment != Arena().allocate(1).segment


def test_trim_spares_what_was_used_since_the_last_one():
    arena = Arena(1)
    blocks = [arena.allocate(1 << 20) for _ in range(4)]
    for block in blocks:
        block[...] = 1
    del block
    blocks.clear()
    arena.trim()
    assert resident(arena) == 4 << 20
    arena.allocate(1 << 20)  # one is in use now and then

    assert arena.trim() == 3 << 20
    assert resident(arena) == 1 << 20
    assert arena.free_bytes == 1 << 20


def test_trimmed_blocks_are_as_good_as_new():
    arena = Arena(1)
    blocks = [arena.allocate(100_000) for _ in range(3)]
    offsets = {block.offset for block in blocks}
    blocks.clear()
    arena.trim()
    assert arena.trim() > 0
    assert arena.trim() == 0
    blocks = [arena.allocate(100_000) for _ in range(3)]
    for block in blocks:
        block[...] = 7

    assert offsets == {block.offset for block in blocks}
    assert all((block == 7).all() for block in blocks)
    del block
    blocks.clear()
    arena.trim()
    assert arena.trim() > 0


def test_trim_stops_when_it_has_done_enough_and_goes_on_the_next_time():
    arena = Arena(1)
    blocks = [arena.allocate(1 << 20) for _ in range(10)]
    blocks.clear()
    arena.trim()
    rounds = 0
    while arena.trim(max_nbytes=2 << 20):
        rounds += 1

    assert rounds == 5


def test_random_sizes_come_to_an_end():
    arena = Arena(1)
    rng = random.Random(5)

    def churn(rounds: int) -> None:
        held: list[Block] = []
        for _ in range(rounds):
            held.append(arena.allocate(int(2 ** rng.uniform(0, 24))))
            if len(held) > 10:
                held.pop(rng.randrange(10))

    churn(4000)
    before = arena.free_bytes
    churn(12_000)

    assert arena.used_bytes == 0
    assert arena.free_bytes < 1.5 * before  # all peaks of all sizes: rare ones still rise
    assert arena.statistics().num_segments <= 5


def test_an_arena_leaves_no_descriptor_behind():
    gc.collect()  # what other tests left
    before = len(list(Path("/proc/self/fd").iterdir()))
    arena = Arena(1)
    block = arena.allocate(10)
    del arena
    assert len(list(Path("/proc/self/fd").iterdir())) > before
    del block

    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_memory_is_an_error_of_its_own(monkeypatch):
    def fail(size):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Segment, "allocate", fail)
    with pytest.raises(Unavailable, match="Too many open files"):
        Arena(1).allocate(10)
