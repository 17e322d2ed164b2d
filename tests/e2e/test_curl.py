"""curl, the client that everybody has: forms, uploads, compression, versions of HTTP."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

ADD = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [16], "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ]
    }
)


def curl(server, path: str, *arguments: str, stdin: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Run curl and return status, headers and body of the last answer."""
    finished = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "20", "--include", *arguments, server.url + path],
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr.decode()
    rest = finished.stdout
    while True:
        head, _, rest = rest.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        status = int(status_line.split(" ")[1])
        if status != 100:
            break
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return status, headers, rest


def sum_of(body: bytes) -> list[float]:
    return json.loads(body)["outputs"][0]["data"]


EXPECTED = [2.0 * value for value in range(16)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("-d", ADD),
        ("--http1.0", "-d", ADD),
        ("-d", ADD, "-H", "Transfer-Encoding: chunked"),
        ("-d", ADD, "-H", "Expect: 100-continue"),
        ("-d", ADD, "--http2"),
        ("-d", ADD, "--compressed"),
    ],
    ids=["form", "http1.0", "chunked", "expect", "h2c upgrade offered", "compressed"],
)
def test_infer(server, arguments):
    status, _, body = curl(server, "/v2/models/add/infer", *arguments)

    assert status == 200
    assert sum_of(body) == EXPECTED


def test_upload_of_compressed_json(server, tmp_path: Path):
    (tmp_path / "body.gz").write_bytes(gzip.compress(ADD.encode()))
    upload = ("--data-binary", f"@{tmp_path}/body.gz", "-H", "Content-Encoding: gzip")
    status, _, body = curl(server, "/v2/models/add/infer", *upload)

    assert (status, sum_of(body)) == (200, EXPECTED)


def test_upload_from_a_pipe_with_a_large_body(server):
    values = list(range(300_000))
    item = {"name": "X", "datatype": "FP32", "shape": [len(values)], "data": values}
    stdin = json.dumps({"inputs": [item]}).encode()
    status, _, body = curl(server, "/v2/models/plus_one/infer", "-X", "POST", "-T", "-", stdin=stdin)

    assert status == 200
    assert sum_of(body)[-3:] == [299998, 299999, 300000]


def test_head_and_options_get_405(server):
    status, headers, _ = curl(server, "/v2/health/live", "--head")
    assert (status, headers["allow"]) == (405, "GET")
    status, headers, _ = curl(server, "/v2/models/add/infer", "-X", "OPTIONS")
    assert (status, headers["allow"]) == (405, "POST")


def test_a_refused_upload_gets_its_answer_before_it_is_sent(server, tmp_path: Path):
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(200 << 20)
    status, headers, body = curl(
        server, "/v2/models/add/infer", "--data-binary", f"@{big}", "-H", "Expect: 100-continue"
    )

    assert status == 400
    assert "exceeds the maximum allowed input size of 67108864 bytes" in json.loads(body)["error"]
    assert headers["connection"] == "close"


def test_metrics(server):
    finished = subprocess.run(["curl", "-sS", server.metrics_url], capture_output=True, check=True)

    assert b'nv_inference_request_success{model="add",version="1"}' in finished.stdout
