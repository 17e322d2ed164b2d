"""What tracing costs a request over HTTP, in CPU time of the server's loop, of the model's thread, and of those that write and send.

    python -m benchmarks.tracing [--slice N] [--rounds N]

One connection to each server asks the smallest model again and again, all of them from another process; so does the collector.
The servers of all rows live side by side, and take turns of some milliseconds (`benchmarks.slices`). Shown are microseconds per
request, what the threads that trace add to that, and how much both are above a server without tracing: the median over the
rounds, and where it lies with 95 %. "off, again" says how fine that is. See also `benchmarks.tracing_instructions`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

sys.path.pop(0)  # benchmarks/http.py must not stand in for the standard library's http

import uvloop
from benchmarks.slices import median_of, ratio_of, take_turns
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
body = sys.argv[1].encode()
request = b"POST /v2/models/same/infer HTTP/1.1\\r\\nHost: bench\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body)
connections = {}
for line in sys.stdin:
    port, num_requests = map(int, line.split())
    if port not in connections:
        connections[port] = socket.create_connection(("127.0.0.1", port))
    connection = connections[port]
    for _ in range(num_requests):
        connection.sendall(request)
        received = connection.recv(65536)
        while not received.endswith(b"}"):
            received += connection.recv(65536)
    print(len(received), flush=True)
"""
"""Sends as many requests to a port as a line says, then answers it."""
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
"""How long the threads have for what is left."""
TRACING_THREADS: Final = ("bireme-traces", "Otel")
BUSY_REQUESTS: Final = 20_000


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
    async with Server(options=options, backends={"fake": FakeBackend(may_run_inline=True)}) as server:
        frontend = HttpFrontend(server, HttpOptions(address="127.0.0.1", port=0))
        await frontend.start()
        try:
            yield frontend.port
        finally:
            await frontend.stop(1)


class Bench:
    """Asks the servers from a thread of its own, beside their loop."""

    def __init__(
        self,
        ports: Mapping[str, int],
        threads: Mapping[str, set[threading.Thread]],
        num_requests: int,
        rounds: int,
    ) -> None:
        """``threads``: those of each row's server so far. To be made on the thread of the servers' loop."""
        self._ports = ports
        self._threads = threads
        self._num_requests = num_requests
        self._rounds = rounds
        self._loop_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._clocks = {row: [self._loop_clock] for row in ports}

    def run(self) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Return microseconds per request, by row and round, and what the threads that trace add, by row."""
        command = [sys.executable, "-c", CLIENT, BODY.decode()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            threads = {row: self._warm_up(client, row) for row in self._ports}
            slices = take_turns(
                self._rounds,
                {row: partial(self._measure, client, row, self._num_requests) for row in self._ports},
            )
            added = {row: self._measure_threads(client, row, its) for row, its in threads.items()}
            assert client.stdin is not None
            client.stdin.close()
        return slices, added

    def _warm_up(self, client: subprocess.Popen[str], row: str) -> set[threading.Thread]:
        """Ask until the row has the threads that it will have; return those that trace."""
        before = set(threading.enumerate())
        for _ in range(12):
            self._measure(client, row, self._num_requests)
        time.sleep(0.1)
        its = self._threads[row].union(threading.enumerate()) - (before - self._threads[row])
        model = [thread for thread in its if thread.name.startswith("same")]
        self._clocks[row] = [self._loop_clock, *map(_clock_of, model)]
        return {thread for thread in its if thread.name.startswith(TRACING_THREADS)}

    def _measure(self, client: subprocess.Popen[str], row: str, num_requests: int) -> float:
        """Return microseconds of the loop and the model's thread per request."""
        assert client.stdin is not None
        assert client.stdout is not None
        start_ns = self._now_ns(row)
        client.stdin.write(f"{self._ports[row]} {num_requests}\n")
        client.stdin.flush()
        if not client.stdout.readline():
            raise SystemExit("the client has failed")
        return (self._now_ns(row) - start_ns) / num_requests / 1e3

    def _now_ns(self, row: str) -> int:
        return sum(map(time.clock_gettime_ns, self._clocks[row]))

    def _measure_threads(
        self, client: subprocess.Popen[str], row: str, threads: set[threading.Thread]
    ) -> float:
        """Return what they add to a request of a server that is always busy: some of it is once a second."""
        if not _cpu_us(threads):
            return 0.0
        time.sleep(FLUSH_S)
        before_us = _cpu_us(threads)
        self._measure(client, row, BUSY_REQUESTS)
        time.sleep(FLUSH_S)
        return (_cpu_us(threads) - before_us) / BUSY_REQUESTS


def _cpu_us(threads: Iterable[threading.Thread]) -> float:
    return sum(time.clock_gettime_ns(_clock_of(thread)) for thread in threads if thread.is_alive()) / 1e3


def _clock_of(thread: threading.Thread) -> int:
    assert thread.ident is not None
    return time.pthread_getcpuclockid(thread.ident)


async def run(
    num_requests: int, rounds: int, collector: str
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Serve all rows, and measure them."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        models = directory / "models"
        (models / "same" / "1").mkdir(parents=True)
        (models / "same" / "config.pbtxt").write_text(CONFIG, "utf-8")
        async with contextlib.AsyncExitStack() as servers:
            ports: dict[str, int] = {}
            threads: dict[str, set[threading.Thread]] = {}
            for row, settings in cases(directory, collector).items():
                before = set(threading.enumerate())
                ports[row] = await servers.enter_async_context(serving(models, settings))
                threads[row] = set(threading.enumerate()) - before
            gc.collect()
            gc.freeze()
            return await asyncio.to_thread(Bench(ports, threads, num_requests, rounds).run)


def show(slices: Mapping[str, Sequence[float]], added: Mapping[str, float]) -> None:
    """Print the table."""
    table = Table(title="CPU per request over HTTP")
    for column, justify in (
        ("tracing", "left"),
        ("µs", "right"),
        ("threads µs", "right"),
        ("above off", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row, loop_us in slices.items():
        whole_us = [each + added[row] for each in loop_us]
        above = "" if row == "off" else ratio_of(whole_us, slices["off"]).as_change()
        table.add_row(row, f"{median_of(loop_us).value:.1f}", f"{added[row]:.2f}", above)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slice", type=int, default=100, help="requests of a row in a round")
    parser.add_argument("--rounds", type=int, default=600)
    arguments = parser.parse_args()
    with subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True) as collector:
        try:
            assert collector.stdout is not None
            url = f"http://127.0.0.1:{int(collector.stdout.readline())}/v1/traces"
            show(*uvloop.run(run(arguments.slice, arguments.rounds, url)))
        finally:
            collector.kill()


if __name__ == "__main__":
    main()
