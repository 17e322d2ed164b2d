"""@grpc/grpc-js, the client of Node.js: one run of grpc_js/client.js, whose scenarios are checked one by one."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.testing import FakeBackend
from e2e_server import RunningServer, fake_config, wait_until

HERE = Path(__file__).parent / "grpc_js"
OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED = (
    0,
    1,
    3,
    4,
    5,
    8,
    12,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(
        not (HERE / "node_modules").is_dir(), reason=f"grpc-js is not installed: run npm ci in {HERE.name}"
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the client found, of a server whose model ``slow`` never answers while the client runs."""
    root = tmp_path_factory.mktemp("models")
    for name in ("plus_one", "slow"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(fake_config(name))
    backend = FakeBackend()
    backend.functions["plus_one"] = lambda inputs: {"Y": inputs["X"] + 1}
    released = threading.Event()
    backend.functions["slow"] = lambda inputs: {"Y": inputs["X"]} if released.wait(60) else {}
    server = RunningServer(root, backends={"fake": backend})
    try:
        command = ["node", str(HERE / "client.js"), server.grpc_address]
        finished = subprocess.run(command, capture_output=True, timeout=50, check=False)
        assert finished.returncode == 0, finished.stderr.decode()
        wait_until(
            lambda: server.engine.model("slow").num_in_flight <= 1
        )  # all but the one that runs are dropped
        wait_until(lambda: not server.grpc.num_connections)
        yield json.loads(finished.stdout)
    finally:
        released.set()
        server.stop()


def test_health_and_descriptions(results):
    assert results["live"] == {"live": True}
    assert results["ready"] == {"ready": True}
    assert results["health"] == {"status": 1}
    assert results["metadata"]["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1]}]


def test_inference(results):
    assert results["infer"] == [2, 3, 4]
    assert results["typed"] == [2.5, 3.5]
    assert results["metadata_sent"] == [6]
    assert results["many"] is True


def test_compression_and_sizes(results):
    assert results["deflate"] is True
    assert results["gzip"] is True
    assert results["large"] is True
    assert results["too_large_to_receive"] == [RESOURCE_EXHAUSTED, 2]


def test_errors(results):
    assert results["not_found"]["code"] == NOT_FOUND
    assert "'nichts ✓' is not found" in results["not_found"]["details"]
    assert results["invalid"]["code"] == INVALID_ARGUMENT
    assert "'X'" in results["invalid"]["details"]
    assert results["unimplemented"] == UNIMPLEMENTED


def test_deadline_and_cancellation(results):
    assert results["deadline"] == DEADLINE_EXCEEDED
    assert results["cancelled"] == CANCELLED


def test_streams(results):
    assert results["stream"] == {"answers": [str(index) for index in range(20)], "status": OK}
    error, after = results["stream_errors"]["answers"]
    assert "'nothing' is not found" in error
    assert after == "b"
    assert results["stream_errors"]["status"] == OK
    assert results["stream_cancelled"] == {"answers": ["a"], "status": CANCELLED}
