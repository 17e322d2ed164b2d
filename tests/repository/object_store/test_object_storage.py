"""ObjectStorage: how often the store is asked, and what of a model is fetched when."""

import gc

import pytest

from bireme.repository import Catalogue, ChangedMeanwhile, PollTracker
from bireme.repository.object_store.faults import AccessDenied, BadKey, ObjectChanged
from bireme.repository.object_store.storage import open_object_store
from bireme.repository.storage import LocalStorage, StoreCacheOptions, identify, open_storage
from bireme.types import AlreadyExists, InvalidArgument, NotFound, Unavailable
from object_stores import KEY, make_storage, tree

MODEL = {
    "m/config.pbtxt": b"config",
    "m/configs/fast.pbtxt": b"fast",
    "m/configs/readme.md": b"no config",
    "m/labels.txt": b"labels",
    "m/warmup/data": b"warm",
    "m/1/model.onnx": b"one",
    "m/2/model.onnx": b"two",
    "m/10/model.onnx": b"ten",
    "m/10/sub/weights": b"weights",
}


@pytest.fixture
def storage(tmp_path):
    return make_storage(tmp_path, MODEL | {"n/1/model.onnx": b"n"})


def test_a_checked_out_model_has_its_configs_and_the_names_and_sizes_of_the_rest(storage):
    directory = storage.check_out("m")
    assert storage.client.fetched == ["m/config.pbtxt", "m/configs/fast.pbtxt"]
    found = tree(directory.path)
    assert {path: len(content) for path, content in found.items()} == {
        path.removeprefix("m/"): len(content) for path, content in MODEL.items()
    }
    assert found["config.pbtxt"] == b"config"
    assert found["10/model.onnx"] == b"\0\0\0"
    assert directory.path.name == "m"
    assert directory.origin == "s3://bucket/m"
    assert directory.call_by_origin(f"{directory.path}/x: bad") == "s3://bucket/m/x: bad"


def test_completed_it_has_what_the_versions_need_and_no_other_version(storage):
    directory = storage.check_out("m")
    storage.client.forget()
    directory.complete([10])
    assert storage.client.fetched == [
        "m/10/model.onnx",
        "m/10/sub/weights",
        "m/configs/readme.md",
        "m/labels.txt",
        "m/warmup/data",
    ]
    expected = {path.removeprefix("m/"): content for path, content in MODEL.items()}
    del expected["1/model.onnx"], expected["2/model.onnx"]
    assert tree(directory.path) == expected
    assert not (directory.path / "1").exists()


def test_completed_without_versions_it_has_all(storage):
    directory = storage.check_out("m")
    directory.complete()
    assert tree(directory.path) == {path.removeprefix("m/"): content for path, content in MODEL.items()}


def test_the_directory_goes_with_its_last_reference_and_the_blobs_stay(storage, tmp_path):
    directory = storage.check_out("m")
    path = directory.path
    del directory
    gc.collect()
    assert not path.exists()
    assert [*(tmp_path / "blobs").rglob("*")]
    storage.client.forget()
    storage.check_out("m")
    assert storage.client.fetched == []


def test_one_look_at_all_models_is_one_listing(storage):
    for index in range(30):
        storage.client.put(f"x{index}/1/model", b"x")
    look = Catalogue([storage]).listed(whole=True)
    snapshot = look.take_snapshot()
    assert len(snapshot.models) == 32
    assert look.find("x3").fingerprint("x3") == snapshot.models["x3"]
    look.find("m").check_out("m")
    assert storage.client.counts == {"list": 1}


def test_one_look_at_one_model_lists_that_alone_and_once(storage):
    look = Catalogue([storage]).listed()
    found = look.find("m")
    found.fingerprint("m")
    found.check_out("m")
    assert storage.client.counts == {"list m": 1}
    assert look.listed() is not look
    assert look.listed(whole=True).find("m") is found


def test_without_a_round_every_call_looks_anew(storage):
    before = storage.fingerprint("m")
    storage.client.put("m/2/model.onnx", b"new")
    assert before.changed_paths(storage.fingerprint("m")) == ["2/model.onnx"]
    assert storage.holds("m")
    assert not storage.holds("nope")
    assert sorted(storage.list_names()) == ["m", "n"]
    assert storage.client.counts == {"list m": 3, "list nope": 1, "folders": 1}
    assert repr(storage) == "ObjectStorage('s3://bucket')"
    assert repr(storage.listed()) == "ListedStorage('s3://bucket')"


