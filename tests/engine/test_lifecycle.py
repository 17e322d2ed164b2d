"""Lifecycle: loads, hot swaps, failures and unloads, with models that fail and wait where they are told to."""

import asyncio
import json
import logging
import weakref

import pytest

from bireme.backends.registry import available_backends
from bireme.engine.load_plan import LoadOverride
from bireme.types import (
    BackendFailed,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from lifecycle_world import FakeWorld, world_of
from model_dirs import add_fake_model, touch, until

ALL = "version_policy { all {} }"


class World(FakeWorld):
    """A lifecycle over one repository of fake models."""

    async def load(self, name="m", config=None, files=None):
        await self.lifecycle.load(name, LoadOverride(config, files or {}))

    async def failing_load(self, name="m", **override):
        with pytest.raises(InvalidArgument) as caught:
            await self.load(name, **override)
        return caught.value.message

    def states(self):
        return {
            (entry["name"], int(entry.get("version", 0))): (entry.get("state"), entry.get("reason"))
            for entry in self.table.index({})
        }


def world(root, **options):
    return world_of(World, root, **options)


def test_a_load_returns_when_the_policys_versions_serve(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m", (1, 2, 10), extra="version_policy { latest { num_versions: 2 } }")
        async with world(tmp_path) as w:
            await w.load()
            assert w.states() == {("m", 2): ("READY", None), ("m", 10): ("READY", None)}
            assert (await w.ask()).model_version == 10
            assert (await w.ask(version=2)).model_version == 2
            assert w.table.all_settled()

    asyncio.run(main())


def test_a_load_of_what_has_not_changed_does_nothing(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            model = w.table.latest["m"]
            await w.load()
            assert w.backend.loads_of("m") == [1]
            assert w.table.latest["m"] is model

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "reloaded"),
    [
        (lambda m: touch(m / "1" / "weights"), [1]),
        (lambda m: touch(m / "labels.txt"), [1, 2]),
        (lambda m: touch(m / "config.pbtxt"), []),
        (lambda m: (m / "3").mkdir(), [3]),
        (lambda m: add_fake_model(m.parent, "m", (), extra=ALL + "max_batch_size: 4"), [1, 2]),
        (
            lambda m: add_fake_model(m.parent, "m", (), extra="version_policy { specific { versions: 2 } }"),
            [],
        ),
    ],
    ids=["version file", "other file", "config time only", "new version", "config", "policy only"],
)
def test_only_what_has_changed_is_loaded_again(tmp_path, change, reloaded):
    async def main():
        model_dir = add_fake_model(tmp_path, "m", (1, 2), extra=ALL)
        async with world(tmp_path) as w:
            await w.load()
            change(model_dir)
            await w.load()
            assert sorted(w.backend.loads_of("m")[2:]) == reloaded
            assert w.table.all_settled()

    asyncio.run(main())


def test_a_version_that_the_policy_drops_is_unloaded_and_its_config_kept_up_to_date(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m", (1, 2), extra=ALL)
        async with world(tmp_path) as w:
            await w.load()
            add_fake_model(tmp_path, "m", (), extra="version_policy { specific { versions: 1 } }")
            await w.load()
            await until(lambda: w.states()[("m", 2)] == ("UNAVAILABLE", "unloaded"))
            assert (await w.ask()).model_version == 1
            assert w.table.latest["m"].config.version_policy.specific.versions == (1,)
            with pytest.raises(Unavailable, match="'m' version 2 is not at ready state"):
                w.send(version=2)

    asyncio.run(main())


def test_a_reload_swaps_without_a_gap_and_the_old_one_finishes_its_requests(tmp_path):
    async def main():
        model_dir = add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            old = w.table.latest["m"]
            w.backend.gate.clear()
            w.send()
            await until(lambda: w.backend.num_executing == 1)
            w.backend.load_gate.clear()
            touch(model_dir / "1" / "weights")
            loading = asyncio.ensure_future(w.load())
            await until(lambda: w.backend.num_loading == 1)
            assert w.states() == {("m", 1): ("READY", None)}
            assert w.table.latest["m"] is old
            w.backend.load_gate.set()
            await loading
            assert w.table.latest["m"] is not old
            assert w.backend.num_open_models == 2
            assert w.lifecycle.num_in_flight == 1
            w.backend.gate.set()
            await until(lambda: w.backend.num_open_models == 1)
            assert [response.error for response in w.answers] == [None]

    asyncio.run(main())


def test_not_one_call_fails_while_loads_fail_and_succeed(tmp_path):
    """The case of a failed reload: every broken load says why, also the second time; after the repair it is new."""

    async def main():
        model_dir = add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            calling = True
            num_calls = 0

            async def call_for_ever():
                nonlocal num_calls
                while calling:
                    assert (await w.ask()).error is None
                    num_calls += 1

            caller = asyncio.ensure_future(call_for_ever())
            w.backend.broken["m", 1] = RuntimeError("initialize() is broken")
            touch(model_dir / "1" / "weights")
            old = w.table.latest["m"]
            for _ in range(2):
                message = await w.failing_load()
                assert message == (
                    "load failed for model 'm': version 1 is at UNAVAILABLE state: "
                    "RuntimeError: initialize() is broken;\n"
                )
                assert w.table.latest["m"] is old
                state, reason = w.states()["m", 1]
                assert state == "READY"
                assert "keeps serving: RuntimeError: initialize() is broken" in reason
                assert w.table.all_settled()
            w.backend.broken.clear()
            await w.load()
            assert w.table.latest["m"] is not old
            assert w.states() == {("m", 1): ("READY", None)}
            seen = num_calls
            await until(lambda: num_calls > seen)
            calling = False
            await caller

    asyncio.run(main())


def test_a_model_that_never_loaded_fails_with_its_reason_every_time(tmp_path, caplog):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            w.backend.broken["m", 1] = InvalidArgument("the file is no model")
            for attempt in (1, 2):
                assert "the file is no model" in await w.failing_load()
                assert w.states() == {("m", 1): ("UNAVAILABLE", "the file is no model")}
                assert w.backend.loads_of("m") == [1] * attempt
            assert not w.table.all_settled()
            with pytest.raises(
                NotFound, match=r"'m' has no available versions: version 1 is UNAVAILABLE \(the file"
            ):
                w.send()
            with pytest.raises(Unavailable, match="'m' version 1 is not at ready state"):
                w.send(version=1)
            w.backend.broken.clear()
            await w.load()
            assert w.table.all_settled()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "failed to load 'm' version 1: the file is no model"
    ] * 2


def test_at_the_first_load_one_broken_version_leaves_the_others_serving(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m", (1, 2, 3), extra=ALL)
        async with world(tmp_path) as w:
            w.backend.broken = {("m", 2): Internal("two"), ("m", 3): Internal("three")}
            assert await w.failing_load() == (
                "load failed for model 'm': version 2 is at UNAVAILABLE state: two;"
                "version 3 is at UNAVAILABLE state: three;\n"
            )
            assert (await w.ask()).model_version == 1
            assert not w.table.all_settled()
            w.backend.broken.clear()
            await w.load()
            assert sorted(w.backend.loads_of("m")) == [1, 2, 2, 3, 3], "version 1 serves and has not changed"
            assert (await w.ask()).model_version == 3

    asyncio.run(main())


def test_a_reload_with_one_broken_version_changes_nothing_that_serves(tmp_path):
    async def main():
        model_dir = add_fake_model(tmp_path, "m", (1,), extra=ALL)
        async with world(tmp_path) as w:
            await w.load()
            old = w.table.latest["m"]
            for version in (2, 3):
                (model_dir / str(version)).mkdir()
            w.backend.broken["m", 3] = Internal("three")
            await w.failing_load()
            assert w.table.latest["m"] is old
            assert w.states() == {
                ("m", 1): ("READY", None),
                ("m", 2): ("UNAVAILABLE", "unloaded"),
                ("m", 3): ("UNAVAILABLE", "three"),
            }
            await until(lambda: w.backend.num_open_models == 1)
            (model_dir / "3").rmdir()
            await w.load()
            assert (await w.ask()).model_version == 2
            assert ("m", 3) not in w.states()

    asyncio.run(main())


def test_a_broken_config_says_what_is_wrong_and_leaves_the_old_model_serving(tmp_path):
    async def main():
        model_dir = add_fake_model(tmp_path, "m")
        add_fake_model(tmp_path, "new")
        async with world(tmp_path) as w:
            await w.load()
            for name in ("m", "new"):
                (tmp_path / name / "config.pbtxt").write_text("max_batchsize: 3")
                message = await w.failing_load(name)
                assert message.startswith(f"load failed for model '{name}': ")
                assert "unknown field 'max_batchsize'" in message
            assert (await w.ask()).error is None
            assert "max_batchsize" in w.states()["m", 1][1]
            state, reason = w.states()["new", 0]
            assert state == "UNAVAILABLE"
            assert "max_batchsize" in reason
            assert not w.table.all_settled()
            with pytest.raises(
                NotFound, match=r"'new' has no available versions: its last load failed: .*max_batchsize"
            ):
                w.send("new")
            with pytest.raises(NotFound, match="'new' version 1 is not found"):
                w.send("new", 1)
            await w.lifecycle.unload("new")
            assert ("new", 0) not in w.states()
            add_fake_model(tmp_path, "m")
            touch(model_dir / "config.pbtxt")
            await w.load()
            assert w.states() == {("m", 1): ("READY", None)}

    asyncio.run(main())


def test_a_name_that_is_nowhere_leaves_no_trace_and_gets_a_suggestion(tmp_path):
    async def main():
        add_fake_model(tmp_path, "resnet50")
        async with world(tmp_path) as w:
            await w.load("resnet50")
            for name, hint in (
                ("resnet5O", "did you mean 'resnet50'?"),
                ("RESNET50", "did you mean 'resnet50'?"),
                ("resnet50 ", "The name has a blank at its start or end"),
            ):
                with pytest.raises(Internal) as caught:
                    await w.load(name)
                start = (
                    f"failed to load '{name}', failed to poll from model repository: model '{name}' not found"
                )
                assert caught.value.message.startswith(start)
                assert hint in caught.value.message
                with pytest.raises(
                    NotFound, match=f"Request for unknown model: '{name}' is not found; did you mean"
                ):
                    w.send(name)
            with pytest.raises(NotFound, match=r"'resnet50' version 7 is not found \(ready: 1\)"):
                w.send("resnet50", 7)
            assert set(w.table.records) == {"resnet50"}

    asyncio.run(main())


def test_a_bad_name_is_refused_before_any_directory_is_looked_at(tmp_path):
    async def main():
        async with world(tmp_path / "repository") as w:
            for name in ("", "..", "../x", "a/b"):
                with pytest.raises(InvalidArgument, match="odel name"):
                    await w.load(name)

    asyncio.run(main())


def test_a_model_without_a_version_says_which_the_policy_wants(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m", (1,), extra="version_policy { specific { versions: [5] } }")
        async with world(tmp_path) as w:
            assert (
                "at least one version must be available under the version policy of model 'm': the policy is "
                f"specific 5, '{tmp_path / 'm'}' has 1" in await w.failing_load()
            )

    asyncio.run(main())


@pytest.mark.parametrize(
    ("extra", "fault"),
    [
        ("model_repository_agents { agents [{ name: 'decrypt' }] }", "unable to find 'decrypt/agent.py'"),
        ("ensemble_scheduling { step [{ model_name: 'x' model_version: -1 }] }", "ensemble"),
    ],
)
def test_what_is_not_supported_yet_is_refused_not_ignored(tmp_path, extra, fault):
    async def main():
        add_fake_model(tmp_path, "m", extra=extra)
        async with world(tmp_path) as w:
            with pytest.raises(InvalidArgument, match=fault):
                await w.load()
            await until(lambda: w.backend.num_open_models == 0)

    asyncio.run(main())


def test_a_version_that_is_named_but_missing_is_only_logged(tmp_path, caplog):
    async def main():
        add_fake_model(tmp_path, "m", (1,), extra="version_policy { specific { versions: [1, 5] } }")
        async with world(tmp_path) as w:
            await w.load()
            assert w.states() == {("m", 1): ("READY", None)}

    asyncio.run(main())
    assert "version 5 is specified for model 'm', but the version directory is not present" in caplog.text


def test_a_load_is_told_once_when_it_begins_and_when_it_is_done(tmp_path, caplog):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    told = [record.getMessage().partition(" in ")[0] for record in caplog.records]
    assert [text for text in told if "load" in text][:2] == [
        "loading: m:1",
        "successfully loaded 'm' version 1",
    ]


def test_kind_auto_on_a_cpu_is_told_once_for_each_load(tmp_path, caplog):
    async def main():
        add_fake_model(tmp_path, "m", (1, 2), extra="instance_group [ { }, { } ]")
        async with world(tmp_path) as w:
            await w.load()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if "KIND_AUTO" in record.getMessage()]
    assert told == ["model 'm': instances of KIND_AUTO run on the CPU, since no GPUs are available"]


def test_nothing_holds_a_model_that_was_unloaded_or_replaced(tmp_path):
    async def main():
        model_dir = add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            for end in (w.load, lambda: w.lifecycle.unload("m")):
                await w.load()
                await w.ask()
                model = weakref.ref(w.table.latest["m"])
                touch(model_dir / "1" / "weights")
                await end()
                w.backend.instances.clear()
                await until(lambda model=model: model() is None)

    asyncio.run(main())


def test_an_unknown_backend_is_named_with_those_that_exist(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        (tmp_path / "m" / "config.pbtxt").write_text('backend: "onnxruntim"')
        async with world(tmp_path) as w:
            message = await w.failing_load()
            assert "unknown backend 'onnxruntim'" in message
            assert all(name in message for name in available_backends())

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("bad weights"), MemoryError(), SystemExit(3)])
def test_whatever_a_load_raises_becomes_its_reason(tmp_path, error):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            w.backend.broken["m", 1] = error
            assert f"{type(error).__name__}: {error}" in await w.failing_load()

    asyncio.run(main())


def test_a_load_is_tried_again_as_often_as_asked(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path, model_load_retry_count=2) as w:
            w.backend.broken["m", 1] = Internal("no luck")
            await w.failing_load()
            assert w.backend.loads_of("m") == [1, 1, 1]

    asyncio.run(main())


@pytest.mark.parametrize("broken", ["plan_load", "make_model"])
def test_a_bug_in_a_load_fails_that_load_and_is_logged_with_its_traceback(
    tmp_path, monkeypatch, caplog, broken
):
    def fail(*_, **__):
        raise ValueError("a bug")

    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            with monkeypatch.context() as patch:
                patch.setattr(f"bireme.engine.lifecycle.{broken}", fail)
                assert "ValueError: a bug" in await w.failing_load()
            await until(lambda: w.backend.num_open_models == 0)
            await w.load()

    asyncio.run(main())
    assert "Traceback" in caplog.text


def test_a_directory_that_cannot_be_read_is_not_loaded(tmp_path, monkeypatch):
    def fail(path):
        raise PermissionError(13, "Permission denied", str(path))

    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            for target in ("storage.take_fingerprint", "catalogue.list_versions"):
                with monkeypatch.context() as patch:
                    patch.setattr(f"bireme.repository.{target}", fail)
                    with pytest.raises(
                        Internal, match=r"failed to poll from model repository: its directory cannot be"
                    ):
                        await w.load()
            await w.load()

    asyncio.run(main())


def test_two_loads_of_one_model_take_turns_and_the_second_finds_nothing_to_do(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            w.backend.load_gate.clear()
            loads = [asyncio.ensure_future(w.load()) for _ in range(3)]
            await until(lambda: w.backend.num_loading == 1)
            assert w.states() == {("m", 1): ("LOADING", None)}
            w.backend.load_gate.set()
            await asyncio.gather(*loads)
            assert w.backend.loads_of("m") == [1]

    asyncio.run(main())


def test_an_unload_waits_for_the_load_before_it(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            w.backend.load_gate.clear()
            load = asyncio.ensure_future(w.load())
            await until(lambda: w.backend.num_loading == 1)
            unload = asyncio.ensure_future(w.lifecycle.unload("m"))
            await asyncio.sleep(0)
            w.backend.load_gate.set()
            await asyncio.gather(load, unload)
            await until(lambda: w.states() == {("m", 1): ("UNAVAILABLE", "unloaded")})

    asyncio.run(main())


def test_a_load_goes_on_when_its_caller_leaves(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            w.backend.load_gate.clear()
            load = asyncio.ensure_future(w.load())
            await until(lambda: w.backend.num_loading == 1)
            load.cancel()
            await asyncio.wait([load])
            w.backend.load_gate.set()
            await until(lambda: "m" in w.table.latest)

    asyncio.run(main())


def test_twenty_models_load_in_parallel_and_bad_ones_do_not_stop_the_others(tmp_path):
    async def main():
        names = [f"m{index}" for index in range(20)]
        for name in names:
            add_fake_model(tmp_path, name)
        (tmp_path / "m7" / "config.pbtxt").write_text("what is this")
        async with world(tmp_path, model_load_thread_count=4) as w:
            w.backend.broken["m3", 1] = Internal("no")
            w.backend.load_gate.clear()
            loading = asyncio.ensure_future(w.lifecycle.load_all([*names, "nowhere"]))
            await until(lambda: w.backend.num_loading == 4)
            w.backend.load_gate.set()
            failures = await loading
            assert set(failures) == {"m3", "m7", "nowhere"}
            assert set(w.table.latest) == set(names) - {"m3", "m7"}

    asyncio.run(main())


def test_other_models_are_served_while_one_loads(tmp_path):
    async def main():
        for name in ("slow", "fast"):
            add_fake_model(tmp_path, name)
        async with world(tmp_path) as w:
            await w.load("fast")
            w.backend.load_gate.clear()
            load = asyncio.ensure_future(w.load("slow"))
            await until(lambda: w.backend.num_loading == 1)
            for _ in range(20):
                assert (await w.ask("fast")).error is None
            w.backend.load_gate.set()
            await load

    asyncio.run(main())


def test_an_unload_refuses_new_requests_at_once_and_lets_running_ones_finish(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            w.backend.gate.clear()
            w.send()
            w.send()
            await until(lambda: w.backend.num_executing == 1)
            await w.lifecycle.unload("m")
            assert w.states() == {("m", 1): ("UNLOADING", None)}
            with pytest.raises(NotFound, match="'m' has no available versions: version 1 is UNLOADING"):
                w.send()
            w.backend.gate.set()
            await until(lambda: w.states() == {("m", 1): ("UNAVAILABLE", "unloaded")})
            assert [response.error for response in w.answers] == [None, None]
            assert w.backend.num_open_models == 0
            assert w.table.all_settled()
            await w.lifecycle.unload("m")
            await w.lifecycle.unload("never heard of")
            assert set(w.table.records) == {"m"}

    asyncio.run(main())


def test_a_load_right_after_an_unload_need_not_wait_for_the_old_requests(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            w.backend.gate.clear()
            w.send()
            await until(lambda: w.backend.num_executing == 1)
            await w.lifecycle.unload("m")
            await w.load()
            assert w.states() == {("m", 1): ("READY", None)}
            w.backend.gate.set()
            await until(lambda: w.backend.num_open_models == 1)
            assert w.states() == {("m", 1): ("READY", None)}
            assert w.backend.loads_of("m") == [1, 1]

    asyncio.run(main())


def test_a_config_override_replaces_the_file_until_the_next_plain_load(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        override = json.dumps(
            {
                "backend": "fake",
                "max_batch_size": 8,
                "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
                "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
            }
        )
        async with world(tmp_path) as w:
            await w.load()
            await w.load(config=override)
            assert w.table.latest["m"].max_batch_size == 8
            assert w.backend.contexts[-1].model_dir == tmp_path / "m"
            await w.load(config=override)
            assert len(w.backend.loads_of("m")) == 3, "a load with an override always loads"
            assert "zzz" in await w.failing_load(config='{"zzz": 1}')
            assert w.table.latest["m"].max_batch_size == 8
            await w.load()
            assert w.table.latest["m"].max_batch_size == 0
            assert w.states() == {("m", 1): ("READY", None)}
            with pytest.raises(Internal, match="failed to load 'other', failed to poll"):
                await w.load("other", config=override)

    asyncio.run(main())


def test_override_files_are_a_model_of_their_own_for_as_long_as_it_lives(tmp_path):
    async def main():
        seen = []
        async with world(tmp_path) as w:
            w.backend.functions["m"] = lambda inputs: {"Y": inputs["X"]}
            config = '{"backend": "fake", "version_policy": {"all": {}}}'
            await w.load(config=config, files={"file:1/model.bin": b"one", "2/model.bin": b"two"})
            context = w.backend.contexts[-1]
            assert (context.model_dir / "2" / "model.bin").read_bytes() == b"two"
            assert w.states() == {("m", 1): ("READY", None), ("m", 2): ("READY", None)}
            seen.append(context.model_dir)
            await w.load(config=config, files={"1/model.bin": b"three"})
            seen.append(w.backend.contexts[-1].model_dir)
            del context
            w.backend.contexts.clear()
            await until(lambda: not seen[0].exists())
            assert seen[1].exists()
            with pytest.raises(Internal, match="failed to poll"):
                await w.load()
            assert seen[1].exists()
            await w.lifecycle.unload("m")
            w.backend.instances.clear()
            w.backend.contexts.clear()
            await until(lambda: not seen[1].exists())

    asyncio.run(main())


def test_wrong_override_files_are_refused_and_leave_nothing_behind(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    async def main():
        async with world(tmp_path / "repository") as w:
            assert "'config' must be specified" in await w.failing_load(files={"1/x": b""})
            for path in ("../x", "/etc/passwd", "1/../../x"):
                assert "must stay within model directory" in await w.failing_load(
                    config="{}", files={path: b""}
                )
            w.backend.broken["m", 1] = Internal("no")
            await w.failing_load(config='{"backend": "fake"}', files={"1/x": b"x"})
            w.backend.contexts.clear()
            await until(lambda: list(temporary.iterdir()) == [])

    asyncio.run(main())


def test_counters_go_on_over_a_reload_and_start_anew_after_an_unload(tmp_path):
    async def main():
        model_dir = add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            statistics = w.table.latest["m"].statistics
            await w.ask()
            touch(model_dir / "1" / "weights")
            await w.load()
            assert w.table.latest["m"].statistics is statistics
            await w.ask()
            assert statistics.num_succeeded == 2
            page = w.metrics.expose().decode()
            assert 'nv_inference_request_success{model="m",version="1"} 2' in page
            await w.lifecycle.unload("m")
            assert 'model="m"' not in w.metrics.expose().decode()
            await w.load()
            assert 'nv_inference_request_success{model="m",version="1"} 0' in w.metrics.expose().decode()

    asyncio.run(main())


def test_other_labels_start_new_counters_and_hide_the_old_ones(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            await w.ask()
            add_fake_model(tmp_path, "m", (), extra='metric_tags [{ key: "team" value: "b" }]')
            await w.load()
            page = w.metrics.expose().decode()
            assert page.count("nv_inference_request_success{") == 1
            assert '_team="b"' in page

    asyncio.run(main())


def test_closing_answers_what_runs_and_refuses_new_loads(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            w.backend.gate.clear()
            w.send()
            await until(lambda: w.backend.num_executing == 1)
            closing = asyncio.ensure_future(w.lifecycle.close(10))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="the server is stopping"):
                await w.load()
            assert not closing.done()
            w.backend.gate.set()
            assert await closing
            assert [response.error for response in w.answers] == [None]

    asyncio.run(main())


def test_closing_in_vain_answers_what_waits_and_says_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("bireme.engine.lifecycle._CLOSE_GRACE_S", 0.02)

    async def main():
        add_fake_model(tmp_path, "m")
        w = World(tmp_path)
        await w.load()
        w.backend.gate.clear()
        w.send()
        await until(lambda: w.backend.num_executing == 1)
        w.send()
        assert not await w.lifecycle.close(0)
        assert [type(response.error) for response in w.answers] == [Unavailable]
        w.backend.gate.set()
        await until(lambda: w.backend.num_open_models == 0)
        assert len(w.answers) == 2

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert (
        "Timeout 0: Found 1 model versions that have in-flight inferences ('m' version 1: 2)" in caplog.text
    )
    assert "Exit timeout expired. Exiting immediately" in caplog.text


def test_a_load_that_ends_while_the_server_stops_is_thrown_away(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            w.backend.load_gate.clear()
            load = asyncio.ensure_future(w.load())
            await until(lambda: w.backend.num_loading == 1)
            closing = asyncio.ensure_future(w.lifecycle.close(10))
            await asyncio.sleep(0)
            w.backend.load_gate.set()
            assert await closing
            with pytest.raises(InvalidArgument, match="the server is stopping"):
                await load
            assert w.backend.num_open_models == 0

    asyncio.run(main())


def test_a_load_that_waits_for_its_turn_is_refused_when_the_server_stops(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            w.backend.load_gate.clear()
            loads = [asyncio.ensure_future(w.load()) for _ in range(2)]
            await until(lambda: w.backend.num_loading == 1)
            closing = asyncio.ensure_future(w.lifecycle.close(10))
            await asyncio.sleep(0)
            w.backend.load_gate.set()
            assert await closing
            errors = await asyncio.gather(*loads, return_exceptions=True)
            assert [type(error) for error in errors] == [InvalidArgument, Unavailable]
            assert w.backend.loads_of("m") == [1]

    asyncio.run(main())


def test_a_load_that_outlives_the_stop_is_closed_when_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("bireme.engine.lifecycle._CLOSE_GRACE_S", 0.02)

    async def main():
        add_fake_model(tmp_path, "m")
        w = World(tmp_path)
        w.backend.load_gate.clear()
        load = asyncio.ensure_future(w.load())
        await until(lambda: w.backend.num_loading == 1)
        assert not await w.lifecycle.close(0)
        w.backend.load_gate.set()
        with pytest.raises(InvalidArgument, match=r"the server is stopping"):
            await load
        await until(lambda: w.backend.num_open_models == 0)

    asyncio.run(main())


def test_a_model_that_cannot_be_closed_is_logged_and_gone(tmp_path, caplog):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()

            def fail():
                w.backend.num_open_models -= 1
                raise OSError("cannot close")

            w.backend.instances[0].model.close = fail
            await w.lifecycle.unload("m")
            await until(lambda: w.states() == {("m", 1): ("UNAVAILABLE", "unloaded")})

    asyncio.run(main())
    assert "failed to close 'm' version 1" in caplog.text
    assert "cannot close" in caplog.text


def test_a_failed_execution_is_no_reason_to_unload(tmp_path):
    async def main():
        add_fake_model(tmp_path, "m")
        async with world(tmp_path) as w:
            await w.load()
            w.backend.execute_error = ValueError("bad input")
            assert isinstance((await w.ask()).error, BackendFailed)
            w.backend.execute_error = None
            assert (await w.ask()).error is None

    asyncio.run(main())
