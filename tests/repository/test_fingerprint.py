"""Fingerprint: what counts as a change of a model directory."""

import os

import pytest

from bireme.repository import take_fingerprint, version_of_path
from model_dirs import add_fake_model, touch


@pytest.fixture
def model_dir(tmp_path):
    model_dir = add_fake_model(tmp_path, "m", (1, 2))
    (model_dir / "1" / "model.bin").write_bytes(b"weights")
    (model_dir / "labels.txt").write_text("cat\ndog\n")
    return model_dir


def changes(model_dir, change):
    before = take_fingerprint(model_dir)
    change()
    after = take_fingerprint(model_dir)
    assert (before == after) is (before.changed_paths(after) == [])
    return before.changed_paths(after)


def test_nothing_done_is_nothing_changed(model_dir):
    assert changes(model_dir, lambda: None) == []
    assert set(take_fingerprint(model_dir).files) == {"1/", "1/model.bin", "2/", "config.pbtxt", "labels.txt"}


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        (lambda m: touch(m / "config.pbtxt"), ["config.pbtxt"]),
        (lambda m: touch(m / "1" / "model.bin"), ["1/model.bin"]),
        (lambda m: (m / "3").mkdir(), ["3/"]),
        (lambda m: (m / "labels.txt").unlink(), ["labels.txt"]),
        (lambda m: (m / "1" / "model.bin").rename(m / "2" / "model.bin"), ["1/model.bin", "2/model.bin"]),
        (lambda m: (m / "2").rmdir(), ["2/"]),
    ],
)
def test_every_file_and_folder_counts(model_dir, change, paths):
    assert changes(model_dir, lambda: change(model_dir)) == paths


def test_a_changed_size_counts_even_when_the_time_was_set_back(model_dir):
    def rewrite():
        path = model_dir / "1" / "model.bin"
        times = path.stat()
        path.write_bytes(b"other weights")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert changes(model_dir, rewrite) == ["1/model.bin"]


def test_leftovers_of_tools_and_of_python_itself_do_not_count(model_dir):
    def leave():
        (model_dir / "1" / "__pycache__").mkdir()
        (model_dir / "1" / "__pycache__" / "model.pyc").touch()
        (model_dir / ".config.pbtxt.swp").touch()
        (model_dir / ".ipynb_checkpoints").mkdir()
        (model_dir / "config.pbtxt~").touch()

    assert changes(model_dir, leave) == []


def test_links_are_followed_but_not_in_circles(model_dir, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "vocabulary.txt").write_text("a")
    (model_dir / "1" / "assets").symlink_to(shared)
    (model_dir / "1" / "up").symlink_to(model_dir)
    (model_dir / "dangling").symlink_to(tmp_path / "nowhere")
    assert changes(model_dir, lambda: touch(shared / "vocabulary.txt")) == ["1/assets/vocabulary.txt"]


def test_the_newest_change_is_the_time_that_copying_cannot_set_back(model_dir):
    before_ns = take_fingerprint(model_dir).newest_change_ns
    os.utime(model_dir / "labels.txt", ns=(0, 0))
    after = take_fingerprint(model_dir)
    assert after.newest_change_ns >= before_ns
    assert after.files["labels.txt"][0] == 0


def test_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        take_fingerprint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("1/model.onnx", 1),
        ("12/", 12),
        ("config.pbtxt", None),
        ("warmup/x", None),
        ("1", None),
        ("01/x", None),
    ],
)
def test_a_path_belongs_to_a_version_or_to_the_model(path, version):
    assert version_of_path(path) == version
