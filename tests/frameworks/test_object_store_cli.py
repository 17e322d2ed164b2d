"""The command line with repositories in a real S3 server: serve, kill, serve again, check."""

import json
import signal
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from bireme.cli.main import run
from onnx_models import save_plus_one
from s3_server import KEY_ID, SECRET, refuse
from serve_process import ServeProcess, running

pytestmark = pytest.mark.slow


@pytest.fixture
def s3(s3_server, tmp_path):
    s3_server.put("models/plus/1/model.onnx", save_plus_one(tmp_path / "plus.onnx").read_bytes())
    return s3_server


@pytest.fixture
def environment(s3, tmp_path):
    """The keys in a credential file, for this bucket alone; and a cache of the test's own."""
    file = tmp_path / "credentials.json"
    keys = {"key_id": KEY_ID, "secret_key": SECRET, "region": "us-east-1"}
    file.write_text(
        json.dumps({"s3": {"": {"key_id": "no", "secret_key": "no"}, s3.location("models"): keys}})
    )
    return {"TRITON_CLOUD_CREDENTIAL_PATH": str(file), "TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path / "mount")}


def ask(server):
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        given = tritonclient.http.InferInput("X", [1, 1], "FP32")
        given.set_data_from_numpy(np.array([[1]], np.float32))
        return client.infer("plus", [given]).as_numpy("Y").tolist()


def test_a_server_that_was_killed_leaves_what_the_next_one_uses(s3, environment, tmp_path):
    arguments = ("-m", s3.location("models"), "--model-control-mode=none")
    with running(ServeProcess(*arguments, environment=environment)) as first:
        first.wait_for("is ready")
        assert ask(first) == [[2]]
        with running(ServeProcess(*arguments, environment=environment)) as second:  # two of them at one cache
            second.wait_for("is ready")
            assert ask(second) == [[2]]
        first.popen.send_signal(signal.SIGKILL)
        first.exit_status()
    assert len([*(tmp_path / "mount" / "live").iterdir()]) >= 2
    s3.forget()
    with running(ServeProcess(*arguments, environment=environment)) as third:
        third.wait_for("is ready")
        assert ask(third) == [[2]]
        assert s3.counts.keys() == {"LIST"}
        assert len([*(tmp_path / "mount" / "live").glob("*.lock")]) == 1
        third.popen.send_signal(signal.SIGTERM)
        assert third.exit_status() == 0
        assert SECRET not in third.output
        assert KEY_ID not in third.output
    assert not [*(tmp_path / "mount" / "live").iterdir()]


def test_the_index_of_a_store_is_fetched_by_both_protocols(s3, environment):
    s3.put("models/other/1/model.onnx", b"")
    arguments = ("-m", s3.location("models"), "--model-control-mode=explicit", "--load-model=plus")
    with running(ServeProcess(*arguments, environment=environment)) as server:
        server.wait_for("is ready")
        url = f"http://127.0.0.1:{server.port}/v2/repository/index"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as response:
            index = json.loads(response.read())
        assert [(each["name"], each.get("state")) for each in index] == [("other", None), ("plus", "READY")]
        with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
            found = client.get_model_repository_index().models
            assert [each.name for each in found] == ["other", "plus"]


def test_vertex_ai_says_where_the_models_are(s3, environment):
    environment |= {"AIP_STORAGE_URI": s3.location("models")}
    with running(ServeProcess(environment=environment)) as server:
        server.wait_for("is ready")
        assert ask(server) == [[2]]


def test_a_store_that_refuses_ends_the_start_with_one_line(s3, environment):
    with (
        s3.failing(refuse("403 Forbidden", "SignatureDoesNotMatch", "no")),
        running(ServeProcess("-m", s3.location("models"), environment=environment)) as server,
    ):
        assert server.exit_status() == 1
        assert "the secret key does not fit the access key" in server.output
        assert "Traceback" not in server.output
        assert SECRET not in server.output


@pytest.fixture
def check(s3, environment, monkeypatch, capsys):
    """Check the repository; return the exit status and what was printed."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run_it(*flags):
        status = run(["repo", "check", s3.location("models"), *flags])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run_it


def test_a_repository_is_checked_in_the_store(s3, check, tmp_path):
    s3.put("models/torn/1/model.onnx", b"no model")
    s3.put("models/odd/config.pbtxt", b"max_batch_size: many")
    s3.put("models/odd/1/model.onnx", b"")
    s3.put("models/plus/7/model.onnx", b"old")
    s3.put("models/plus/config.pbtxt", b"version_policy { specific { versions: 1 } }")
    status, output = check()
    location = s3.location("models")
    assert status == 1
    assert "ok      plus  onnxruntime, version 1" in output
    assert f"{location}/odd/config.pbtxt:1" in output
    assert f"{location}/torn/1" in output
    assert str(tmp_path) not in output
    assert "models/plus/7/model.onnx" not in s3.fetched


def test_a_store_that_cannot_be_checked_says_why(s3, check):
    with s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied")):
        status, output = check()
    assert status != 0
    assert "403 Forbidden (AccessDenied: Access Denied)" in output


def test_files_that_cannot_be_fetched_are_faults_of_their_model(s3, check):
    with s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied", only="model.onnx")):
        _, output = check()
    assert "cannot fetch its files" in output
    assert "plus/1/model.onnx: 403 Forbidden" in output
    s3.put("models/plus/config.pbtxt", b"max_batch_size: 4")
    with s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied", only="config.pbtxt")):
        _, output = check()
    assert "cannot be read: " in output
    assert "plus/config.pbtxt: 403 Forbidden" in output


def test_a_check_that_opens_nothing_fetches_no_version(s3, check):
    s3.put("models/plus/config.pbtxt", b"max_batch_size: 4")
    assert check("--no-load")[0] == 0
    assert s3.fetched == ["models/plus/config.pbtxt"]
