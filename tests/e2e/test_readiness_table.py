"""The table of docs/readiness-and-shutdown.md: a server in each of its states answers as it says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme import Server
from bireme.frontend.http import HttpFrontend, HttpOptions
from bireme.testing import FakeRequestBackend
from bireme.types import Internal, InvalidArgument
from model_dirs import LoadingBackend, add_fake_model, touch, until

PAGE = Path(__file__).parents[2] / "docs" / "readiness-and-shutdown.md"
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
Y = {"Y": np.zeros(2, np.float32)}
WAITS_S = 0.05

Setup = Callable[["Bench"], Awaitable[None]]
SETUPS: list[tuple[str, dict[str, Any], Setup]] = []
"""What the rows begin with, in order; options; and what brings a server into the state."""


def state(beginning: str, **options: Any) -> Callable[[Setup], Setup]:
    def register(setup: Setup) -> Setup:
        SETUPS.append((beginning, options, setup))
        return setup

    return register


class Bench:
    """A server with an HTTP port, of three models: "that", "others", and "process", whose answers the test gives."""

    def __init__(self, root: Path, **options: Any) -> None:
        for name in ("that", "others", "process"):
            add_fake_model(root, name)
        config = root / "process" / "config.pbtxt"
        config.write_text(config.read_text("utf-8").replace('"fake"', '"process"'), "utf-8")
        self.root = root
        self.that = "that"
        self.backend = LoadingBackend()
        self.processes = FakeRequestBackend(name="process")
        settings = {"model_control_mode": "explicit", "load_model": ("that", "others"), **options}
        backends = {"fake": self.backend, "process": self.processes}
        self.server = Server(root, backends=backends, **settings)
        self.http = HttpFrontend(self.server, HttpOptions(address="127.0.0.1", port=0))
        self.tasks: list[asyncio.Task[Any]] = []

    def begin(self, work: Awaitable[Any]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def release(self) -> None:
        """Let go on what this state holds up."""
        self.backend.load_gate.set()
        self.backend.gate.set()
        for instance in self.processes.instances:
            if instance.unavailable is not None:
                instance.revive()

    async def use_process(self) -> None:
        await self.server.load_model("process")
        self.that = "process"

    async def ask(self, path: str, body: bytes = b"") -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        method = "POST" if body else "GET"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = await reader.readline()
        writer.close()
        return int(status.split()[1])

    async def infer(self, name: str) -> int | str:
        """Return the status, or "waits" if there is none until something is released."""
        asking = asyncio.ensure_future(self.ask(f"/v2/models/{name}/infer", BODY))
        for _ in range(2):
            await asyncio.wait([asking], timeout=WAITS_S / 2)
            for instance in self.processes.instances:
                while instance.executions and instance.unavailable is None:
                    instance.answer(Y)
        if asking.done() or (await asyncio.wait([asking], timeout=WAITS_S))[0]:
            return asking.result()
        self.release()
        await until(lambda: asking.done() or any(each.executions for each in self.processes.instances))
        for instance in self.processes.instances:
            while instance.executions:
                instance.answer(Y)
        assert await asking == 200
        return "waits"

    async def look(self) -> list[int | str]:
        """Return what a row of the table says; what could end the state comes last."""
        live, ready, its, other = [
            await self.ask(path)
            for path in (
                "/v2/health/live",
                "/v2/health/ready",
                f"/v2/models/{self.that}/ready",
                "/v2/models/others/ready",
            )
        ]
        other_infer = await self.infer("others")
        return [live, ready, its, await self.infer(self.that), other, other_infer]


def read_rows() -> list[list[str]]:
    lines = PAGE.read_text("utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| State |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@state("starting")
async def _starting(bench):
    bench.backend.load_gate.clear()
    await bench.http.start()
    bench.begin(bench.server.start())
    await until(lambda: bench.backend.num_loading)


@state("ready, all models ready")
async def _ready(_bench):
    pass


@state("a new model is loading", load_model=("others",))
async def _new(bench):
    bench.backend.load_gate.clear()
    bench.begin(bench.server.load_model("that"))
    await until(lambda: bench.backend.num_loading)


async def _fail(bench):
    bench.backend.broken["that", 1] = Internal("no")
    with pytest.raises(InvalidArgument):
        await bench.server.load_model("that")


@state("a model has failed to load", load_model=("others",))
async def _failed(bench):
    await _fail(bench)


@state("the same with `--strict-readiness=false`", load_model=("others",), strict_readiness=False)
async def _failed_and_not_strict(bench):
    await _fail(bench)


@state("a reload is under way")
async def _reloading(bench):
    bench.backend.load_gate.clear()
    touch(bench.root / "that" / "1" / "weights")
    bench.begin(bench.server.load_model("that"))
    await until(lambda: bench.backend.num_loading)


@state("a reload has failed")
async def _reload_failed(bench):
    touch(bench.root / "that" / "1" / "weights")
    await _fail(bench)


@state("a model was unloaded on purpose, and its last requests finish")
async def _unloading(bench):
    await bench.use_process()
    bench.begin(bench.ask("/v2/models/process/infer", BODY))
    await until(lambda: bench.processes.instances[0].executions)
    await bench.server.unload_model("process")


@state("a model was unloaded on purpose")
async def _unloaded(bench):
    await bench.server.unload_model("that")


@state("a model has lost the processes")
async def _restarting(bench):
    await bench.use_process()
    bench.processes.instances[0].die("died", retry_delay_s=0)


@state("the same, and they will be after a pause")
async def _pausing(bench):
    await bench.use_process()
    bench.processes.instances[0].die("died", retry_delay_s=4)


@state("the same with `--strict-readiness=false`", strict_readiness=False)
async def _pausing_and_not_strict(bench):
    await _pausing(bench)


@state("the `is_ready` of a Python model")
async def _says_no(bench):
    bench.processes.ready = False
    await bench.use_process()


@state("`--model-control-mode=ondemand`", model_control_mode="ondemand", load_model=("others",))
async def _not_loaded(bench):
    bench.backend.load_gate.clear()


@state("ondemand: a model is loading", model_control_mode="ondemand", load_model=("others",))
async def _loading_on_demand(bench):
    bench.backend.load_gate.clear()
    bench.begin(bench.ask("/v2/models/that/infer", BODY))
    await until(lambda: bench.backend.num_loading)


@state("ondemand: a model has failed", model_control_mode="ondemand", load_model=("others",))
async def _failed_on_demand(bench):
    bench.server.on_demand._now_ns = lambda: 1  # the pause before the next try does not end
    bench.backend.broken["that", 1] = Internal("no")
    assert await bench.ask("/v2/models/that/infer", BODY) == 503


@state("ondemand: a model was unloaded", model_control_mode="ondemand")
async def _idle(bench):
    await bench.server.on_demand._unload("that", "idle")
    bench.backend.load_gate.clear()


@state("stopping")
async def _stopping(bench):
    bench.backend.gate.clear()
    bench.begin(bench.ask("/v2/models/others/infer", BODY))
    await until(lambda: bench.backend.num_executing)
    bench.server.announce_stop()
    await bench.http.retire(1)
    bench.begin(bench.server.stop(5))


def test_every_row_has_its_test():
    rows = read_rows()

    assert len(rows) == len(SETUPS)
    assert all(row[0].startswith(beginning) for row, (beginning, _, _) in zip(rows, SETUPS, strict=True))


@pytest.mark.parametrize("number", range(len(SETUPS)))
def test_the_server_answers_as_the_table_says(tmp_path, number):
    _, options, setup = SETUPS[number]
    text, *cells = read_rows()[number]

    async def main():
        bench = Bench(tmp_path, **options)
        try:
            if not text.startswith("starting"):
                await bench.server.start()
                await bench.http.start()
            await setup(bench)
            assert await bench.look() == [
                int(cell) if re.fullmatch("[0-9]+", cell) else cell for cell in cells
            ]
        finally:
            bench.release()
            for instance in bench.processes.instances:
                while instance.executions:
                    instance.answer(Y)
            await asyncio.gather(*bench.tasks, return_exceptions=True)
            await bench.http.stop(1)
            await bench.server.stop(5)

    asyncio.run(main())
