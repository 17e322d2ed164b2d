"""Unloading and polling: ensembles go with their composing models, come back with them, and may take them along."""

import asyncio
import logging
import random
import shutil

import pytest

from bireme.engine.model_control import ModelControl
from bireme.engine.options import ServerOptions
from bireme.types import NotFound
from ensemble_world import run, with_type, world
from model_dirs import add_fake_ensemble, add_fake_model, until


def test_an_ensemble_goes_with_a_composing_model_and_comes_back_with_it(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "inner", "a", "b")
    add_fake_ensemble(tmp_path, "outer", "inner")

    async def scenario(w):
        await w.load("outer")
        await w.unload("b")
        assert w.ready() == ["a"]
        assert w.table.all_settled()
        await until(lambda: {w.state(name) for name in ("b", "inner", "outer")} == {"UNAVAILABLE"})
        assert w.reason("b") == "unloaded"
        assert w.reason("inner") == "unloaded: ensemble 'inner' depends on 'b', which was unloaded"
        assert w.reason("outer") == "unloaded: ensemble 'outer' depends on 'inner', which was unloaded"
        assert w.table.all_settled()
        await w.load("b")
        assert w.ready() == ["a", "b", "inner", "outer"]
        await w.ask("outer")

    run(scenario, tmp_path)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_an_ensemble_that_was_unloaded_does_not_come_back_by_itself(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        await w.load("e")
        await w.unload("a")
        await w.unload("e")
        await until(lambda: w.reason("e") == "unloaded")
        await w.load("a")
        assert w.ready() == ["a"]
        await w.unload("a")
        await w.load("e")
        assert w.ready() == ["a", "e"]

    run(scenario, tmp_path)


def test_requests_in_flight_finish_when_a_composing_model_is_unloaded(tmp_path):
    for name in "abc":
        add_fake_model(tmp_path, name)
    add_fake_ensemble(tmp_path, "inner", "b", "c")
    add_fake_ensemble(tmp_path, "outer", "a", "inner")

    async def scenario(w):
        await w.load("outer")
        w.backend.gate.clear()
        w.send("outer")
        await until(lambda: w.backend.num_executing == 1)
        for name in ("c", "b", "inner"):
            await w.unload(name)
        assert w.ready() == ["a"]
        for name in ("c", "inner", "outer"):
            with pytest.raises(NotFound):
                w.send(name)
            assert w.state(name) == "UNLOADING"
        w.backend.gate.set()
        await until(lambda: w.answers)
        assert w.answers[0].error is None, w.answers[0].error
        await until(lambda: {w.state(name) for name in ("b", "c", "inner", "outer")} == {"UNAVAILABLE"})
        assert w.backend.num_open_models == 1

    run(scenario, tmp_path)


def test_a_model_that_is_loaded_again_takes_over_from_the_one_that_lingers(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a", "a")

    async def scenario(w):
        await w.load("e")
        w.backend.gate.clear()
        w.send("e")
        await until(lambda: w.backend.num_executing == 1)
        await w.unload("a")
        await w.load("a")
        assert w.ready() == ["a", "e"]
        w.backend.gate.set()
        await until(lambda: w.answers)
        assert w.answers[0].error is None
        await until(lambda: w.backend.num_open_models == 1)

    run(scenario, tmp_path)


def test_an_unload_does_not_wait_for_the_load_of_an_ensemble(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "slow")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        await w.load("e")
        add_fake_ensemble(tmp_path, "e", "a", "slow")
        w.backend.load_gate.clear()
        loading = asyncio.ensure_future(w.failing_load("e"))
        await until(lambda: w.backend.num_loading == 1)
        await asyncio.wait_for(w.unload("a"), 5)
        await w.ask("e")  # what serves until the load has ended
        w.backend.load_gate.set()
        assert "'e' depends on 'a', which was unloaded" in await loading
        assert w.ready() == ["slow"]
        await w.load("a")
        assert w.ready() == ["a", "e", "slow"]

    run(scenario, tmp_path)


def test_unload_dependents_takes_what_was_loaded_for_the_ensemble_alone(tmp_path):
    for name in ("own", "shared", "asked", "deep", "asked_later"):
        add_fake_model(tmp_path, name)
    add_fake_ensemble(tmp_path, "inner", "deep", "shared")
    add_fake_ensemble(tmp_path, "e", "own", "shared", "asked", "inner", "asked_later")
    add_fake_ensemble(tmp_path, "other", "shared")

    async def scenario(w):
        await w.load("asked")
        await w.lifecycle.load_all(["e", "other"])
        await w.load("asked_later")
        await w.unload("e", unload_dependents=True)
        assert w.ready() == ["asked", "asked_later", "other", "shared"]
        await w.unload("other")
        assert "shared" in w.ready()
        await w.load("other")
        await w.host.unload_model("other", unload_dependents=True)
        assert w.ready() == ["asked", "asked_later"]

    run(scenario, tmp_path)


def test_unload_dependents_of_a_circle_ends(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "f", "a")
    add_fake_ensemble(tmp_path, "f", "e", "a")

    async def scenario(w):
        await w.failing_load("e")
        await w.unload("e", unload_dependents=True)
        assert w.ready() == []
        assert w.table.all_settled()

    run(scenario, tmp_path)


# Polling.


async def poll(control, times=2):
    for _ in range(times):
        await control.poll()
        await control.wait_for_actions()


def polled(scenario, root):
    async def main():
        async with world(root, model_control_mode="poll") as w:
            control = ModelControl(w.lifecycle, ServerOptions(model_control_mode="poll"))
            await poll(control)
            await scenario(w, control)

    asyncio.run(main())


def test_polling_handles_composing_models_as_loads_and_unloads_do(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "e", "a", "b")

    async def scenario(w, control):
        assert w.ready() == ["a", "b", "e"]
        assert w.ensembles.loads == ["e"]
        with_type(tmp_path, "a", "INT64")
        await poll(control)
        assert w.ready() == ["a", "b"]
        with_type(tmp_path, "a", "FP32")
        await poll(control)
        assert w.ready() == ["a", "b", "e"]
        shutil.rmtree(tmp_path / "b")
        await poll(control)
        assert w.ready() == ["a"]
        assert w.table.all_settled()
        add_fake_model(tmp_path, "b")
        await poll(control)
        await w.ask("e")

    polled(scenario, tmp_path)


def test_polling_loads_no_composing_model_that_is_still_being_copied(tmp_path):
    add_fake_ensemble(tmp_path, "e", "copied")

    async def scenario(w, control):
        assert w.ready() == []
        assert w.reason("e") == "ensemble 'e' depends on 'copied', which is not loaded"
        model_dir = add_fake_model(tmp_path, "copied")
        for size in range(1, 4):  # the ensemble is tried again meanwhile
            (model_dir / "1" / "weights").write_bytes(b"x" * size)
            await poll(control, 1)
        assert w.backend.contexts == []
        await poll(control)
        assert w.ready() == ["copied", "e"]

    polled(scenario, tmp_path)


def test_an_ensemble_that_gives_up_a_model_outlives_its_deletion(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w, control):
        statistics = w.table.latest["e"].statistics
        add_fake_ensemble(tmp_path, "e", "b")
        shutil.rmtree(tmp_path / "a")
        await poll(control)
        assert w.ready() == ["b", "e"]
        assert w.table.latest["e"].statistics is statistics  # it never went

    polled(scenario, tmp_path)


# Anything at once.

MODELS = "abc"
ENSEMBLES = {"e": ("a", "b"), "f": ("e", "c"), "g": ("f", "a"), "h": ("c", "g")}
NAMES = [*MODELS, *ENSEMBLES]


def write_all(root):
    for name in MODELS:
        add_fake_model(root, name)
    for name, members in ENSEMBLES.items():
        add_fake_ensemble(root, name, *members)


async def do_something(w, chance):
    await asyncio.sleep(chance.random() / 200)
    name = chance.choice(NAMES)
    kind = chance.randrange(5)
    if kind == 0:
        await w.lifecycle.load_all(chance.sample(NAMES, 3))
    elif kind <= 2:
        await w.unload(name, unload_dependents=chance.random() < 0.3)
    elif name in MODELS:
        with_type(w.root, name, chance.choice(("FP32", "INT64")))
        await w.lifecycle.load_all([name])
    else:  # a good config or a bad one, perhaps a circle
        add_fake_ensemble(w.root, name, *chance.choice((ENSEMBLES[name], ("a",), ("h",))))
        await w.lifecycle.load_all([name])


async def check_all(w):
    """What serves fits what it consists of, and what could serve does."""
    for name, record in w.table.records.items():
        assert not w.table.has_changed(record.members)
        if record.failed is not None and "circular" not in record.failed.reason:
            assert not w.table.has_changed(record.failed.members)
        if record.members and record.ready_versions:
            await w.ask(name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_at_once_nothing_hangs_and_what_serves_fits(tmp_path, seed):
    chance = random.Random(seed)
    write_all(tmp_path)

    async def scenario(w):
        for _ in range(20):
            async with asyncio.timeout(10):
                await asyncio.gather(*(do_something(w, chance) for _ in range(5)))
            await check_all(w)
        write_all(tmp_path)
        await w.lifecycle.load_all(NAMES)
        assert w.ready() == sorted(NAMES)
        assert w.table.all_settled()

    run(scenario, tmp_path)
