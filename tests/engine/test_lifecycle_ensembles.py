"""Lifecycle of ensembles: they load after their composing models, and follow these as they change."""

import asyncio
import json

import pytest

from bireme.types import InvalidArgument, NotFound
from ensemble_world import run, with_type
from model_dirs import add_fake_ensemble, add_fake_model, touch, until

ALL = "version_policy { all {} }"


# Loading.


def test_a_load_of_an_ensemble_loads_what_it_consists_of_first(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "inner", "a", "b")
    add_fake_ensemble(tmp_path, "outer", "inner", "a")

    async def scenario(w):
        await w.load("outer")
        assert w.ready() == ["a", "b", "inner", "outer"]
        assert [w.backend.loads_of(name) for name in "ab"] == [[1], [1]]
        assert w.ensembles.loads == ["inner", "outer"]
        assert (await w.ask("outer")).outputs[0].to_numpy().tolist() == [1, 1]
        records = w.table.records
        assert [records[name].is_explicit for name in ("outer", "inner", "a")] == [True, False, False]

    run(scenario, tmp_path)


def test_models_that_serve_already_are_left_as_they_are(tmp_path):
    model_dir = add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        await w.load("a")
        touch(model_dir / "1" / "weights")
        await w.load("e")
        assert w.backend.loads_of("a") == [1]

    run(scenario, tmp_path)


def test_models_loaded_together_load_once_each_and_in_order(tmp_path):
    names = [*"abcd", "e1", "e2", "e3"]
    for name in "abcd":
        add_fake_model(tmp_path, name)
    add_fake_ensemble(tmp_path, "e1", "e2", "a")
    add_fake_ensemble(tmp_path, "e2", "b", "e3")
    add_fake_ensemble(tmp_path, "e3", "a", "c")

    async def scenario(w):
        w.backend.load_gate.clear()
        loading = asyncio.ensure_future(w.lifecycle.load_all(names))
        await until(lambda: w.backend.num_loading == 4)
        assert w.ensembles.loads == []
        w.backend.load_gate.set()
        assert await loading == {}
        assert sorted(ctx.name for ctx in w.backend.contexts) == [*"abcd"]
        assert w.ensembles.loads == ["e3", "e2", "e1"]
        assert w.table.all_settled()

    run(scenario, tmp_path)


def test_a_model_that_fails_is_tried_once_for_all_that_need_it(tmp_path):
    for name in "ab":
        add_fake_model(tmp_path, name)
        add_fake_ensemble(tmp_path, f"with_{name}", name, "broken")
    add_fake_model(tmp_path, "broken")

    async def scenario(w):
        w.backend.broken["broken", 1] = InvalidArgument("no weights")
        failures = await w.lifecycle.load_all(["broken", "with_a", "with_b", "a", "b"])
        assert sorted(failures) == ["broken", "with_a", "with_b"]
        assert (
            "version 1 is at UNAVAILABLE state: ensemble 'with_a' depends on 'broken', which failed to load: load failed "
            "for model 'broken': version 1 is at UNAVAILABLE state: no weights"
        ) in failures["with_a"].message
        assert w.backend.loads_of("broken") == [1]
        assert not w.table.all_settled()
        del w.backend.broken["broken", 1]
        await w.load("broken")
        assert w.ready() == ["a", "b", "broken", "with_a", "with_b"]
        assert w.table.all_settled()

    run(scenario, tmp_path)


def test_a_slow_composing_model_holds_up_nobody_else(tmp_path):
    add_fake_model(tmp_path, "slow")
    add_fake_ensemble(tmp_path, "waiting", "slow")
    add_fake_ensemble(tmp_path, "quick", "a")
    add_fake_model(tmp_path, "a")

    async def scenario(w):
        await w.load("quick")
        w.backend.load_gate.clear()
        loading = asyncio.ensure_future(w.load("waiting"))
        await until(lambda: w.backend.num_loading == 1)
        assert w.state("waiting") == "LOADING"
        await w.unload("quick")
        await w.load("quick")
        await w.unload("a")
        w.backend.load_gate.set()
        await loading
        assert w.ready() == ["slow", "waiting"]

    run(scenario, tmp_path)


