"""Bireme's HTTP front end against the real Triton and against the bare loop, in one interleaved run.

    python -m benchmarks.http [--rounds 5] [--rows add,big,json,cpu,off,load,start,idle]

Needs the lab (``benchmarks/lab/setup``). Prints one table per row; `docs/performance.md` holds a run's output.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from benchmarks.mobilenet import save_mobilenet
from benchmarks.peers import LAB, Peer, bireme, free_ports, num_inferences, perf_analyzer, program, triton
from benchmarks.tables import (
    MODELS,
    bench_small,
    compared,
    console,
    interleaved,
    onnx_models,
    onnx_repository,
    print_rows,
    ratio,
)

SMALL_FIELDS = ("mean_us", "p99_us", "infer_per_s")
SMALL_GOALS = {(1, "mean_us"): "≤ 0.45", (16, "infer_per_s"): "≥ 1.4"}


def bench_big(ours: Peer, theirs: Peer, rounds: int) -> None:
    """X + 1 at 1 KB, 512 KB and 6 MB with one client."""
    rows = []
    for label, num_elements, goal in (
        ("1 KB", 256, ""),
        ("512 KB", 131_072, "≤ 0.5"),
        ("6 MB", 1_572_864, "≤ 0.5"),
    ):
        shapes = [f"X:{num_elements}"]
        a, b = interleaved(
            rounds,
            partial(perf_analyzer, ours, "plus_one", shapes=shapes),
            partial(perf_analyzer, theirs, "plus_one_a", shapes=shapes),
        )
        rows.append(compared(label, [load.mean_us for load in a], [load.mean_us for load in b], goal))
    print_rows(
        "FP32[N] + 1, 1 client, mean µs: ONNX on Bireme, Python model on Triton",
        ["size", "Bireme", "Triton", "ratio", "range", "goal"],
        rows,
    )


CPU_CONFIG = """
max_batch_size: 2
dynamic_batching { }
"""


def bare_loop(model: Path, seconds: float, *, threads: int, intra: int) -> tuple[float, float]:
    """Run ``threads`` loops over one session; return images per second, and per second of CPU.

    This is what the machine can do without a server and with nobody to send it pictures.
    """
    code = f"""
