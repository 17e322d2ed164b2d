"""The servers that benchmarks measure, and the loads they measure them with. Everything runs on loopback.

A benchmark interleaves its peers (A, B, A, B, …) and reports ratios of medians from that one run: absolute times on a
shared machine say little.
"""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LAB = Path(os.environ.get("LAB", Path.home() / ".cache" / "bireme-lab"))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


@dataclass(slots=True)
class Peer:
    """A running server: its name in tables, its ports, its process and how long it took to be ready."""

    name: str
    port: int
    """Of HTTP."""
    grpc_port: int
    pid: int
    ready_s: float

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system, by the server and the processes that it started."""
        return sum(map(_cpu_ticks, _family(self.pid))) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        """Resident memory in MB."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` behind the name; none when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _cpu_ticks(pid: int) -> int:
    return sum(map(int, _stat(pid)[11:13]))


def _family(pid: int) -> list[int]:
    """Return ``pid`` and its descendants."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


@contextlib.contextmanager
def bireme(repository: Path, *flags: str, name: str = "Bireme") -> Iterator[Peer]:
    """Run ``bireme serve`` on ``repository``."""
    port, grpc_port, metrics_port = free_ports(3)
    command = [sys.executable, "-m", "bireme", "serve", "--model-repository", str(repository)]
    command += ["--http-address=127.0.0.1", f"--http-port={port}", f"--metrics-port={metrics_port}"]
    command += ["--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}", *flags]
    with _running(name, command, (port, grpc_port), signal.SIGTERM) as peer:
        yield peer


@contextlib.contextmanager
def triton(repository: Path, *flags: str) -> Iterator[Peer]:
    """Run the real Triton of the lab on ``repository``."""
    if not (LAB / "triton").exists():
        sys.exit(f"no Triton in {LAB}: run benchmarks/lab/setup first")
    ports = free_ports(3)
    command = [str(LAB / "triton"), str(repository), *map(str, ports)]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", *flags]
    # Its own shutdown takes long and has nothing to save.
    with _running("Triton 2.51", command, (ports[0], ports[1]), signal.SIGKILL) as peer:
        yield peer


@contextlib.contextmanager
def program(name: str, command: Sequence[str], port: int) -> Iterator[Peer]:
    """Run any server that answers ``GET /v2/health/ready`` on ``port``."""
    with _running(name, command, (port, 0), signal.SIGTERM) as peer:
        yield peer


@contextlib.contextmanager
def _running(
    name: str, command: Sequence[str], ports: tuple[int, int], stop: signal.Signals
) -> Iterator[Peer]:
    with tempfile.TemporaryFile("w+") as output:
        start_s = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while not _is_ready(ports[0]):
                if process.poll() is not None or time.monotonic() - start_s > 60:
                    output.seek(0)
                    sys.exit(f"{name} did not become ready:\n{output.read()[-3000:]}")
                time.sleep(0.005)
            yield Peer(name, *ports, process.pid, time.monotonic() - start_s)
        finally:
            os.killpg(process.pid, stop)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Load:
    """What perf_analyzer measured at one concurrency."""

    infer_per_s: float
    mean_us: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU time of the server for each request, warm-up included."""


def perf_analyzer(
    peer: Peer,
    model: str,
    *,
    concurrency: int = 1,
    shapes: Sequence[str] = (),
    window_ms: int = 1500,
    protocol: str = "http",
    output_region_size: int = 0,
    has_own_connections: bool = False,
) -> Load:
    """Drive ``model`` of ``peer`` for a few windows of ``window_ms`` and return the last stable ones' mean.

    ``protocol``: http or grpc. With ``output_region_size``, tensors travel in system shared memory; that many bytes are
    set aside for each output. With ``has_own_connections``, each gRPC client has one, instead of six sharing it.
    """
    port = peer.port if protocol == "http" else peer.grpc_port
    environment = {"TRITON_CLIENT_GRPC_CHANNEL_MAX_SHARE_COUNT": "1"} if has_own_connections else {}
    with tempfile.NamedTemporaryFile(suffix=".csv") as table:
        command = [str(LAB / "perf_analyzer"), "-m", model, "-u", f"127.0.0.1:{port}", "-i", protocol]
        command += ["--concurrency-range", str(concurrency), "-p", str(window_ms), "-s", "999", "-r", "3"]
        command += ["-f", table.name, *(word for shape in shapes for word in ("--shape", shape))]
        if output_region_size:
            command += ["--shared-memory=system", f"--output-shared-memory-size={output_region_size}"]
        start = peer.cpu_s(), num_inferences(peer, model)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, check=False, env=os.environ | environment
        )
        if done.returncode != 0:
            sys.exit(f"perf_analyzer failed on {peer.name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        cpu_s, num_done = (
            after - before
            for after, before in zip((peer.cpu_s(), num_inferences(peer, model)), start, strict=True)
        )
        (row,) = csv.DictReader(Path(table.name).read_text().splitlines())
    return Load(
        float(row["Inferences/Second"]),
        float(row.get("Avg latency") or 0) or _mean_us(done.stdout),
        float(row["p50 latency"]),
        float(row["p99 latency"]),
        1e6 * cpu_s / num_done,
    )


def num_inferences(peer: Peer, model: str) -> int:
    """Return how many rows ``model`` has inferred so far."""
    url = f"http://127.0.0.1:{peer.port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as reply:
        return int(json.load(reply)["model_stats"][0]["inference_count"])


def _mean_us(report: str) -> float:
    """Read ``Avg latency: 338 usec`` out of perf_analyzer's report."""
    return float(report.split("Avg latency: ", 1)[1].split(maxsplit=1)[0])
