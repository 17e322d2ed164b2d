"""Model namespacing: one name in several repositories, and repositories that come and go."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from bireme.engine import Server
from bireme.testing import FakeBackend
from bireme.types import AlreadyExists, Internal, InvalidArgument, NotFound, Unavailable, Unsupported
from model_dirs import add_fake_ensemble, add_fake_model, touch, until


class World:
    def __init__(self, root, *numbers, **settings):
        self.root = root
        self.repositories = {number: root / str(number) for number in numbers}
        for folder in self.repositories.values():
            folder.mkdir(exist_ok=True)
        self.backend = FakeBackend()
        settings = {"model_namespacing": True, "model_control_mode": "explicit", **settings}
        self.server = Server(list(self.repositories.values()), backends={"fake": self.backend}, **settings)

    def add(self, number, name="m", **settings):
        return add_fake_model(self.repositories[number], name, **settings)

    def key(self, number, name="m"):
        return f"{self.repositories[number]}/{name}"

    def states(self):
        return {
            (entry["namespace"].rpartition("/")[2], entry["name"]): entry.get("state")
            for entry in self.server.repository_index()
        }

    async def ask(self, name="m"):
        return (await self.server.ainfer(name, {"X": [1.0]}))["Y"].tolist()


@asynccontextmanager
async def world(root, *numbers, **settings):
    its = World(root, *numbers, **settings)
    async with its.server:
        yield its
    assert its.backend.num_open_models == 0


def run(main):
    asyncio.run(main())


def test_a_name_that_one_repository_has_is_found_by_itself(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            w.add(1, "a")
            w.add(2, "b")
            await w.server.load_model("a")
            assert await w.ask("a") == [1.0]
            assert w.server.model_metadata("a")["name"] == "a"
            assert w.server.model_config("a")["name"] == "a"
            assert w.states() == {("1", "a"): "READY", ("2", "b"): None}

    run(main)


def test_a_name_that_two_have_is_loaded_twice_and_ambiguous(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            w.add(1)
            w.add(2)
            await w.server.load_model("m")
            assert w.states() == {("1", "m"): "READY", ("2", "m"): "READY"}
            with pytest.raises(
                InvalidArgument,
                match="There are 2 identifiers of model 'm' in global map, model namespace must",
            ):
                await w.ask()
            assert await w.ask(w.key(1)) == [1.0]
            assert len(w.server.model_statistics()["model_stats"]) == 2
            with pytest.raises(InvalidArgument):
                w.server.is_model_ready("m")
            assert w.server.is_model_ready(w.key(2))
            assert w.server.is_ready

            await w.server.unload_model("m")
            await until(lambda: set(w.states().values()) == {"UNAVAILABLE"})
            with pytest.raises(NotFound, match="Identifier of model 'm' is not found in global map"):
                await w.ask()

    run(main)


def test_a_name_is_unique_again_when_the_other_model_has_gone(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            w.add(1)
            await w.server.load_model("m")
            assert await w.ask() == [1.0]
            other = w.add(2)
            await w.server.load_model("m")
            with pytest.raises(InvalidArgument):
                await w.ask()
            await w.server.unload_model(w.key(2))
            assert await w.ask() == [1.0]
            await w.server.unload_model("m")
            await w.server.load_model(w.key(2))
            assert w.backend.contexts[-1].model_dir == other
            assert await w.ask() == [1.0]

    run(main)


def test_a_model_that_fails_takes_no_name_from_one_that_serves(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            w.add(1)
            w.add(2, extra="max_batch_size: -1")
            with pytest.raises(InvalidArgument, match="max_batch_size"):
                await w.server.load_model("m")
            assert await w.ask() == [1.0]
            assert w.states()["2", "m"] == "UNAVAILABLE"

    run(main)


def test_a_name_that_nobody_has_is_the_callers_mistake(tmp_path):
    async def main():
        async with world(tmp_path, 1) as w:
            with pytest.raises(InvalidArgument, match="unknown model: 'm' is not found"):
                await w.ask()
            with pytest.raises(Internal, match="failed to load 'm'"):
                await w.server.load_model("m")
            with pytest.raises(InvalidArgument):
                await w.server.load_model("../m")
            await w.server.unload_model("m")

    run(main)


def test_metrics_say_which_is_which(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            w.add(1)
            w.add(2)
            await w.server.load_model("m")
            page = w.server.metrics.expose().decode()
            for number in (1, 2):
                assert f'namespace="{w.repositories[number]}"' in page

    run(main)


def test_a_step_is_looked_for_in_the_ensembles_own_namespace_first(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            for number in (1, 2):
                w.add(number, "step")
                add_fake_ensemble(w.repositories[number], f"e{number}", "step")
            await w.server.load_model("e2")
            assert w.states()["2", "step"] == "READY"
            assert w.states()["1", "step"] is None
            assert await w.ask("e2") == [1.0]
            (step,) = w.server.model_config("e2")["ensemble_scheduling"]["step"]
            assert (step["model_name"], step["model_namespace"]) == ("step", str(w.repositories[2]))

            await w.server.load_model("e1")
            await w.server.unload_model(w.key(1, "step"))
            assert w.states()["1", "e1"] != "READY"
            assert await w.ask("e2") == [1.0]

            await w.server.unload_model("e2", unload_dependents=True)
            await until(lambda: w.states()["2", "step"] == "UNAVAILABLE")

    run(main)


def test_a_step_that_is_not_there_is_the_only_other_one(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2, 3) as w:
            w.add(2, "step")
            add_fake_ensemble(w.repositories[1], "e", "step")
            await w.server.load_model("e")
            assert await w.ask("e") == [1.0]

            w.add(3, "step")
            touch(w.repositories[1] / "e" / "config.pbtxt")
            with pytest.raises(InvalidArgument, match="There are 2 identifiers of model 'step'"):
                await w.server.load_model("e")
            assert await w.ask("e") == [1.0]

    run(main)


def test_an_ensemble_serves_once_its_own_namespaces_model_does(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            add_fake_ensemble(w.repositories[1], "e", "step")
            with pytest.raises(InvalidArgument, match="not found in any model repository"):
                await w.server.load_model("e")
            w.add(1, "step")
            await w.server.load_model("step")
            assert await w.ask("e") == [1.0]

    run(main)


def test_a_step_can_name_its_namespace(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2) as w:
            w.add(1, "step")
            w.add(2, "step")
            folder = add_fake_ensemble(w.repositories[1], "e", "step")
            config = folder / "config.pbtxt"
            named = config.read_text().replace(
                'model_name: "step"', f'model_name: "step" model_namespace: "{w.repositories[2]}"'
            )
            config.write_text(named)
            await w.server.load_model("e")
            assert await w.ask("e") == [1.0]
            assert w.states()["1", "step"] is None

    run(main)


@pytest.mark.parametrize("mode", ["none", pytest.param("poll", marks=pytest.mark.slow)])
def test_all_repositories_are_loaded_at_start(tmp_path, mode):
    async def main():
        w = World(tmp_path, 1, 2, model_control_mode=mode, repository_poll_secs=0)
        for number in (1, 2):
            w.add(number)
        async with w.server:
            assert w.states() == {("1", "m"): "READY", ("2", "m"): "READY"}

    run(main)


def test_models_to_load_at_start_are_given_by_name(tmp_path):
    async def main():
        w = World(tmp_path, 1, 2, load_model=("m",))
        w.add(1)
        w.add(2)
        async with w.server:
            assert set(w.states().values()) == {"READY"}

    run(main)


def test_without_namespacing_a_second_repository_takes_the_name_away(tmp_path):
    async def main():
        async with world(tmp_path, 1, 2, model_namespacing=False) as w:
            w.add(1)
            w.add(2)
            with pytest.raises(Internal, match="not unique across all model repositories"):
                await w.server.load_model("m")

    run(main)


# Repositories that come and go.


def test_a_registered_repository_is_found_by_loads_until_it_goes(tmp_path):
    async def main():
        async with world(tmp_path, 1, model_namespacing=False) as w:
            add_fake_model(tmp_path / "2", "m")
            w.server.register_repository(tmp_path / "2")
            assert w.server.repository_index() == [{"name": "m"}]
            await w.server.load_model("m")
            with pytest.raises(AlreadyExists, match="has already been registered"):
                w.server.register_repository(tmp_path / "2")

            w.server.unregister_repository(tmp_path / "2")
            assert await w.ask() == [1.0]
            await w.server.unload_model("m")
            with pytest.raises(Internal, match="not found in any model repository"):
                await w.server.load_model("m")
            with pytest.raises(InvalidArgument, match=r"failed to unregister '.*', repository not found"):
                w.server.unregister_repository(tmp_path / "2")

    run(main)


def test_a_mapping_gives_directories_other_names(tmp_path):
    async def main():
        async with world(tmp_path, 1, model_namespacing=False) as w:
            folder = add_fake_model(tmp_path / "2", "release-7", extra='name: "release-7"')
            add_fake_model(tmp_path / "2", "plain")
            w.server.register_repository(tmp_path / "2", {"m": "release-7"})
            assert [entry["name"] for entry in w.server.repository_index()] == ["m", "plain"]
            await w.server.load_model("m")
            assert w.server.model_config("m")["name"] == "m"
            assert w.backend.contexts[0].model_dir == folder
            assert await w.ask() == [1.0]
            with pytest.raises(Internal):
                await w.server.load_model("release-7")
            add_fake_model(tmp_path / "3", "x")
            with pytest.raises(AlreadyExists, match="failed to register 'm', there is a conflicting mapping"):
                w.server.register_repository(tmp_path / "3", {"m": "x"})

    run(main)


def test_a_registered_repository_is_a_namespace(tmp_path):
    async def main():
        async with world(tmp_path, 1) as w:
            w.add(1)
            add_fake_model(tmp_path / "2", "m")
            w.server.register_repository(tmp_path / "2")
            await w.server.load_model("m")
            assert w.states() == {("1", "m"): "READY", ("2", "m"): "READY"}

    run(main)


def test_repositories_cannot_come_where_they_must_not(tmp_path):
    async def main():
        async with world(tmp_path, 1) as w:
            with pytest.raises(
                InvalidArgument, match="failed to register '/not/there', repository not found"
            ):
                w.server.register_repository("/not/there")
        with pytest.raises(Unavailable):
            w.server.register_repository(tmp_path)
        async with world(tmp_path, 1, model_control_mode="none") as w:
            with pytest.raises(Unsupported, match="repository registration is not allowed"):
                w.server.register_repository(tmp_path)
            with pytest.raises(Unsupported, match="repository unregistration is not allowed"):
                w.server.unregister_repository(tmp_path)

    run(main)


def test_a_plain_program_can_register_too(tmp_path):
    add_fake_model(tmp_path / "1", "m")
    with Server(model_control_mode="explicit", backends={"fake": FakeBackend()}) as server:
        server.register_repository(tmp_path / "1")
        server.load_model("m")
        assert server.infer("m", {"X": [1.0]})["Y"].tolist() == [1.0]
        server.unregister_repository(tmp_path / "1")