def test_a_poll_acts_when_two_looks_see_the_same(storage):
    tracker, catalogue = PollTracker(), Catalogue([storage])
    tracker.observe(catalogue.listed(whole=True).take_snapshot())
    assert tracker.observe(catalogue.listed(whole=True).take_snapshot()).added == ["m", "n"]
    storage.client.put("n/2/model.onnx", b"half")
    assert not tracker.observe(catalogue.listed(whole=True).take_snapshot())
    storage.client.put("n/2/model.onnx", b"whole")
    assert not tracker.observe(catalogue.listed(whole=True).take_snapshot())
    assert tracker.observe(catalogue.listed(whole=True).take_snapshot()).modified == ["n"]


def test_a_model_that_changes_while_its_config_is_fetched_is_looked_at_again(storage):
    storage.client.faults["m/config.pbtxt"] = [ObjectChanged("replaced")]
    directory = storage.check_out("m")
    assert (directory.path / "config.pbtxt").read_bytes() == b"config"
    storage.client.forget()
    storage.client.put("m/config.pbtxt", b"other")
    storage.client.faults["m/config.pbtxt"] = [ObjectChanged("replaced")] * 3
    with pytest.raises(ChangedMeanwhile, match="replaced"):
        storage.check_out("m")
    assert storage.client.counts == {"list m": 3}


@pytest.mark.parametrize("whole", [False, True])
def test_after_a_change_in_a_later_step_the_next_check_out_sees_the_new_files(storage, whole):
    look = storage.listed(whole=whole)
    directory = look.check_out("m")
    storage.client.put("m/10/model.onnx", b"new")
    with pytest.raises(ChangedMeanwhile, match=r"s3://bucket/m/10/model.onnx: it was replaced"):
        directory.complete([10])
    again = look.check_out("m")
    again.complete([10])
    assert (again.path / "10/model.onnx").read_bytes() == b"new"


def test_a_key_that_is_no_path_spoils_its_own_model_alone(storage, monkeypatch, caplog):
    listed = storage.client.list_objects

    def list_objects(folder=""):
        if folder in {"", "n"}:
            raise BadKey("the key 'n/a//b' cannot be a file's path")
        return listed(folder)

    monkeypatch.setattr(storage.client, "list_objects", list_objects)
    snapshot = Catalogue([storage]).listed(whole=True).take_snapshot()
    assert set(snapshot.models) == {"m"}
    assert snapshot.unreadable == {"n"}
    assert snapshot.is_complete
    assert "cannot read model 'n': the key 'n/a//b'" in caplog.text


def test_names_may_be_given_to_directories(tmp_path):
    files = {"real/1/x": b"1", "other/1/x": b"2", "third/1/x": b"3"}
    storage = make_storage(tmp_path, files, mapping={"called": "real", "gone": "nowhere"})
    for view in (storage, storage.listed(whole=True), storage.listed()):
        assert sorted(view.list_names()) == ["called", "other", "third"]
        assert view.holds("called")
        assert not view.holds("real")
        assert not view.holds("gone")
        assert view.is_mapped("called")
        directory = view.check_out("called")
        assert directory.is_renamed
        assert directory.path.name == "called"
        assert directory.origin == "s3://bucket/real"


def test_a_store_that_cannot_be_listed_is_said_once_until_it_can_be(storage, monkeypatch, caplog):
    caplog.set_level("INFO")
    catalogue = Catalogue([storage])
    listed = storage.client.list_objects

    def fail(folder=""):
        raise AccessDenied("s3://bucket: 403 Forbidden")

    monkeypatch.setattr(storage.client, "list_objects", fail)
    for _ in range(3):
        snapshot = catalogue.listed(whole=True).take_snapshot()
        assert not snapshot.is_complete
        with pytest.raises(Unavailable, match="'m' cannot be looked for in 's3://bucket': s3://bucket: 403"):
            catalogue.listed().find("m")
    assert caplog.text.count("failed to poll model repository 's3://bucket': s3://bucket: 403 Forbidden") == 1
    monkeypatch.setattr(storage.client, "list_objects", listed)
    assert catalogue.listed(whole=True).take_snapshot().is_complete
    assert caplog.text.count("model repository 's3://bucket' can be read again") == 1
    with pytest.raises(NotFound):
        catalogue.listed().find("nope")


