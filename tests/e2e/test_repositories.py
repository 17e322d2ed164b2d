"""Repository agents and namespaces with ``bireme serve``, over HTTP and gRPC."""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from onnx_models import add_model, save_identity, save_plus_one
from serve_process import ServeProcess, running

pytestmark = pytest.mark.slow

VECTOR = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def post(server, path, body=None):
    """Return status and JSON of the answer."""
    data = json.dumps(body or {}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v2/{path}", data, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_checksum_that_does_not_match_stops_a_load(tmp_path):
    model_dir = add_model(tmp_path / "models", "plus", save_plus_one)
    content = (model_dir / "1" / "model.onnx").read_bytes()
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()

    def config(expected):
        agent = {"name": "checksum", "parameters": {"MD5:1/model.onnx": expected}}
        vector = {"data_type": "TYPE_FP32", "dims": [-1]}
        tensors = {"input": [{"name": "X", **vector}], "output": [{"name": "Y", **vector}]}
        return json.dumps(
            {"backend": "onnxruntime", **tensors, "model_repository_agents": {"agents": [agent]}}
        )

    arguments = (f"--model-repository={tmp_path / 'models'}", "--model-control-mode=explicit")
    with running(ServeProcess(*arguments)) as server:
        server.wait_for("is ready in")
        load = "repository/models/plus/load"
        files = {"file:1/model.onnx": base64.b64encode(content).decode()}

        status, answer = post(server, load, {"parameters": {"config": config("0" * 32), **files}})
        assert status == 400
        assert (
            f"Mismatched MD5 hash for file 1/model.onnx, expect: {'0' * 32}, got: {digest}" in answer["error"]
        )

        assert post(server, load, {"parameters": {"config": config(digest), **files}})[0] == 200
        status, answer = post(server, load, {"parameters": {"config": config("1" * 32)}})
        assert (status, "Mismatched MD5" in answer["error"]) == (400, True)
        tensor = {"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}
        status, answer = post(server, "models/plus/infer", {"inputs": [tensor]})
        assert (status, answer["outputs"][0]["data"]) == (200, [2, 3])


def test_two_repositories_have_a_model_of_the_same_name(tmp_path):
    add_model(tmp_path / "a", "m", save_plus_one, config=VECTOR)
    add_model(tmp_path / "b", "m", save_identity, config=VECTOR)
    add_model(tmp_path / "b", "alone", save_plus_one, config=VECTOR)
    repositories = (f"--model-repository={tmp_path / 'a'}", f"--model-repository={tmp_path / 'b'}")
    with running(ServeProcess(*repositories, "--model-namespacing=true")) as server:
        server.wait_for("is ready in")
        status, index = post(server, "repository/index")
        assert status == 200
        assert [(entry["namespace"], entry["name"], entry["state"]) for entry in index] == [
            (str(tmp_path / "a"), "m", "READY"),
            (str(tmp_path / "b"), "alone", "READY"),
            (str(tmp_path / "b"), "m", "READY"),
        ]
        tensor = {"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}
        assert post(server, "models/alone/infer", {"inputs": [tensor]})[0] == 200
        status, answer = post(server, "models/m/infer", {"inputs": [tensor]})
        assert status == 400
        assert "There are 2 identifiers of model 'm' in global map" in answer["error"]
        assert post(server, "models/nobody/infer", {"inputs": [tensor]})[0] == 400

        with triton.InferenceServerClient(server.grpc_address) as client:
            assert len(client.get_model_repository_index().models) == 3
            x = triton.InferInput("X", [2], "FP32").set_data_from_numpy(np.float32([1, 2]))
            with pytest.raises(InferenceServerException, match="There are 2 identifiers"):
                client.infer("m", [x])
            # A name with its namespace is an extension.
            assert client.infer(f"{tmp_path / 'a'}/m", [x]).as_numpy("Y").tolist() == [2, 3]
