"""The fork server, in a program of its own: what its workers get to see, how their ends are told, and that it ends too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from bireme.ipc.forker import SOURCE_DIRECTORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="there is none on this system"),
]

TESTS = Path(__file__).parent.parent
PRELUDE = """
import json, os, signal, socket, sys, threading, time
own_file = open(os.devnull)
from bireme.ipc import fork_server

server = fork_server.start(["forked_entries"])
from bireme.ipc.channel import make_pair
from bireme.ipc.lifeline import make_lifeline

class Worker:
    def __init__(self, entry):
        self.connection, its = make_pair()
        self.introductions, its_introductions = make_pair()
        its_lifeline, self.lifeline = make_lifeline()
        self.process = fork_server.fork_worker(
            (its.fileno(), its_introductions.fileno(), its_lifeline), 65536, "forked_entries:" + entry)
        its.close()
        its_introductions.close()
        os.close(its_lifeline)

    def hear(self):
        return json.loads(self.connection.recv(65536))

    def end(self):
        self.connection.close()
        self.process.wait()
        return self.process.reap()

def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None

def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)

def say(word):
    print(json.dumps(word), flush=True)
"""


def start(body: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), SOURCE_DIRECTORY])} | environment,
    )


def run(body: str, **environment: str) -> Any:
    """Run a program with a fork server; return the last word that it said, and what it wrote to stderr."""
    with start(body, **environment) as program:
        output, errors = program.communicate(timeout=30)
    assert program.returncode == 0, errors
    return json.loads(output.splitlines()[-1]), errors


def is_there(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while is_there(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_sees_what_a_program_of_its_own_would_see():
    body = """
        os.environ["CHANGED"], os.environ["ADDED"] = "new", "1"
        del os.environ["GONE"]
        worker = Worker("tell")
        facts = worker.hear()
        assert worker.end() == 0
        say([facts, worker.process.pid, server.pid])
    """
    (facts, pid, server_pid), errors = run(body, CHANGED="old", GONE="1")
    assert errors == ""
    assert (facts["pid"], facts["group"], facts["parent"]) == (pid, pid, server_pid)
    environment = facts["environment"]
    assert (environment["CHANGED"], environment["ADDED"]) == ("new", "1")
    assert "GONE" not in environment
    assert facts["descriptors"].count("/dev/null") == 1
    assert facts["descriptors"].count("socket") == 2
    assert facts["descriptors"].count("pipe") == 3  # its output, its errors, its lifeline
    assert facts["input"] == ""
    assert (facts["main"], facts["main_file"]) == ([], None)
    assert "" not in facts["path"]
    assert str(Path.cwd()) not in facts["path"]
    assert facts["path"][-1] == SOURCE_DIRECTORY
    assert facts["heeds_sigterm"]
    assert facts["threads"] == 1
    assert "bireme.ipc.worker".startswith(facts["title"])


def test_workers_draw_different_random_numbers():
    (first, second), _ = run("""
        import random
        import numpy
        random.seed(1)
        numpy.random.seed(1)
        say([Worker("tell").hear()["random"] for _ in range(2)])
    """)
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(("entry", "code"), [("leave", 3), ("fail", 1), ("die", -11)])
def test_its_exit_status_is_known(entry: str, code: int):
    found, errors = run(f"""
        worker = Worker({entry!r})
        worker.process.wait()
        assert state(worker.process.pid) == "Z"  # its id is its own
        found = worker.process.reap()
        assert state(worker.process.pid) is None
        say(found)
    """)
    assert found == code
    assert ("ZeroDivisionError: a test's" in errors) == (entry == "fail")


def test_nothing_remains_of_what_a_model_leaves_behind():
    run("""
        worker = Worker("leave_orphans")
        orphan = worker.hear()
        wait_until(lambda: state(orphan) is None)
        assert worker.end() == 0
        other = Worker("leave_orphans")  # also while a worker waits to be reaped
        zombie = Worker("leave")
        zombie.process.wait()
        orphan = other.hear()
        wait_until(lambda: state(orphan) in ("Z", None))
        assert zombie.process.reap() == 3
        wait_until(lambda: state(orphan) is None)
        say(None)
    """)


def test_workers_can_be_forked_by_many_threads():
    codes, _ = run("""
        codes = []
        def work():
            for entry in ("tell", "leave", "tell"):
                worker = Worker(entry)
                if entry == "tell":
                    assert worker.hear()["pid"] == worker.process.pid
                codes.append(worker.end())
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(codes)
    """)
    assert sorted(codes) == [0] * 12 + [3] * 6


def test_it_and_its_workers_end_with_a_killed_server():
    with start("say([server.pid, Worker('sleep').hear()]); time.sleep(60)") as program:
        assert program.stdout is not None
        pids = json.loads(program.stdout.readline())
        assert all(map(is_there, pids))
        program.kill()
        for pid in pids:
            wait_until_gone(pid)


def test_it_ends_at_a_stop_and_workers_go_on():
    found, errors = run("""
        worker = Worker("tell")
        worker.hear()
        fork_server.stop()
        assert state(server.pid) is None
        assert state(worker.process.pid) in ("R", "S")
        assert fork_server.fork_worker((0, 1, 2), 1, "x:y") is None
        say(worker.end())
    """)
    assert found is None
    assert errors == ""


def test_signals_for_the_whole_group_do_not_end_it():
    run("""
        worker = Worker("tell")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(server.pid, number)
        worker.hear()
        Worker("tell").hear()
        assert os.getpgid(server.pid) == server.pid
        say(None)
    """)


def test_without_it_nothing_is_forked_and_the_log_says_so_once():
    _, errors = run("""
        worker = Worker("tell")
        worker.hear()
        os.kill(server.pid, signal.SIGKILL)
        assert Worker("tell").process is None
        assert Worker("tell").process is None
        assert state(server.pid) is None
        assert state(worker.process.pid) in ("R", "S")
        assert worker.end() is None
        say(None)
    """)
    assert errors.count("the fork server of worker processes failed") == 1


def test_one_that_cannot_import_is_one_that_is_gone():
    _, errors = run("""
        fork_server.stop()
        fork_server.start(["forked_entries", "no_such_module"])
        assert Worker("tell").process is None
        say(None)
    """)
    assert "No module named 'no_such_module'" in errors


def test_it_has_no_descriptors_of_the_server():
    (descriptors, title), _ = run("""
        worker = Worker("tell")
        worker.hear()
        own = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in sorted(map(int, os.listdir(f"/proc/{server.pid}/fd")))]
        say([own, open(f"/proc/{server.pid}/cmdline").read().rstrip(chr(0))])
    """)
    kinds = [descriptor.split(":")[0] for descriptor in descriptors]
    assert kinds[:3] == ["/dev/null", "pipe", "pipe"]
    assert sorted(kinds[3:]) == ["pipe", "pipe", "pipe", "socket"]  # its lifeline, for SIGCHLD, for orders
    assert "bireme.ipc.fork_server".startswith(title)


def test_there_is_none_where_the_environment_says_so():
    run(
        """
        assert server is None
        assert Worker("tell").process is None
        say(None)
        """,
        BIREME_FORK_SERVER="0",
    )


def test_a_process_with_threads_gets_none():
    run("""
        fork_server.stop()
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        assert fork_server.start(()) is None
        say(None)
    """)
