"""ModelControl: what the control modes load at start, and what polling does with a repository that changes."""

import asyncio
import logging
import shutil
from contextlib import asynccontextmanager

import pytest

from bireme.engine import lifecycle, load_plan, model_control
from bireme.engine.lifecycle import Lifecycle
from bireme.engine.model_control import ModelControl
from bireme.engine.model_host import ModelHost
from bireme.engine.options import ServerOptions
from bireme.ipc.arena import Arena
from bireme.repository import Catalogue
from bireme.telemetry import ServerMetrics
from bireme.types import Internal
from model_dirs import LoadingBackend, add_fake_model, touch, until


@asynccontextmanager
async def controlled(*roots, backend=None, **settings):
    """Yield control, lifecycle and backend; nothing is loaded yet, and no poll happens by itself."""
    backend = backend or LoadingBackend()
    options = ServerOptions(**settings)
    metrics = ServerMetrics()
    its = Lifecycle(
        Catalogue.open(map(str, roots)),
        options,
        backends={"fake": backend},
        metrics=metrics,
        host=ModelHost(asyncio.get_running_loop(), arena=Arena(1), metrics=metrics, allows_loads=True),
    )
    control = ModelControl(its, options)
    try:
        yield control, its.table, backend
    finally:
        backend.load_gate.set()
        await control.stop_polling()
        await control.wait_for_actions()
        assert await its.close(10)


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch):
    monkeypatch.setattr(model_control, "_SETTLE_S", 0.0)


async def poll(control, times=1):
    for _ in range(times):
        await control.poll()
        await control.wait_for_actions()


@pytest.mark.parametrize(
    ("settings", "loaded"),
    [
        ({}, {"a", "b"}),
        ({"model_control_mode": "poll"}, {"a", "b"}),
        ({"model_control_mode": "explicit"}, set()),
        ({"model_control_mode": "explicit", "load_model": ("*",)}, {"a", "b"}),
        ({"model_control_mode": "explicit", "load_model": ("b", "b")}, {"b"}),
    ],
)
def test_each_mode_loads_its_models_at_start(tmp_path, settings, loaded):
    async def main():
        for name in "ab":
            add_fake_model(tmp_path, name)
        async with controlled(tmp_path, **settings) as (control, table, backend):
            assert await control.load_initial() == {}
            assert set(table.latest) == loaded
            assert len(backend.contexts) == len(loaded)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_bad_models_are_reported_and_the_others_serve(tmp_path, mode):
    async def main():
        a, b = tmp_path / "a", tmp_path / "b"
        for root, name in ((a, "good"), (a, "broken"), (a, "twice"), (b, "twice")):
            add_fake_model(root, name)
        backend = LoadingBackend()
        backend.broken["broken", 1] = Internal("its own reason")
        load_model = ("*",) if mode == "explicit" else ()
        async with controlled(a, b, backend=backend, model_control_mode=mode, load_model=load_model) as (
            control,
            table,
            _,
        ):
            failures = await control.load_initial()
            assert set(failures) == {"broken", "twice"}
            assert "its own reason" in failures["broken"].message
            assert "model appears in two or more repositories" in failures["twice"].message
            assert set(table.latest) == {"good"}
            assert not table.all_settled()
            entries = {entry["name"]: entry for entry in table.index({})}
            assert "version" not in entries["twice"]
            assert entries["twice"]["state"] == "UNAVAILABLE"

    asyncio.run(main())


def test_a_model_named_at_start_that_is_nowhere_is_a_failure(tmp_path):
    async def main():
        settings = {"model_control_mode": "explicit", "load_model": ("nowhere",)}
        async with controlled(tmp_path, **settings) as (control, _, _):
            assert set(await control.load_initial()) == {"nowhere"}

    asyncio.run(main())


def test_polling_follows_the_repository(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with controlled(tmp_path, model_control_mode="poll") as (control, table, backend):
            await control.load_initial()
            first = table.latest["m"]
            await poll(control, 3)
            assert backend.loads_of("m") == [1]

            touch(tmp_path / "m" / "1" / "weights")
            add_fake_model(tmp_path, "n")
            await poll(control)
            assert table.latest == {"m": first}
            await poll(control)
            assert table.latest["m"] is not first
            assert "n" in table.latest

            shutil.rmtree(tmp_path / "m")
            await poll(control)
            assert "m" in table.latest
            await poll(control)
            assert set(table.latest) == {"n"}

    asyncio.run(main())


def test_a_half_copied_model_is_never_loaded(tmp_path):
    async def main():
        async with controlled(tmp_path, model_control_mode="poll") as (control, table, backend):
            await control.load_initial()
            model_dir = add_fake_model(tmp_path, "m", ())
            await poll(control)
            (model_dir / "1").mkdir()
            for size in range(1, 5):
                (model_dir / "1" / "weights").write_bytes(b"x" * size)
                await poll(control)
                assert backend.contexts == []
            await poll(control)
            assert set(table.latest) == {"m"}
            assert backend.loads_of("m") == [1]

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["before the load looks", "while the load reads"])
def test_a_config_that_is_being_written_in_place_is_never_loaded_by_half(tmp_path, monkeypatch, moment):
    """A config that is cut off reads well, and means something else. Between the second look and the load it's anybody's guess."""

    async def main():
        config = add_fake_model(tmp_path, "m", extra="max_batch_size: 2") / "config.pbtxt"
        whole = config.read_text().replace("max_batch_size: 2", "max_batch_size: 4")
        half = whole.removesuffix("max_batch_size: 4")
        begin = load_plan.plan_load if moment.startswith("before") else load_plan.parse_config
        name = begin.__name__

        def write_half(*args, **settings):
            if args[0] == "m" and config.stat().st_size > len(half):
                config.write_text(half)
            return begin(*args, **settings)

        async with controlled(tmp_path, model_control_mode="poll") as (control, table, backend):
            await control.load_initial()
            first = table.latest["m"]
            config.write_text(whole)
            await poll(control)
            with monkeypatch.context() as patch:
                patch.setattr(lifecycle if moment.startswith("before") else load_plan, name, write_half)
                await poll(control)
            assert table.latest["m"] is first
            assert backend.loads_of("m") == [1]
            assert [entry["state"] for entry in table.index({})] == ["READY"]
            assert not next(iter(table.index({}))).get("reason")

            config.write_text(whole)
            await poll(control, 2)
            assert table.latest["m"].max_batch_size == 4
            await poll(control, 3)
            assert len(backend.loads_of("m")) <= 3  # a retry may come, and changes nothing

    asyncio.run(main())


