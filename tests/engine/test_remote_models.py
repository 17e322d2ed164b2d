"""Lifecycle and control modes over a repository in an object store: what is fetched, kept, given back."""

import asyncio
import gc
import hashlib
import threading

import pytest

from bireme.engine import Server
from bireme.engine.load_plan import LoadOverride
from bireme.engine.model_control import ModelControl
from bireme.engine.options import ServerOptions
from bireme.repository import Catalogue
from bireme.repository.object_store.faults import AccessDenied, ObjectChanged
from bireme.types import Internal, InvalidArgument
from lifecycle_world import FakeWorld, world_of
from model_dirs import CONFIG, LoadingBackend, until
from object_stores import make_storage

ALL = (CONFIG + "version_policy { all {} }").encode()


class RemoteWorld(FakeWorld):
    """A lifecycle over one repository in memory, of the model "m" with the versions 1 and 2."""

    def __init__(self, root, **options):
        super().__init__(root, **options)
        files = {"m/config.pbtxt": ALL, "m/1/weights": b"one", "m/2/weights": b"two", "m/labels.txt": b"a"}
        self.storage = make_storage(root / "cache", files)
        self.client = self.storage.client
        self.catalogue = self.lifecycle.catalogue = Catalogue([self.storage])

    async def load(self, **override):
        await self.lifecycle.load("m", LoadOverride(**override))

    def directories(self):
        gc.collect()
        return [path for path in (self.root / "cache" / "live").glob("*/*/m") if path.is_dir()]


def run(test, tmp_path, **options):
    async def main():
        async with world_of(RemoteWorld, tmp_path / "world", **options) as world:
            await test(world)

    asyncio.run(main())


def test_a_reload_fetches_what_has_changed_and_leaves_the_rest_serving(tmp_path):
    async def test(world):
        await world.load()
        first = world.table.versions["m", 1]
        assert world.client.fetched == ["m/1/weights", "m/2/weights", "m/config.pbtxt", "m/labels.txt"]
        world.client.forget()
        world.client.put("m/2/weights", b"new")
        world.client.put("m/3/weights", b"three")
        await world.load()
        assert world.client.fetched == ["m/2/weights", "m/3/weights"]
        assert world.client.counts == {"list m": 1}
        assert world.table.versions["m", 1] is first
        assert world.backend.loads_of("m") == [1, 2, 2, 3]
        contexts = {ctx.version: ctx for ctx in world.backend.contexts}
        assert (contexts[1].version_dir / "weights").read_bytes() == b"one"
        assert (contexts[2].version_dir / "weights").read_bytes() == b"new"

    run(test, tmp_path)


def test_a_load_of_what_has_not_changed_asks_once_and_leaves_nothing(tmp_path):
    async def test(world):
        await world.load()
        world.client.forget()
        await world.load()
        assert world.client.counts == {"list m": 1}
        assert not world.client.reads
        assert len(world.directories()) == 1

    run(test, tmp_path)


def test_the_directory_lives_as_long_as_the_model(tmp_path):
    async def test(world):
        await world.load()
        assert len(world.directories()) == 1
        world.backend.contexts.clear()
        await world.lifecycle.unload("m")
        await until(lambda: not world.directories())

    run(test, tmp_path)


def test_a_fetch_that_fails_is_the_loads_failure_and_what_serves_stays(tmp_path):
    async def test(world):
        await world.load()
        world.client.put("m/2/weights", b"new")
        world.client.faults["m/2/weights"] = [AccessDenied("s3://bucket/m/2/weights: 403 Forbidden")]
        with pytest.raises(InvalidArgument, match=r"cannot fetch its files: s3://bucket/m/2/weights: 403"):
            await world.load()
        assert (await world.ask()).model_version == 2
        await world.load()
        assert world.backend.loads_of("m") == [1, 2, 2]

    run(test, tmp_path)


def test_a_store_that_cannot_be_listed_is_an_internal_error_of_the_load(tmp_path, monkeypatch):
    async def test(world):
        def fail(*_):
            raise AccessDenied("s3://bucket/m: 403 Forbidden")

        monkeypatch.setattr(world.client, "list_objects", fail)
        with pytest.raises(Internal, match=r"failed to poll from model repository: .*s3://bucket/m: 403"):
            await world.load()

    run(test, tmp_path)


