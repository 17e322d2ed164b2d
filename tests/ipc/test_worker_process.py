"""WorkerProcess with real processes: what they see, how their ends are told, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bireme.ipc.arena import Arena
from bireme.ipc.messages import Cancel, Execute, Executed, Finalize, LogLine, RequestData
from bireme.ipc.worker_process import WorkerProcess
from bireme.types import Tensor
from model_dirs import until
from worker_entries import NUMBERS

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
LARGE = np.arange(500_000, dtype=np.float32)


class Bench:
    """A worker, and what it says."""

    def __init__(self, arena: Arena | None = None, entry: str = "worker_entries:echo", **options) -> None:
        self.arena = arena or Arena()
        self.messages: list = []
        self.reasons: list[str] = []
        self.worker = WorkerProcess.start(entry, self.arena, path_prefix=[str(TESTS)], **options)

    def attach(self) -> None:
        self.worker.attach(asyncio.get_running_loop(), self.messages.append, self.reasons.append)

    def command(self, name: str) -> None:
        self.worker.send(Cancel(NUMBERS[name]))

    def ask(self, array: np.ndarray, kind: str = "") -> None:
        data = self.worker.ledger.export(Tensor.from_numpy("X", array))
        self.worker.send(Execute(1, [RequestData(1, kind, [data])], self.worker.ledger.take_released()))

    async def answer(self) -> np.ndarray:
        await until(lambda: self.messages)
        message = self.messages.pop(0)
        assert type(message) is Executed
        self.worker.ledger.take_back(message.released)
        return self.worker.ledger.adopt(message.responses[0].outputs[0]).to_numpy()

    async def reason(self) -> str:
        await until(lambda: self.reasons)
        return self.reasons[0]


def run(scenario, **options):
    """Run ``scenario`` with an attached worker; afterwards nothing of it is left."""
    before = leftovers()

    async def with_worker():
        bench = Bench(**options)
        try:
            bench.attach()
            await scenario(bench)
        finally:
            bench.worker.kill()
            await until(bench.worker._is_finished.is_set)
        return bench

    bench = asyncio.run(with_worker())
    assert not exists(bench.worker.pid)
    assert bench.worker.ledger.num_lent == 0
    del bench
    check_leftovers(before)


def leftovers() -> tuple[int, int]:
    """Return the numbers of descriptors and of mapped segments."""
    gc.collect()
    num_mappings = Path("/proc/self/maps").read_text().count("memfd:bireme")
    return len(list(Path("/proc/self/fd").iterdir())), num_mappings


def check_leftovers(before: tuple[int, int]) -> None:
    """Compare, once the threads that watched processes have ended, too."""
    deadline = time.monotonic() + 5
    while leftovers() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert leftovers() == before


def exists(pid: int) -> bool:
    """Whether a process is there that has not ended: not even a zombie of ours."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_tensors_travel_both_ways():
    async def scenario(bench):
        for array in (np.ones(3, np.float32), LARGE, LARGE.reshape(100, -1)):
            for kind in ("", "copy"):
                bench.ask(array, kind)
                result = await bench.answer()
                np.testing.assert_array_equal(result, array)
        del result

    run(scenario)


def test_a_worker_that_is_told_to_ends_and_nobody_is_told():
    async def scenario(bench):
        bench.worker.send(Finalize())
        await asyncio.to_thread(bench.worker.stop, 10.0)
        assert not bench.worker.is_alive
        assert repr(bench.worker).endswith("ended with exit code 0)")
        bench.worker.stop(1.0)
        bench.worker.kill()
        await asyncio.sleep(0.01)
        assert bench.reasons == []

    run(scenario)


def test_a_worker_that_does_not_end_in_time_is_killed():
    async def scenario(bench):
        bench.command("hold_the_gil")
        await until(lambda: bench.messages)
        start = time.monotonic()
        await asyncio.to_thread(bench.worker.stop, 0.1)
        assert time.monotonic() - start < 2
        assert bench.reasons == []

    run(scenario)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("die", "was killed by signal 9 (SIGKILL)"),
        ("leave", "ended with exit code 3"),
        ("fail", "ended with exit code 1"),
        ("hang_up", "closed its connection"),
        ("babble", "closed its connection"),
        ("fork_and_leave", "ended with exit code 5"),
    ],
)
def test_the_end_is_told_in_words_after_the_last_message(command, reason):
    async def scenario(bench):
        bench.ask(LARGE, "keep")
        await bench.answer()
        assert bench.worker.ledger.num_lent
        bench.command(command)
        assert await bench.reason() == reason
        assert bench.arena.used_bytes == 0
        assert not exists(bench.worker.pid)
        await asyncio.sleep(0.01)
        assert len(bench.reasons) == 1
        texts = [message.message for message in bench.messages if type(message) is LogLine]
        if command == "leave":
            assert texts == ["bye"]
        if command == "fork_and_leave":
            await until(lambda: not exists(int(texts[0])))

    run(scenario)


