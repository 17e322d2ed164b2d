"""HTTPS, client certificates and UNIX domain sockets, as curl and the official client see them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from bireme.frontend.http import HttpOptions
from certificates import Authority

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

EXPECTED = [2.0 * value for value in range(16)]
ADD = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [16], "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ]
    }
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "20", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@needs_curl
@pytest.mark.parametrize("version", ["--tlsv1.2", "--tlsv1.3"])
def test_curl_with_each_version_of_tls(start_server, repository, authority, version):
    server = start_server(repository, http=HttpOptions(tls=authority.options()), load_model=("add",))
    trust = ("--cacert", str(authority.root), version)
    if version == "--tlsv1.2":
        trust = (*trust, "--tls-max", "1.2")
    infer = f"{server.url}/v2/models/add/infer"
    found = curl(*trust, "-w", "%{http_version}", "-d", ADD, infer)

    assert found.returncode == 0, found.stderr
    answer, _, used = found.stdout.rpartition("}")
    assert EXPECTED == json.loads(answer + "}")["outputs"][0]["data"]
    assert used == "1.1"
    assert curl(infer).returncode == 60  # the server's certificate is not trusted


@needs_curl
def test_curl_with_a_client_certificate(start_server, repository, authority):
    server = start_server(
        repository, http=HttpOptions(tls=authority.options(mutual=True)), load_model=("add",)
    )
    trust = ("--cacert", str(authority.root), "--fail")
    cert, key = authority.issue("client")
    live = f"{server.url}/v2/health/live"

    assert curl(*trust, live).returncode != 0
    assert curl(*trust, "--cert", str(cert), "--key", str(key), live).returncode == 0


@needs_curl
def test_curl_over_a_unix_socket(start_server, repository, tmp_path_factory):
    path: Path = tmp_path_factory.mktemp("s") / "http"
    start_server(repository, http=HttpOptions(f"unix:{path}"), load_model=("add",))
    found = curl("--unix-socket", str(path), "-d", ADD, "http://localhost/v2/models/add/infer")

    assert found.returncode == 0, found.stderr
    assert EXPECTED == json.loads(found.stdout)["outputs"][0]["data"]


@needs_curl
def test_curl_over_a_unix_socket_with_tls(start_server, repository, tmp_path_factory, authority):
    path: Path = tmp_path_factory.mktemp("s") / "http"
    options = HttpOptions(f"unix:{path}", tls=authority.options())
    start_server(repository, http=options, load_model=("add",))
    trust = ("--cacert", str(authority.root), "--fail")

    assert curl(*trust, "--unix-socket", str(path), "https://localhost/v2/health/ready").returncode == 0


def test_the_official_client(start_server, repository, authority):
    server = start_server(repository, http=HttpOptions(tls=authority.options(mutual=True)))
    cert, key = authority.issue("client")
    client = triton.InferenceServerClient(
        f"localhost:{server.http.port}",
        ssl=True,
        ssl_options={"ca_certs": str(authority.root), "certfile": str(cert), "keyfile": str(key)},
    )
    for size in (16, 2_000_000):
        item = triton.InferInput("X", [size], "FP32")
        values = np.arange(size, dtype=np.float32)
        item.set_data_from_numpy(values)
        found = client.infer("plus_one", [item]).as_numpy("Y")
        np.testing.assert_array_equal(found, values + 1)
    client.close()
