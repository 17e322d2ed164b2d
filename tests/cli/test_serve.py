"""``bireme serve`` as a process: start, signals, exit status. Models are slow on purpose, through a backend of our own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BACKEND = """
import os
import time

from bireme.testing import FakeBackend


class SlowBackend(FakeBackend):
    def __init__(self):
        super().__init__(name="slow", delay_s=float(os.environ["DELAY_S"]))

    def load(self, ctx):
        time.sleep(float(os.environ.get("LOAD_S", "0")))
        if ctx.name == "broken":
            raise ValueError("the file is torn")
        return super().load(ctx)
"""

CONFIG = """
backend: "slow"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 2 }
"""

INFER = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.5]}]})


class Process:
    """A server in a process of its own; its output is collected as it comes."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "bireme", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        self.output = ""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._changed:
                self.output += line
                self._changed.notify_all()

    def wait_for(self, pattern: str, timeout_s: float = 20.0) -> str:
        """Return the first group of ``pattern`` once the output matches it."""
        with self._changed:
            self._changed.wait_for(lambda: re.search(pattern, self.output) or self._ended(), timeout_s)
            found = re.search(pattern, self.output)
        assert found, f"no {pattern!r} in:\n{self.output}"
        return found[1] if found.groups() else found[0]

    def _ended(self) -> bool:
        return self.popen.poll() is not None and not self._reader.is_alive()

    @property
    def port(self) -> int:
        return int(self.wait_for(r"HTTP requests on http://127\.0\.0\.1:(\d+)"))

    def request(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def infer_in_background(self) -> threading.Thread:
        """Send a request and return when the server has it; ``answers`` of the thread takes the answer."""
        self.answers: list[tuple[int, bytes] | Exception] = []

        def ask() -> None:
            try:
                self.answers.append(self.request("POST", "/v2/models/m/infer", INFER))
            except (OSError, http.client.HTTPException) as error:
                self.answers.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        metrics = int(self.wait_for(r"metrics requests on http://127\.0\.0\.1:(\d+)"))
        for _ in range(400):
            connection = http.client.HTTPConnection("127.0.0.1", metrics, timeout=20)
            connection.request("GET", "/metrics")
            page = connection.getresponse().read()
            connection.close()
            if re.search(rb"^bireme_requests_executing\{.*\} 1$", page, re.MULTILINE):
                break
            time.sleep(0.01)
        return thread

    def exit_status(self, timeout_s: float = 20.0) -> int:
        status = self.popen.wait(timeout_s)
        self._reader.join(timeout_s)
        return status


@pytest.fixture
def backend_path(tmp_path: Path) -> Path:
    """Return a folder to import from that holds the backend "slow" as an installed package."""
    folder = tmp_path / "site"
    info = folder / "slow_backend-1.dist-info"
    info.mkdir(parents=True)
    (folder / "slow_backend.py").write_text(BACKEND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bireme.backends]\nslow = slow_backend:SlowBackend\n")
    return folder


@pytest.fixture
def serving(tmp_path: Path, backend_path: Path):
    """Return a context manager that runs a server on a repository with the slow models named."""

    @contextmanager
    def serve(
        *arguments: str, models: tuple[str, ...] = ("m",), delay_s: float = 0.0, load_s: float = 0.0
    ) -> Iterator[Process]:
        repository = tmp_path / "models"
        repository.mkdir()
        for model in models:
            (repository / model / "1").mkdir(parents=True)
            (repository / model / "config.pbtxt").write_text(CONFIG)
        process = Process(
            [
                *(
                    "--model-repository",
                    str(repository),
                    "--http-address=127.0.0.1",
                    "--grpc-address=127.0.0.1",
                ),
                *("--http-port=0", "--grpc-port=0", "--metrics-port", "0", *arguments),
            ],
            {"PYTHONPATH": str(backend_path), "DELAY_S": str(delay_s), "LOAD_S": str(load_s)},
        )
        try:
            yield process
        finally:
            if process.popen.poll() is None:
                process.popen.kill()
            process.exit_status()
            assert process.popen.stdout is not None
            process.popen.stdout.close()

    return serve


def test_sigterm_lets_requests_finish_and_refuses_new_ones(serving):
    with serving("--exit-timeout-secs=20", delay_s=1.0) as server:
        server.wait_for("is ready in")
        assert server.request("GET", "/v2/health/ready")[0] == 200
        asking = server.infer_in_background()

        server.popen.send_signal(signal.SIGTERM)
        server.wait_for("received SIGTERM")
        ready, _ = server.request("GET", "/v2/health/ready")
        refused, why = server.request("POST", "/v2/models/m/infer", INFER)
        asking.join()

        assert server.exit_status() == 0
        assert ready != 200
        assert (503, True) == (refused, b"stopping" in why)
        status, body = server.answers[0]
        assert (200, [1.5]) == (status, json.loads(body)["outputs"][0]["data"])
        assert "Traceback" not in server.output


def test_a_second_signal_exits_at_once(serving):
    with serving(delay_s=60.0) as server:
        server.wait_for("is ready in")
        asking = server.infer_in_background()

        server.popen.send_signal(signal.SIGINT)
        server.wait_for("received SIGINT: ")
        start = time.monotonic()
        server.popen.send_signal(signal.SIGTERM)

        assert server.exit_status() == 1
        assert time.monotonic() - start < 5
        asking.join()
        assert isinstance(server.answers[0], Exception)
        assert "received SIGTERM again: exiting without waiting" in server.output


def test_requests_that_outlast_the_exit_timeout_end_it_with_1(serving):
    with serving("--exit-timeout-secs=0", delay_s=60.0) as server:
        server.wait_for("is ready in")
        asking = server.infer_in_background()

        server.popen.send_signal(signal.SIGTERM)

        assert server.exit_status() == 1
        asking.join()
        assert "not everything finished within --exit-timeout-secs=0" in server.output


def test_a_signal_while_models_load_ends_the_start(serving):
    with serving(load_s=60.0) as server:
        assert server.port
        assert server.request("GET", "/v2/health/ready")[0] != 200

        server.popen.send_signal(signal.SIGTERM)

        assert server.exit_status() == 0
        assert "received SIGTERM while starting" in server.output


def test_a_model_that_fails_ends_the_start_with_its_reason(serving):
    with serving(models=("m", "broken")) as server:
        assert server.exit_status() == 1
        assert "the file is torn" in server.output
        assert re.search(r"\| broken +\| 1 +\| UNAVAILABLE", server.output)
        assert re.search(r"\| m +\| 1 +\| READY", server.output)


def test_a_model_that_fails_is_left_out_where_errors_are_allowed(serving):
    with serving("--exit-on-error=false", "--strict-readiness=false", models=("m", "broken")) as server:
        server.wait_for("is ready in")

        assert server.request("GET", "/v2/health/ready")[0] == 200
        assert server.request("POST", "/v2/models/m/infer", INFER)[0] == 200
        assert server.request("POST", "/v2/models/broken/infer", INFER)[0] == 404


def test_a_taken_port_is_named_before_any_model_loads(serving):
    with serving() as first:
        with_port = [sys.executable, "-m", "bireme", "serve", "-m", ".", "--http-address=127.0.0.1"]
        second = subprocess.run(
            [*with_port, f"--http-port={first.port}", "--allow-grpc=0", "--allow-metrics=0"],
            capture_output=True,
            text=True,
            check=False,
        )

        assert second.returncode == 1
        assert f"cannot listen on '127.0.0.1:{first.port}': Address already in use; " in second.stderr
        assert "choose another port for HTTP with --http-port" in second.stderr
        assert "Traceback" not in second.stderr


def test_sighup_opens_the_access_log_anew(serving, tmp_path):
    access_log = tmp_path / "access.log"
    with serving(f"--access-log={access_log}", "--log-format=json") as server:
        server.wait_for("is ready in")
        server.request("GET", "/v2")
        access_log.rename(tmp_path / "old.log")
        server.popen.send_signal(signal.SIGHUP)
        for _ in range(400):
            server.request("POST", "/v2/models/m/infer", INFER)
            if access_log.exists() and access_log.stat().st_size:
                break
            time.sleep(0.01)

        assert json.loads((tmp_path / "old.log").read_text().splitlines()[0])["route"] == "/v2"
        assert json.loads(access_log.read_text().splitlines()[-1])["model"] == "m"
        assert [] == [line for line in server.output.splitlines() if not line.startswith("{")]