def test_what_is_missing_is_named_and_waited_for(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a", "later")

    async def scenario(w):
        message = await w.failing_load("e")
        assert "ensemble 'e' depends on 'later', which failed to load: failed to load 'later'" in message
        assert "not found in any model repository" in message
        assert w.state("e") == "UNAVAILABLE"
        assert w.ready() == ["a"]
        add_fake_model(tmp_path, "later")
        await w.load("later")
        await w.ask("e")

    run(scenario, tmp_path)


def test_what_waits_becomes_what_its_last_load_wanted(tmp_path):
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        config = {
            "platform": "ensemble",
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
            "ensemble_scheduling": {
                "step": [{"model_name": "a", "input_map": {"X": "IN"}, "output_map": {"Y": "OUT"}}]
            },
        }
        await w.failing_load("e", json.dumps(config))
        add_fake_ensemble(tmp_path, "e", "other")
        add_fake_model(tmp_path, "a")
        await w.load("a")
        assert [tensor.name for tensor in w.table.latest["e"].config.input] == ["IN"]

    run(scenario, tmp_path)


def test_a_version_that_is_missing_is_waited_for(tmp_path):
    add_fake_model(tmp_path, "a", (1, 2))
    add_fake_ensemble(tmp_path, "e", "a:1")

    async def scenario(w):
        message = await w.failing_load("e")
        assert "ensemble 'e' depends on 'a' version 1, which is not loaded (ready: 2)" in message
        add_fake_model(tmp_path, "a", extra=ALL)
        await w.load("a")
        assert w.ready() == ["a", "e"]
        add_fake_model(tmp_path, "a")
        await w.load("a")
        assert w.ready() == ["a"]
        assert not w.table.all_settled()

    run(scenario, tmp_path)


def test_a_circle_is_told_by_all_who_are_in_it(tmp_path):
    add_fake_ensemble(tmp_path, "e", "f")
    add_fake_ensemble(tmp_path, "f", "g")
    add_fake_ensemble(tmp_path, "g", "e")
    add_fake_ensemble(tmp_path, "self", "self")
    add_fake_model(tmp_path, "a")

    async def scenario(w):
        failures = await w.lifecycle.load_all(["e", "f", "g", "self"])
        assert sorted(failures) == ["e", "f", "g", "self"]
        assert all("circular dependency between ensembles: '" in error.message for error in failures.values())
        assert "circular dependency between ensembles: 'self' -> 'self'" in failures["self"].message
        assert "circular dependency" in await w.failing_load("f")
        add_fake_ensemble(tmp_path, "g", "a")
        await w.load("g")
        assert w.ready() == ["a", "e", "f", "g"]

    run(scenario, tmp_path)


def test_an_ensemble_that_serves_does_not_come_into_a_circle(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "inner", "a")
    add_fake_ensemble(tmp_path, "outer", "inner")

    async def scenario(w):
        await w.load("outer")
        add_fake_ensemble(tmp_path, "inner", "outer")
        assert "circular dependency between ensembles: 'inner' -> 'outer' -> 'inner'" in await w.failing_load(
            "inner"
        )
        await w.ask("outer")
        touch(tmp_path / "a" / "1" / "weights")
        await w.load("a")
        await w.ask("outer")

    run(scenario, tmp_path)


def test_without_a_version_directory_it_is_version_1(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a", versions=())

    async def scenario(w):
        await w.load("e")
        assert list(w.table.records["e"].ready_versions) == [1]
        loads = list(w.ensembles.loads)
        await w.load("e")
        assert w.ensembles.loads == loads

    run(scenario, tmp_path)


def test_it_answers_as_its_steps_do_even_without_auto_completion(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a", extra="model_transaction_policy { decoupled: true }")

    async def scenario(w):
        await w.load("e")
        assert not w.table.latest["e"].is_decoupled

    run(scenario, tmp_path, disable_auto_complete_config=True)


def test_a_load_by_a_model_that_is_itself_being_loaded_for_the_ensemble(tmp_path):
    for name in "ab":
        add_fake_model(tmp_path, name)
    add_fake_ensemble(tmp_path, "e", "a", "b")

    async def scenario(w):
        loop = asyncio.get_running_loop()
        load = w.backend.load

        def load_b_first(ctx):
            if ctx.name == "a":
                asyncio.run_coroutine_threadsafe(ctx.host.load_model("b", None, None), loop).result(10)
            return load(ctx)

        w.backend.load = load_b_first
        await w.load("e")
        assert w.ready() == ["a", "b", "e"]
        await w.load("b")
        assert w.backend.loads_of("b") == [1]

    run(scenario, tmp_path)


def test_a_stop_ends_the_wait_for_a_composing_model(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        w.backend.load_gate.clear()
        loading = asyncio.ensure_future(w.failing_load("e"))
        await until(lambda: w.backend.num_loading == 1)
        closing = asyncio.ensure_future(w.lifecycle.close(10))
        await asyncio.sleep(0)
        w.backend.load_gate.set()
        assert await closing
        assert "the server is stopping" in await loading

    run(scenario, tmp_path)


# Composing models that change.


def test_new_weights_of_a_composing_model_leave_the_ensemble_alone(tmp_path):
    model_dir = add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        await w.load("e")
        ensemble = w.table.latest["e"]
        touch(model_dir / "1" / "weights")
        await w.load("a")
        assert w.table.latest["e"] is ensemble
        await w.ask("e")

    run(scenario, tmp_path)


def test_an_ensemble_that_still_fits_goes_on_with_its_statistics(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "inner", "a")
    add_fake_ensemble(tmp_path, "outer", "inner", "b")

    async def scenario(w):
        await w.load("outer")
        before = w.table.latest["inner"]
        await w.ask("outer")
        add_fake_model(tmp_path, "a", extra='parameters { key: "k" value { string_value: "v" } }')
        await w.load("a")
        assert w.table.latest["inner"] is not before
        assert w.ensembles.loads == ["inner", "outer", "inner"]  # "inner" looks as before from outside
        await w.ask("outer")
        for name in ("inner", "outer"):
            assert w.table.latest[name].statistics.to_json()["inference_stats"]["success"]["count"] == 2

    run(scenario, tmp_path)


def test_an_ensemble_that_no_longer_fits_is_unavailable_until_it_does(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "inner", "a", "b")
    add_fake_ensemble(tmp_path, "outer", "inner")

    async def scenario(w):
        await w.load("outer")
        with_type(tmp_path, "a", "INT64")
        await w.load("a")
        assert w.ready() == ["a", "b"]
        await until(lambda: w.state("outer") == "UNAVAILABLE")
        assert "inconsistent data type" in w.reason("inner")
        assert "depends on 'inner', which is not ready: version 1 is" in w.reason("outer")
        assert not w.table.all_settled()
        with pytest.raises(NotFound, match=r"'outer' has no available versions.*depends on 'inner'"):
            w.send("outer")
        with_type(tmp_path, "a", "FP32")
        await w.load("a")
        assert w.ready() == ["a", "b", "inner", "outer"]
        assert w.table.all_settled()
        await w.ask("outer")

    run(scenario, tmp_path)


def test_of_two_models_that_change_together_the_last_one_decides(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "e", "a", "b")

    async def scenario(w):
        await w.load("e")
        ensemble = w.table.latest["e"]
        with_type(tmp_path, "a", "INT64", tensor="Y")
        with_type(tmp_path, "b", "INT64", tensor="X")
        assert await w.lifecycle.load_all("ab") == {}
        assert w.table.latest["e"].statistics is ensemble.statistics  # it never went

    run(scenario, tmp_path)


def test_a_reload_of_a_composing_model_that_fails_changes_nothing(tmp_path):
    model_dir = add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        await w.load("e")
        ensemble = w.table.latest["e"]
        w.backend.broken["a", 1] = InvalidArgument("no weights")
        touch(model_dir / "1" / "weights")
        await w.failing_load("a")
        assert w.table.latest["e"] is ensemble
        await w.ask("e")

    run(scenario, tmp_path)


# Ensembles that change.


def test_a_failed_reload_leaves_what_served(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        await w.load("e")
        add_fake_ensemble(tmp_path, "e", "a", "missing")
        await w.failing_load("e")
        assert w.reason("e").startswith(
            "the last load failed, what was loaded before keeps serving: ensemble 'e'"
        )
        add_fake_model(tmp_path, "a", extra='parameters { key: "k" value { string_value: "v" } }')
        await w.load("a")  # what serves is validated again, and the newer config is not forgotten
        assert w.reason("e").startswith(
            "the last load failed, what was loaded before keeps serving: ensemble 'e'"
        )
        await w.ask("e")
        add_fake_model(tmp_path, "missing")
        await w.load("missing")
        assert w.reason("e") == ""
        assert len(w.table.latest["e"].config.ensemble_scheduling.step) == 2
        await w.ask("e")

    run(scenario, tmp_path)


def test_after_a_failed_reload_what_served_goes_when_it_no_longer_fits(tmp_path):
    add_fake_model(tmp_path, "a")
    add_fake_model(tmp_path, "b")
    add_fake_ensemble(tmp_path, "e", "a", "b")

    async def scenario(w):
        await w.load("e")
        add_fake_ensemble(tmp_path, "e", "b", "missing")
        await w.failing_load("e")
        with_type(tmp_path, "a", "INT64")
        await w.load("a")
        assert w.ready() == ["a", "b"]
        add_fake_model(tmp_path, "missing")
        await w.load("missing")
        await w.ask("e")

    run(scenario, tmp_path)


def test_what_an_ensemble_no_longer_consists_of_does_not_concern_it(tmp_path):
    for name in "ab":
        add_fake_model(tmp_path, name)
    add_fake_ensemble(tmp_path, "e", "a")

    async def scenario(w):
        await w.load("e")
        add_fake_ensemble(tmp_path, "e", "b")
        await w.load("e")
        await w.unload("a")
        await w.ask("e")

    run(scenario, tmp_path)
