"""nghttp and h2load, the tools of a C library for HTTP/2 that knows nothing of gRPC: padding, priorities, many streams."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from grpc_calls import INFER, A, B, array_of, infer_message
from grpc_socket import framed

pytestmark = pytest.mark.skipif(
    None in {shutil.which("nghttp"), shutil.which("h2load")}, reason="nghttp2-client is not installed"
)

HEADERS = ["--header=content-type: application/grpc", "--header=te: trailers"]


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the whole body of an inference."""
    path = tmp_path_factory.mktemp("nghttp") / "body"
    path.write_bytes(framed(infer_message("add", INPUT0=A, INPUT1=B).SerializeToString()))
    return path


def run(*command: object) -> bytes:
    finished = subprocess.run([*map(str, command)], capture_output=True, timeout=30, check=False)
    assert finished.returncode == 0, finished.stderr.decode()
    return finished.stdout


def sums_of(data: bytes) -> np.ndarray:
    assert data[0] == 0
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    return array_of(service_pb2.ModelInferResponse.FromString(data[5:]))


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--padding=255"],
        ["--no-dep"],
        ["--window-bits=1", "--connection-window-bits=16"],
        ["--header-table-size=0"],
        ["--encoder-header-table-size=0"],
    ],
    ids=" ".join,
)
def test_one_call(server, body, flags):
    url = f"http://{server.grpc_address}{INFER}"
    data = run("nghttp", *flags, *HEADERS, f"--data={body}", url)

    np.testing.assert_array_equal(sums_of(data), A + B)


def test_metadata_beyond_the_limit_end_their_call_alone(server, body):
    """``--continuation`` sends 32 KB of header fields. gRPC's own servers refuse them, too."""
    url = f"http://{server.grpc_address}{INFER}"
    shown = run("nghttp", "--verbose", "--null-out", "--continuation", *HEADERS, f"--data={body}", url)

    shown = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    assert re.search(rb"recv RST_STREAM frame .*\n *\(error_code=ENHANCE_YOUR_CALM", shown)
    assert b"recv GOAWAY" not in shown


def test_the_status_is_in_the_trailers(server, body):
    shown = run(
        "nghttp",
        "--verbose",
        "--null-out",
        *HEADERS,
        f"--data={body}",
        f"http://{server.grpc_address}{INFER}",
    )

    assert re.search(rb":status: 200\n(.|\n)*grpc-status: 0\n", re.sub(rb"\x1b\[[0-9;]*m", b"", shown))


def test_a_get_is_no_call(server):
    shown = run("nghttp", "--verbose", "--null-out", f"http://{server.grpc_address}{INFER}")

    assert re.search(rb":status: 4\d\d\n", re.sub(rb"\x1b\[[0-9;]*m", b"", shown))


def test_many_calls_on_one_connection(server, body):
    url = f"http://{server.grpc_address}{INFER}"
    data = run("nghttp", "--multiply=50", *HEADERS, f"--data={body}", url)
    size = 5 + int.from_bytes(data[1:5], "big")

    assert len(data) == 50 * size
    for start in range(0, len(data), size):
        np.testing.assert_array_equal(sums_of(data[start : start + size]), A + B)


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "streams"), [(1, 100), (10, 20)])
def test_load_without_an_error(server, body, connections, streams):
    load = ["--requests=3000", f"--clients={connections}", f"--max-concurrent-streams={streams}"]
    report = run("h2load", *load, *HEADERS, f"--data={body}", f"http://{server.grpc_address}{INFER}").decode()

    assert re.search(r"3000 succeeded, 0 failed, 0 errored, 0 timeout", report), report
    assert re.search(r"status codes: 3000 2xx", report), report
