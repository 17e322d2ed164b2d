"""The rate limiter at work: who waits, who goes first, and that calls between models never come to a standstill."""

from __future__ import annotations

import asyncio

import numpy as np

from bireme import Server
from bireme.testing import FakeBackend, FakeRequestBackend
from bireme.types import InferenceRequest, Tensor
from model_dirs import add_fake_ensemble, add_fake_model, until

Y = {"Y": np.zeros(2, np.float32)}


def limited(root, name, *, r=1, priority=0, count=1):
    config = add_fake_model(root, name) / "config.pbtxt"
    needs = f'rate_limiter {{ resources [{{ name: "R" count: {r} }}] priority: {priority} }}'
    text = config.read_text("utf-8").replace("count: 1", f"count: {count} {needs}")
    config.write_text(text, "utf-8")


class World:
    def __init__(self, server, backend):
        self.server = server
        self.backend = backend
        self.answered = []

    def send(self, name, parent=None):
        request = InferenceRequest(
            name,
            {"X": Tensor.from_numpy("X", Y["Y"])},
            lambda _, response: self.answered.append((name, response.error)),
        )
        request.parent = parent
        if parent is None:
            self.server.submit(request)
        else:
            self.server._running()._loader._host.submit(request)
        return request

    def instance(self, name):
        return next(each for each in self.backend.instances if each.model.ctx.name == name)

    def running(self):
        return sorted(each.model.ctx.name for each in self.backend.instances for _ in each.executions)

    async def finish(self, name):
        self.instance(name).answer(Y)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def run(scenario, root, backend=None, **options):
    async def main():
        its = backend or FakeRequestBackend()
        async with Server(
            root, backends={"fake": its}, **{"rate_limit": "execution_count", **options}
        ) as server:
            await scenario(World(server, its))

    asyncio.run(main())


def test_an_instance_waits_until_its_resources_are_free(tmp_path):
    limited(tmp_path, "a")
    limited(tmp_path, "b")

    async def scenario(w):
        w.send("a")
        w.send("b")
        assert w.running() == ["a"]

        await w.finish("a")

        assert w.running() == ["b"]
        await w.finish("b")
        assert [name for name, _ in w.answered] == ["a", "b"]

    run(scenario, tmp_path)


def test_without_the_flag_nothing_is_limited(tmp_path):
    limited(tmp_path, "a")
    limited(tmp_path, "b")

    async def scenario(w):
        w.send("a")
        w.send("b")
        assert w.running() == ["a", "b"]
        await w.finish("a")
        await w.finish("b")

    run(scenario, tmp_path, rate_limit="off")


def test_who_has_run_less_goes_first_and_priority_counts(tmp_path):
    limited(tmp_path, "often", priority=1)
    limited(tmp_path, "seldom", priority=2)

    async def scenario(w):
        for _ in range(12):
            w.send("often")
            w.send("seldom")
        order = []
        for _ in range(9):
            (name,) = w.running()
            order.append(name)
            await w.finish(name)

        assert order.count("often") == 6
        assert order.count("seldom") == 3
        while w.running():
            await w.finish(w.running()[0])

    run(scenario, tmp_path)


def test_a_model_that_waits_does_not_stop_others(tmp_path):
    limited(tmp_path, "large", r=2)
    limited(tmp_path, "small", r=1)
    limited(tmp_path, "other", r=1)
    add_fake_model(tmp_path, "free")

    async def scenario(w):
        for name in ("small", "large", "other", "free"):
            w.send(name)

        assert w.running() == ["free", "other", "small"]
        for name in ("free", "other"):
            await w.finish(name)
        assert w.running() == ["small"]
        await w.finish("small")
        assert w.running() == ["large"]
        await w.finish("large")

    run(scenario, tmp_path)


def test_several_instances_run_at_one_time_if_there_is_enough(tmp_path):
    limited(tmp_path, "m", count=3)

    async def scenario(w):
        for _ in range(4):
            w.send("m")
        assert len(w.running()) == 2
        pool = w.server.model("m").pool
        assert pool.statistics()["resources_in_use"] == {"r:-1": 2}
        while w.running():
            next(each for each in w.backend.instances if each.executions).answer(Y)
            await asyncio.sleep(0)
        assert pool.statistics()["resources_in_use"] == {}
        assert len(w.answered) == 4

    run(scenario, tmp_path, rate_limit_resource=(("r", 2, None),))


