"""The load generator: the same for every way, so that what differs is the way.

Each client is a thread with a connection of its own that sends one request, waits for the whole response and sends
the next: raw tensors over HTTP/1.1 on a blocking socket (about 15 µs of Python a request, and nothing is copied).
While it runs, the statistics of the server tell what the models themselves took.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

_TIMEOUT_S = 120
WARM_UP_SHARE = 0.25
_PER_REQUEST = ("success", "queue")
_PER_BATCH = ("compute_input", "compute_infer", "compute_output")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HEADER_LENGTH = re.compile(rb"\r\ninference-header-content-length: *(\d+)\r\n", re.IGNORECASE)
_DTYPES = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32, "UINT8": np.uint8}
_DATATYPES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}

Statistics = dict[str, dict[str, float]]
"""By model: ``count`` of successful requests, and nanoseconds of each phase."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is called: a model at a port that speaks KServe v2, with these inputs."""

    port: int
    model: str
    inputs: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    check: Callable[[dict[str, np.ndarray]], bool]
    """Whether the outputs are right; asked once per client and measurement."""


@dataclass(slots=True)
class Sample:
    """What one measurement found. ``server_us`` and ``compute_us`` are per request of the client."""

    mean_us: float
    p50_us: float
    p99_us: float
    calls_per_s: float
    num_calls: int
    server_us: float
    """Inside the server, from the request's arrival to its response; 0 behind a gateway."""
    compute_us: float
    """What the models that compute took, by the server's own statistics (compute_infer)."""
    models: dict[str, dict[str, float]] = field(default_factory=dict)
    """By model: calls, queue µs and compute µs, each per request of the client."""


