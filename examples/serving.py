"""Runs a program of an example, the server above all, until its work is done: what the demos share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

T = TypeVar("T")


class Addresses(NamedTuple):
    """Where a server listens, each as ``host:port``."""

    http: str
    grpc: str
    metrics: str


@contextmanager
def served(models: Path, log: Path) -> Iterator[Addresses]:
    """Run ``bireme serve`` on free ports of this machine while the context lasts; enter it when all models serve.

    Raises:
        SystemExit: as for `running`.
    """
    command = ["serve", "--model-repository", os.path.relpath(models), "--metrics-port=0"]
    for protocol in ("http", "grpc"):
        command += [f"--{protocol}-address=127.0.0.1", f"--{protocol}-port=0"]
    with running(["-m", "bireme", *command], log, lambda: ready_addresses(log.read_text())) as addresses:
        yield addresses


def ready_addresses(log: str) -> Addresses | None:
    """Return where the server listens, which its log tells; None as long as it is not ready."""
    found = re.findall(r"listening for \w+ requests on \w+://([\d.:]+)", log)
    if len(found) == len(Addresses._fields) and answers(f"http://{found[0]}/v2/health/ready"):
        return Addresses(*found)
    return None


@contextmanager
def running(arguments: list[str], log: Path, ready: Callable[[], T | None]) -> Iterator[T]:
    """Run a Python program while the context lasts; enter it with what ``ready`` returns, once that is true.

    What the program writes goes to ``log``. At the end it has SIGTERM, and must stop with exit status 0.

    Raises:
        SystemExit: it did not start, or did not stop, as it should; the log is in the text.
    """
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        program = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)

    def failed(how: str) -> SystemExit:
        name = "the server" if "bireme" in arguments else arguments[0]
        return SystemExit(f"\nerror: {name} {how}. Its log, {log}:\n{log.read_text()}")

    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (entered := ready()):
            if (status := program.poll()) is not None:
                raise failed(f"ended with exit status {status}")
            if time.monotonic() > deadline:
                raise failed("is not ready yet")
            time.sleep(0.02)
        yield entered
        program.terminate()
        try:
            status = program.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise failed("does not stop") from None
        if status:
            raise failed(f"stopped with exit status {status}")
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
