"""A real ``redis-server`` for tests, which may be killed and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

PROGRAM = shutil.which("redis-server")

needs_redis = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisProcess:
    """A Redis of its own, on the loopback; it stores nothing on disk."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def settings(self) -> dict[str, str | int]:
        return {"host": "127.0.0.1", "port": self.port}

    def start(self) -> None:
        assert PROGRAM is not None
        command = [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self._options]
        self._process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(64):
                        return
            except OSError:
                assert time.monotonic() < deadline, "redis-server did not start"
                time.sleep(0.01)

    def pause(self) -> None:
        """Let it be there and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
