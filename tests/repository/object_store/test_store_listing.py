"""Listing: keys as models with files and directories; nothing leads out of a model's directory."""

import os.path

import pytest
from hypothesis import given, strategies as st

from bireme.repository.object_store.client import StoredObject
from bireme.repository.object_store.faults import StoreError
from bireme.repository.object_store.listing import Listing, check_path


def listing(*paths, size=3):
    return Listing(StoredObject(path, size, 5_000, f"tag-{path}") for path in paths)


def empty(path):
    return StoredObject(path, 0, 5_000, "tag")


def test_what_lies_in_a_folder_is_a_model_and_what_lies_beside_is_not():
    found = listing("a/1/model.onnx", "a/config.pbtxt", "b/2/x", "README.md")
    assert sorted(found.names) == ["a", "b"]
    assert "a" in found
    assert "README.md" not in found
    assert set(found.files("a")) == {"1/model.onnx", "config.pbtxt"}
    assert found.directories("a") == {"1"}


def test_a_directory_is_there_for_its_files_or_for_its_marker():
    found = Listing(
        [empty("m"), empty("m/1"), empty("m/sub"), StoredObject("m/sub/x", 1, 0, "t"), empty("m/empty.txt")]
    )
    assert found.names == ["m"]
    assert found.directories("m") == {"1", "sub"}
    assert set(found.files("m")) == {"sub/x", "empty.txt"}


def test_a_key_that_is_also_a_folder_is_a_folder():
    found = listing("m/1", "m/1/model.onnx")
    assert set(found.files("m")) == {"1/model.onnx"}


def test_what_tools_leave_behind_is_not_fetched_and_changes_nothing():
    found = listing("m/1/x", "m/1/.hidden", "m/.git/config", "m/1/__pycache__/x.pyc")
    assert set(found.files("m")) == {"1/x", "1/.hidden"}
    assert found.directories("m") == {"1"}
    assert found.fingerprint("m") == listing("m/1/x").fingerprint("m")


def test_a_fingerprint_tells_every_change():
    first = Listing([StoredObject("m/1/x", 3, 7_000, "a")]).fingerprint("m")
    assert first.files == {"1/": (0, 0), "1/x": (7_000, 3, "a")}
    assert first.newest_change_ns == 7_000
    for changed in (("m/1/x", 4, 7_000, "a"), ("m/1/x", 3, 8_000, "a"), ("m/1/x", 3, 7_000, "b")):
        other = Listing([StoredObject(*changed)]).fingerprint("m")
        assert first.changed_paths(other) == ["1/x"]


def test_one_model_may_be_looked_at_again():
    found = listing("a/1/x", "b/1/x")
    found.replace("a", listing("a/2/x"))
    found.replace("b", listing())
    assert found.names == ["a"]
    assert set(found.files("a")) == {"2/x"}
    with pytest.raises(FileNotFoundError, match="no object below 'b/'"):
        found.files("b")
    assert repr(found) == "Listing(1 models)"


@pytest.mark.parametrize("path", ["m/../x", "m/a//b", "m/./x", "m/a/..", "m/x\0y", f"m/{'x' * 256}"])
def test_a_key_that_can_be_no_path_is_named(path):
    with pytest.raises(StoreError, match="the key"):
        listing(path).files("m")


@given(st.text("./\\ab\0é", max_size=12))
def test_no_path_that_passes_leads_out_of_its_directory(path):
    try:
        check_path(path, path)
    except StoreError:
        return
    assert os.path.normpath(os.path.join("/root/m", path)) == f"/root/m/{path}"  # noqa: PTH118 - as text
