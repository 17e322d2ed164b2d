"""StoreCache: whole blobs or none, room, what a killed process leaves, two processes at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.repository.object_store import cache as cache_module
from bireme.repository.object_store.cache import StoreCache, open_cache, remove_directory
from bireme.repository.object_store.client import StoredObject
from bireme.repository.object_store.faults import StoreError

FOUND = StoredObject("m/1/x", 4, 1_700_000_000_000_000_000, '"tag"')


@pytest.fixture
def cache(tmp_path):
    return StoreCache(tmp_path / "cache")


def keep(cache, found=FOUND, content=b"1234", used_ns=None):
    part = cache.new_part()
    part.write_bytes(content)
    blob = cache.blob_path("s3://b", found)
    target = cache.new_directory() / "kept"
    cache.keep(part, blob, found, target)
    target.unlink()
    if used_ns is not None:
        os.utime(blob, ns=(used_ns, found.modified_ns))
    return blob


def numbered(number, size=1000):
    return StoredObject(f"m/{number}", size, 1_700_000_000_000_000_000, "t")


def test_a_blob_is_found_by_what_the_listing_says(cache):
    one = cache.blob_path("s3://b", FOUND)
    others = [
        cache.blob_path("s3://c", FOUND),
        cache.blob_path("s3://b", FOUND._replace(etag="other")),
        cache.blob_path("s3://b", FOUND._replace(size=5)),
        cache.blob_path("s3://b", FOUND._replace(path="m/1/y")),
    ]
    assert len({one, *others}) == 5
    assert cache.blob_path("s3://b", FOUND._replace(modified_ns=1)) == one
    untagged = FOUND._replace(etag="")
    assert cache.blob_path("s3://b", untagged) != cache.blob_path("s3://b", untagged._replace(modified_ns=1))


def test_a_blob_is_placed_without_a_copy_and_read_only(cache):
    blob = keep(cache)
    target = cache.new_directory() / "x"
    target.write_bytes(b"a placeholder")
    assert cache.place(blob, FOUND, target)
    assert target.read_bytes() == b"1234"
    assert target.stat().st_ino == blob.stat().st_ino
    assert target.stat().st_mode & 0o222 == 0


def test_without_hard_links_it_is_copied(cache, monkeypatch):
    def fail(*_):
        raise PermissionError("not on this file system")

    monkeypatch.setattr(os, "link", fail)
    target = cache.new_directory() / "x"
    assert cache.place(keep(cache), FOUND, target)
    assert target.read_bytes() == b"1234"


def test_a_blob_that_somebody_has_written_to_is_fetched_again(cache, caplog):
    blob = keep(cache)
    blob.chmod(0o644)
    blob.write_bytes(b"abcd")
    assert not cache.place(blob, FOUND, cache.new_directory() / "x")
    assert not blob.exists()
    assert "was changed by somebody" in caplog.text
    assert not cache.place(blob, FOUND, cache.new_directory() / "x")


def test_what_was_used_least_recently_makes_room(tmp_path):
    cache = StoreCache(tmp_path, 3500)
    blobs = [keep(cache, numbered(number), b"x" * 1000, used_ns=number * 10**9) for number in range(1, 4)]
    cache.place(blobs[0], numbered(1), cache.new_directory() / "used")  # now used last, and held by a model
    cache.make_room(1000)
    assert [blob.exists() for blob in blobs] == [True, False, True]
    cache.make_room(5000)
    assert [blob.exists() for blob in blobs] == [True, False, False]


def test_without_a_limit_nothing_goes(tmp_path):
    cache = StoreCache(tmp_path, 0)
    blob = keep(cache, numbered(1), b"x" * 1000)
    cache.make_room(10**6)
    assert blob.exists()


def test_blobs_are_not_counted_for_every_load(tmp_path, monkeypatch):
    cache = StoreCache(tmp_path, 10_000)
    counts = []
    blobs = cache._blobs
    monkeypatch.setattr(cache, "_blobs", lambda: counts.append(1) or blobs())
    for _ in range(8):
        cache.make_room(1000)
    assert len(counts) == 1
    cache.make_room(2000)  # with what was promised that may be too much
    assert len(counts) == 2
    cache._estimated_s -= 60
    cache.make_room(1)
    assert len(counts) == 3


def test_a_full_disk_is_an_error_that_says_how_much_is_missing(cache, monkeypatch):
    usage = cache_module.shutil._ntuple_diskusage(10**9, 10**9, 5 * 10**6)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda _: usage)
    blob = keep(cache)
    with pytest.raises(StoreError, match=r"has no room for 80\.0 MB from an object store: 5\.0 MB are free"):
        cache.make_room(80 * 10**6)
    assert not blob.exists()


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        StoreError, match=r"cannot use '.*file/cache' as the cache of object stores: Not a directory"
    ):
        StoreCache(tmp_path / "file" / "cache").new_directory()


def test_its_own_directory_that_is_no_file_is_an_error_said_once(tmp_path):
    (tmp_path / "live").touch()
    with pytest.raises(StoreError, match=r"^cannot use '[^']*' as the cache of object stores: File exists$"):
        StoreCache(tmp_path).new_directory()


def test_what_somebody_has_emptied_is_made_anew(cache, caplog):
    keep(cache)
    shutil.rmtree(cache.root)
    target = cache.new_directory() / "x"
    assert "was removed by somebody" in caplog.text
    assert cache.place(keep(cache), FOUND, target)


def test_a_blob_belongs_to_a_model_before_another_server_can_remove_it(cache):
    part, target = cache.new_part(), cache.new_directory() / "x"
    part.write_bytes(b"1234")
    target.write_bytes(b"a placeholder")
    blob = cache.blob_path("s3://b", FOUND)
    cache.keep(part, blob, FOUND, target)
    StoreCache(cache.root, max_nbytes=1).make_room(1000)
    assert blob.exists()
    assert target.read_bytes() == b"1234"


def test_its_own_directory_goes_with_it(tmp_path):
    cache = StoreCache(tmp_path)
    cache.new_directory()
    assert len([*(tmp_path / "live").iterdir()]) == 2
    del cache
    assert not [*(tmp_path / "live").iterdir()]


def test_without_locks_it_works_and_says_what_stays(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(cache_module.fcntl, "flock", fail)
    cache = StoreCache(tmp_path)
    assert cache.new_directory().is_dir()
    assert "cannot be locked" in caplog.text
    StoreCache(tmp_path).new_directory()
    assert cache.new_directory().is_dir()
    del cache
    assert not [path for path in (tmp_path / "live").iterdir() if path.is_dir()]


def test_one_object_for_a_directory(tmp_path):
    assert open_cache(tmp_path, 1) is open_cache(tmp_path, 1)
    assert open_cache(tmp_path, 1) is not open_cache(tmp_path, 2)
    assert str(tmp_path) in repr(open_cache(tmp_path, 1))


def test_a_forked_process_removes_nothing(tmp_path):
    (tmp_path / "m").mkdir()
    remove_directory(tmp_path / "m", os.getpid() + 1)
    assert (tmp_path / "m").is_dir()
    remove_directory(tmp_path / "m", os.getpid())
    assert not (tmp_path / "m").exists()


_HOLD = """
import sys, time
from pathlib import Path
from bireme.repository.object_store.cache import StoreCache
cache = StoreCache(Path(sys.argv[1]))
print(cache.new_directory(), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_what_a_killed_process_has_left_goes_and_what_a_living_one_has_stays(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        theirs = Path(process.stdout.readline().strip())
        StoreCache(tmp_path).new_directory()
        assert theirs.is_dir()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    ours = StoreCache(tmp_path)
    assert ours.new_directory().is_dir()
    assert not theirs.exists()
