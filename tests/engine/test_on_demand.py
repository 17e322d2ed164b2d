"""Models that are loaded at their first request, and unloaded when they are idle or others need the room."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import numpy as np
import pytest

from bireme import Server
from bireme.engine import on_demand as module
from bireme.engine.options import OnDemandOptions
from bireme.engine.request_deadlines import REQUEST_PARAMETER
from bireme.types import (
    Cancelled,
    DeadlineExceeded,
    InferenceRequest,
    InvalidArgument,
    NotFound,
    RequestTimedOut,
    Tensor,
    Unavailable,
)
from model_dirs import LoadingBackend, add_fake_ensemble, add_fake_model, until

X = np.zeros(2, np.float32)


class World:
    def __init__(self, server, backend):
        self.server = server
        self.backend = backend
        self.demand = server.on_demand
        self.now_ns = 1
        self.demand._now_ns = lambda: self.now_ns
        self.answers = []

    def send(self, name, version=-1, **settings):
        request = InferenceRequest(
            name,
            {"X": Tensor.from_numpy("X", X)},
            lambda request, response: self.answers.append((request.id, response.error)),
            model_version=version,
            **settings,
        )
        self.server.submit(request)
        return request

    async def use(self, *names):
        for name in names:
            self.pass_time(1)
            await self.server.ainfer(name, {"X": X})
            await self.demand._look()

    def pass_time(self, seconds):
        self.now_ns += int(seconds * 1e9)

    def ready(self):
        return sorted(self.server._running().table.latest)

    def reason(self, name):
        (entry,) = [entry for entry in self.server.repository_index() if entry["name"] == name]
        return entry.get("reason", "")

    def metric(self, name, **labels):
        return self.server.metrics.registry.get_sample_value(name, labels)


@asynccontextmanager
async def world(root, *, load_model=(), **limits):
    backend = LoadingBackend()
    async with Server(
        root,
        backends={"fake": backend},
        model_control_mode="ondemand",
        load_model=load_model,
        on_demand=OnDemandOptions(**limits),
    ) as server:
        try:
            yield World(server, backend)
        finally:
            backend.load_gate.set()
            backend.gate.set()


def run(scenario, root, **limits):
    async def main():
        async with world(root, **limits) as w:
            await scenario(w)

    asyncio.run(main())


@pytest.fixture
def root(tmp_path):
    for name in "abc":
        add_fake_model(tmp_path, name)
        (tmp_path / name / "1" / "weights").write_bytes(bytes(1000))
    return tmp_path


def test_a_model_is_loaded_at_its_first_request_and_stays(root):
    async def scenario(w):
        assert w.ready() == []
        assert w.server.is_ready
        assert w.reason("a") == "not loaded yet"

        w.send("a", id="1")
        w.send("a", id="2")
        assert w.answers == []
        await until(lambda: len(w.answers) == 2)

        assert w.answers == [("1", None), ("2", None)]
        assert w.ready() == ["a"]
        assert [context.name for context in w.backend.contexts] == ["a"]
        assert w.metric("bireme_ondemand_loads_total", model="a") == 1
        assert w.reason("a") == ""

    run(scenario, root)


def test_what_is_named_at_start_is_loaded_at_start(root):
    async def scenario(w):
        assert w.ready() == ["b"]

    run(scenario, root, load_model=("b",))


def test_programs_wait_for_the_load_as_well(root):
    async def scenario(w):
        result = await w.server.ainfer("a", {"X": X})
        assert result["Y"].tolist() == [0, 0]
        other = await asyncio.to_thread(w.server.infer, "b", {"X": X})
        assert other["Y"].tolist() == [0, 0]

    run(scenario, root)


def test_an_unknown_model_and_an_unknown_version_are_refused(root):
    async def scenario(w):
        w.send("nobody")
        await until(lambda: w.answers)
        assert isinstance(w.answers[0][1], NotFound)
        w.send("a", version=7)
        await until(lambda: len(w.answers) == 2)
        assert isinstance(w.answers[1][1], NotFound)
        with pytest.raises(NotFound, match="version 7"):
            w.send("a", version=7)

    run(scenario, root)


def test_a_failed_load_answers_all_with_its_reason_and_is_tried_again_after_a_pause(root):
    async def scenario(w):
        w.backend.load_error = Unavailable("no memory")
        w.send("a")
        w.send("a")
        await until(lambda: len(w.answers) == 2)
        assert all("no memory" in error.message for _, error in w.answers)
        assert len(w.backend.contexts) == 1
        assert w.server.is_ready

        with pytest.raises(Unavailable, match=r"the next try is in 1\.0 s: .*no memory"):
            w.send("a")
        assert "no memory" in w.reason("a")
        with pytest.raises(Unavailable, match="no memory"):
            w.server.is_model_ready("a")

        w.pass_time(1)
        assert w.server.is_model_ready("a")  # a request would try again
        w.send("a")
        await until(lambda: len(w.answers) == 3)
        with pytest.raises(Unavailable, match=r"the next try is in 2\.0 s"):
            w.send("a")

        w.backend.load_error = None
        w.pass_time(2)
        w.send("a")
        await until(lambda: len(w.answers) == 4)
        assert w.answers[-1][1] is None
        assert w.metric("bireme_ondemand_load_failures_total", model="a") == 2

    run(scenario, root)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"timeout_us": 3000}, RequestTimedOut),
        ({"parameters": {REQUEST_PARAMETER: 3000}}, DeadlineExceeded),
    ],
)
def test_a_request_waits_within_its_time(root, settings, expected):
    async def main():
        backend = LoadingBackend()
        backend.load_gate.clear()
        async with Server(root, backends={"fake": backend}, model_control_mode="ondemand") as server:
            answers = []
            request = InferenceRequest(
                "a",
                {"X": Tensor.from_numpy("X", X)},
                lambda _, response: answers.append(response.error),
                **settings,
            )
            server.submit(request)
            with pytest.raises(expected):
                await server.ainfer("a", {"X": X}, **settings)
            await until(lambda: answers)
            assert isinstance(answers[0], expected)
            backend.load_gate.set()
            await until(lambda: server._latest)  # the load goes on

    asyncio.run(main())


def test_a_request_that_waits_can_be_taken_back(root):
    async def scenario(w):
        w.backend.load_gate.clear()
        request = w.send("a")
        w.server.cancel(request)
        w.backend.load_gate.set()
        await until(lambda: w.ready() == ["a"])

        ((_, error),) = w.answers
        assert isinstance(error, Cancelled)

    run(scenario, root)


def test_a_stop_answers_what_waits(root):
    async def scenario(w):
        w.backend.load_gate.clear()
        w.send("a")
        stopping = asyncio.ensure_future(w.server.stop(5))
        await until(lambda: w.answers)
        w.backend.load_gate.set()
        await stopping
        assert "stopping" in w.answers[0][1].message

    run(scenario, root)


def test_the_least_recently_used_one_goes_when_there_are_too_many(root):
    async def scenario(w):
        await w.use("a", "b", "a", "c")

        assert w.ready() == ["a", "c"]
        assert w.reason("b") == "unloaded: too many models"
        assert w.metric("bireme_ondemand_evictions_total", model="b", reason="too many models") == 1

        await w.use("b")
        assert w.ready() == ["b", "c"]

    run(scenario, root, max_models=2)


def test_the_least_recently_used_one_goes_above_the_memory_budget(root):
    async def scenario(w):
        await w.use("a", "b", "c")

        assert w.ready() == ["b", "c"]
        assert w.reason("a") == "unloaded: memory budget"
        assert w.metric("bireme_ondemand_memory_bytes") == 2000

    run(scenario, root, memory_budget=2500)


def test_a_model_larger_than_the_whole_budget_is_refused_and_nothing_goes_for_it(root):
    (root / "c" / "1" / "weights").write_bytes(bytes(3000))

    async def scenario(w):
        await w.use("a")
        with pytest.raises(Unavailable, match="takes 3000 bytes, more than the whole memory budget of 2500"):
            await w.use("c")
        assert w.ready() == ["a"]

    run(scenario, root, memory_budget=2500)


def test_what_has_a_request_in_flight_never_goes(root):
    async def scenario(w):
        await w.use("a", "b")
        w.backend.gate.clear()
        w.send("a")
        await until(lambda: w.backend.num_executing)
        w.pass_time(100)
        await w.demand.sweep()
        assert w.ready() == ["a"]

        w.backend.gate.set()
        await until(lambda: w.answers)
        await w.demand.sweep()
        assert w.ready() == ["a"]  # it was used just now
        w.pass_time(100)
        await w.demand.sweep()
        assert w.ready() == []
        assert w.reason("a") == "unloaded: idle"
        assert w.server.is_ready

    run(scenario, root, idle_secs=50)


def test_what_was_loaded_for_somebody_stays_until_it_is_used(root):
    async def scenario(w):
        sweeps = []

        def sweep_at_once(_):
            w.pass_time(100)
            sweeps.append(asyncio.create_task(w.demand.sweep()))

        w.demand._begin("a").task.add_done_callback(sweep_at_once)
        await w.demand.load("a")  # as a front end waits

        assert w.server.model("a").name == "a"
        await asyncio.gather(*sweeps)

    run(scenario, root, idle_secs=1)


def test_ensembles_bring_their_models_and_keep_them(root):
    add_fake_ensemble(root, "e", "a", "b")

    async def scenario(w):
        await w.use("e")
        assert w.ready() == ["a", "b", "e"]

        assert not w.demand._may_go("a")
        w.pass_time(100)
        await w.demand.sweep()
        await w.demand.sweep()
        assert w.ready() == []

        await w.use("e")
        assert w.ready() == ["a", "b", "e"]

    run(scenario, root, idle_secs=50)


def test_models_that_are_called_are_loaded(root):
    async def scenario(w):
        await w.use("a")
        host = w.server._running()._loader._host
        answers = []
        call = InferenceRequest(
            "b", {"X": Tensor.from_numpy("X", X)}, lambda _, response: answers.append(response)
        )
        assert not host.is_model_decoupled("b", -1)
        host.submit(call)
        await until(lambda: answers)
        assert answers[0].error is None

    run(scenario, root)


def test_what_is_decoupled_is_known_before_the_load(root):
    with (root / "a" / "config.pbtxt").open("a") as config:
        config.write("model_transaction_policy { decoupled: true }")

    async def scenario(w):
        assert w.demand.is_decoupled("a")
        assert not w.demand.is_decoupled("b")
        assert not w.demand.is_decoupled("nobody")

    run(scenario, root)


def test_load_and_unload_calls_work_too(root):
    async def scenario(w):
        await w.server.load_model("a")
        assert w.ready() == ["a"]
        await w.server.unload_model("a")
        assert w.ready() == []
        await until(lambda: w.reason("a") == "unloaded")
        await w.use("a")
        assert w.ready() == ["a"]

    run(scenario, root)


def test_a_model_that_is_not_loaded_is_ready_if_it_could_be(root):
    async def scenario(w):
        assert w.server.is_model_ready("a")
        assert await w.server.check_model_ready("a")
        with pytest.raises(NotFound):
            w.server.is_model_ready("nobody")
        assert w.ready() == []

    run(scenario, root)


def test_the_clock_is_looked_at_every_second(root, monkeypatch):
    monkeypatch.setattr(module, "_SWEEP_S", 0.001)

    async def scenario(w):
        await w.use("a")
        w.pass_time(100)
        await until(lambda: w.ready() == [])

    run(scenario, root, idle_secs=50)


def test_a_load_by_others_ends_the_pause(root):
    async def scenario(w):
        w.backend.load_error = Unavailable("no memory")
        w.send("a")
        await until(lambda: w.answers)
        w.backend.load_error = None
        await w.server.load_model("a")
        await w.demand.sweep()
        await w.server.unload_model("a")
        await w.use("a")
        assert w.ready() == ["a"]

    run(scenario, root)


def test_a_model_that_nothing_makes_room_for_is_loaded_all_the_same(root, caplog):
    async def scenario(w):
        await w.use("a")
        w.backend.gate.clear()
        w.send("a")
        await until(lambda: w.backend.num_executing)
        w.send("b")
        await until(lambda: w.ready() == ["a", "b"])
        assert "'b' is loaded in spite of the greatest number of models" in caplog.text
        w.backend.gate.set()
        await until(lambda: len(w.answers) == 2)
        await w.demand.sweep()
        assert w.ready() == ["b"]

    run(scenario, root, max_models=1)


def test_an_ensemble_is_loaded_again_if_its_models_are_unloaded_meanwhile(root, monkeypatch):
    add_fake_ensemble(root, "e", "a")

    async def scenario(w):
        load = w.server._running().load

        async def load_and_lose(name):
            monkeypatch.undo()
            raise InvalidArgument("load failed for model 'e': … state: unloaded: ensemble 'e' depends on …")

        monkeypatch.setattr(w.server._running(), "load", load_and_lose)
        await w.use("e")
        assert w.server._running().load == load

    run(scenario, root)


def test_a_server_can_be_started_again(root):
    async def main():
        server = Server(root, backends={"fake": LoadingBackend()}, model_control_mode="ondemand")
        for num_loads in (1, 2):
            await server.start()
            await server.ainfer("a", {"X": X})
            loads = server.metrics.registry.get_sample_value("bireme_ondemand_loads_total", {"model": "a"})
            assert loads == num_loads
            await server.stop()

    asyncio.run(main())


@pytest.mark.slow
def test_nothing_is_lost_whatever_happens_at_the_same_time(tmp_path, monkeypatch):
    """Requests with and without deadlines, cancellations, unloads and too little room, for a second."""
    monkeypatch.setattr(module, "_SWEEP_S", 0.02)
    for index in range(5):
        add_fake_model(tmp_path, f"m{index}")
    for index in range(3):
        add_fake_ensemble(tmp_path, f"e{index}", f"m{index}", f"m{index + 1}")
    names = [path.name for path in tmp_path.iterdir()]
    chance = random.Random(7)

    async def scenario(w):
        num_sent = 0
        end = asyncio.get_running_loop().time() + 1
        while asyncio.get_running_loop().time() < end:
            hurry = {REQUEST_PARAMETER: chance.choice([100, 1000, 5000])}
            request = w.send(chance.choice(names), parameters=hurry if chance.random() < 0.2 else None)
            num_sent += 1
            if chance.random() < 0.1:
                w.server.cancel(request)
            if chance.random() < 0.05:
                await w.server.unload_model(chance.choice(names))
            await asyncio.sleep(0.02 if chance.random() < 0.1 else 0)
            w.pass_time(0.01)
        await until(lambda: len(w.answers) == num_sent)

        assert {type(error) for _, error in w.answers} <= {type(None), Cancelled, DeadlineExceeded}
        await until(lambda: w.pass_time(1) or not w.ready())

    run(scenario, tmp_path, max_models=3, idle_secs=0.2)
