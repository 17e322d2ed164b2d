"""Models with a response cache in a whole server: what is answered without them, and what never is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from bireme import Server
from bireme.testing import FakeBackend
from bireme.types import (
    BackendFailed,
    BiremeError,
    Cancelled,
    InferenceRequest,
    InvalidArgument,
    QueueFull,
    Tensor,
)
from cached_servers import BATCHED, CACHED, LARGE, LOCAL, ask, figures, serve, submit
from model_dirs import add_fake_model, touch, until


@pytest.mark.parametrize("value", [(1.0, 2.0), LARGE], ids=["small", "large"])
@pytest.mark.parametrize("extra", [CACHED, BATCHED], ids=["direct", "batched"])
def test_the_same_question_runs_the_model_once(tmp_path, extra, value):
    add_fake_model(tmp_path, "m", extra=extra)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        x = np.asarray(value, np.float32)
        x = x[None] if extra is BATCHED else x
        first, second, third = [await ask(server, x) for _ in range(3)]

        assert first == second == third == (x * 2).tolist()
        assert len(fake.batches) == 1
        assert figures(server) == {
            "success": 3,
            "fail": 0,
            "queue": 3,
            "compute_input": 1,
            "compute_infer": 1,
            "compute_output": 1,
            "cache_hit": 2,
            "cache_miss": 1,
            "inferences": 1,
            "executions": 1,
        }
        assert server.model("m").statistics.num_pending == server.model("m").statistics.num_executing == 0

    serve(tmp_path, scenario)


def test_a_hit_copies_nothing_and_belongs_to_who_asks(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, _: FakeBackend) -> None:
        await ask(server, LARGE)
        first = await server.ainfer("m", {"X": LARGE}, id="a")
        second = await server.ainfer("m", {"X": LARGE}, id="b")

        assert (first.id, second.id) == ("a", "b")
        assert np.shares_memory(first["Y"], second["Y"])
        assert first.model_version == 1

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    "other",
    [
        {"value": (1, 3)},
        {"value": ((1, 2),)},
        {"parameters": {"p": 1}},
    ],
    ids=str,
)
def test_another_question_is_not_answered_by_it(tmp_path, other):
    add_fake_model(tmp_path, "m", extra=CACHED)
    config = (tmp_path / "m" / "config.pbtxt").read_text().replace("dims: [ -1 ]", "dims: [ -1, -1 ]")
    (tmp_path / "m" / "config.pbtxt").write_text(config)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        value = np.asarray(other.get("value", (1, 2)), np.float32)
        settings = {key: other[key] for key in other if key != "value"}
        await ask(server, ((1,), (2,)))
        await ask(server, value.reshape(1, -1) if value.ndim < 2 else value, **settings)

        assert len(fake.batches) == 2
        assert figures(server)["cache_hit"] == 0

    serve(tmp_path, scenario)


def test_other_outputs_are_another_question(tmp_path):
    path = add_fake_model(tmp_path, "m", extra=CACHED)
    config = (path / "config.pbtxt").read_text()
    (path / "config.pbtxt").write_text(config + 'output [{ name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }]')

    async def scenario(server: Server, fake: FakeBackend) -> None:
        fake.run = lambda inputs: {"Y": inputs["X"], "Z": inputs["X"] * 2}
        for outputs in (["Y"], ["Z"], None, ["Y"], ["Z"], ["Z", "Y"]):
            found = await server.ainfer("m", {"X": [1]}, outputs=outputs)

            assert sorted(found) == sorted(outputs or ["Y", "Z"])
        assert len(fake.batches) == 3

    serve(tmp_path, scenario)


def test_errors_are_never_kept(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        fake.execute_error = ValueError("not today")
        for _ in range(2):
            with pytest.raises(BackendFailed, match="not today"):
                await ask(server)
        fake.execute_error = None

        assert await ask(server) == [2, 4]
        assert figures(server) | {"fail": 2, "cache_miss": 3, "cache_hit": 0} == figures(server)

    serve(tmp_path, scenario)


def test_what_does_not_fit_the_model_is_refused_before_it_is_looked_up(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, _: FakeBackend) -> None:
        with pytest.raises(InvalidArgument):
            await ask(server, outputs=["Z"])

        assert figures(server)["cache_miss"] == 0

    serve(tmp_path, scenario)


def test_a_model_that_does_not_ask_for_it_has_no_cache(tmp_path):
    add_fake_model(tmp_path, "m")

    async def scenario(server: Server, fake: FakeBackend) -> None:
        await ask(server)
        await ask(server)

        assert len(fake.batches) == 2
        assert 'nv_cache_num_hits_per_model{model="m"' not in server.metrics.expose().decode()

    serve(tmp_path, scenario)


def test_a_server_without_a_cache_says_so_and_runs_the_model(tmp_path, caplog):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        await ask(server)
        await ask(server)

        assert len(fake.batches) == 2
        assert "this server has no cache (--cache-config)" in caplog.text
        assert "nv_cache" not in server.metrics.expose().decode()

    serve(tmp_path, scenario, cache={})


@pytest.mark.parametrize(
    ("extra", "refused"),
    [
        ("sequence_batching { }", "sequence batching"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
    ],
)
def test_models_with_sequences_or_many_responses_cannot_have_one(tmp_path, extra, refused):
    add_fake_model(tmp_path, "m", extra=f"{CACHED} {extra}")

    async def main() -> None:
        with pytest.raises(BiremeError, match=f"does not currently support model m with.*{refused}"):
            await Server(tmp_path, backends={"fake": FakeBackend()}, cache_config=LOCAL).start()

    asyncio.run(main())


def test_a_reload_forgets_what_the_old_version_said(tmp_path):
    path = add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        await ask(server)
        fake.run = lambda inputs: {"Y": inputs["X"] * 3}
        assert await ask(server) == [2, 4]
        touch(path / "1" / "model.bin")
        await server.load_model("m")

        assert await ask(server) == [3, 6]
        assert await ask(server) == [3, 6]
        assert figures(server)["cache_hit"] == 2  # the version never stopped serving, so it counts on

    serve(tmp_path, scenario, model_control_mode="explicit", load_model=("m",))


def test_a_reload_may_switch_the_cache_on_and_off(tmp_path):
    path = add_fake_model(tmp_path, "m")

    async def scenario(server: Server, fake: FakeBackend) -> None:
        for extra, num_runs in ((CACHED, 1), ("", 3), (CACHED, 4)):
            add_fake_model(tmp_path, "m", extra=extra)
            touch(path / "config.pbtxt")
            await server.load_model("m")
            await ask(server)
            await ask(server)

            assert len(fake.batches) == num_runs

    serve(tmp_path, scenario, model_control_mode="explicit", load_model=("m",))


def test_versions_do_not_share_answers(tmp_path):
    add_fake_model(tmp_path, "m", versions=(1, 2), extra=f"{CACHED} version_policy {{ all {{ }} }}")

    async def scenario(server: Server, fake: FakeBackend) -> None:
        await ask(server, version=1)
        await ask(server, version=2)
        await ask(server)  # the latest: 2

        assert len(fake.batches) == 2

    serve(tmp_path, scenario)


def test_entries_go_when_there_is_no_room(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        for value in range(10):
            await ask(server, [value])
        await ask(server, [9])
        await ask(server, [0])

        assert len(fake.batches) == 11
        page = server.metrics.expose().decode()
        assert "bireme_cache_entries 3\n" in page
        assert "bireme_cache_evictions_total 8\n" in page

    serve(tmp_path, scenario, cache={"local": {"size": 2000}})


def test_the_metrics_page_shows_the_models_and_the_cache(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, _: FakeBackend) -> None:
        for _call in range(3):
            await ask(server)
        page = server.metrics.expose().decode().splitlines()

        for line in (
            'nv_cache_num_hits_per_model{model="m",version="1"} 2',
            'nv_cache_num_misses_per_model{model="m",version="1"} 1',
            'nv_inference_request_success{model="m",version="1"} 3',
            'nv_inference_count{model="m",version="1"} 1',
            "nv_cache_num_lookups 3",
            "nv_cache_num_hits 2",
            "nv_cache_num_misses 1",
            "nv_cache_num_entries 1",
            "bireme_cache_hits_total 2",
            "bireme_cache_limit_bytes 10000000",
        ):
            assert line in page
        assert any(line.startswith("nv_cache_hit_duration_per_model{") for line in page)
        assert not any("summary_per_model{" in line for line in page)

    serve(tmp_path, scenario)


def test_an_unloaded_model_is_gone_without_a_collection(tmp_path, monkeypatch):
    add_fake_model(tmp_path, "m", extra=CACHED)
    monkeypatch.setattr(gc, "collect", lambda *_: 0)

    async def scenario(server: Server, _: FakeBackend) -> None:
        await ask(server)
        await ask(server, LARGE)
        await ask(server, LARGE)
        model = weakref.ref(server.model("m"))
        await server.unload_model("m")
        await until(lambda: model() is None)

    gc.disable()
    try:
        serve(tmp_path, scenario, model_control_mode="explicit", load_model=("m",))
    finally:
        gc.enable()


# What waits for a thread


def test_a_request_that_is_looked_up_beside_can_be_cancelled(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        answers: list[Any] = []
        request = submit(server, LARGE, answers)
        server.cancel(request)

        assert [type(answer.error) for answer in answers] == [Cancelled]
        await until(lambda: server.model("m").num_in_flight == 0)
        await asyncio.sleep(0.02)
        assert not fake.batches
        assert len(answers) == 1
        assert figures(server)["fail"] == 1

    serve(tmp_path, scenario)


def test_a_full_queue_answers_one_that_comes_from_a_thread(tmp_path):
    add_fake_model(
        tmp_path,
        "m",
        extra=CACHED + "dynamic_batching { default_queue_policy { max_queue_size: 1 } } max_batch_size: 1",
    )

    async def scenario(server: Server, fake: FakeBackend) -> None:
        fake.gate.clear()
        answers: list[Any] = []
        for value in range(3):
            submit(server, LARGE[None] * value, answers)
            await asyncio.sleep(0.02)
        await until(lambda: answers)

        assert [type(answer.error) for answer in answers] == [QueueFull]
        fake.gate.set()
        await until(lambda: len(answers) == 3)
        assert figures(server) | {"success": 2, "fail": 1} == figures(server)

    serve(tmp_path, scenario)


def test_a_stop_waits_for_it(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, _: FakeBackend) -> None:
        answers: list[Any] = []
        submit(server, LARGE, answers)
        await server.stop()

        assert [answer.error for answer in answers] == [None]

    serve(tmp_path, scenario)


def test_order_is_kept_between_hits_and_misses(tmp_path):
    add_fake_model(tmp_path, "m", extra=BATCHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        await ask(server, [[1]])
        fake.gate.clear()
        answers: list[Any] = []
        submit(server, [[2]], answers)  # has to run
        submit(server, [[1]], answers)  # is there
        await until(lambda: fake.num_executing == 1)
        assert not answers
        fake.gate.set()
        await until(lambda: len(answers) == 2)

        assert [answer.outputs[0].to_numpy().tolist() for answer in answers] == [[[4]], [[2]]]

    serve(tmp_path, scenario)


def test_a_chain_of_hits_needs_no_deep_stack(tmp_path):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        await ask(server, [1])
        done = asyncio.get_running_loop().create_future()
        num_left = [5000]

        def again(*_: object) -> None:
            num_left[0] -= 1
            if num_left[0] == 0:
                done.set_result(None)
                return
            server.submit(InferenceRequest("m", {"X": Tensor.from_numpy("X", np.ones(1, np.float32))}, again))

        again()
        await done

        assert len(fake.batches) == 1
        assert figures(server)["cache_hit"] == 4999

    serve(tmp_path, scenario)
