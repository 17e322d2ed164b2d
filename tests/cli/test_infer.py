"""``bireme infer``, against a repository in this process and against a server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from PIL import Image

from bireme import Server
from bireme.cli.main import run
from e2e_server import RunningServer
from onnx_models import add_model, save_add, save_identity

LABELLED = """
backend: "onnxruntime"
max_batch_size: 8
output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }
"""


@pytest.fixture
def repository(tmp_path):
    """Return a repository: "add" (two vectors of 2), "label" (batches, with class names), "text", "picture"."""
    models = tmp_path / "models"
    add_model(models, "add", partial(save_add, dims=(2,)))
    labelled = add_model(models, "label", partial(save_identity, dims=(3,), batch=True), config=LABELLED)
    (labelled / "labels.txt").write_text("cat\ndog\n\n")
    add_model(models, "text", partial(save_identity, datatype="BYTES"))
    add_model(models, "picture", partial(save_identity, datatype="UINT8", dims=(4, 6, 3)))
    return models


@pytest.fixture(params=["in process", "over HTTP"])
def ask(request, repository) -> Callable[..., int]:
    """Return ``bireme infer`` with the way to the repository's models filled in."""
    if request.param == "in process":
        yield lambda *arguments: run(["infer", "-m", str(repository), *arguments])
        return
    server = RunningServer(repository)
    try:
        yield lambda *arguments: run(["infer", "--url", server.url, *arguments])
    finally:
        server.stop()


def test_values_go_in_and_json_comes_out(ask, capsys):
    assert 0 == ask("add", "INPUT0=[1, 2]", "INPUT1=[10, 20]", "--json", "--id=7")

    assert {
        "id": "7",
        "model_name": "add",
        "model_version": "1",
        "outputs": [
            {"name": "OUTPUT0", "datatype": "FP32", "shape": [2], "data": [11, 22]},
            {"name": "OUTPUT1", "datatype": "FP32", "shape": [2], "data": [-9, -18]},
        ],
    } == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("given", "sequence_id"), [("7", 7), ("call 7", "call 7"), ('"7"', "7")])
def test_a_request_can_be_one_of_a_sequence(ask, monkeypatch, given, sequence_id):
    taken = []
    original = Server.submit
    monkeypatch.setattr(
        Server, "submit", lambda its, request: taken.append(request) or original(its, request)
    )
    assert 0 == ask("text", "X=a", f"--sequence-id={given}", "--sequence-start")
    assert 0 == ask("text", "X=a", f"--sequence-id={given}", "--sequence-end")

    assert [(each.sequence_id, each.sequence_start, each.sequence_end) for each in taken] == [
        (sequence_id, True, False),
        (sequence_id, False, True),
    ]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sequence-start"], "need a --sequence-id"),
        (["--sequence-id=0"], "expected a number from 1"),
        (["--sequence-id="], "expected a number from 1"),
        (["--sequence-id=18446744073709551616"], "expected a number from 1"),
    ],
)
def test_a_sequence_that_cannot_be_is_explained(ask, capsys, words, complaint):
    assert 0 != ask("text", "X=a", *words)
    assert complaint in capsys.readouterr().err


def test_one_output_can_be_asked_for(ask, capsys):
    assert 0 == ask("add", "INPUT0=[1, 2]", "INPUT1=[10, 20]", "-o", "OUTPUT1", "--json", "--version=1")

    assert ["OUTPUT1"] == [output["name"] for output in json.loads(capsys.readouterr().out)["outputs"]]


def test_a_table_is_for_people(ask, capsys):
    assert 0 == ask("add", "INPUT0=[1, 2]", "INPUT1=[10, 20]")

    shown = capsys.readouterr().out
    assert "add version 1" in shown
    assert "OUTPUT0" in shown
    assert "[11., 22.]" in shown


def test_classes_come_with_their_names(ask, capsys):
    assert 0 == ask("label", "X=[0.25, 3, 1]", "X=[5, 0, 0]", "--classes=2", "--json")

    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert ("Y", "BYTES", [2, 2]) == (output["name"], output["datatype"], output["shape"])
    assert ["3.000000:1:dog", "1.000000:2", "5.000000:0:cat", "0.000000:1:dog"] == output["data"]

    assert 0 == ask("label", "X=[0.25, 3, 1]", "--classes=1")
    assert "dog" in capsys.readouterr().out


def test_text_goes_in_and_comes_out(ask, capsys):
    assert 0 == ask("text", 'X=["a", "ü"]', "--json")

    assert ["a", "ü"] == json.loads(capsys.readouterr().out)["outputs"][0]["data"]


def test_a_picture_is_resized_to_the_input(ask, tmp_path, capsys):
    Image.new("RGB", (60, 40), (1, 2, 3)).save(tmp_path / "p.png")

    assert 0 == ask("picture", str(tmp_path / "p.png"), "--json")

    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert [4, 6, 3] == output["shape"]
    assert [1, 2, 3] == output["data"][:3]


def test_an_npy_file_goes_in(ask, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0]))

    assert 0 == ask(
        "add", f"INPUT0=@{tmp_path / 'x.npy'}", "INPUT1=[0, 0]", "--json", "-P", "note=ü", "-P", "n=3"
    )

    assert [1, 2] == json.loads(capsys.readouterr().out)["outputs"][0]["data"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "nothing"),
        (["add", "INPUT0=[1, 2]"], "expected 2 inputs but got 1 inputs for model 'add'"),
        (["add", "INPUT0=[1, 2, 3]", "INPUT1=[1, 2]"], "unexpected shape for input 'INPUT0'"),
        (["add", "Q=1"], "has no input 'Q'; it has: INPUT0 FP32[2], INPUT1 FP32[2]"),
        (["add", "INPUT0=[1, 2]", "INPUT1=[1, 2]", "-o", "Z"], "unexpected inference output 'Z'"),
        (["text", "X=a", "--classes=2"], "unsupported type 'BYTES'"),
        (["picture", "--size=6"], "expected WIDTHxHEIGHT in pixels, such as 640x480, got '6'"),
        (["add", "-m", "models", "-u", "http://localhost"], "give one of them"),
        (["add", "-P", "novalue"], "expected KEY=VALUE, got 'novalue'"),
    ],
)
def test_a_mistake_is_explained_and_exits_with_1(ask, capsys, arguments, complaint):
    assert 1 == ask(*arguments)

    shown = capsys.readouterr()
    assert "" == shown.out
    assert complaint in shown.err
    assert "Traceback" not in shown.err


CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        vector = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        inputs = [pb_utils.Tensor(name, vector) for name in ("INPUT0", "INPUT1")]
        return pb_utils.InferenceRequest(model_name="add", inputs=inputs, requested_output_names=["OUTPUT0"]).exec()
"""
CALLER_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }
"""


@pytest.mark.parametrize("load", ["add", "*"])
def test_models_that_the_model_calls_are_loaded_too(repository, capsys, load):
    (repository / "caller" / "1").mkdir(parents=True)
    (repository / "caller" / "1" / "model.py").write_text(CALLER)
    (repository / "caller" / "config.pbtxt").write_text(CALLER_CONFIG)
    words = ["infer", "-m", str(repository), "caller", "IN=[1, 2]", "--json"]

    assert 1 == run(words)
    assert "Model 'add' is not ready" in capsys.readouterr().err
    assert 0 == run([*words, "--load", load])
    assert "[2.0,4.0]" in capsys.readouterr().out