def test_at_start_files_that_are_still_changing_are_left_for_the_polls(tmp_path, monkeypatch):
    async def main():
        for name in ("old", "copied"):
            add_fake_model(tmp_path, name)
        async with controlled(tmp_path, model_control_mode="poll") as (control, table, _):
            monkeypatch.setattr(model_control, "_SETTLE_S", 0.05)
            starting = asyncio.ensure_future(control.load_initial())
            await asyncio.sleep(0.02)
            (tmp_path / "copied" / "1" / "weights").touch()
            assert await starting == {}
            assert set(table.latest) == {"old"}
            await poll(control)
            assert set(table.latest) == {"old", "copied"}

    asyncio.run(main())


def test_a_failed_reload_keeps_the_good_version_and_is_tried_again(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with controlled(tmp_path, model_control_mode="poll") as (control, table, backend):
            await control.load_initial()
            first = table.latest["m"]
            backend.broken["m", 1] = Internal("not today")
            touch(tmp_path / "m" / "1" / "weights")
            await poll(control, 2)
            assert table.latest["m"] is first
            assert "not today" in next(iter(table.index({})))["reason"]
            await poll(control)
            assert backend.loads_of("m") == [1, 1, 1]
            backend.broken.clear()
            await poll(control, 2)
            assert table.latest["m"] is not first

    asyncio.run(main())


def test_a_name_that_becomes_a_duplicate_is_unloaded_and_comes_back(tmp_path):
    async def main():
        a, b = tmp_path / "a", tmp_path / "b"
        add_fake_model(a, "m")
        b.mkdir()
        async with controlled(a, b, model_control_mode="poll") as (control, table, _):
            await control.load_initial()
            add_fake_model(b, "m")
            await poll(control, 2)
            assert table.latest == {}
            reasons = [entry.get("reason", "") for entry in table.index({})]
            assert any("model appears in two or more repositories" in reason for reason in reasons)
            assert not table.all_settled()
            shutil.rmtree(b / "m")
            await poll(control, 2)
            assert set(table.latest) == {"m"}
            assert table.all_settled()

    asyncio.run(main())


def test_a_repository_that_goes_away_takes_no_model_with_it(tmp_path):
    async def main():
        root = tmp_path / "mounted"
        add_fake_model(root, "m")
        async with controlled(root, model_control_mode="poll") as (control, table, backend):
            await control.load_initial()
            root.rename(tmp_path / "away")
            await poll(control, 3)
            assert set(table.latest) == {"m"}
            (tmp_path / "away").rename(root)
            await poll(control, 3)
            assert backend.loads_of("m") == [1]

    asyncio.run(main())


def test_a_slow_load_does_not_hold_up_the_polls(tmp_path):
    async def main():
        async with controlled(tmp_path, model_control_mode="poll") as (control, table, backend):
            await control.load_initial()
            add_fake_model(tmp_path, "slow")
            await poll(control)
            backend.load_gate.clear()
            await control.poll()
            await until(lambda: backend.num_loading == 1)
            add_fake_model(tmp_path, "bad")
            (tmp_path / "bad" / "config.pbtxt").write_text("no config")
            await control.poll()
            await control.poll()
            await until(lambda: "bad" in table.records and table.records["bad"].reason)
            assert "slow" not in table.latest
            backend.load_gate.set()
            await control.wait_for_actions()
            assert "slow" in table.latest

    asyncio.run(main())


def test_polls_come_by_themselves_and_survive_a_bad_one(tmp_path, monkeypatch, caplog):
    async def main():
        settings = {"model_control_mode": "poll", "repository_poll_secs": 0.005}
        async with controlled(tmp_path, **settings) as (control, table, _):
            await control.load_initial()
            looks = control._catalogue.take_snapshot
            faults = [ValueError("a bug")]

            def look():
                if faults:
                    raise faults.pop()
                return looks()

            monkeypatch.setattr(control._catalogue, "take_snapshot", look)
            control.start_polling()
            add_fake_model(tmp_path, "m")
            await until(lambda: "m" in table.latest)
            assert not faults

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "failed to poll the model repositories" in caplog.text


@pytest.mark.parametrize("settings", [{}, {"model_control_mode": "poll", "repository_poll_secs": 0}])
def test_there_is_no_polling_unless_asked_for(tmp_path, settings):
    async def main():
        async with controlled(tmp_path, **settings) as (control, _, _):
            control.start_polling()
            assert control._polling is None

    asyncio.run(main())


def test_an_empty_repository_is_worth_a_warning(tmp_path, caplog):
    async def main():
        async with controlled(tmp_path) as (control, _, _):
            assert await control.load_initial() == {}

    asyncio.run(main())
    assert caplog.messages == [f"no models in '{tmp_path}': a model is a directory such as NAME/1/model.onnx"]
