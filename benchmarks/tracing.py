"""What tracing costs a request over HTTP: CPU time of the whole server process, its threads that write and send included.

    python -m benchmarks.tracing [--requests N] [--rounds N]

One connection asks the smallest model again and again, from a process of its own; so does the collector. The servers of all
rows live side by side, and take turns: whatever else the machine does meets all of them. Microseconds of CPU per request, the
best of the rounds, and how much that is above a server without tracing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

sys.path.pop(0)  # benchmarks/http.py must not stand in for the standard library's http

import uvloop
from rich.console import Console
from rich.table import Table

from bireme.engine import Server, ServerOptions
from bireme.frontend.http import HttpFrontend, HttpOptions
from bireme.telemetry.tracing import TraceOptions
from bireme.testing import FakeBackend

CONFIG: Final = """
backend: "fake"
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]
"""
BODY: Final = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'
CLIENT: Final = """
import socket, sys
port, num_requests = int(sys.argv[1]), int(sys.argv[2])
body = sys.argv[3].encode()
request = b"POST /v2/models/same/infer HTTP/1.1\\r\\nHost: bench\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body)
with socket.create_connection(("127.0.0.1", port)) as connection:
    connection.sendall(request)
    size = len(connection.recv(65536))
    for _ in range(num_requests - 1):
        connection.sendall(request)
        received = 0
        while received < size:
            received += len(connection.recv(65536))
"""
COLLECTOR: Final = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
FLUSH_S: Final = 1.3
"""How long the threads have for what is left of a row; it counts for that row."""


def cases(directory: Path, collector: str) -> dict[str, tuple[str, ...]]:
    """Return the ``--trace-config`` settings of every row."""
    file = ("level=TIMESTAMPS", f"triton,file={directory}/t.json")
    spans = (
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        f"opentelemetry,url={collector}",
        "opentelemetry,bsp_schedule_delay=1000",
    )
    return {
        "off": (),
        "off, again": (),
        "on, nothing is sampled": (*file, "rate=1000000000"),
        "0.1 % to a file": (*file, "rate=1000"),
        "1 % to a file": (*file, "rate=100"),
        "0.1 % to a collector": (*spans, "rate=1000"),
        "1 % to a collector": (*spans, "rate=100"),
        "all to a file": (*file, "rate=1"),
    }


@contextlib.asynccontextmanager
async def serving(models: Path, settings: tuple[str, ...]) -> AsyncIterator[int]:
    """Serve ``models``; give the port."""
    options = ServerOptions(model_repository=(str(models),), tracing=TraceOptions.parse(settings))
    async with Server(options=options, backends={"fake": FakeBackend()}) as server:
        frontend = HttpFrontend(server, HttpOptions(address="127.0.0.1", port=0))
        await frontend.start()
        try:
            yield frontend.port
        finally:
            await frontend.stop(1)


async def measure(port: int, num_requests: int) -> float:
    """Return microseconds of CPU per request."""
    start = time.process_time()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, str(port), str(num_requests), BODY.decode()
    )
    if await client.wait():
        raise SystemExit("the client has failed")
    await asyncio.sleep(FLUSH_S)
    return (time.process_time() - start) / num_requests * 1e6


async def run(num_requests: int, num_rounds: int, collector: str) -> dict[str, float]:
    """Return the best time of every row."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        models = directory / "models"
        (models / "same" / "1").mkdir(parents=True)
        (models / "same" / "config.pbtxt").write_text(CONFIG, "utf-8")
        async with contextlib.AsyncExitStack() as servers:
            rows = cases(directory, collector)
            ports = {
                row: await servers.enter_async_context(serving(models, settings))
                for row, settings in rows.items()
            }
            for _ in range(num_rounds):
                for row, port in ports.items():
                    best[row] = min(best.get(row, float("inf")), await measure(port, num_requests))
    return best


def show(best: dict[str, float]) -> None:
    """Print the table."""
    table = Table(title="CPU per request over HTTP")
    table.add_column("tracing")
    table.add_column("µs", justify="right")
    table.add_column("above off", justify="right")
    off = best["off"]
    for row, microseconds in best.items():
        table.add_row(row, f"{microseconds:.1f}", f"{(microseconds / off - 1) * 100:+.1f} %")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="per row and round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True) as collector:
        try:
            assert collector.stdout is not None
            url = f"http://127.0.0.1:{int(collector.stdout.readline())}/v1/traces"
            show(uvloop.run(run(arguments.requests, arguments.rounds, url)))
        finally:
            collector.kill()


if __name__ == "__main__":
    main()