def test_files_that_change_while_they_are_fetched_are_looked_at_again_but_not_for_ever(tmp_path):
    async def test(world):
        world.client.faults["m/1/weights"] = [ObjectChanged("m/1/weights: it was replaced")]
        await world.load()
        assert world.client.counts == {"list m": 2}
        world.client.put("m/1/weights", b"new")
        world.client.faults["m/1/weights"] = [ObjectChanged("m/1/weights: it was replaced")] * 3
        with pytest.raises(InvalidArgument, match=r"its files change while they are fetched: m/1/weights"):
            await world.load()
        assert len(world.table.versions) == 2

    run(test, tmp_path)


def test_a_config_of_the_call_keeps_the_versions_of_the_store(tmp_path):
    async def test(world):
        await world.load(config='{"backend": "fake", "version_policy": {"specific": {"versions": [1]}}}')
        assert list(world.table.versions) == [("m", 1)]
        assert "m/2/weights" not in world.client.fetched
        await world.load()
        assert sorted(world.table.versions) == [("m", 1), ("m", 2)]

    run(test, tmp_path)


def test_agents_see_all_files(tmp_path):
    async def test(world):
        digest = hashlib.md5(b"one", usedforsecurity=False).hexdigest()
        agent = f'model_repository_agents {{ agents {{ name: "checksum" parameters {{ key: "MD5:1/weights" value: "{digest}" }} }} }}'
        world.client.put("m/config.pbtxt", (CONFIG + agent).encode())
        await world.load()
        assert list(world.table.versions) == [("m", 2)]
        assert "m/1/weights" in world.client.fetched
        world.client.put("m/1/weights", b"bad")
        with pytest.raises(InvalidArgument, match="MD5"):
            await world.load()

    run(test, tmp_path)


def test_messages_name_the_stores_files(tmp_path):
    async def test(world):
        world.client.put("m/config.pbtxt", b"max_batch_size: many")
        with pytest.raises(InvalidArgument, match=r"s3://bucket/m/config.pbtxt:1") as caught:
            await world.load()
        assert str(tmp_path) not in caught.value.message

    run(test, tmp_path)


def test_at_start_all_models_are_listed_at_once(tmp_path):
    async def test(world):
        for index in range(10):
            world.client.put(f"m{index}/config.pbtxt", CONFIG.encode())
            world.client.put(f"m{index}/1/weights", b"x")
        world.client.forget()
        assert await ModelControl(world.lifecycle, ServerOptions()).load_initial() == {}
        assert len(world.table.latest) == 11
        assert world.client.counts == {"list": 1}

    run(test, tmp_path)


def test_a_poll_is_one_listing_and_so_is_what_it_loads(tmp_path):
    async def test(world):
        options = ServerOptions(model_control_mode="poll", repository_poll_secs=0.001)
        control = ModelControl(world.lifecycle, options)
        await control.load_initial()
        world.client.forget()
        world.client.put("m/3/weights", b"three")
        await control.poll()
        await control.poll()
        await control.wait_for_actions()
        assert (await world.ask()).model_version == 3
        assert world.client.counts == {"list": 2}
        assert world.client.fetched == ["m/3/weights"]

    run(test, tmp_path, model_control_mode="poll")


def test_the_loop_goes_on_while_a_store_is_listed_for_the_index(tmp_path, monkeypatch):
    storage = make_storage(tmp_path, {"m/config.pbtxt": CONFIG.encode(), "m/1/x": b"1"})
    monkeypatch.setattr(Catalogue, "open", lambda *_, **__: Catalogue([storage]))
    gate, asked = threading.Event(), threading.Event()
    listed = storage.client.list_folders

    def list_folders():
        asked.set()
        assert gate.wait(10)
        return listed()

    async def main():
        options = ServerOptions(("s3://bucket",), model_control_mode="explicit")
        async with Server(options=options, backends={"fake": LoadingBackend()}) as server:
            assert server.has_remote_repositories
            monkeypatch.setattr(storage.client, "list_folders", list_folders)
            index = asyncio.create_task(server.fetch_index())
            await until(asked.is_set)
            assert await server.fetch_index(ready=True) == []
            gate.set()
            assert await index == [{"name": "m"}]

    asyncio.run(main())