import threading, time, numpy as np, onnxruntime as ort
options = ort.SessionOptions(); options.intra_op_num_threads = {intra}
session = ort.InferenceSession({str(model)!r}, options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
x = np.random.rand(1, 3, 224, 224).astype(np.float32)
session.run(None, {{name: x}})
counts = [0] * {threads}
start, cpu_start = time.monotonic(), time.process_time()
def loop(i):
    while time.monotonic() < start + {seconds}:
        session.run(None, {{name: x}}); counts[i] += 1
workers = [threading.Thread(target=loop, args=(i,)) for i in range({threads})]
[w.start() for w in workers]; [w.join() for w in workers]
print(sum(counts) / (time.monotonic() - start), sum(counts) / (time.process_time() - cpu_start))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    per_s, per_cpu_s = map(float, done.stdout.split())
    return per_s, per_cpu_s


def bench_cpu(rounds: int, root: Path) -> None:
    """MobileNetV2 at 224×224, dynamic batching on, 16 clients, against the bare loop.

    The clients need a share of the two cores, the loop has both: so images per second of CPU are compared, too.
    """
    model = save_mobilenet(root / "mobilenet" / "1" / "model.onnx")
    (root / "mobilenet" / "config.pbtxt").write_text(CPU_CONFIG)
    served: list[tuple[float, float]] = []
    default: list[tuple[float, float]] = []
    parallel: list[tuple[float, float]] = []
    with bireme(root) as ours:
        for _ in range(rounds):
            cpu_s, count = ours.cpu_s(), num_inferences(ours, "mobilenet")
            load = perf_analyzer(ours, "mobilenet", concurrency=16, shapes=["x:3,224,224"], window_ms=3000)
            per_cpu_s = (num_inferences(ours, "mobilenet") - count) / (ours.cpu_s() - cpu_s)
            served.append((load.infer_per_s, per_cpu_s))
            default.append(bare_loop(model, 4, threads=1, intra=0))
            parallel.append(bare_loop(model, 4, threads=2, intra=1))
    rows = []
    for loop, found in (
        ("1 thread × default intra-op threads", default),
        ("2 threads × 1 intra-op thread", parallel),
    ):
        for column, unit in enumerate(("s", "CPU s")):
            mine, other = ([pair[column] for pair in pairs] for pairs in (served, found))
            rows.append(compared(f"{loop}, per {unit}", mine, other, "≥ 0.95", digits=1))
    print_rows(
        "MobileNetV2 224×224, dynamic batching, 16 clients: images, against the bare loop of",
        ["", "Bireme", "loop", "ratio", "range", "goal"],
        rows,
    )


def bench_off(root: Path, rounds: int) -> None:
    """What a feature costs when it is off: the default server against itself, and against the feature on."""
    with (
        bireme(root) as one,
        bireme(root) as two,
        bireme(root, "--access-log=/dev/null", name="access log on") as logged,
    ):
        a, b, c = interleaved(
            rounds,
            partial(perf_analyzer, one, "add"),
            partial(perf_analyzer, two, "add"),
            partial(perf_analyzer, logged, "add"),
        )
    base = [load.mean_us for load in a]
    rows = []
    for label, loads in (("the same again (noise)", b), ("access log on", c)):
        mine = [load.mean_us for load in loads]
        middle, spread = ratio(mine, base)
        rows.append([label, f"{statistics.median(mine):.1f}", f"{middle:.3f}", spread])
    print_rows(
        f"FP32[16] add, 1 client, mean µs against the default server ({statistics.median(base):.1f} µs)",
        ["server", "mean µs", "ratio", "range"],
        rows,
    )


def bench_start(rounds: int) -> None:
    """Seconds from exec to the first 200 on the ready route."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder)
        small = onnx_models.make_repository(Path(folder) / "small", {"add": onnx_models.save_add})
        (empty / "empty").mkdir()
        for label, repository, goal in (
            ("empty repository", empty / "empty", "< 1 s"),
            ("one small ONNX model", small, "< 2 s"),
        ):
            times = []
            for _ in range(rounds):
                with bireme(repository) as peer:
                    times.append(peer.ready_s)
            rows.append([label, f"{statistics.median(times):.2f} s", f"{max(times):.2f} s", goal])
    print_rows("Start to ready", ["", "median", "worst", "goal"], rows)


def save_large(path: Path, megabytes: int = 500) -> Path:
    """Write a model of ``megabytes`` of weights: Y = X times square matrices of 25 MB each."""
    size = 2560
    names = ["X", *(f"hidden_{layer}" for layer in range(megabytes // 25 - 1)), "Y"]
    random = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(random.standard_normal((size, size), np.float32), f"weight_{layer}")
        for layer in range(len(names) - 1)
    ]
    nodes = [
        onnx.helper.make_node("MatMul", [names[layer], weight.name], [names[layer + 1]])
        for layer, weight in enumerate(weights)
    ]
    tensors = [onnx_models.tensor_info(name, "FP32", (size,), batch=True) for name in ("X", "Y")]
    return onnx_models.save_graph(path, nodes, tensors[:1], tensors[1:], weights)


def latencies_us(port: int, message: bytes, until: Callable[[], bool]) -> list[float]:
    """Send ``message`` again and again over one socket until ``until()``; return each answer's latency."""
    found = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not until():
            start_ns = time.perf_counter_ns()
            sock.sendall(message)
            if not sock.recv(65536).startswith(b"HTTP/1.1 200"):
                sys.exit("a request failed while another model was loading")
            found.append((time.perf_counter_ns() - start_ns) / 1e3)
            time.sleep(0.0005)
    return found


def bench_load(root: Path, rounds: int) -> None:
    """Latency of a small model while a 500 MB one loads, against the time before."""
    onnx_models.make_repository(root, {"add": onnx_models.save_add, "large": save_large})
    values = np.arange(16, dtype=np.float32).tolist()
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [16], "data": values} for name in ("INPUT0", "INPUT1")
    ]
    message = http_message("/v2/models/add/infer", json.dumps({"inputs": tensors}).encode())
    phases: dict[str, list[float]] = {"nothing loads": [], "500 MB load": []}
    seconds = []
    with bireme(root, "--model-control-mode=explicit", "--load-model=add") as peer:
        for _ in range(rounds):
            end_s = time.monotonic() + 3
            phases["nothing loads"] += latencies_us(
                peer.port, message, lambda end_s=end_s: time.monotonic() > end_s
            )
            load = threading.Thread(target=post, args=(peer.port, "/v2/repository/models/large/load"))
            start_s = time.monotonic()
            load.start()
            phases["500 MB load"] += latencies_us(peer.port, message, lambda load=load: not load.is_alive())
            seconds.append(time.monotonic() - start_s)
            post(peer.port, "/v2/repository/models/large/unload")
            time.sleep(1)
    rows = [
        [
            name,
            *(f"{np.percentile(found, share):,.0f}" for share in (50, 90, 99)),
            f"{max(found):,.0f}",
            str(len(found)),
        ]
        for name, found in phases.items()
    ]
    print_rows(
        f"FP32[16] add as JSON, 1 client, µs, while another model loads ({statistics.median(seconds):.1f} s a load)",
        ["while", "p50", "p90", "p99", "max", "requests"],
        rows,
    )


def post(port: int, path: str) -> None:
    """Post nothing to ``path``."""
    url = f"http://127.0.0.1:{port}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=120):
        pass


