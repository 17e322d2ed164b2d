"""Downloads: in parallel and in pieces, from where they broke off; nothing stays on its way after a failure."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bireme.repository.object_store import download
from bireme.repository.object_store.cache import StoreCache
from bireme.repository.object_store.client import StoredObject
from bireme.repository.object_store.download import fetch_files
from bireme.repository.object_store.faults import AccessDenied, ObjectChanged, StoreError
from object_stores import MemoryClient, tree

WHAT = "model 'm' from 's3://bucket'"


@pytest.fixture
def cache(tmp_path):
    return StoreCache(tmp_path / "cache")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(download, "_FIRST_PAUSE_S", 0)


def fetch(client, cache, target):
    files = {found.path: found for found in client.list_objects()}
    fetch_files(client, cache, files, target, WHAT)


def leftovers(cache):
    return list(cache.root.rglob("*.part"))


def test_files_arrive_whole_and_are_not_fetched_twice(cache, target, tmp_path):
    files = {"a": b"", "b/c": b"1234", "b/d/e": bytes(range(256)) * 10_000}
    client = MemoryClient(files)
    fetch(client, cache, target)
    assert tree(target) == files
    assert client.fetched == ["b/c", "b/d/e"]  # of an empty one there is nothing to fetch
    client.forget()
    fetch(client, cache, tmp_path / "again")
    assert tree(tmp_path / "again") == files
    assert client.fetched == []
    assert not leftovers(cache)


def test_a_file_that_is_whole_is_not_held_open(cache, target, monkeypatch):
    held = []
    keep = cache.keep

    def count(*arguments):
        held.append(len([*Path("/proc/self/fd").iterdir()]))
        keep(*arguments)

    monkeypatch.setattr(cache, "keep", count)
    fetch(MemoryClient({f"f{number}": b"x" for number in range(200)}), cache, target)
    assert max(held) - min(held) < 50


def test_a_large_file_comes_in_pieces(cache, target, monkeypatch):
    monkeypatch.setattr(download, "PIECE_NBYTES", 1000)
    content = bytes(range(250)) * 14
    client = MemoryClient({"large": content, "small": b"x" * 2000})
    fetch(client, cache, target)
    assert tree(target) == {"large": content, "small": b"x" * 2000}
    assert sorted(client.reads) == [
        ("large", 0, 1000),
        ("large", 1000, 2000),
        ("large", 2000, 3000),
        ("large", 3000, 3500),
        ("small", 0, 2000),
    ]


def test_no_more_files_than_threads_are_on_their_way(cache, target, monkeypatch):
    pool = ThreadPoolExecutor(3)
    monkeypatch.setattr(download, "_THREADS", pool)
    lock, running, most = threading.Lock(), [0], [0]

    class Watched(MemoryClient):
        def read(self, found, start, end):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            try:
                yield from super().read(found, start, end)
            finally:
                with lock:
                    running[0] -= 1

    fetch(Watched({f"f{number}": b"x" * 100 for number in range(30)}), cache, target)
    assert len(tree(target)) == 30
    assert 1 <= most[0] <= 3
    pool.shutdown()


class Breaking(MemoryClient):
    """Breaks off after some bytes, a few times."""

    def __init__(self, files, *, after, times):
        super().__init__(files)
        self.after, self.times = after, times

    def read(self, found, start, end):
        chunk = b"".join(super().read(found, start, end))
        if self.times:
            self.times -= 1
            yield memoryview(chunk[: self.after])
            raise StoreError(f"{found.path}: the connection was cut")
        yield memoryview(chunk)


def test_a_file_that_breaks_off_goes_on_where_it_broke(cache, target):
    content = bytes(range(100))
    client = Breaking({"x": content}, after=30, times=2)
    fetch(client, cache, target)
    assert tree(target) == {"x": content}
    assert client.reads == [("x", 0, 100), ("x", 30, 100), ("x", 60, 100)]


def test_one_that_always_breaks_off_is_an_error_in_the_end(cache, target):
    client = Breaking({"x": bytes(1000)}, after=1, times=1000)
    with pytest.raises(StoreError, match=r"x: the connection was cut \(5 tries\)"):
        fetch(client, cache, target)
    assert len(client.reads) == 5
    assert not leftovers(cache)


def test_one_that_is_too_short_or_too_long_is_an_error(cache, target):
    client = MemoryClient({"x": b"12345"})
    (found,) = client.list_objects()
    with pytest.raises(ObjectChanged, match="s3://bucket/x: it has more bytes than the listing said"):
        fetch_files(client, cache, {"x": found._replace(size=3, etag="")}, target, WHAT)
    with pytest.raises(StoreError, match=r"s3://bucket/x: "):
        fetch_files(client, cache, {"x": found._replace(size=9, etag="")}, target, WHAT)


@pytest.mark.parametrize("kind", [AccessDenied, ObjectChanged])
def test_what_more_tries_do_not_mend_is_said_at_once_and_the_others_stay_in_the_cache(cache, target, kind):
    client = MemoryClient({"good": b"1", "bad": b"22"})
    client.faults["bad"] = [kind("bad: 403")]
    with pytest.raises(kind, match="bad: 403"):
        fetch(client, cache, target)
    assert client.fetched.count("bad") == 1
    assert not leftovers(cache)


def test_an_object_that_was_replaced_is_not_taken(cache, target):
    client = MemoryClient({"x": b"1"})
    files = {found.path: found for found in client.list_objects()}
    client.put("x", b"2")
    with pytest.raises(ObjectChanged, match="s3://bucket/x: it was replaced while it was being read"):
        fetch_files(client, cache, files, target, WHAT)
    client.delete("x")
    with pytest.raises(ObjectChanged, match="s3://bucket/x"):
        fetch_files(client, cache, files, target, WHAT)


def test_a_weak_etag_is_no_condition(cache, target):
    client = MemoryClient({"x": b"1"})
    (found,) = client.list_objects()
    fetch_files(client, cache, {"x": found._replace(etag='W/"1"')}, target, WHAT)
    assert tree(target) == {"x": b"1"}


def test_a_disk_that_fails_is_named_with_the_key(cache, target, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_write", fail)
    with pytest.raises(StoreError, match=r"s3://bucket/x: cannot be written into '.*cache': No space left"):
        fetch(MemoryClient({"x": b"1"}), cache, target)
    assert not leftovers(cache)


def test_progress_is_said_while_it_lasts(cache, target, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bireme.repository")
    monkeypatch.setattr(download, "_REPORT_S", 0.01)
    monkeypatch.setattr(download, "_SAID_S", 0)
    gate = threading.Event()

    class Slow(MemoryClient):
        def read(self, found, start, end):
            if found.path == "slow":
                gate.wait(10)
            yield from super().read(found, start, end)

    def open_gate(record):
        if "1 of 2 files" in record.getMessage():
            gate.set()
        return True

    logging.getLogger("bireme.repository").addFilter(open_gate)
    try:
        fetch(Slow({"slow": b"1" * 600_000, "fast": b"2" * 900_000}), cache, target)
    finally:
        logging.getLogger("bireme.repository").removeFilter(open_gate)
    assert f"fetching {WHAT}: 1 of 2 files, 1 of 2 MB" in caplog.text
    assert f"fetched 2 files, 1.5 MB, of {WHAT}" in caplog.text


def test_pieces_begin_with_the_largest_file():
    arrivals = [
        download._Arrival(StoredObject(name, size, 0, ""), None, None, name)
        for name, size in (("a", 5), ("b", download.PIECE_NBYTES * 3), ("c", 0))
    ]
    pieces = [(arrival.target, start, end) for arrival, start, end in download._pieces(arrivals)]
    size = download.PIECE_NBYTES
    assert pieces == [
        ("b", 0, size),
        ("b", size, 2 * size),
        ("b", 2 * size, 3 * size),
        ("a", 0, 5),
        ("c", 0, 0),
    ]