def test_a_kill_silences_the_worker():
    async def scenario(bench):
        for _ in range(10):
            bench.ask(LARGE, "copy")
        await until(lambda: bench.messages)
        bench.worker.kill()
        num_messages = len(bench.messages)
        bench.command("die")  # to nobody
        await until(bench.worker._is_finished.is_set)
        assert len(bench.messages) == num_messages
        assert bench.reasons == []

    run(scenario)


def test_a_kill_on_another_thread_does_the_same():
    async def scenario(bench):
        bench.ask(LARGE)
        await bench.answer()
        await asyncio.to_thread(bench.worker.kill)
        await until(bench.worker._is_finished.is_set)
        assert bench.reasons == []

    run(scenario)


def test_results_outlive_their_worker():
    async def scenario(bench):
        bench.ask(LARGE, "copy")
        result = await bench.answer()
        bench.command("die")
        await bench.reason()
        np.testing.assert_array_equal(result, LARGE)

    run(scenario)


def test_signals_to_the_whole_group_do_not_end_it():
    async def scenario(bench):
        bench.command("interrupt")
        await until(lambda: bench.messages)
        assert bench.messages[0].message == "still here"

    run(scenario)


def test_what_programs_of_the_model_get_to_see(tmp_path):
    async def scenario(bench):
        bench.command("describe")
        await until(lambda: bench.messages)
        facts = bench.messages[0].arguments
        assert facts["descriptors"] <= 4
        assert facts["heeds_sigterm"]
        assert facts["variable"] == "set"
        assert not facts["cwd_is_on_path"]
        assert facts["path"] == str(Path(sys.modules["bireme"].__file__).parents[1])

    run(scenario, env={"BIREME_TEST": "set"})


def test_one_that_cannot_be_started_is_an_error_and_leaves_nothing():
    before = leftovers()
    with pytest.raises(OSError, match="no/python"):
        Bench(executable="/no/python")

    check_leftovers(before)


def test_an_entry_that_does_not_exist_ends_the_worker():
    async def scenario(bench):
        assert await bench.reason() == "ended with exit code 1"

    run(scenario, entry="worker_entries:none")


@pytest.mark.parametrize("end", [WorkerProcess.kill, lambda worker: worker.stop(0.0)])
def test_one_that_was_never_attached_can_be_ended(end):
    before = leftovers()
    bench = Bench()
    end(bench.worker)
    assert bench.worker._is_finished.wait(5)
    assert not exists(bench.worker.pid)
    del bench

    check_leftovers(before)


def test_one_that_died_before_it_was_attached_is_told_then():
    async def scenario():
        bench = Bench(entry="worker_entries:none")
        await until(lambda: not bench.worker.is_alive)
        bench.attach()
        assert await bench.reason() == "ended with exit code 1"

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_loop_that_is_closed_is_no_hindrance(end):
    before = leftovers()

    async def scenario():
        bench = Bench()
        bench.attach()
        return bench

    bench = asyncio.run(scenario())
    if end == "kill":
        bench.worker.kill()
    else:  # as `bireme repo check` does
        bench.worker.send(Finalize())
        bench.worker.stop(5)
    assert bench.worker._is_finished.wait(5)
    del bench

    check_leftovers(before)


def test_workers_hand_on_each_others_memory():
    async def scenario(first):
        second = Bench(first.arena)
        second.attach()
        first.ask(LARGE, "copy")
        result = await first.answer()
        used = first.arena.used_bytes
        second.ask(result, "keep")
        back = await second.answer()
        assert np.shares_memory(back, result)
        assert first.arena.used_bytes == used
        del back, result
        first.command("die")
        await first.reason()
        assert second.worker.ledger.num_lent == 1
        second.ask(np.ones(3), "")
        await second.answer()
        second.worker.kill()
        await until(second.worker._is_finished.is_set)

    run(scenario)


def test_fifty_rounds_leave_no_descriptor_mapping_or_memory():
    before = leftovers()
    num_threads = threading.active_count()

    async def scenario():
        arena = Arena()
        for number in range(50):
            bench = Bench(arena)
            bench.attach()
            bench.ask(LARGE, "keep")
            bench.ask(LARGE, "copy")
            result = await bench.answer()
            if number % 2:
                await bench.answer()
            os.kill(bench.worker.pid, signal.SIGKILL)
            await bench.reason()
            np.testing.assert_array_equal(result, LARGE)
            del result
            assert arena.used_bytes == 0
        assert arena.statistics().num_segments == 1

    asyncio.run(scenario())
    check_leftovers(before)
    assert threading.active_count() <= num_threads + 1


SERVER = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from test_worker_process import Bench
async def main():
    bench = Bench()
    bench.attach()
    bench.command("hold_the_gil")
    while not bench.messages:
        await asyncio.sleep(0.01)
    print(bench.worker.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_worker_that_is_stuck_is_gone_within_a_second_when_its_server_is_killed():
    program = f"import sys; sys.path.insert(0, {str(TESTS)!r})" + SERVER.format(tests=str(TESTS / "ipc"))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as server:
        pid = int(server.stdout.readline())
        assert exists(pid)
        server.kill()
    deadline = time.monotonic() + 1
    while exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