def http_message(path: str, body: bytes) -> bytes:
    """Return a whole HTTP request with a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def bench_idle(root: Path, seconds: float = 20) -> None:
    """CPU used by a server that nobody calls, 20 models loaded."""
    repository = onnx_models.make_repository(
        root, {f"model_{index}": onnx_models.save_add for index in range(20)}
    )
    with bireme(repository) as peer:
        time.sleep(2)
        before_s = peer.cpu_s()
        time.sleep(seconds)
        share = (peer.cpu_s() - before_s) / seconds
        memory_mb = peer.rss_mb()
    print_rows(
        f"Idle for {seconds:.0f} s, 20 models loaded",
        ["", "measured", "goal"],
        [["share of one core", f"{share:.2%}", "< 1 %"], ["resident memory", f"{memory_mb:.0f} MB", ""]],
    )


FASTAPI = """
import numpy as np, onnxruntime as ort, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
session = ort.InferenceSession({model!r}, providers=["CPUExecutionProvider"])
app = FastAPI()
class Inputs(BaseModel):
    INPUT0: list[float]
    INPUT1: list[float]
@app.get("/v2/health/ready")
def ready(): return {{}}
@app.post("/predict")
async def predict(inputs: Inputs):
    feed = {{"INPUT0": np.asarray(inputs.INPUT0, np.float32), "INPUT1": np.asarray(inputs.INPUT1, np.float32)}}
    total, difference = session.run(None, feed)
    return {{"OUTPUT0": total.tolist(), "OUTPUT1": difference.tolist()}}
uvicorn.run(app, host="127.0.0.1", port={port}, log_level="warning", loop="uvloop", http="httptools")
"""


def json_client(port: int, path: str, body: bytes, seconds: float, num_clients: int) -> tuple[float, float]:
    """Post ``body`` over ``num_clients`` keep-alive sockets; return requests per second and mean microseconds."""
    message = http_message(path, body)
    counts = [0] * num_clients
    end_s = time.monotonic() + seconds

    def client(index: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while time.monotonic() < end_s:
                sock.sendall(message)
                reply = sock.recv(65536)
                header, _, rest = reply.partition(b"\r\n\r\n")
                if not header.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(reply.decode())
                length = int(header.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
                while len(rest) < length:
                    rest += sock.recv(65536)
                counts[index] += 1

    threads = [threading.Thread(target=client, args=(index,)) for index in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    per_s = sum(counts) / seconds
    return per_s, 1e6 * num_clients / per_s


def bench_json(ours: Peer, root: Path, rounds: int) -> None:
    """The same add as plain JSON, against FastAPI + onnxruntime."""
    (port,) = free_ports(1)
    code = FASTAPI.format(model=str(root / "add" / "1" / "model.onnx"), port=port)
    values = np.arange(16, dtype=np.float32).tolist()
    plain = json.dumps({"INPUT0": values, "INPUT1": values}).encode()
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [16], "data": values} for name in ("INPUT0", "INPUT1")
    ]
    v2 = json.dumps({"inputs": tensors}).encode()
    rows = []
    with program("FastAPI", [str(LAB / "fastapi" / "bin" / "python"), "-c", code], port) as theirs:
        for num_clients in (1, 8):
            mine, other = [], []
            for _ in range(rounds):
                mine.append(json_client(ours.port, "/v2/models/add/infer", v2, 2, num_clients)[0])
                other.append(json_client(theirs.port, "/predict", plain, 2, num_clients)[0])
            middle, spread = ratio(mine, other)
            rows.append(
                [
                    f"{num_clients} client{'s' * (num_clients > 1)}",
                    f"{statistics.median(mine):,.0f}",
                    f"{statistics.median(other):,.0f}",
                    f"{middle:.2f}",
                    spread,
                ]
            )
    print_rows(
        "FP32[16] add as JSON, requests/s: Bireme against FastAPI + onnxruntime (uvloop, httptools)",
        ["", "Bireme", "FastAPI", "ratio", "range"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="add,big,json,cpu,off,load,start,idle")
    args = parser.parse_args()
    rows = args.rows.split(",")
    console.print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {args.rounds} interleaved rounds\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = onnx_repository(Path(folder) / "onnx")
        if {"add", "big", "json"} & set(rows):
            with (
                bireme(root) as ours,
                bireme(root, "--http-busy-poll-us=300", name="busy poll") as awake,
                triton(MODELS) as theirs,
            ):
                if "add" in rows:
                    bench_small(
                        "HTTP", (ours, awake, theirs), args.rounds, SMALL_FIELDS, SMALL_GOALS, perf_analyzer
                    )
                if "big" in rows:
                    bench_big(ours, theirs, args.rounds)
                if "json" in rows and (LAB / "fastapi").exists():
                    bench_json(ours, root, args.rounds)
        if "cpu" in rows:
            bench_cpu(args.rounds, Path(folder) / "cpu")
        if "off" in rows:
            bench_off(root, args.rounds)
        if "load" in rows:
            bench_load(Path(folder) / "load", args.rounds)
        if "start" in rows:
            bench_start(args.rounds)
        if "idle" in rows:
            bench_idle(Path(folder) / "idle")


if __name__ == "__main__":
    main()
