"""``bireme serve`` as a process: start, signals, exit status. Models are slow on purpose, through a backend of our own."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import grpc
import pytest

from certificates import Authority, organization_of
from serve_process import SLOW_CONFIG, ServeProcess, running, slow_backend

pytestmark = pytest.mark.slow

INFER = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.5]}]})


class Process(ServeProcess):
    """A server that is asked over HTTP."""

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


@pytest.fixture
def serving(tmp_path: Path):
    """Return a context manager that runs a server on a repository with the slow models named."""

    @contextmanager
    def serve(
        *arguments: str, models: tuple[str, ...] = ("m",), delay_s: float = 0.0, load_s: float = 0.0
    ) -> Iterator[Process]:
        repository = tmp_path / "models"
        repository.mkdir()
        for model in models:
            (repository / model / "1").mkdir(parents=True)
            (repository / model / "config.pbtxt").write_text(SLOW_CONFIG)
        environment = slow_backend(tmp_path / "site", delay_s=delay_s, load_s=load_s)
        with running(
            Process("--model-repository", str(repository), *arguments, environment=environment)
        ) as process:
            yield process

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


def test_both_front_ends_write_one_access_log(serving, tmp_path):
    access_log = tmp_path / "access.log"
    with serving(f"--access-log={access_log}", "--log-format=json") as server:
        server.wait_for("is ready in")
        server.request("GET", "/v2")
        with grpc.insecure_channel(server.grpc_address) as channel:
            channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=20)
        server.popen.send_signal(signal.SIGTERM)
        assert server.exit_status() == 0

    lines = [json.loads(line) for line in access_log.read_text().splitlines()]
    assert [("GET", "/v2"), ("gRPC", "/inference.GRPCInferenceService/ServerLive")] == [
        (line["method"], line["route"]) for line in lines
    ]


def test_sighup_reads_the_certificates_anew(serving, tmp_path):
    authority = Authority(tmp_path / "tls")
    files = (f"--http-server-cert={authority.cert}", f"--http-server-key={authority.key}")
    with serving("--http-use-ssl=true", *files) as server:
        port = int(server.wait_for(r"HTTP requests on https://127\.0\.0\.1:(\d+)"))
        authority.issue("server", "after")
        server.wait_for("is ready in")
        server.popen.send_signal(signal.SIGHUP)
        server.wait_for("TLS certificates reloaded")

        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            authority.client().wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            assert organization_of(secure.getpeercert()) == "after"


def test_a_unix_socket_is_named_and_gone_after_the_stop(serving, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "http"
    with serving(f"--http-address=unix:{path}") as server:
        server.wait_for(f'HTTP requests on unix:{path}"')
        server.wait_for(r"metrics requests on http://127\.0\.0\.1:\d+/metrics")
        server.wait_for("is ready in")
        assert path.is_socket()
        server.popen.send_signal(signal.SIGTERM)

        assert server.exit_status() == 0
        assert not path.exists()


def test_a_wrong_certificate_ends_the_start_before_any_port_is_bound(serving):
    with serving("--grpc-use-ssl=true", "--grpc-server-cert=/no/cert", "--grpc-server-key=/no/key") as server:
        assert server.exit_status() == 1
        assert "--grpc-server-cert '/no/cert': No such file or directory" in server.output
        assert "listening for" not in server.output


@pytest.mark.parametrize("_attempt", range(3))
def test_nobody_who_connects_while_the_server_stops_is_left_without_an_answer(serving, _attempt):
    """Clients that ask again and again; on a connection until they are told that it ends, then on a new one.

    One that was idle for a moment may have been closed just when its client began to ask: HTTP has no way to tell it before.
    """
    ask = (
        f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(INFER)}\r\n\r\n{INFER}".encode()
    )
    faults: list[str] = []
    statuses: set[bytes] = set()

    def client(port: int) -> None:
        while True:
            try:
                its = socket.create_connection(("127.0.0.1", port), timeout=20)
            except OSError:  # the port is closed
                return
            num_answers = 0
            with its, its.makefile("rb") as replies:
                try:
                    while ask_on(its, replies):
                        num_answers += 1
                except OSError as error:
                    if not num_answers:
                        faults.append(repr(error))

    def ask_on(its: socket.socket, replies: BinaryIO) -> bool:
        """Return whether the connection goes on."""
        its.sendall(ask)
        line = replies.readline()
        if not line:
            raise ConnectionError("closed without a reply")
        statuses.add(line.split()[1])
        headers = http.client.parse_headers(replies)
        replies.read(int(headers["Content-Length"]))
        return headers["Connection"] != "close"

    with serving() as server:
        server.wait_for("is ready")
        clients = [threading.Thread(target=client, args=(server.port,)) for _ in range(6)]
        for each in clients:
            each.start()
        time.sleep(0.2)
        server.popen.send_signal(signal.SIGTERM)
        assert server.exit_status() == 0
        for each in clients:
            each.join()
    assert faults == []
    assert statuses == {b"200", b"503"}
