"""What it costs to hand a tensor to another process and get one back, through channel and ledger.

    python -m benchmarks.ipc [--seconds 1]

The worker answers each `Execute` with the tensor that it got (``back``), or with a copy of it in its own memory
(``copy``). ``fresh`` says that the server, too, puts a new array into its arena each time; else the tensor lies there
already, as the body of a request does. Round trips in microseconds; then what single steps take in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from pathlib import Path

import numpy as np
import uvloop
from benchmarks.tables import console
from benchmarks.timing import best_us
from rich.table import Table

from bireme.ipc.arena import Arena
from bireme.ipc.channel import Channel, make_pair
from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import Execute, Executed, Finalize, RequestData, ResponseData
from bireme.ipc.worker_process import WorkerProcess
from bireme.types import Tensor

SIZES = {"1 KB": 1 << 10, "16 KB": 16 << 10, "512 KB": 512 << 10, "6 MB": 6 << 20}
ROWS = {
    "back": (False, True),
    "copy": (False, False),
    "fresh, back": (True, True),
    "fresh, copy": (True, False),
}


def answer(channel: Channel, ledger: Ledger) -> None:
    """The worker. A request of priority 1 wants its own tensor back."""
    while True:
        message = channel.receive()
        if type(message) is not Execute:
            return
        request = message.requests[0]
        inputs = [ledger.adopt(data) for data in request.inputs]
        ledger.take_back(message.released)
        if request.priority:
            outputs = [ledger.export(tensor) for tensor in inputs]
        else:
            outputs = [
                ledger.export(Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.to_numpy().copy()))
                for tensor in inputs
            ]
        del inputs
        now = time.monotonic_ns()
        response = ResponseData(outputs)
        channel.send(Executed(message.number, now, now, [response], None, ledger.take_released()))


class Loop:
    """Sends the next message when an answer has arrived."""

    def __init__(self, worker: WorkerProcess, array: np.ndarray, *, is_fresh: bool, is_back: bool) -> None:
        self.worker = worker
        self.array = array
        self.is_fresh = is_fresh
        self.is_back = is_back
        self.times: list[int] = []
        self.done = asyncio.get_running_loop().create_future()
        self.end = 0.0

    def ask(self) -> None:
        self.start = time.perf_counter_ns()
        ledger = self.worker.ledger
        data = ledger.export(Tensor("X", "FP32", self.array.shape, self.array))
        request = RequestData(1, "", [data], priority=int(self.is_back))
        self.worker.send(Execute(1, [request], ledger.take_released()))

    def on_message(self, message: Executed) -> None:
        ledger = self.worker.ledger
        ledger.take_back(message.released)
        result = ledger.adopt(message.responses[0].outputs[0]).to_numpy()
        self.times.append(time.perf_counter_ns() - self.start)
        assert result.shape == self.array.shape
        if time.perf_counter() > self.end:
            self.done.set_result(None)
        else:
            del result
            self.ask()


async def measure(arena: Arena, seconds: float) -> None:
    folder = str(Path(__file__).parent.parent)
    worker = WorkerProcess.start("benchmarks.ipc:answer", arena, path_prefix=[folder])
    current: Loop
    loop = asyncio.get_running_loop()
    worker.attach(loop, lambda message: current.on_message(message), print)  # noqa: PLW0108 - whichever is the current one
    current = Loop(worker, np.ones(1, np.float32), is_fresh=True, is_back=True)
    current.ask()
    await current.done  # the worker is up
    table = Table("round trip, µs: fastest / median / p99", *SIZES)
    for row, (is_fresh, is_back) in ROWS.items():
        cells = []
        for size in SIZES.values():
            array = np.ones(size // 4, np.float32)
            if not is_fresh:
                block = arena.allocate(size)
                placed = np.ndarray(array.shape, array.dtype, block)
                placed[...] = array
                array = placed
                del block, placed
            current = Loop(worker, array, is_fresh=is_fresh, is_back=is_back)
            current.end = time.perf_counter() + seconds
            current.ask()
            await current.done
            times = sorted(current.times[len(current.times) // 10 :])
            figures = (times[0], statistics.median(times), times[len(times) * 99 // 100])
            cells.append(" / ".join(f"{figure / 1e3:.0f}" for figure in figures))
        table.add_row(row, *cells)
    console.print(table)
    worker.send(Finalize())
    await loop.run_in_executor(None, worker.stop, 5.0)


def steps(arena: Arena) -> None:
    """Print what exporting and adopting take, leases given back included."""
    mine, theirs = make_pair()
    ledger, peer = Ledger(arena, mine), Ledger(Arena(), theirs)
    table = Table("export and adopt, µs", *SIZES)
    for name, in_place in (("lent in place", True), ("copied in", False)):
        cells = []
        for size in SIZES.values():
            array = np.ones(size // 4, np.float32)
            if in_place:
                block = arena.allocate(size)
                array = np.ndarray(array.shape, array.dtype, block)
                array[...] = 1
                del block
            tensor = Tensor("X", "FP32", array.shape, array)

            def act(tensor: Tensor = tensor) -> None:
                data = ledger.export(tensor)
                if type(data.data) is bytes:  # what a message makes of it
                    data.data = bytearray(data.data)
                peer.adopt(data)
                ledger.take_back(peer.take_released())

            cells.append(f"{best_us(act):.2f}")
        table.add_row(name, *cells)
    console.print(table)

    def allocate() -> None:
        arena.allocate(100_000)

    console.print(f"A block of the arena and back: {best_us(allocate):.2f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each cell")
    seconds = parser.parse_args().seconds
    arena = Arena()
    gc.collect()
    gc.freeze()
    uvloop.run(measure(arena, seconds))
    steps(arena)


if __name__ == "__main__":
    main()