def measure(
    target: Target,
    server_port: int,
    *,
    computes: Callable[[str], bool],
    clients: int = 1,
    seconds: float = 1.0,
    min_calls: int = 3,
) -> Sample:
    """Call ``target`` from ``clients`` clients for ``seconds``, each at least ``min_calls`` times.

    ``server_port`` is where the models are, which is not where the gateway is; ``computes`` tells the models that
    compute from those that call others.
    """
    before: list[Statistics] = []
    barrier = threading.Barrier(clients, lambda: before.append(statistics_of(server_port)))
    took_ns: list[list[int]] = [[] for _ in range(clients)]
    failures: list[BaseException] = []

    def run(found: list[int]) -> None:
        try:
            with Client(target) as client:
                _warm_up(client, target, WARM_UP_SHARE * seconds)
                barrier.wait()
                end_ns = time.perf_counter_ns() + int(seconds * 1e9)
                now_ns = 0
                while now_ns < end_ns or len(found) < min_calls:
                    start_ns = time.perf_counter_ns()
                    client.call()
                    now_ns = time.perf_counter_ns()
                    found.append(now_ns - start_ns)
        except BaseException as error:  # noqa: BLE001 - raised again where the figures are made
            failures.append(error)
            barrier.abort()

    start_s = time.perf_counter()
    threads = [threading.Thread(target=run, args=(found,)) for found in took_ns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    causes = [error for error in failures if not isinstance(error, threading.BrokenBarrierError)]
    if causes:
        raise RuntimeError(
            f"{target.model} at port {target.port}, after {time.perf_counter() - start_s:.1f} s"
        ) from causes[0]
    return _sample(target.model, took_ns, before[0], statistics_of(server_port), computes)


def _warm_up(client: Client, target: Target, seconds: float) -> None:
    """Call for a while, at least twice, and check the last outputs.

    Servers adapt to their load: how long they look for messages before they sleep, which models run at once. What
    they learned from the way that was measured before this one is forgotten here.
    """
    end_s = time.perf_counter() + seconds
    client.call()
    client.call()
    while time.perf_counter() < end_s:
        client.call()
    outputs = client.outputs()
    if not target.check(outputs):
        raise ValueError(f"{target.model} answered wrongly: {outputs}")


def _sample(
    model: str,
    took_ns: list[list[int]],
    before: Statistics,
    after: Statistics,
    computes: Callable[[str], bool],
) -> Sample:
    took_us = np.concatenate([np.array(each) for each in took_ns]) / 1e3
    num_calls = len(took_us)
    models = {}
    for name, now in after.items():
        then = before.get(name, {})
        spent = {key: now[key] - then.get(key, 0) for key in now}
        if spent["count"] > 0:
            models[name] = {
                "calls": spent["count"] / num_calls,
                "request_us": spent["success"] / num_calls / 1e3,
                "queue_us": spent["queue"] / num_calls / 1e3,
                "infer_us": spent["compute_infer"] / num_calls / 1e3,
                "move_us": (spent["compute_input"] + spent["compute_output"]) / num_calls / 1e3,
            }
    mean_us = float(took_us.mean())
    calls_per_s = sum(1e9 * len(each) / sum(each) for each in took_ns)
    return Sample(
        mean_us=mean_us,
        p50_us=float(np.percentile(took_us, 50)),
        p99_us=float(np.percentile(took_us, 99)),
        calls_per_s=calls_per_s,
        num_calls=num_calls,
        server_us=models.get(model, {}).get("request_us", 0.0),
        compute_us=sum(spent["infer_us"] for name, spent in models.items() if computes(name)),
        models=models,
    )


def statistics_of(port: int) -> Statistics:
    """Read what each model of the server at ``port`` has done so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/stats", timeout=30) as reply:
        found: Statistics = {}
        for model in json.load(reply)["model_stats"]:
            phases = model["inference_stats"]
            spent = found.setdefault(model["name"], dict.fromkeys(("count", *_PER_REQUEST, *_PER_BATCH), 0.0))
            spent["count"] += int(phases["success"]["count"])
            for phase in _PER_REQUEST:
                spent[phase] += int(phases[phase]["ns"])
            # Of batches, not of requests: several requests of one batch took its time together, not each.
            for phase in _PER_BATCH:
                spent[phase] += sum(int(batch[phase]["ns"]) for batch in model["batch_stats"])
        return found


class Client:
    """One connection, one prepared request, one buffer for the responses."""

    def __init__(self, target: Target) -> None:
        self._socket = socket.create_connection(("127.0.0.1", target.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A timeout in the kernel: Python's own would ask poll() before each call.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _TIMEOUT_S, 0))
        self._request = _request_of(target)
        self._buffer = bytearray(sum(map(len, self._request)) + 65_536)
        self._head = b""
        self._body = memoryview(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self) -> None:
        """Send the request and receive the whole response."""
        sent = self._socket.sendmsg(self._request)
        if sent < sum(map(len, self._request)):
            self._send_rest(sent)
        view = memoryview(self._buffer)
        received = 0
        while (end := self._buffer.find(b"\r\n\r\n", 0, received)) < 0:
            received += self._receive(view[received:])
        self._head = bytes(view[: end + 4])
        length = _LENGTH.search(self._head)
        if length is None:
            raise ValueError(f"a response without a length: {self._head!r}")
        total = end + 4 + int(length[1])
        if total > len(self._buffer):
            already = bytes(view[:received])
            self._buffer = bytearray(2 * total)
            self._buffer[:received] = already
            view = memoryview(self._buffer)
        while received < total:
            received += self._receive(view[received:total])
        self._body = view[end + 4 : total]
        if not self._head.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"{self._head!r} {bytes(self._body[:500])!r}")

    def _send_rest(self, sent: int) -> None:
        for part in self._request:
            if sent < len(part):
                self._socket.sendall(part[sent:])
            sent = max(0, sent - len(part))

    def _receive(self, room: memoryview) -> int:
        count = self._socket.recv_into(room)
        if count == 0:
            raise ConnectionError("the server closed the connection")
        return count

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the last response's tensors, BYTES as arrays of bytes; they are valid until the next call."""
        split = _HEADER_LENGTH.search(self._head)
        if split is None:
            raise ValueError(f"a response without raw tensors: {self._head!r}")
        header = json.loads(bytes(self._body[: int(split[1])]))
        at = int(split[1])
        found = {}
        for output in header["outputs"]:
            nbytes = output["parameters"]["binary_data_size"]
            raw = self._body[at : at + nbytes]
            at += nbytes
            array = (
                _strings(raw)
                if output["datatype"] == "BYTES"
                else np.frombuffer(raw, _DTYPES[output["datatype"]])
            )
            found[output["name"]] = array.reshape(output["shape"])
        return found


def _strings(raw: memoryview) -> np.ndarray:
    found, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        found.append(bytes(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    return np.array(found, object)


def _request_of(target: Target) -> list[memoryview]:
    """Return the request in two parts: everything before the tensors, and the tensors."""
    tensors, parts = [], []
    for name, array in target.inputs.items():
        if array.dtype == object:
            raw = b"".join(struct.pack("<I", len(item)) + item for item in array.ravel())
            datatype = "BYTES"
        else:
            raw, datatype = array.tobytes(), _DATATYPES[array.dtype]
        parameters = {"binary_data_size": len(raw)}
        tensors.append({"name": name, "shape": array.shape, "datatype": datatype, "parameters": parameters})
        parts.append(raw)
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in target.outputs]
    header = json.dumps({"inputs": tensors, "outputs": outputs}).encode()
    body = b"".join(parts)
    head = (
        f"POST /v2/models/{target.model}/infer HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n"
        f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(body)}\r\n\r\n"
    )
    return [memoryview(head.encode() + header), memoryview(body)]
