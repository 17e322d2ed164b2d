"""What a file is, told by what its archive holds."""

from __future__ import annotations

import zipfile

import pytest

from bireme.backends.pytorch.archive import ArchiveKind, read_kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["m/data.pkl", "m/code/__torch__.py", "m/constants.pkl", "m/version"], ArchiveKind.TORCHSCRIPT),
        (["m/data.pkl", "m/data/0", "m/version"], ArchiveKind.PICKLED),
        (["m/models/model.json", "m/data/weights/weight_0"], ArchiveKind.EXPORTED),
        (["serialized_exported_program.json", "serialized_state_dict.pt"], ArchiveKind.EXPORTED),
        (["m/data/aotinductor/model/a.wrapper.so", "m/archive_format"], ArchiveKind.AOTI),
        (["m/data/aotinductor/model/a.wrapper.so", "m/models/model.json"], ArchiveKind.AOTI),
        (["word/document.xml"], ArchiveKind.UNKNOWN),
    ],
)
def test_the_entries_tell(tmp_path, names, kind):
    with zipfile.ZipFile(tmp_path / "model", "w") as archive:
        for name in names:
            archive.writestr(name, "")

    assert kind is read_kind(tmp_path / "model")


def test_an_archive_in_a_file_that_is_cut_off_is_not_the_file(tmp_path):
    inner = tmp_path / "inner"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    with zipfile.ZipFile(tmp_path / "model", "w") as archive:
        archive.writestr("model/models/model.json", b"{}")
        archive.write(inner, "model/data/weights/model.pt")
    whole = (tmp_path / "model").read_bytes()
    assert read_kind(tmp_path / "model") is ArchiveKind.EXPORTED

    (tmp_path / "model").write_bytes(whole[:-20])

    assert read_kind(tmp_path / "model") is ArchiveKind.NO_ARCHIVE


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 cut off", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_other_files_are_no_archives(tmp_path, content):
    (tmp_path / "model").write_bytes(content)

    assert read_kind(tmp_path / "model") is ArchiveKind.NO_ARCHIVE
