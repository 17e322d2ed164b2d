"""Repository agents in a server: what they hear of loads, reloads, failures and unloads, and whose files are loaded."""

import asyncio
import hashlib
import json
from contextlib import asynccontextmanager

import pytest

from bireme.engine import Server
from bireme.testing import FakeBackend
from bireme.types import InvalidArgument
from model_dirs import CONFIG, add_fake_model, touch, until

AGENT = """
import time
from pathlib import Path
from bireme.repository.agents import RepositoryAgent

class Agent(RepositoryAgent):
    def note(self, action):
        with open(Path(__file__).parent / "events.txt", "a") as file:
            file.write(f"{self.model.parameters.get('id', '')}{action} ")

    def load(self):
        self.note("LOAD")
        if "fail" in self.model.parameters:
            raise ValueError(self.model.parameters["fail"])
        if "move" in self.model.parameters:
            folder = self.model.make_directory()
            (folder / "7").mkdir()
            if self.model.parameters["move"]:
                (folder / "config.pbtxt").write_text(self.model.parameters["move"])
            return folder

    def load_complete(self):
        while self.model.parameters.get("wait") and not Path(self.model.parameters["wait"]).exists():
            time.sleep(0.001)
        self.note("COMPLETE")

    def load_fail(self): self.note("FAIL")
    def unload(self): self.note("UNLOAD")
    def unload_complete(self): self.note("GONE")
"""


def uses(*agents):
    """The part of a config that names the recording agent once for each of ``agents``, a dict of parameters."""
    entries = []
    for parameters in agents:
        pairs = " ".join(
            f"parameters {{ key: {json.dumps(key)} value: {json.dumps(value)} }}"
            for key, value in parameters.items()
        )
        entries.append(f'{{ name: "record" {pairs} }}')
    return f"model_repository_agents {{ agents [ {', '.join(entries)} ] }}"


class World:
    def __init__(self, root):
        self.models = root / "models"
        self.models.mkdir()
        self.events_file = root / "agents" / "record" / "events.txt"
        self.events_file.parent.mkdir(parents=True)
        (self.events_file.parent / "agent.py").write_text(AGENT)
        self.backend = FakeBackend()
        self.server = Server(
            self.models,
            model_control_mode="explicit",
            repoagent_directory=str(root / "agents"),
            backends={"fake": self.backend},
        )

    def events(self):
        return self.events_file.read_text().split() if self.events_file.exists() else []

    def take(self):
        found = self.events()
        self.events_file.unlink(missing_ok=True)
        return found

    async def failing_load(self, name="m"):
        with pytest.raises(InvalidArgument) as caught:
            await self.server.load_model(name)
        return caught.value.message


@asynccontextmanager
async def world(root):
    its = World(root)
    async with its.server:
        yield its
    assert its.backend.num_open_models == 0


