"""Fetches files: what the cache has is linked, the rest comes in parallel, large files in pieces, straight to disk.

All loads of a process share the threads below, so that neither the number of connections nor the bytes in memory (a
megabyte or two a thread) grow with the number of models. A piece that breaks off goes on where it broke.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bireme.repository.object_store.cache import StoreCache
from bireme.repository.object_store.client import StoreClient, StoredObject
from bireme.repository.object_store.faults import AccessDenied, ObjectChanged, StoreError

log = logging.getLogger("bireme.repository")

NUM_THREADS: Final = 16
PIECE_NBYTES: Final = 32 << 20
_REPORT_S: Final = 5.0
_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.2
_SAID_S: Final = 1.0
"""A fetch that takes longer is said in the log when it is done."""


_THREADS: Final = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="bireme-fetch")
"""Of all loads together; there are none before the first fetch."""


@dataclass(slots=True, eq=False)
class _Arrival:
    """One file on its way."""

    found: StoredObject
    blob: Path
    part: Path
    target: Path
    """In the model's directory."""
    num_pieces: int = 0
    """Those that are still to come."""
    descriptor: int = -1


@dataclass(slots=True, eq=False)
class _Fetch:
    client: StoreClient
    cache: StoreCache
    what: str
    arrivals: list[_Arrival]
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    num_files: int = 0
    num_bytes: int = 0
    retried: int = 0

    @property
    def total(self) -> int:
        return sum(each.found.size for each in self.arrivals)


def fetch_files(
    client: StoreClient, cache: StoreCache, files: Mapping[str, StoredObject], directory: Path, what: str
) -> None:
    """Put ``files``, by their path in ``directory``, there; ``what`` is their model's name for the log. Blocking.

    On failure nothing stays on its way; what has arrived whole stays in the cache.

    Raises:
        ObjectChanged: one of them is no longer what the listing said.
        StoreError: names the key and the reason.
    """
    missing: list[_Arrival] = []
    for path, found in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        blob = cache.blob_path(client.location.url(), found)
        if not cache.place(blob, found, target):
            missing.append(_Arrival(found, blob, cache.new_part(), target))
    if not missing:
        return
    fetch = _Fetch(client, cache, what, missing)
    cache.make_room(fetch.total)
    _run(fetch)


def _run(fetch: _Fetch) -> None:
    start_s = time.monotonic()
    pieces = [_THREADS.submit(_fetch_piece, fetch, *piece) for piece in _pieces(fetch.arrivals)]
    try:
        _wait(fetch, pieces)
    finally:
        fetch.stop.set()
        for piece in pieces:
            piece.cancel()
        wait(pieces)
        for arrival in fetch.arrivals:
            _close(arrival)
            arrival.part.unlink(missing_ok=True)
    seconds = time.monotonic() - start_s
    log.log(
        logging.INFO if seconds > _SAID_S else logging.DEBUG,
        "fetched %d files, %.1f MB, of %s in %.1f s",
        len(fetch.arrivals),
        fetch.total / 1e6,
        fetch.what,
        seconds,
    )


def _wait(fetch: _Fetch, pieces: list[Future[None]]) -> None:
    pending: set[Future[None]] = set(pieces)
    while pending:
        done, pending = wait(pending, _REPORT_S, FIRST_EXCEPTION)
        for piece in done:
            piece.result()
        if pending:
            log.info(
                "fetching %s: %d of %d files, %.0f of %.0f MB",
                fetch.what,
                fetch.num_files,
                len(fetch.arrivals),
                fetch.num_bytes / 1e6,
                fetch.total / 1e6,
            )


def _pieces(arrivals: list[_Arrival]) -> Iterator[tuple[_Arrival, int, int]]:
    """Yield what one thread fetches at a time: a small file, or a part of a large one. Large files first."""
    for arrival in sorted(arrivals, key=lambda each: -each.found.size):
        size = arrival.found.size
        starts = range(0, size, PIECE_NBYTES) if size > 2 * PIECE_NBYTES else [0]
        arrival.num_pieces = len(starts)
        for start in starts:
            yield arrival, start, size if len(starts) == 1 else min(size, start + PIECE_NBYTES)


def _fetch_piece(fetch: _Fetch, arrival: _Arrival, start: int, end: int) -> None:
    if fetch.stop.is_set():
        return
    try:
        with fetch.lock:
            if arrival.descriptor < 0:
                arrival.descriptor = os.open(arrival.part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        _read_piece(fetch, arrival, start, end)
        with fetch.lock:
            arrival.num_pieces -= 1
            is_whole = arrival.num_pieces == 0
        if is_whole and not fetch.stop.is_set():
            os.fsync(arrival.descriptor)  # a blob has its size and its name only after its bytes
            _close(arrival)
            fetch.cache.keep(arrival.part, arrival.blob, arrival.found, arrival.target)
            with fetch.lock:
                fetch.num_files += 1
    except StoreError:
        raise
    except OSError as error:
        url = fetch.client.location.url(arrival.found.path)
        raise StoreError(
            f"{url}: cannot be written into '{fetch.cache.root}': {error.strerror or error}"
        ) from error


def _read_piece(fetch: _Fetch, arrival: _Arrival, start: int, end: int) -> None:
    position = start
    for num_tries in range(1, _TRIES + 1):
        if position >= end:
            return
        try:
            for chunk in fetch.client.read(arrival.found, position, end):
                if position + len(chunk) > end:
                    raise ObjectChanged(
                        f"{fetch.client.location.url(arrival.found.path)}: it has more bytes than the listing said"
                    )
                _write(arrival.descriptor, chunk, position)
                position += len(chunk)
                with fetch.lock:
                    fetch.num_bytes += len(chunk)
                if fetch.stop.is_set():
                    return
            if position < end:
                raise StoreError(
                    f"{fetch.client.location.url(arrival.found.path)}: it ended after {position} of {end} bytes"
                )
        except (ObjectChanged, AccessDenied):
            raise
        except StoreError as error:
            if num_tries == _TRIES:
                raise StoreError(f"{error} ({_TRIES} tries)") from error
            log.debug("trying again at byte %d: %s", position, error)
            fetch.stop.wait(_FIRST_PAUSE_S * 2**num_tries)


def _close(arrival: _Arrival) -> None:
    """Let go of a file as soon as it is whole: a model may have more files than a process may hold open."""
    if arrival.descriptor >= 0:
        os.close(arrival.descriptor)
        arrival.descriptor = -1


def _write(descriptor: int, view: memoryview, position: int) -> None:
    while view:
        num_written = os.pwrite(descriptor, view, position)
        view = view[num_written:]
        position += num_written
