"""What the response cache gives, and what it costs, over HTTP with one client.

    python -m benchmarks.cache [--rounds N] [--requests N] [--miss-rounds N] [--slice N] [--image-slice N]

Hits are compared with the floor: a model in the server's process that answers at once with arrays that are there already, to
requests and with responses of the same size. Misses are compared with the same model without a cache; each request is another
one. Rounds are interleaved; a row gives medians, and the median of the rounds' ratios. Misses are compared by the server's CPU time
in short slices (`benchmarks.slices`): what they add to a model is less than the noise of a clock.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.mobilenet import save_mobilenet
from benchmarks.peers import Peer, bireme
from benchmarks.slices import cpu_ns, ratio_of, take_turns
from benchmarks.tables import compared, interleaved, print_rows

SIZES = {"1 KB": 256, "600 KB": 150_000}
CACHED = "response_cache { enable: true }"
MOBILENET = """
name: "{name}"
backend: "onnxruntime"
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1, 3, 224, 224 ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ 1, 1000 ] }} ]
{more}
"""
EMPTY = """
name: "{name}"
backend: "empty"
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {size} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{more}
"""
_EMPTY_BACKEND = """
import numpy as np

from bireme.testing import FakeBackend


class EmptyBackend(FakeBackend):
    def __init__(self):
        super().__init__(may_run_inline=True, name="empty")

    def load(self, ctx):
        answer = {"Y": np.ones(ctx.config.output[0].dims, np.float32)}
        self.functions[ctx.name] = lambda inputs: answer
        return super().load(ctx)
"""


@contextmanager
def empty_backend(folder: Path) -> Iterator[None]:
    """Let servers find the backend "empty", as an installed package."""
    info = folder / "empty_backend-1.dist-info"
    info.mkdir(parents=True)
    (folder / "empty_backend.py").write_text(_EMPTY_BACKEND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: empty-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bireme.backends]\nempty = empty_backend:EmptyBackend\n")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def build_repository(root: Path) -> Path:
    for more, kind in (("", "plain"), (CACHED, "cached")):
        for label, size in SIZES.items():
            name = model_name(kind, label)
            (root / name / "1").mkdir(parents=True)
            (root / name / "config.pbtxt").write_text(EMPTY.format(name=name, size=size, more=more))
        name = f"mobilenet_{kind}"
        save_mobilenet(root / name / "1" / "model.onnx")
        (root / name / "config.pbtxt").write_text(MOBILENET.format(name=name, more=more))
    return root


def model_name(kind: str, label: str) -> str:
    return f"{kind}_{label.replace(' ', '')}"


class Question:
    """A binary request for all outputs of ``model``, which can be made another one."""

    _next = 0

    def __init__(self, model: str, name: str, array: np.ndarray) -> None:
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": name,
                        "datatype": "FP32",
                        "shape": list(array.shape),
                        "parameters": {"binary_data_size": array.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        lines = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(head)}\r\n"
            f"Content-Length: {len(head) + array.nbytes}\r\n\r\n"
        )
        self.message = bytearray(lines.encode() + head + array.tobytes())

    def change(self) -> None:
        """Let the last elements be others than ever before."""
        Question._next += 1
        self.message[-8:] = np.array(divmod(Question._next, 1 << 20), np.float32).tobytes()


class Client:
    """One connection."""

    def __init__(self, peer: Peer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", peer.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(2 << 20))

    def ask(self, question: Question) -> None:
        self._socket.sendall(question.message)
        count = self._socket.recv_into(self._buffer)
        head, _, body = bytes(self._buffer[:count]).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(f"a request failed: {head!r} {body[:500]!r}")
        rest = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0]) - len(body)
        while rest:
            rest -= self._socket.recv_into(self._buffer)

    def mean_us(self, question: Question, num_requests: int) -> float:
        """Return microseconds per request."""
        for _ in range(max(2, num_requests // 20)):
            self.ask(question)
        start_ns = time.perf_counter_ns()
        for _ in range(num_requests):
            self.ask(question)
        return (time.perf_counter_ns() - start_ns) / num_requests / 1e3

    def cpu_us(self, peer: Peer, question: Question, num_requests: int) -> float:
        """Return microseconds of the server's CPU per request, each of which is another one."""
        start_ns = cpu_ns(peer.pid)
        for _ in range(num_requests):
            question.change()
            self.ask(question)
        return (cpu_ns(peer.pid) - start_ns) / num_requests / 1e3


def bench_hits(client: Client, rounds: int, num_requests: int) -> list[list[str]]:
    rows = []
    for asked, size in SIZES.items():
        for answered in SIZES:
            values = np.random.default_rng(0).random(size, np.float32)
            cached, plain = (
                Question(model_name(kind, answered), "X", values) for kind in ("cached", "plain")
            )
            mine, floor = interleaved(
                rounds,
                partial(client.mean_us, cached, num_requests),
                partial(client.mean_us, plain, num_requests),
            )
            goal = "≤ 1.30" if asked == "1 KB" else ""
            rows.append(compared(f"hit, {asked} in, {answered} out", mine, floor, goal, digits=1))
    return rows


def bench_misses(
    client: Client, peer: Peer, rounds: int, slice_size: int, image_slice: int
) -> list[list[str]]:
    """Compare CPU time, all threads of the server together, in short slices by turns: a miss costs little of what a model does."""
    rows = []
    image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    small = np.ones(SIZES["1 KB"], np.float32)
    cases = [
        ("miss, MobileNetV2 (600 KB in)", "mobilenet_{}", "x", image, image_slice, "≤ 1.02"),
        ("miss, a model that costs nothing, 1 KB", "{}_1KB", "X", small, slice_size, ""),
    ]
    for label, pattern, name, values, count, goal in cases:
        cached, plain, again = (
            partial(client.cpu_us, peer, Question(pattern.format(kind), name, values), count)
            for kind in ("cached", "plain", "plain")
        )
        for measure in (cached, plain):
            measure()
        found = take_turns(rounds, {"cached": cached, "plain": plain, "again": again})
        medians = [f"{statistics.median(found[kind]):,.1f}" for kind in ("cached", "plain", "again")]
        for what, mine, its_goal in ((label, "cached", goal), ("  without a cache, again", "again", "")):
            middle, low, high = ratio_of(found[mine], found["plain"])
            shown = medians[0] if mine == "cached" else medians[2]
            rows.append([what, shown, medians[1], f"{middle:.3f}", f"{low:.3f} to {high:.3f}", its_goal])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=2000, help="of a small model, per round")
    parser.add_argument("--miss-rounds", type=int, default=150)
    parser.add_argument("--slice", type=int, default=100, help="misses of a small model, per round")
    parser.add_argument("--image-slice", type=int, default=3, help="misses of a large one, per round")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(empty_backend(folder / "packages"))
        root = build_repository(folder / "models")
        peer = stack.enter_context(bireme(root, "--cache-config=local,size=100000000"))
        client = Client(peer)
        rows = bench_hits(client, options.rounds, options.requests)
        misses = bench_misses(client, peer, options.miss_rounds, options.slice, options.image_slice)
    print_rows(
        "One client over HTTP, mean µs: hits against an empty model",
        ["", "cache", "without", "ratio", "range", "goal"],
        rows,
    )
    print_rows(
        "One client over HTTP, µs of the server's CPU per request: misses against no cache",
        ["", "cache", "without", "ratio", "95 % range", "goal"],
        misses,
    )


if __name__ == "__main__":
    main()