def test_a_model_that_comes_and_goes(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", extra=uses({"id": "a"}, {"id": "b"}))
            await w.server.load_model("m")
            assert w.take() == ["aLOAD", "bLOAD", "bCOMPLETE", "aCOMPLETE"]

            await w.server.load_model("m")
            assert w.take() == []

            await w.server.unload_model("m")
            await until(lambda: "aGONE" in w.events())
            assert w.take() == ["aUNLOAD", "bUNLOAD", "bGONE", "aGONE"]

    asyncio.run(main())


def test_a_reload_tells_the_old_ones_once_the_new_ones_serve(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            folder = add_fake_model(w.models, "m", extra=uses({}))
            await w.server.load_model("m")
            w.take()
            touch(folder / "1" / "model")
            await w.server.load_model("m")
            await until(lambda: "GONE" in w.events())
            assert w.take() == ["LOAD", "COMPLETE", "UNLOAD", "GONE"]

    asyncio.run(main())


def test_the_old_ones_hear_of_their_end_after_new_ones_that_take_their_time(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            folder = add_fake_model(w.models, "m", extra=uses({}))
            await w.server.load_model("m")
            w.take()
            add_fake_model(w.models, "m", extra=uses({"id": "new", "wait": str(tmp_path / "go")}))
            touch(folder / "1" / "model")
            reload = asyncio.create_task(w.server.load_model("m"))
            await until(lambda: len(w.backend.contexts) == 2 and w.backend.num_open_models == 1)
            await asyncio.sleep(
                0.05
            )  # the old model is closed: time enough to tell its agents, were it their turn
            early = w.events()
            (tmp_path / "go").touch()
            assert early == ["newLOAD"]
            await reload
            await until(lambda: "GONE" in w.events())
            assert w.take() == ["newLOAD", "newCOMPLETE", "UNLOAD", "GONE"]

    asyncio.run(main())


def test_all_versions_are_one_load(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", (1, 2), extra=uses({}) + " version_policy { all {} }")
            await w.server.load_model("m")
            assert w.take() == ["LOAD", "COMPLETE"]
            await w.server.unload_model("m")
            await until(lambda: "GONE" in w.events())
            assert w.take() == ["UNLOAD", "GONE"]

    asyncio.run(main())


def test_an_agent_can_forbid_a_load(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", extra=uses({"id": "a"}, {"id": "b", "fail": "not signed"}))
            assert "repository agent 'record' failed: ValueError: not signed" in await w.failing_load()
            assert w.take() == ["aLOAD", "bLOAD", "bFAIL", "aFAIL"]
            assert not w.backend.contexts
            (entry,) = w.server.repository_index()
            assert "not signed" in entry["reason"]

    asyncio.run(main())


def test_a_model_that_fails_is_told_to_its_agents(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", extra=uses({}))
            w.backend.load_error = InvalidArgument("torn")
            await w.failing_load()
            await until(lambda: "FAIL" in w.events())
            assert w.take() == ["LOAD", "FAIL"]
            w.backend.load_error = None
            await w.server.load_model("m")
            assert w.take() == ["LOAD", "COMPLETE"]

    asyncio.run(main())


def test_a_config_that_is_wrong_is_told_to_its_agents(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", extra=uses({}) + " max_batch_size: -3")
            await w.failing_load()
            assert w.take() == ["LOAD", "FAIL"]

    asyncio.run(main())


def test_an_agents_directory_takes_the_place_of_the_models_and_goes_with_it(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", extra=uses({"move": ""}))
            await w.server.load_model("m")
            (context,) = w.backend.contexts
            assert context.version == 7
            assert context.model_dir != w.models / "m"
            await w.server.unload_model("m")
            await until(lambda: not context.model_dir.exists())
            assert (w.models / "m").is_dir()

    asyncio.run(main())


def test_a_config_in_an_agents_directory_counts_but_for_the_agents(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", extra=uses({"move": f"{CONFIG} max_batch_size: 4"}))
            await w.server.load_model("m")
            config = w.server.model_config("m")
            assert config["max_batch_size"] == 4
            assert config["model_repository_agents"]["agents"][0]["name"] == "record"

    asyncio.run(main())


def test_a_load_with_files_of_its_own_runs_the_agents_of_its_config(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            digest = hashlib.md5(b"good", usedforsecurity=False).hexdigest()
            config = json.dumps(
                {
                    "backend": "fake",
                    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
                    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
                    "model_repository_agents": {
                        "agents": [{"name": "checksum", "parameters": {"MD5:1/model": digest}}]
                    },
                }
            )
            await w.server.load_model("m", config, {"1/model": b"good"})
            assert w.server.is_model_ready("m")
            with pytest.raises(InvalidArgument, match="Mismatched MD5 hash for file 1/model"):
                await w.server.load_model("m", config, {"1/model": b"evil"})
            assert w.server.is_model_ready("m")

    asyncio.run(main())


def test_a_server_that_stops_tells_the_agents(tmp_path):
    async def main():
        async with world(tmp_path) as w:
            add_fake_model(w.models, "m", extra=uses({}))
            await w.server.load_model("m")
        assert w.take() == ["LOAD", "COMPLETE", "UNLOAD", "GONE"]

    asyncio.run(main())
