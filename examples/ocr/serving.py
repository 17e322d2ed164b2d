"""Starts the server and the gateway on free ports of this machine, and stops them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class Addresses(NamedTuple):
    """Where to ask, each as ``host:port``."""

    http: str
    grpc: str
    gateway: str


@contextmanager
def served(logs: Path) -> Iterator[Addresses]:
    """Serve the repository, and run the gateway beside it, while the context lasts; their output goes to files in ``logs``.

    Raises:
        SystemExit: one of them did not start, or did not stop with exit status 0; its output is in the text.
    """
    http, grpc, metrics, gateway = free_ports(4)
    addresses = Addresses(*(f"127.0.0.1:{port}" for port in (http, grpc, gateway)))
    server = [
        *("-m", "bireme", "serve", "--model-repository", str(HERE / "models")),
        *("--http-address", "127.0.0.1", "--http-port", str(http)),
        *("--grpc-address", "127.0.0.1", "--grpc-port", str(grpc), "--metrics-port", str(metrics)),
    ]
    between = [str(HERE / "gateway.py"), "--grpc", addresses.grpc, "--http", addresses.gateway]
    logs.mkdir(exist_ok=True)
    with ExitStack() as stack:
        for arguments, ready, log in (
            (server, f"{addresses.http}/v2/health/ready", logs / "server.log"),
            (between, f"{addresses.gateway}/ready", logs / "gateway.log"),
        ):
            stack.enter_context(running(arguments, f"http://{ready}", log))
        yield addresses


@contextmanager
def running(arguments: list[str], ready_url: str, log: Path) -> Iterator[None]:
    """Run a Python program while the context lasts; enter it when the URL answers with 200.

    Raises:
        SystemExit: as for `served`.
    """
    with log.open("wb") as output:
        program = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(ready_url):
            if program.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"error: {arguments[-1]} is not ready; {log}:\n{log.read_text(errors='replace')}"
                )
            time.sleep(0.02)
        yield
        program.terminate()
        if status := program.wait(STOP_TIMEOUT_S):
            raise SystemExit(f"error: exit status {status}; {log}:\n{log.read_text(errors='replace')}")
    finally:
        program.kill()
        program.wait()


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [taken.getsockname()[1] for taken in sockets]
    finally:
        for taken in sockets:
            taken.close()
