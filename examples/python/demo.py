"""Run an example in one go: build, serve on free ports, run its client, stop.

    python examples/python/demo.py [NAME...]

Without names: all of them. The exit status is 0 when every client worked and every server stopped cleanly.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import build

HERE = Path(__file__).resolve().parent
CLIENTS = {
    "add_sub": ("http", "grpc"),
    "page_upright": ("http",),
    "cascade": ("http",),
    "repeat": ("http", "grpc"),
    "fan_out": ("http",),
    "speech": ("http", "grpc"),
}
"""The examples, and which of the server's ports their clients want to know."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


def run(name: str) -> None:
    """Serve the example and run its client.

    Raises:
        SystemExit: the server did not start or stop well, or the client failed; the server's log is printed.
    """
    build.build([name])
    command = [sys.executable, "-m", "bireme", "serve", "--model-repository", str(HERE / name / "models")]
    for server in ("http", "grpc"):
        command += [f"--{server}-address=127.0.0.1", f"--{server}-port=0"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, "--metrics-port=0"], stdout=log, stderr=subprocess.STDOUT)
        try:
            ports = wait_for_ports(server, log.fileno())
            urls = [f"--{protocol}=127.0.0.1:{ports[protocol]}" for protocol in CLIENTS[name]]
            subprocess.run([sys.executable, HERE / name / "client.py", *urls], check=True)
            server.terminate()
            if server.wait(STOP_TIMEOUT_S):
                raise subprocess.CalledProcessError(server.returncode, "bireme serve")
        except (subprocess.SubprocessError, TimeoutError) as error:
            raise SystemExit(f"error: {error}; the server's log:\n{read(log.fileno())}") from error
        finally:
            server.kill()
            server.wait()


def wait_for_ports(server: subprocess.Popen[bytes], log: int) -> dict[str, str]:
    """Return the ports of HTTP and gRPC, which the log names, once all models serve."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        found = re.search(
            r"HTTP requests on http://[\d.]+:(\d+).*gRPC requests on grpc://[\d.]+:(\d+)",
            read(log),
            re.DOTALL,
        )
        if found and is_ready(found[1]):
            return {"http": found[1], "grpc": found[2]}
        time.sleep(0.02)
    raise TimeoutError("the server is not ready" if server.poll() is None else "the server has ended")


def is_ready(port: str) -> bool:
    """Whether the server says that all models serve."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def read(log: int) -> str:
    """Return everything in the log, wherever it is written to at the moment."""
    return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")


def main() -> None:
    """Run the examples that the command line names."""
    for name in sys.argv[1:] or CLIENTS:
        print(f"\n── {name}", flush=True)
        run(name)


if __name__ == "__main__":
    main()
