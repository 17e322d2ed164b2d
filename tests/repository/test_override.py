"""Override directories: what a client sends is written where it belongs, or nowhere."""

import asyncio
import concurrent.futures.thread
import gc
import threading

import pytest
from hypothesis import given, settings, strategies as st

from bireme.repository import write_override
from bireme.repository.storage import ModelDirectory
from bireme.types import InvalidArgument


def test_files_are_written_by_their_path_with_or_without_prefix():
    directory = write_override("m", {"file:1/model.onnx": b"abc", "labels.txt": b"", "file:1/sub/./x": b"x"})
    assert (directory.path / "1" / "model.onnx").read_bytes() == b"abc"
    assert (directory.path / "labels.txt").read_bytes() == b""
    assert (directory.path / "1" / "sub" / "x").read_bytes() == b"x"
    directory.close()
    assert not directory.path.exists()


def test_the_directory_goes_with_its_last_reference():
    directory = write_override("m", {"1/model.onnx": b"abc"})
    path = directory.path
    del directory
    gc.collect()
    assert not path.exists()


def test_a_directory_is_not_removed_on_the_thread_of_a_loop(tmp_path):
    threads = []

    async def drop():
        directory = ModelDirectory(tmp_path, lambda _path: threads.append(threading.get_ident()))
        del directory

    asyncio.run(drop())
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


def test_a_directory_may_be_collected_in_the_midst_of_an_executors_work(tmp_path):
    """The collector may come anywhere; to ask the executor for something there would wait for ever."""
    removed = []

    async def drop():
        directory = ModelDirectory(tmp_path, removed.append)
        with concurrent.futures.thread._global_shutdown_lock:
            del directory
        assert not removed

    asyncio.run(drop())
    assert removed == [tmp_path]


def test_two_loads_of_one_model_have_two_directories():
    first, second = (write_override("m", {"1/x": b""}) for _ in range(2))
    assert first.path != second.path
    first.close()
    assert second.path.exists()
    second.close()


@pytest.mark.parametrize(
    "path",
    ["../x", "1/../../x", "/etc/passwd", "file:/etc/passwd", "file:../../x", "1/..", "1\\..\\x", "a\0b"],
)
def test_a_path_that_leads_out_is_refused(path):
    with pytest.raises(InvalidArgument, match="must stay within model directory") as caught:
        write_override("m", {"1/ok": b"", path: b""})
    assert repr(path) in caught.value.message


@pytest.mark.parametrize("path", ["", "file:", ".", "1/", "file:1/"])
def test_a_path_must_name_a_file(path):
    with pytest.raises(InvalidArgument, match="must name a file"):
        write_override("m", {path: b""})


def test_a_file_cannot_be_another_ones_directory():
    with pytest.raises(
        InvalidArgument, match=r"'file:1/x/y', directory has been created as a file: 'file:1/x'"
    ):
        write_override("m", {"1/x/y": b"", "1/x": b""})


def test_nothing_is_left_when_writing_fails(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InvalidArgument, match="cannot write the override files of model 'm'"):
        write_override("m", {"1/" + "x" * 300: b""})
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60)
@given(
    st.text(max_size=12),
    st.lists(st.sampled_from(["..", ".", "a", "/", "\\", "file:", "~", "b"]), max_size=6),
)
def test_whatever_the_path_nothing_is_written_outside(name, parts):
    try:
        directory = write_override(name, {"/".join(parts): b"x"})
    except InvalidArgument:
        return
    written = [path for path in directory.path.rglob("*") if path.is_file()]
    assert len(written) == 1
    assert written[0].resolve().is_relative_to(directory.path.resolve())
    directory.close()
