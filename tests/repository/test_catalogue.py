"""Catalogue: several repositories as one space of names; LocalStorage; ModelDirectory."""

import logging
import sys

import pytest

from bireme.repository import Catalogue
from bireme.repository.storage import ModelDirectory, open_storage
from bireme.types import AlreadyExists, InvalidArgument, NotFound, Unsupported
from model_dirs import add_fake_model


@pytest.fixture
def two_repositories(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    add_fake_model(a, "only_a")
    add_fake_model(a, "both")
    add_fake_model(b, "both")
    add_fake_model(b, "only_b")
    (b / "README.md").touch()
    return a, b


def test_names_come_from_all_repositories_and_files_are_ignored(two_repositories):
    catalogue = Catalogue.open(map(str, two_repositories))
    assert {name: len(storages) for name, storages in catalogue.list_names().items()} == {
        "both": 2,
        "only_a": 1,
        "only_b": 1,
    }
    assert catalogue.find("only_b").location == str(two_repositories[1])


def test_a_name_in_two_repositories_belongs_to_neither(two_repositories):
    catalogue = Catalogue.open(map(str, two_repositories))
    with pytest.raises(
        NotFound, match=r"'both' is not unique across all model repositories: it is in .*a', .*b'"
    ):
        catalogue.find("both")
    snapshot = catalogue.take_snapshot()
    assert set(snapshot.models) == {"only_a", "only_b"}
    assert set(snapshot.duplicates) == {"both"}


def test_an_unknown_name_is_not_found_and_the_error_says_where_one_looked(two_repositories):
    with pytest.raises(NotFound, match=r"'nope' not found in any model repository \(searched '.*a', '.*b'\)"):
        Catalogue.open(map(str, two_repositories)).find("nope")
    with pytest.raises(NotFound, match="searched none"):
        Catalogue([]).find("nope")


def test_one_repository_named_twice_counts_once(two_repositories):
    a, _ = two_repositories
    link = a.parent / "link"
    link.symlink_to(a)
    catalogue = Catalogue.open([str(a), f"{a}/", str(link)])
    assert len(catalogue.storages) == 1
    assert catalogue.find("only_a")


def test_odd_directories_are_ignored_with_one_warning_each(tmp_path, caplog):
    add_fake_model(tmp_path, "m", (1,))
    for name in (".git", "lost+found", " "):
        (tmp_path / name).mkdir()
    (tmp_path / "m" / "latest").mkdir()
    catalogue = Catalogue.open([str(tmp_path)])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert list(catalogue.list_names()) == ["m"]
            assert catalogue.list_versions(tmp_path / "m").versions == (1,)
    assert len(caplog.records) == 4
    assert sum("latest" in record.message for record in caplog.records) == 1


def test_a_repository_that_cannot_be_listed_leaves_the_others(two_repositories, caplog):
    a, b = two_repositories
    catalogue = Catalogue.open([str(a), str(b)])
    b.rename(b.parent / "away")
    snapshot = catalogue.take_snapshot()
    assert not snapshot.is_complete
    assert set(snapshot.models) == {"only_a", "both"}
    assert "failed to poll model repository" in caplog.text


def test_a_model_that_cannot_be_read_is_unknown_not_gone(two_repositories, monkeypatch, caplog):
    catalogue = Catalogue.open([str(two_repositories[0])])
    storage = catalogue.storages[0]
    read = storage.fingerprint

    def fail(name):
        if name == "only_a":
            raise PermissionError("not yours")
        return read(name)

    monkeypatch.setattr(storage, "fingerprint", fail)
    for _ in range(2):
        snapshot = catalogue.take_snapshot()
        assert snapshot.unreadable == {"only_a"}
        assert set(snapshot.models) == {"both"}
        assert snapshot.is_complete
    assert caplog.text.count("cannot read model 'only_a': not yours") == 1


@pytest.mark.parametrize("location", ["gs://bucket/path", "s3://bucket/path", "as://account/container/path"])
def test_an_object_store_is_refused_by_name_without_its_library(location, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unsupported, match=rf"{location[:5]} file-system not supported.*pip install obstore"):
        open_storage(location)


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match=r"not a valid directory: '.*nowhere' \(nothing is there\)"):
        open_storage(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgument, match=r"\(a file is there\)"):
        open_storage(str(tmp_path / "file"))