def test_a_callee_that_needs_what_its_caller_holds_runs(tmp_path):
    limited(tmp_path, "caller")
    limited(tmp_path, "callee")

    async def scenario(w):
        caller = w.send("caller")
        w.send("callee", parent=caller.execution)
        assert w.running() == ["callee", "caller"]

        w.send("callee")
        await w.finish("callee")
        assert w.running() == ["caller"]  # which has it back

        await w.finish("caller")
        assert w.running() == ["callee"]
        await w.finish("callee")

    run(scenario, tmp_path)


def test_a_caller_lends_through_models_without_limits_and_ensembles(tmp_path):
    limited(tmp_path, "caller")
    add_fake_model(tmp_path, "between")
    limited(tmp_path, "callee")
    add_fake_ensemble(tmp_path, "e", "callee")

    async def scenario(w):
        caller = w.send("caller")
        between = w.send("between", parent=caller.execution)
        w.send("e", parent=between.execution)
        assert w.running() == ["between", "callee", "caller"]
        for name in ("callee", "between", "caller"):
            await w.finish(name)
        assert all(error is None for _, error in w.answered)

    run(scenario, tmp_path)


def test_a_call_behind_a_clients_request_that_waits_is_no_deadlock(tmp_path):
    limited(tmp_path, "caller")
    add_fake_model(tmp_path, "between")
    limited(tmp_path, "callee")

    async def scenario(w):
        caller = w.send("caller")
        between = w.send("between")
        w.send("callee", parent=between.execution)  # waits for what the caller holds
        assert w.running() == ["between", "caller"]
        w.send("between", parent=caller.execution)  # waits for the instance that waits for the callee
        await asyncio.sleep(0)
        assert w.running() == ["between", "callee", "caller"]
        for name in ("callee", "between", "between", "caller"):
            await w.finish(name)
        assert len(w.answered) == 4

    run(scenario, tmp_path)


def test_a_request_that_is_taken_back_waits_no_longer(tmp_path):
    for name in ("a", "b", "c"):
        limited(tmp_path, name)

    async def scenario(w):
        w.send("a")
        gone = w.send("b")
        w.send("c")
        w.server.cancel(gone)
        await w.finish("a")

        assert w.running() == ["c"]
        await w.finish("c")

    run(scenario, tmp_path)


def test_a_model_that_needs_more_than_there_is_fails_to_load(tmp_path):
    limited(tmp_path, "m", r=3)

    async def scenario(w):
        (entry,) = w.server.repository_index()
        assert entry["reason"] == (
            'Resource count for "r" is limited to 2 which will prevent scheduling of one or more model instances, '
            "the minimum required count is 3"
        )

    run(scenario, tmp_path, rate_limit_resource=(("R", 2, None),), exit_on_error=False)


def test_an_unloaded_model_lets_go_of_what_it_counted_for(tmp_path):
    limited(tmp_path, "large", r=2)
    limited(tmp_path, "a")
    limited(tmp_path, "b")

    async def scenario(w):
        await w.server.unload_model("large")
        limiter = w.server._running()._resources.limiter
        await until(lambda: len(limiter._claims) == 2)
        w.send("a")
        w.send("b")
        assert w.running() == ["a"]
        await w.finish("a")
        await w.finish("b")

    run(scenario, tmp_path, model_control_mode="explicit", load_model=("*",))


def test_batches_that_wait_for_more_requests_take_nothing(tmp_path):
    limited(tmp_path, "slow")
    limited(tmp_path, "b")
    with (tmp_path / "slow" / "config.pbtxt").open("a") as config:
        config.write("max_batch_size: 4\ndynamic_batching { max_queue_delay_microseconds: 20000 }")

    async def scenario(w):
        request = InferenceRequest(
            "slow",
            {"X": Tensor.from_numpy("X", np.zeros((1, 2), np.float32))},
            lambda _, response: w.answered.append(("slow", response.error)),
        )
        w.server.submit(request)
        await asyncio.sleep(0)
        w.send("b")
        assert w.running() == ["b"]
        await w.finish("b")
        await until(lambda: w.running() == ["slow"])
        w.instance("slow").answer({"Y": np.zeros((1, 2), np.float32)})

    run(scenario, tmp_path)


def test_models_that_take_tensors_are_limited_as_well(tmp_path):
    limited(tmp_path, "a")
    limited(tmp_path, "b")
    backend = FakeBackend()
    backend.gate.clear()

    async def scenario(w):
        w.send("a")
        w.send("b")
        await until(lambda: backend.num_executing)
        backend.gate.set()
        await until(lambda: len(w.answered) == 2)
        assert backend.max_executing == 1

    run(scenario, tmp_path, backend)
