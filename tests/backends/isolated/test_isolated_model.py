"""Models of tensor backends in processes of their own: they answer as elsewhere, and their crashes cost only themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bireme import Server
from bireme.backends.isolated import wants_process
from bireme.config import ModelConfig
from bireme.config.model_config import ModelParameter
from bireme.types import BackendFailed, BiremeError, InvalidArgument, Unavailable
from isolated_backend import add_moody_model, install_backend
from model_dirs import until
from onnx_models import make_repository, save_add, save_identity
from thread_models import serve

pytestmark = pytest.mark.slow  # each starts a process, which takes 0.2 s


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", install_backend(tmp_path / "site"))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def run(server: Server, *values: float, name: str = "m"):
    return await server.ainfer(name, {"X": np.asarray(values, np.float32)})


def test_it_answers_from_another_process(root: Path) -> None:
    add_moody_model(root, "m")

    async def scenario(server: Server) -> None:
        result = await run(server, 1, 2)
        assert [2.0, 4.0] == result["Y"].tolist()
        assert os.getpid() != result["PID"][0]
        assert result["PID"][0] == (await run(server, 1))["PID"][0]

    serve(root, scenario)


def test_large_tensors_come_back(root: Path) -> None:
    add_moody_model(root, "m")

    async def scenario(server: Server) -> None:
        values = np.arange(1_000_000, dtype=np.float32)
        for _ in range(3):
            result = await server.ainfer("m", {"X": values})
            np.testing.assert_array_equal(values * 2, result["Y"])
            np.testing.assert_array_equal(values, result["SAME"])

    serve(root, scenario)


def test_instances_share_the_process_and_run_at_one_time(root: Path) -> None:
    add_moody_model(root, "m", count=3)

    async def scenario(server: Server) -> None:
        start = time.monotonic()
        results = await asyncio.gather(*(run(server, -6) for _ in range(3)))
        assert time.monotonic() - start < 0.8
        assert 1 == len({result["PID"][0] for result in results})

    serve(root, scenario)


@pytest.mark.parametrize(
    ("value", "how"),
    [
        (-1, r"was killed by signal 6 \(SIGABRT\)"),
        (-2, r"was killed by signal 11 \(SIGSEGV\)"),
        (-3, "ended with exit code 3"),
    ],
)
def test_a_crash_costs_its_requests_and_a_restart(root: Path, value: int, how: str) -> None:
    add_moody_model(root, "m")
    add_moody_model(root, "other")

    async def scenario(server: Server) -> None:
        before = (await run(server, 1))["PID"][0]
        with pytest.raises(Unavailable, match=f"model 'm' version 1: the process .* {how}"):
            await run(server, value)
        assert [2.0] == (await run(server, 1, name="other"))["Y"].tolist()
        after = await run(server, 1)  # waits for the restart
        assert [2.0] == after["Y"].tolist()
        assert before != after["PID"][0]

    serve(root, scenario)


def test_one_crash_costs_all_that_run_in_the_process(root: Path) -> None:
    add_moody_model(root, "m", count=2)

    async def scenario(server: Server) -> None:
        slow = asyncio.ensure_future(run(server, -6))
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable):
            await run(server, -1)
        with pytest.raises(Unavailable, match="SIGABRT"):
            await slow
        assert [2.0] == (await run(server, 1))["Y"].tolist()

    serve(root, scenario)


def test_a_model_that_dies_again_and_again_is_refused_until_it_is_back(root: Path) -> None:
    add_moody_model(root, "m")

    async def scenario(server: Server) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await run(server, -1)
        assert not server.is_model_ready("m")
        with pytest.raises(Unavailable, match="SIGABRT"):
            await run(server, 1)
        await until(lambda: server.is_model_ready("m"))
        assert [2.0] == (await run(server, 1))["Y"].tolist()

    serve(root, scenario)


def test_errors_keep_their_kind_and_text(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_moody_model(root, "m")

    async def scenario(server: Server) -> None:
        with pytest.raises(BackendFailed, match="model 'm' version 1 failed: the framework is not amused"):
            await run(server, -4)
        with pytest.raises(InvalidArgument, match="the shape is wrong"):
            await run(server, -5)

    serve(root, scenario)
    assert "completing m" in caplog.text


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"load": "fails"}, "model 'm': the file is torn"),
        ({"load": "raises"}, "ValueError: what is this"),
        ({"load": "dies"}, r"was killed by signal 6 \(SIGABRT\) while it initialised"),
        ({"instance": "fails"}, "no instance today"),
        ({"isolation": "thread"}, "parameter isolation is 'thread'; expected 'process'"),
    ],
)
def test_a_failed_load_says_why_and_leaves_no_process(
    root: Path, parameters: dict[str, str], text: str
) -> None:
    add_moody_model(root, "m", **parameters)

    async def scenario(server: Server) -> None:
        with pytest.raises(BiremeError, match=text):
            await server.load_model("m")

    serve(root, scenario, model_control_mode="explicit")


def test_unloading_closes_instances_and_model_and_ends_the_process(root: Path) -> None:
    note = root.parent / "note"
    add_moody_model(root, "m", count=2, note=str(note))

    async def scenario(server: Server) -> None:
        await server.load_model("m")
        pid = int((await run(server, 1))["PID"][0])
        await server.unload_model("m")
        await until(lambda: not exists(pid))

    serve(root, scenario, model_control_mode="explicit")
    assert ["m_0_0 closed", "m_0_1 closed", "model closed"] == note.read_text().splitlines()


def test_results_outlive_the_process(root: Path) -> None:
    add_moody_model(root, "m")

    async def scenario(server: Server) -> None:
        values = np.arange(100_000, dtype=np.float32)
        result = await server.ainfer("m", {"X": values})
        os.kill(int(result["PID"][0]), signal.SIGKILL)
        await until(lambda: not exists(int(result["PID"][0])))
        np.testing.assert_array_equal(values * 2, result["Y"])

    serve(root, scenario)


ISOLATED = 'parameters { key: "isolation" value: { string_value: "process" } }\n'


def test_onnx_models_run_isolated(root: Path) -> None:
    make_repository(
        root,
        {
            "add": (partial(save_add, batch=True), ISOLATED),
            "texts": (partial(save_identity, datatype="BYTES"), ISOLATED),
            "halves": (partial(save_identity, datatype="BF16"), ISOLATED),
        },
    )

    async def scenario(server: Server) -> None:
        assert 4 == server.model_config("add")["max_batch_size"]  # completed there
        inputs = server.model_metadata("add")["inputs"]
        values = {tensor["name"]: np.ones((2, 16), np.float32) for tensor in inputs}
        result = await server.ainfer("add", values)
        for output in server.model_metadata("add")["outputs"]:
            assert (2, 16) == result[output["name"]].shape
        text = np.array([["déjà".encode()], [b""]], np.object_)
        assert text.tolist() == (await server.ainfer("texts", {"X": text}))["Y"].tolist()

    serve(root, scenario)


def test_only_process_is_a_kind_of_isolation() -> None:
    def config(value: str) -> ModelConfig:
        return ModelConfig(name="m", parameters={"isolation": ModelParameter(value)})

    assert wants_process(config("process"))
    assert not wants_process(ModelConfig(name="m"))
    with pytest.raises(InvalidArgument, match="expected 'process'"):
        wants_process(config("container"))