def test_what_a_server_knows_without_asking(storage, tmp_path):
    (tmp_path / "local" / "l").mkdir(parents=True)
    catalogue = Catalogue([storage, LocalStorage(tmp_path / "local")])
    assert catalogue.has_remote
    assert not catalogue.knows("m")
    catalogue.list_names()
    storage.client.forget()
    assert catalogue.knows("m")
    assert catalogue.knows("l")
    assert not catalogue.knows("nope")
    assert not storage.client.counts
    assert not Catalogue([LocalStorage(tmp_path / "local")]).has_remote


def test_with_namespaces_a_model_is_looked_for_where_it_is(tmp_path):
    first = make_storage(tmp_path, {"m/1/x": b"1"})
    second = make_storage(tmp_path, {"m/1/x": b"1", "n/1/x": b"2"})
    second.location = "s3://other"
    catalogue = Catalogue([first, second], has_namespaces=True)
    assert catalogue.keys_of("m") == ["s3://bucket/m", "s3://other/m"]
    assert catalogue.keys_of("n") == ["s3://other/n"]
    assert catalogue.keys_of("nope") == ["nope"]
    first.client.forget()
    assert catalogue.find("s3://other/m") is second
    assert not first.client.counts
    with pytest.raises(NotFound, match="'s3://other/x' not found"):
        catalogue.find("s3://other/x")


def test_what_makes_two_locations_the_same(monkeypatch, tmp_path):
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    assert identify("s3://b//x/") == "s3://b/x"
    assert identify(str(tmp_path / "." / "a" / "..")) == str(tmp_path.resolve())
    catalogue = Catalogue([], cache=StoreCacheOptions(str(tmp_path), 5))
    catalogue.register("s3://b/x", {})
    assert (catalogue.storages[0].cache.root, catalogue.storages[0].cache.max_nbytes) == (tmp_path, 5)
    with pytest.raises(AlreadyExists):
        catalogue.register("s3://b/x/", {})
    with pytest.raises(
        InvalidArgument, match=r"failed to register 's3://', repository not found: .*names no bucket"
    ):
        catalogue.register("s3://", {})
    catalogue.unregister("s3://b//x")
    assert not catalogue.storages


@pytest.mark.parametrize(
    ("location", "variable"),
    [
        ("s3://b", "TRITON_AWS_MOUNT_DIRECTORY"),
        ("gs://b", "TRITON_GCS_MOUNT_DIRECTORY"),
        ("as://a/b", "TRITON_AZURE_MOUNT_DIRECTORY"),
    ],
)
def test_where_files_are_kept(location, variable, tmp_path, monkeypatch):
    environ = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "/cache"}
    assert str(open_object_store(location, environ=environ).cache.root) == "/cache/bireme/object-stores"
    assert str(open_object_store(location, environ=environ, cache_directory="/c").cache.root) == "/c"
    mounted = environ | {variable: "/mount"}
    assert str(open_object_store(location, environ=mounted, cache_directory="/c").cache.root) == "/mount"
    monkeypatch.setenv("HOME", "/home/me")
    expected = "/home/me/.cache/bireme/object-stores"
    assert str(open_object_store(location, environ={"HOME": str(tmp_path)}).cache.root) == expected


def test_at_start_a_repository_that_cannot_be_listed_is_an_error(monkeypatch, tmp_path):
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    storage = open_storage("s3://b", cache=StoreCacheOptions(str(tmp_path)))
    monkeypatch.setattr(type(storage), "list_names", lambda self: (_ for _ in ()).throw(AccessDenied("403")))
    with pytest.raises(InvalidArgument, match="cannot read the model repository 's3://b': 403"):
        Catalogue.open(["s3://b"], cache=StoreCacheOptions(str(tmp_path)))
