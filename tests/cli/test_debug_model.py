"""``bireme serve --debug-model``: a model's breakpoint stops in the terminal, and signals still end the server."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import orjson
import pytest

from bireme.backends.python.debug_desk import DebugDesk
from bireme.types import Unavailable
from serve_process import ServeProcess, running
from thread_models import add_thread_model, execute

BODY = '{"inputs": [{"name": "X", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}'
STOPPING = """
def initialize(self, args):
    self.is_main = threading.current_thread() is threading.main_thread()
def execute(self, requests):
    x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
    breakpoint()
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)])]
def finalize(self):
    print("finalized", flush=True)
"""


class Answer:
    """A request in a thread of its own, and its answer."""

    def __init__(self, port: int, name: str) -> None:
        self._found: dict[str, object] = {}
        self._thread = threading.Thread(target=self._ask, args=(port, name))
        self._thread.start()

    def _ask(self, port: int, name: str) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        with suppress(OSError):
            connection.request("POST", f"/v2/models/{name}/infer", BODY)
            self._found = orjson.loads(connection.getresponse().read())
        connection.close()

    def get(self) -> dict[str, object]:
        self._thread.join(20)
        return self._found


class Debugged(ServeProcess):
    """A server whose terminal is a pair of pseudo terminals."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self._terminal, other = pty.openpty()
        super().__init__(f"--model-repository={root}", *arguments, stdin=other)
        os.close(other)

    def type(self, line: str) -> None:
        os.write(self._terminal, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._terminal)


@contextmanager
def debugged(root: Path, *arguments: str) -> Iterator[Debugged]:
    with running(Debugged(root, *arguments)) as server:
        try:
            server.wait_for(r"is ready")
            yield server
        finally:
            server.close()


@pytest.mark.slow
def test_a_breakpoint_stops_in_the_terminal(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", STOPPING)
    add_thread_model(tmp_path, "other", execute("x + 1"))
    with debugged(tmp_path, "--debug-model=m") as server:
        answer = Answer(server.port, "m")
        server.wait_for("-> return")
        server.type("p 1+1, self.is_main, x.tolist()")
        server.wait_for(r"\(2, True, \[1\.0, 2\.0\]\)")
        # Other models and the server itself go on meanwhile.
        other = Answer(server.port, "other").get()
        assert [2.0, 3.0] == other["outputs"][0]["data"]
        server.type("c")
        assert [2.0, 4.0] == answer.get()["outputs"][0]["data"]
        server.popen.send_signal(signal.SIGINT)
        assert 0 == server.exit_status()
        assert "finalized" in server.output


@pytest.mark.slow
def test_quitting_the_debugger_fails_the_request_only(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", STOPPING)
    with debugged(tmp_path, "--debug-model=m", "--debug-model=nobody") as server:
        assert "--debug-model=nobody: there is no such model" in server.output
        answer = Answer(server.port, "m")
        server.wait_for("-> return")
        server.type("q")
        assert "BdbQuit" in str(answer.get()["error"])
        server.popen.send_signal(signal.SIGTERM)
        assert 0 == server.exit_status()


@pytest.mark.slow
def test_a_second_signal_ends_a_server_that_stands_at_the_prompt(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", STOPPING)
    with debugged(tmp_path, "--debug-model=m") as server:
        answer = Answer(server.port, "m")
        server.wait_for("-> return")
        server.popen.send_signal(signal.SIGINT)
        server.wait_for("a second signal exits at once")
        server.popen.send_signal(signal.SIGINT)
        assert 1 == server.exit_status()
        answer.get()


@pytest.mark.slow
def test_piped_commands_work_too(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", STOPPING)
    process = ServeProcess(f"--model-repository={tmp_path}", "--debug-model=m", stdin=subprocess.PIPE)
    with running(process) as server:
        server.wait_for(r"is ready")
        answer = Answer(server.port, "m")
        assert server.popen.stdin is not None
        with server.popen.stdin as stdin:
            stdin.write("p 40+2\nc\n")
            stdin.flush()
            server.wait_for(r"\b42\b")
            assert [2.0, 4.0] == answer.get()["outputs"][0]["data"]


def test_a_closed_desk_takes_nothing() -> None:
    desk = DebugDesk(["a", "b"])
    done: list[str] = []
    desk.post(lambda: done.append("job"))
    desk.close()
    desk.run(after_each=lambda: done.append("after"))
    assert ["job", "after"] == done
    with pytest.raises(Unavailable):
        desk.call(lambda: None)


def test_a_desk_knows_whom_it_takes() -> None:
    desk = DebugDesk(["a", "b"])
    assert desk.takes("a")
    assert not desk.takes("c")
    assert ["b"] == desk.missing


def test_what_a_call_raises_is_raised_where_it_is_waited_for() -> None:
    desk = DebugDesk([])

    def ask() -> None:
        with pytest.raises(KeyError):
            desk.call(lambda: {}["x"])
        desk.close()

    thread = threading.Thread(target=ask)
    thread.start()
    desk.run(after_each=lambda: None)
    thread.join()
