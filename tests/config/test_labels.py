"""Label files: read line by line, and only from the model's own directory."""

import pytest

from bireme.config import read_labels
from bireme.types import InvalidArgument, Unsupported


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\ndog\n", ["cat", "dog"]),
        (b"cat\r\ndog", ["cat", "dog"]),
        (b"cat\n\ndog \n", ["cat", "", "dog "]),
        ("tête à tête\u2028x\n".encode(), ["tête à tête\u2028x"]),
        (b"", []),
    ],
)
def test_line_n_is_class_n(tmp_path, content, labels):
    (tmp_path / "labels.txt").write_bytes(content)

    assert read_labels(tmp_path, "labels.txt") == labels


def test_file_in_a_subdirectory(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "labels.txt").write_text("a")

    assert read_labels(tmp_path, "texts/labels.txt") == ["a"]


@pytest.mark.parametrize(
    "filename", ["../labels.txt", "/etc/hostname", "1/../../labels.txt", "../m2/labels.txt"]
)
def test_path_out_of_the_model_directory_is_refused(tmp_path, filename):
    model = tmp_path / "m"
    model.mkdir()
    (tmp_path / "labels.txt").write_text("secret")

    with pytest.raises(Unsupported, match="is outside model directory"):
        read_labels(model, filename)


def test_symbolic_link_out_of_the_model_directory_is_refused(tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    (tmp_path / "secret").write_text("x")
    (model / "labels.txt").symlink_to(tmp_path / "secret")

    with pytest.raises(
        Unsupported, match=r"label file path .*labels.txt' in model 'm' is outside model directory"
    ):
        read_labels(model, "labels.txt")


def test_missing_file_is_named_and_a_near_one_suggested(tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    (model / "lables.txt").touch()

    with pytest.raises(InvalidArgument) as caught:
        read_labels(model, "labels.txt")

    assert caught.value.message == (
        f"unable to read label file 'labels.txt' of model 'm': No such file or directory: '{model}/labels.txt'; did "
        f"you mean 'lables.txt'?"
    )


def test_missing_directory(tmp_path):
    with pytest.raises(InvalidArgument, match=r"No such file or directory: '.*gone/labels.txt'$"):
        read_labels(tmp_path / "gone", "labels.txt")


@pytest.mark.parametrize(
    ("filename", "reason"), [("latin.txt", "can't decode byte"), ("a\0b", "null (byte|character)")]
)
def test_unreadable_content_or_name(tmp_path, filename, reason):
    (tmp_path / "latin.txt").write_bytes(b"t\xeate")

    with pytest.raises(InvalidArgument, match=f"unable to read label file .*{reason}"):
        read_labels(tmp_path, filename)
