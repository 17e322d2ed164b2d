"""The fork server of a ``bireme serve`` process: who is forked, who is not, and what its end costs."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e_server import wait_until
from python_models import PLUS_ONE, PythonServer, instances, is_running
from serve_process import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="there is none on this system"),
]

FORKED = "bireme.ipc.worker"
PROGRAM = "from bireme.ipc.worker import main"


@contextmanager
def serving(root: Path) -> Iterator[PythonServer]:
    with running(PythonServer(root)) as server:
        yield server


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().rstrip()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_workers_are_forked_and_their_ends_are_known(tmp_path: Path):
    with serving(tmp_path) as server:
        server.add("m", PLUS_ONE, instances(2))
        workers = server.workers()
        assert {command(pid) for pid in workers} == {FORKED}
        (forker,) = {parent_of(pid) for pid in workers}
        assert command(forker) == "bireme.ipc.fork_server"
        assert parent_of(forker) == server.popen.pid
        kinds = [str(fd.readlink()).split(":")[0] for fd in Path(f"/proc/{forker}/fd").iterdir()]
        assert kinds.count("socket") == 1
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        server.wait_for(r"was killed by signal 9 \(SIGKILL\)")
        wait_until(lambda: server.infer("m", 1).status == 200)
        assert server.infer("m", 1).values == [2]
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        server.popen.terminate()
        assert server.exit_status() == 0
        assert not is_running(forker)


def test_without_a_fork_server_they_are_programs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BIREME_FORK_SERVER", "0")
    with serving(tmp_path) as server:
        server.add("m")
        assert PROGRAM in command(server.worker())
        assert parent_of(server.worker()) == server.popen.pid
        assert server.infer("m", 1).values == [2]


def test_its_end_costs_nothing_but_speed(tmp_path: Path):
    with serving(tmp_path) as server:
        server.add("m")
        worker = server.worker()
        forker = parent_of(worker)
        os.kill(forker, signal.SIGKILL)
        wait_until(lambda: not is_running(forker))
        server.add("n")
        assert len(re.findall("the fork server of worker processes failed", server.output)) == 1
        assert not Path(f"/proc/{forker}").exists()
        assert server.infer("m", 1).values == [2]
        assert server.infer("n", 1).values == [2]
        os.kill(worker, signal.SIGKILL)
        server.wait_for(r"the process of instance 'm_0' \(pid \d+\) ended, nobody knows how")
        wait_until(lambda: server.infer("m", 1).status == 200)
        assert all(PROGRAM in command(pid) for pid in server.workers())