def test_a_temporary_directory_is_removed_once_with_its_last_reference(tmp_path):
    removed = []
    directory = ModelDirectory(tmp_path, removed.append)
    second = directory
    del directory
    assert removed == []
    del second
    assert removed == [tmp_path]
    directory = ModelDirectory(tmp_path, removed.append)
    directory.close()
    directory.close()
    assert removed == [tmp_path, tmp_path]


def test_what_is_there_can_be_read_in_a_debugger(two_repositories):
    catalogue = Catalogue.open([str(two_repositories[0])])
    storage = catalogue.storages[0]
    assert str(two_repositories[0]) in repr(catalogue)
    assert str(two_repositories[0]) in repr(storage)
    assert "temporary=False" in repr(storage.check_out("only_a"))
    assert repr(storage.fingerprint("only_a")) == "Fingerprint(2 paths)"


def test_a_config_file_by_another_name_is_ignored_with_one_warning(tmp_path, caplog):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtx").touch()
    catalogue = Catalogue.open([str(tmp_path)])

    for _ in range(2):
        catalogue.list_versions(tmp_path / "m")

    assert caplog.messages == [
        f"ignore '{tmp_path / 'm' / 'config.pbtx'}': a config file is called config.pbtxt"
    ]


# Namespaces, and repositories that come and go.


def test_with_namespaces_each_repository_has_its_own_names(two_repositories):
    a, b = two_repositories
    catalogue = Catalogue.open([str(a), str(b)], has_namespaces=True)

    assert list(catalogue.list_names()) == [f"{a}/both", f"{a}/only_a", f"{b}/both", f"{b}/only_b"]
    assert catalogue.keys_of("both") == [f"{a}/both", f"{b}/both"]
    assert catalogue.keys_of("only_a") == [f"{a}/only_a"]
    assert catalogue.keys_of("nope") == ["nope"]
    assert catalogue.find(f"{b}/both").check_out("both").path == b / "both"
    snapshot = catalogue.take_snapshot()
    assert set(snapshot.models) == set(catalogue.list_names())
    assert not snapshot.duplicates


def test_without_namespaces_a_key_is_a_name(two_repositories):
    assert Catalogue.open(map(str, two_repositories)).keys_of("both") == ["both"]


def test_a_client_may_name_a_namespace_only_where_there_are_some(two_repositories):
    a, b = two_repositories
    catalogue = Catalogue.open([str(a)], has_namespaces=True)
    catalogue.check_name("both")
    catalogue.check_name(f"{a}/both")
    for name in (f"{b}/both", f"{a}/..", "../both", ""):
        with pytest.raises(InvalidArgument):
            catalogue.check_name(name)
    with pytest.raises(InvalidArgument):
        Catalogue.open([str(a)]).check_name(f"{a}/both")


def test_a_repository_can_come_and_go(two_repositories):
    a, b = two_repositories
    catalogue = Catalogue.open([str(a)])

    catalogue.register(str(b), {})
    assert catalogue.find("only_b").location == str(b)
    with pytest.raises(AlreadyExists, match="has already been registered"):
        catalogue.register(f"{b}/", {})

    catalogue.unregister(f"{b}/")
    with pytest.raises(NotFound):
        catalogue.find("only_b")
    with pytest.raises(InvalidArgument, match="repository not found"):
        catalogue.unregister(str(b))
    with pytest.raises(InvalidArgument, match="repository not found"):
        catalogue.register(str(b / "nothing"), {})


def test_a_mapping_gives_names_to_folders_which_lose_their_own(two_repositories):
    a, b = two_repositories
    catalogue = Catalogue.open([str(a)])
    catalogue.register(str(b), {"new": "both", "only_b": "gone"})

    # What is mapped to nothing is not there, not even by its folder's name.
    assert list(catalogue.list_names()) == ["both", "new", "only_a"]
    directory = catalogue.find("new").check_out("new")
    assert (directory.path, directory.is_renamed) == (b / "both", True)
    assert not catalogue.find("only_a").check_out("only_a").is_renamed
    assert catalogue.find("new").fingerprint("new") == catalogue.find("new").fingerprint("both")


def test_a_name_is_mapped_once(two_repositories):
    a, b = two_repositories
    for has_namespaces in (False, True):
        catalogue = Catalogue.open([], has_namespaces=has_namespaces)
        catalogue.register(str(a), {"new": "both"})
        if has_namespaces:
            catalogue.register(str(b), {"new": "both"})
            continue
        with pytest.raises(AlreadyExists, match="failed to register 'new', there is a conflicting mapping"):
            catalogue.register(str(b), {"new": "both"})
