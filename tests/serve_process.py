"""``bireme serve`` in a process of its own: its output, its ports, its memory; and models that are slow on purpose."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

SLOW_CONFIG = """
backend: "slow"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 2 }
"""

_SLOW_BACKEND = """
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


def slow_backend(folder: Path, *, delay_s: float = 0.0, load_s: float = 0.0) -> dict[str, str]:
    """Write the backend "slow" into ``folder`` as an installed package; return the environment of a server that uses it."""
    info = folder / "slow_backend-1.dist-info"
    info.mkdir(parents=True)
    (folder / "slow_backend.py").write_text(_SLOW_BACKEND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bireme.backends]\nslow = slow_backend:SlowBackend\n")
    return {"PYTHONPATH": str(folder), "DELAY_S": str(delay_s), "LOAD_S": str(load_s)}


class ServeProcess:
    """A server on free ports of the loopback; its output is collected as it comes."""

    def __init__(
        self, *arguments: str, environment: Mapping[str, str] | None = None, stdin: int | None = None
    ) -> None:
        addresses = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "bireme", "serve", *addresses, *ports, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # what models write
            env=os.environ | (environment or {}),
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    @property
    def output(self) -> str:
        return "".join(self._lines)

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

    @property
    def grpc_address(self) -> str:
        return self.wait_for(r"gRPC requests on grpc://(127\.0\.0\.1:\d+)")

    def exit_status(self, timeout_s: float = 20.0) -> int:
        status = self.popen.wait(timeout_s)
        self._reader.join(timeout_s)
        return status

    # Resources; Linux only

    def memory_mb(self, which: str = "VmRSS") -> float:
        """Resident memory now, or the most since `forget_peak` (``VmHWM``)."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        found = re.search(rf"{which}:\s*(\d+) kB", status)
        assert found
        return int(found[1]) / 1e3

    def forget_peak(self) -> None:
        Path(f"/proc/{self.popen.pid}/clear_refs").write_text("5")

    def num_descriptors(self) -> int:
        return len([*Path(f"/proc/{self.popen.pid}/fd").iterdir()])


ServeProcessT = TypeVar("ServeProcessT", bound=ServeProcess)


@contextmanager
def running(process: ServeProcessT) -> Iterator[ServeProcessT]:
    """Leave no process behind, whatever the test does."""
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
        process.exit_status()
        assert process.popen.stdout is not None
        process.popen.stdout.close()
