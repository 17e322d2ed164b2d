"""``bireme import`` makes a folder that a server serves, proves it by a run, and leaves nothing behind when it fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import bireme
from bireme.cli.main import run
from bireme.config import parse_text
from onnx_models import (
    add_model,
    save_add,
    save_graph,
    save_identity,
    save_matmul,
    save_plus_one,
    tensor_info,
)

PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
                for r in requests]
"""


@pytest.fixture
def make(tmp_path, capsys):
    """Return ``bireme import FILE --to REPOSITORY``, which returns status, what was printed, and errors."""

    def carry_out(file: Path | str, *arguments: str) -> tuple[int, str, str]:
        status = run(["import", str(file), "--to", str(tmp_path / "models"), *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return carry_out


def save_batched(path: Path, dims: tuple[int, ...] = (3,)) -> Path:
    return save_identity(path, dims=dims, batch=True)


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_config(tmp_path: Path, name: str):
    path = tmp_path / "models" / name / "config.pbtxt"
    return parse_text(path.read_text(), path)


@pytest.mark.slow
def test_a_file_becomes_a_model_that_is_served(make, tmp_path):
    file = save_batched(tmp_path / "twice.onnx")

    status, out, err = make(file)

    assert (0, "") == (status, err)
    assert ["twice/1/model.onnx", "twice/config.pbtxt"] == tree(tmp_path / "models")
    assert file.exists()
    with bireme.Server(tmp_path / "models") as server:
        assert [[1, 2, 3]] == server.infer("twice", {"X": [[1, 2, 3]]})["Y"].tolist()
    for part in (
        "twice.onnx: ONNX model, served by backend 'onnxruntime'",
        "input   X FP32[batch,3]",
        "output  Y FP32[batch,3]",
        "ran     X FP32[1,3] → Y FP32[1,3] in ",
        "64 rows in ",
        f"bireme serve -m {tmp_path / 'models'}",
        '/infer -d \'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]}]}\'',
    ):
        assert part in out


def test_the_config_says_why(make, tmp_path):
    make(save_batched(tmp_path / "m.onnx", dims=(3, 64, 64)))

    text = (tmp_path / "models/m/config.pbtxt").read_text()
    config = read_config(tmp_path, "m")

    assert ("m", "onnxruntime", 16) == (config.name, config.backend, config.max_batch_size)
    assert ((3, 64, 64),) == tuple(each.dims for each in config.input)
    assert config.dynamic_batching is not None
    assert ("KIND_CPU", 1) == (config.instance_group[0].kind, config.instance_group[0].count)
    assert "# Written by `bireme import` from m.onnx." in text
    assert "# Requests that come while the model is busy share its next run" in text
    assert max(map(len, text.splitlines())) <= 118


@pytest.mark.parametrize(("dims", "rows"), [((3,), 64), ((100, 100), 16), ((3, 224, 224), 8)])
def test_the_batch_is_as_large_as_its_rows_are_small(make, tmp_path, dims, rows):
    assert 0 == make(save_batched(tmp_path / "m.onnx", dims), "--no-run")[0]

    assert rows == read_config(tmp_path, "m").max_batch_size


def test_a_model_that_does_not_batch_is_left_without(make, tmp_path):
    _, out, _ = make(save_add(tmp_path / "add.onnx", dims=(4,)))

    config = read_config(tmp_path, "add")
    assert (0, None) == (config.max_batch_size, config.dynamic_batching)
    assert "batches one request, one run" in out


def test_batching_can_be_chosen_and_refused(make, tmp_path):
    file = save_batched(tmp_path / "m.onnx")
    for size in ("32", "1", "0"):
        assert 0 == make(file, f"--max-batch-size={size}", f"--name=m{size}")[0]

    sizes = [read_config(tmp_path, name).max_batch_size for name in ("m32", "m1", "m0")]
    assert [32, 1, 0] == sizes
    assert (-1, 3) == read_config(tmp_path, "m0").input[0].dims
    assert None is read_config(tmp_path, "m1").dynamic_batching
    status, _, err = make(save_add(tmp_path / "add.onnx"), "--max-batch-size=4")
    assert 1 == status
    assert "model does not support batching while non-zero max_batch_size" in err


def save_false_batch(path: Path) -> Path:
    """Write a model that declares a batch dimension, and fails unless that is 1."""
    axis = onnx.numpy_helper.from_array(np.array([0], np.int64), "axis")
    nodes = [
        helper.make_node("Squeeze", ["X", "axis"], ["row"]),
        helper.make_node("Mul", ["X", "row"], ["Y"]),
    ]
    tensors = [tensor_info(name, "FP32", (4,), batch=True) for name in "XY"]
    return save_graph(path, nodes, tensors[:1], tensors[1:], [axis])


def test_a_batch_dimension_that_is_none_is_found_out(make, tmp_path):
    file = save_false_batch(tmp_path / "m.onnx")

    assert 0 == make(file)[0]

    assert 1 == read_config(tmp_path, "m").max_batch_size
    assert "a run with more than 1 row failed: 64 rows: " in (tmp_path / "models/m/config.pbtxt").read_text()
    status, _, err = make(file, "--name=n", "--max-batch-size=8")
    assert 1 == status
    assert "--max-batch-size 8: 1 at a time run, but not 8 rows" in err
    assert not (tmp_path / "models/n").exists()


def save_small_batch(path: Path) -> Path:
    """Write a model that declares a batch dimension, and fails with more than 8 rows."""
    constants = [
        onnx.numpy_helper.from_array(np.array(values, np.int64), name)
        for name, values in (("eight", [8]), ("axis", [0]))
    ]
    nodes = [
        helper.make_node("Shape", ["X"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["rows"], axis=0),
        helper.make_node("Sub", ["eight", "rows"], ["left"]),
        helper.make_node("ConstantOfShape", ["left"], ["nothing"]),
        helper.make_node("ReduceSum", ["nothing"], ["zero"], keepdims=0),
        helper.make_node("Add", ["X", "zero"], ["Y"]),
    ]
    tensors = [tensor_info(name, "FP32", (4,), batch=True) for name in "XY"]
    return save_graph(path, nodes, tensors[:1], tensors[1:], constants)


def test_a_batch_that_is_too_large_is_halved_until_it_runs(make, tmp_path):
    status, out, err = make(save_small_batch(tmp_path / "m.onnx"))

    assert (0, "") == (status, err)
    assert "8 rows in " in out
    config = read_config(tmp_path, "m")
    assert 8 == config.max_batch_size
    assert None is not config.dynamic_batching
    assert "a run with more than 8 rows failed: 64 rows: " in (tmp_path / "models/m/config.pbtxt").read_text()


def test_external_data_comes_along(make, tmp_path):
    file = save_matmul(tmp_path / "m.onnx", size=8)
    model = onnx.load(file)
    file.unlink()
    onnx.save(model, file, save_as_external_data=True, location="w.bin", size_threshold=0)

    assert 0 == make(file)[0]

    assert ["m/1/model.onnx", "m/1/w.bin", "m/config.pbtxt"] == tree(tmp_path / "models")


def test_a_file_can_be_linked(make, tmp_path):
    file = save_plus_one(tmp_path / "m.onnx")

    assert 0 == make(file, "--link")[0]

    assert file.resolve() == (tmp_path / "models/m/1/model.onnx").resolve()
    assert (tmp_path / "models/m/1/model.onnx").is_symlink()


def test_a_model_is_not_overwritten_but_gets_new_versions(make, tmp_path):
    one, two = save_plus_one(tmp_path / "one.onnx"), save_plus_one(tmp_path / "two.onnx")
    make(one, "--name=m")
    config = tmp_path / "models/m/config.pbtxt"
    config.write_text(f"{config.read_text()}# mine\n")

    status, _, err = make(two, "--name=m")
    assert 1 == status
    assert "model 'm' is in " in err
    assert "add --version 2" in err

    status, out, _ = make(two, "--name=m", "--version=3")
    assert 0 == status
    assert "config.pbtxt kept, as it was there" in out
    assert ["m/1/model.onnx", "m/3/model.onnx", "m/config.pbtxt"] == tree(tmp_path / "models")
    assert config.read_text().endswith("# mine\n")

    status, _, err = make(two, "--name=m", "--version=3")
    assert 1 == status
    assert "version 3 of model 'm'" in err
    assert "--version 4" in err


def test_a_new_version_must_fit_the_config_that_is_there(make, tmp_path):
    make(save_plus_one(tmp_path / "one.onnx"), "--name=m")

    status, _, err = make(save_identity(tmp_path / "two.onnx", "INT32"), "--name=m", "--version=2")

    assert 1 == status
    assert "INT32" in err
    assert ["m/1/model.onnx", "m/config.pbtxt"] == tree(tmp_path / "models")


def test_force_replaces_the_version_and_the_config(make, tmp_path):
    make(save_plus_one(tmp_path / "one.onnx"), "--name=m")
    before = (tmp_path / "models/m/1/model.onnx").read_bytes()

    assert 0 == make(save_batched(tmp_path / "two.onnx"), "--name=m", "--force")[0]

    assert before != (tmp_path / "models/m/1/model.onnx").read_bytes()
    assert 64 == read_config(tmp_path, "m").max_batch_size
    assert ["m/1/model.onnx", "m/config.pbtxt"] == tree(tmp_path / "models")


def test_a_failure_leaves_nothing(make, tmp_path):
    file = tmp_path / "m.onnx"
    file.write_bytes(save_plus_one(tmp_path / "good.onnx").read_bytes()[:-4] + b"torn")

    status, out, err = make(file)

    assert (1, "") == (status, out)
    assert "Traceback" not in err
    assert ".import-" not in err
    assert not (tmp_path / "models").exists()


def test_a_failure_keeps_what_was_there(make, tmp_path):
    make(save_plus_one(tmp_path / "one.onnx"), "--name=m")
    before = tree(tmp_path / "models")
    (tmp_path / "torn.onnx").write_bytes(save_plus_one(tmp_path / "good.onnx").read_bytes()[:-4])

    assert 1 == make(tmp_path / "torn.onnx", "--name=m", "--force")[0]

    assert before == tree(tmp_path / "models") == sorted(["m/1/model.onnx", "m/config.pbtxt"])
    assert ["m"] == names_in(tmp_path / "models")


def save_picky(path: Path) -> Path:
    """Write a model whose input of any size must have 5 values."""
    five = onnx.numpy_helper.from_array(np.ones(5, np.float32), "five")
    # A product that needs equal shapes: Add would broadcast.
    nodes = [helper.make_node("MatMul", ["X", "five"], ["Y"])]
    return save_graph(path, nodes, [tensor_info("X", "FP32", (-1,))], [tensor_info("Y", "FP32", ())], [five])


def test_a_size_that_the_model_wants_can_be_said(make, tmp_path):
    file = save_picky(tmp_path / "m.onnx")

    status, _, err = make(file)
    assert 1 == status
    assert "--shape NAME:DIMS" in err
    assert "Tried X FP32[16]; X FP32[128]" in err

    for extra in ("--shape=X:5", "--example=X=[1,2,3,4,5]", "--no-run"):
        status, out, err = make(file, extra, "--force")
        assert (0, "") == (status, err)
        assert ("X FP32[5] →" in out) == (extra != "--no-run")


def test_texts_and_pictures_get_samples_that_look_like_them(make, tmp_path):
    _, texts, _ = make(save_identity(tmp_path / "t.onnx", "BYTES"))
    _, pictures, _ = make(save_batched(tmp_path / "p.onnx", (3, -1, -1)))

    assert "X BYTES[1,1] → Y BYTES[1,1]" in texts
    assert "X FP32[1,3,224,224] → Y" in pictures
    assert "curl localhost:8000/v2/models/p\n" in pictures


def test_only_the_config_can_be_had(make, tmp_path):
    status, out, _ = make(save_plus_one(tmp_path / "m.onnx"), "--config-only")

    assert 0 == status
    assert "m" == parse_text(out, Path("out")).name
    assert not (tmp_path / "models").exists()


def test_a_name_that_says_nothing_is_the_folder_s(make, tmp_path):
    make(save_plus_one(tmp_path / "plus/model.onnx"))

    assert ["plus"] == names_in(tmp_path / "models")


def test_a_name_out_of_a_file_can_stand_in_a_url(make, tmp_path):
    _, out, _ = make(save_plus_one(tmp_path / "modèle n° 1 (neu).onnx"), "--to", str(tmp_path / "my models"))

    assert ["modele_n_1_neu"] == names_in(tmp_path / "my models")
    assert f"bireme serve -m '{tmp_path}/my models'" in out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_that_is_stopped_leaves_nothing(tmp_path, number):
    model = tmp_path / "m.py"
    model.write_text("print('begun', flush=True)\nimport time\ntime.sleep(60)\n" + PYTHON_MODEL)
    tensors = ["--input", "X:FP32:4", "--output", "Y:FP32:4"]
    command = [
        sys.executable,
        "-m",
        "bireme",
        "import",
        str(model),
        "--to",
        str(tmp_path / "models"),
        *tensors,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not any((tmp_path / "models").glob(".import-*/m/1/model.py")):
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=20)

    assert process.returncode == 128 + number
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_a_python_model_says_its_tensors_by_flags(make, tmp_path):
    file = tmp_path / "echo.py"
    file.write_text(PYTHON_MODEL)

    status, _, err = make(file)
    assert 1 == status
    assert "--input NAME:DTYPE:DIMS" in err

    status, out, err = make(file, "--input=X:FP32:4", "--output=Y:TYPE_FP32:-1")
    assert (0, "") == (status, err)
    assert "ran     X FP32[4] → Y FP32[4]" in out


@pytest.mark.slow
def test_a_python_model_that_completes_its_config_has_its_own_batch(make, tmp_path):
    complete = """
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(5)
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        return config

    def execute"""
    file = tmp_path / "echo/model.py"
    file.parent.mkdir()
    file.write_text(PYTHON_MODEL.replace("\n    def execute", complete))
    (tmp_path / "echo/words.txt").write_text("comes along")

    status, out, err = make(tmp_path / "echo")

    assert (0, "") == (status, err)
    assert 5 == read_config(tmp_path, "echo").max_batch_size
    assert "5 rows in " in out
    assert ["echo/1/model.py", "echo/1/words.txt", "echo/config.pbtxt"] == [
        path for path in tree(tmp_path / "models") if "__pycache__" not in path
    ]


def test_torchscript_without_tensors_is_asked_for_them(make, tmp_path):
    file = tmp_path / "net.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("net/data.pkl", b"\x80\x02c__torch__\nNet\nq\x00.")
        archive.writestr(
            "net/code/__torch__.py",
            "class Net(Module):\n  def forward(self: __torch__.Net,\n    image: Tensor) -> Tensor:\n",
        )

    status, _, err = make(file)

    assert 1 == status
    assert "its forward() takes (image: Tensor)" in err
    assert "--input image:FP32:3,224,224 --output OUTPUT__0:FP32:1000" in err


WRONG = [
    (["--name=a/b"], "path traversal"),
    (["--name=.hidden"], "cannot be a model's name"),
    (["--input=X"], "expected NAME:DTYPE:DIMS"),
    (["--input=X:FP31:3"], "'FP31' is no data type; expected one of BOOL"),
    (["--output=X:FP32:3,x"], "are no dims"),
    (["--shape=5"], "expected NAME:DIMS"),
    (["--shape=Z:5"], "the model has no such input; it has X"),
    (["--shape=X:5,5"], "is no shape of X FP32["),
    (["--example=Z=1"], "has no input 'Z'"),
    (["--backend=lightgbm"], "not of 'lightgbm'"),
    (["--backend=nonsense"], "unknown backend 'nonsense'"),
    (["--version=0"], "0 is not in the range x>=1"),
    (["--output=Z:FP32:3"], "Z"),
]


@pytest.mark.parametrize(("arguments", "complaint"), WRONG)
def test_a_mistake_is_explained(make, tmp_path, arguments, complaint):
    status, _, err = make(save_plus_one(tmp_path / "m.onnx"), *arguments)

    assert 1 == status
    assert complaint in err
    assert not (tmp_path / "models").exists()


def test_a_repository_that_is_a_file_is_refused(make, tmp_path):
    (tmp_path / "models").write_text("no folder")

    status, _, err = make(save_plus_one(tmp_path / "m.onnx"))

    assert 1 == status
    assert "expected a model repository" in err


def test_a_repository_in_an_object_store_is_refused(make, tmp_path):
    status, _, err = make(save_plus_one(tmp_path / "m.onnx"), "--to=s3://bucket/models")

    assert 1 == status
    assert "--to s3:/bucket/models: expected a local folder" in err
    assert not (tmp_path / "models").exists()


def test_a_repository_that_cannot_be_written_is_told(make, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)

    status, _, err = make(save_plus_one(tmp_path / "m.onnx"))

    assert 1 == status
    assert "No space left on device" in err
    assert not (tmp_path / "models").exists()


def test_other_models_of_the_repository_are_not_touched(make, tmp_path):
    add_model(tmp_path / "models", "other", partial(save_add, dims=(2,)))

    assert 0 == make(save_plus_one(tmp_path / "m.onnx"))[0]

    assert ["m", "other"] == names_in(tmp_path / "models")
