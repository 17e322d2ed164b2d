"""A model file is told by its content first, by its name where that leaves a doubt, and refused with a way out."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import pytest

from bireme.config.backend_rules import RULES
from bireme.repository.file_content import (
    ForwardArgument,
    external_data,
    pickled_modules,
    protobuf_fields,
    torchscript_arguments,
)
from bireme.repository.model_files import FORMATS, ModelFile, recognise
from bireme.types import InvalidArgument
from onnx_models import save_matmul, save_plus_one

GRAPHDEF = b"\x0a\x05\x0a\x03abc" * 2 + b"\x22\x02\x08\x01"
SAVED_MODEL = b"\x08\x01\x12\x04abcd"
TORCHSCRIPT_CODE = """class Other(Module):
  def forward(self: __torch__.Other,
    wrong: Tensor) -> Tensor:
    return wrong
class Net(Module):
  def forward(self: __torch__.Net,
    x: Tensor,
    words: List[str],
    more: Dict[str, Tensor],
    k: int=3) -> Tensor:
    return x
  def other(self: __torch__.Net,
    y: Tensor) -> Tensor:
    return y
"""


class Estimator:
    """Stands in for one of scikit-learn's."""


Estimator.__module__ = "sklearn.linear_model"


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_zip(path: Path, *names: str, **contents: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, contents.get(name.rsplit("/", 1)[-1].partition(".")[0], b""))
    return path


def pickled_global(module: str, name: str) -> bytes:
    """Return a pickle that names a class without there being one."""
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"q\x00."


def write_torchscript(path: Path) -> Path:
    return write_zip(
        path,
        "net/data.pkl",
        "net/code/__torch__.py",
        "net/constants.pkl",
        data=pickled_global("__torch__", "Net"),
        __torch__=TORCHSCRIPT_CODE.encode(),
    )


CONTENTS = [
    (b"\x30\x00\x00\x00ORTM" + bytes(20), "onnxruntime", "model.ort"),
    (GRAPHDEF, "tensorflow", "model.graphdef"),
    (b"ftrt" + bytes(30), "tensorrt", "model.plan"),
    (b"tree\nversion=v4\nnum_class=3\n", "lightgbm", "model.txt"),
    (b"binf\x00\x00", "xgboost", "model.bst"),
    (b'{"learner": {}, "version": [3, 2, 0]}', "xgboost", "model.json"),
    (b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{", "xgboost", "model.ubj"),
    (pickled_global("sklearn.linear_model", "Ridge"), "sklearn", "model.joblib"),
]


@pytest.mark.parametrize(("content", "backend", "filename"), CONTENTS)
def test_content_decides_whatever_the_name(tmp_path, content, backend, filename):
    for name in ("weights.bin", "model.onnx"):
        found = recognise(write(tmp_path / name, content))

        assert (backend, filename) == (found.format.backend, found.format.filename)


def test_an_onnx_file_is_one_without_its_ending(tmp_path):
    path = save_plus_one(tmp_path / "net.dat")

    assert "onnxruntime" == recognise(path).format.backend


def test_onnx_weights_in_other_files_belong_to_it(tmp_path):
    options = {"save_as_external_data": True, "location": "data/weights", "size_threshold": 0}
    (tmp_path / "data").mkdir()
    path = save_plus_one(tmp_path / "net.onnx")
    import onnx

    onnx.save(onnx.load(save_matmul(path, size=8)), path, **options)

    assert ["data/weights"] == external_data(path)
    assert ((tmp_path / "data/weights", "data/weights"),) == recognise(path).companions
    (tmp_path / "data/weights").unlink()
    with pytest.raises(InvalidArgument, match=r"weights in '.*/data/weights', which is not there"):
        recognise(path)


@pytest.mark.parametrize("location", ["/etc/passwd", "../weights"])
def test_onnx_weights_outside_its_folder_are_refused(tmp_path, location):
    entry = b"\x0a\x08location\x12" + bytes([len(location)]) + location.encode()
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    path = write(tmp_path / "net.onnx", b"\x08\x08\x3a" + bytes([len(graph)]) + graph)

    with pytest.raises(InvalidArgument, match="outside its own folder"):
        recognise(path)


def test_torchscript_tells_what_its_forward_takes(tmp_path):
    path = write_torchscript(tmp_path / "x.bin")

    assert "model.pt" == recognise(path).format.filename
    assert [
        ForwardArgument("x", "Tensor"),
        ForwardArgument("words", "List[str]"),
        ForwardArgument("more", "Dict[str, Tensor]"),
        ForwardArgument("k", "int=3"),
    ] == torchscript_arguments(path)


def test_the_module_of_a_forward_goes_by_any_name(tmp_path):
    code = b"class Net(Module):\n  def forward(s: __torch__.Net,\n    x: Tensor) -> Tensor:\n    return x\n"
    data = pickled_global("__torch__", "Net")
    path = write_zip(tmp_path / "x", "net/data.pkl", "net/code/__torch__.py", data=data, __torch__=code)

    assert [ForwardArgument("x", "Tensor")] == torchscript_arguments(path)


def test_torchscript_that_cannot_be_read_tells_nothing(tmp_path):
    assert [] == torchscript_arguments(write(tmp_path / "a", b"PK"))
    assert [] == torchscript_arguments(write_zip(tmp_path / "b", "net/data.pkl", data=b"\x80\x02."))
    no_forward = write_zip(
        tmp_path / "c", "net/data.pkl", "net/code/__torch__.py", data=pickled_global("__torch__", "Net")
    )
    assert [] == torchscript_arguments(no_forward)


@pytest.mark.parametrize(
    "names",
    [
        ("net/archive_format", "net/models/model.json"),
        ("archive_format",),
        ("serialized_exported_program.json", "version"),
        ("net/archive_format", "net/data/aotinductor/model/x.so"),
    ],
)
def test_a_pt2_package_is_one_of_each_torch(tmp_path, names):
    found = recognise(write_zip(tmp_path / "x.zip", *names))

    assert "model.pt2" == found.format.filename
    assert found.format.names_tensors == ("aotinductor" not in names[-1])


def test_a_skops_archive_is_scikit_learn_s(tmp_path):
    assert "model.skops" == recognise(write_zip(tmp_path / "x.zip", "schema.json", "1.npy")).format.filename


def test_an_openvino_network_has_its_weights_beside_it(tmp_path):
    path = write(tmp_path / "net.xml", b'<?xml version="1.0"?>\n<net name="m" version="11">')

    with pytest.raises(InvalidArgument, match=r"net\.bin', which is not there"):
        recognise(path)
    weights = write(tmp_path / "net.bin", b"1")
    assert ((weights, "model.bin"),) == recognise(path).companions


def test_a_name_decides_where_content_says_nothing(tmp_path):
    assert "model.plan" == recognise(write(tmp_path / "m.engine", b"\x01\x02\x03")).format.filename
    assert "model.jax" == recognise(write(tmp_path / "m.jax", b"\x01\x02\x03")).format.filename


def test_folders(tmp_path):
    write(tmp_path / "saved/saved_model.pb", SAVED_MODEL)
    write(tmp_path / "code/model.py", b"class TritonPythonModel: pass")
    save_plus_one(tmp_path / "one/net.onnx")
    write(tmp_path / "one/README.txt", b"read me")

    saved, code, one = (recognise(tmp_path / name) for name in ("saved", "code", "one"))

    assert ("tensorflow", "model.savedmodel", False) == facts(saved)
    assert ("python", "model.py", True) == facts(code)
    assert ("onnxruntime", "model.onnx", False) == facts(one)
    assert tmp_path / "one/net.onnx" == one.path


def facts(found: ModelFile) -> tuple[str, str, bool]:
    return found.format.backend, found.format.filename, found.is_content


REFUSED = [
    (b"", "is empty"),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    (b"\x1c\x00\x00\x00TFL3", "TensorFlow Lite"),
    (b"\x89HDF\r\n", "model.export"),
    (b"GGUF", "Python model"),
    (b"PK\x03\x04torn", "damaged"),
    (b"BZh9", "unpack it first"),
    (b"<?xml version='1.0'?><html>", "no OpenVINO network"),
    (b'{"a": 1}', "no model of XGBoost"),
    (b"{torn", "no model of XGBoost"),
    (SAVED_MODEL, "give its folder"),
    (pickled_global("torch._utils", "_rebuild_tensor_v2"), "torch.save"),
    (b'\x40\x00\x00\x00\x00\x00\x00\x00{"w":{"dtype":"F32"', "safetensors"),
    (b"hello world", "is nothing that can be served"),
]


@pytest.mark.parametrize(("content", "complaint"), REFUSED)
def test_what_no_backend_serves_is_refused_with_a_way_out(tmp_path, content, complaint):
    with pytest.raises(InvalidArgument) as caught:
        recognise(write(tmp_path / "model.bin", content))

    assert complaint in caught.value.message


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("net/data.pkl", "net/data/0"), "written by torch.save"),
        (("config.json", "model.weights.h5"), "model.export"),
        (("a.npy", "b.npy"), "zip archive, but no model: it holds a.npy, b.npy"),
    ],
)
def test_archives_that_are_no_models_are_refused(tmp_path, names, complaint):
    with pytest.raises(InvalidArgument) as caught:
        recognise(write_zip(tmp_path / "model.pt", *names))

    assert complaint in caught.value.message


def test_a_python_file_without_a_model_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="no class TritonPythonModel"):
        recognise(write(tmp_path / "net.py", b"print(1)"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=r"nowhere\.onnx' is not there"):
        recognise(tmp_path / "nowhere.onnx")


def test_folders_that_are_no_model_are_refused(tmp_path):
    (tmp_path / "versions/1").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        save_plus_one(tmp_path / f"two/{name}.onnx")

    for folder, complaint in (
        ("versions", "model directory already"),
        ("empty", "holds no model: nothing"),
        ("two", "holds several models: a.onnx, b.onnx"),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            recognise(tmp_path / folder)


def test_a_backend_can_be_chosen_where_several_read_a_file(tmp_path):
    path = save_plus_one(tmp_path / "net.onnx")

    found = recognise(path, "openvino")

    assert ("openvino", "model.onnx", False) == facts(found)
    with pytest.raises(
        InvalidArgument, match=r"file of backend 'onnxruntime' \(ONNX model\), not of 'lightgbm'"
    ):
        recognise(path, "lightgbm")
    assert ("mine", "net.onnx", False) == facts(recognise(path, "mine"))


def test_pickles_are_read_as_data(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("it was run",))

    path = write(tmp_path / "p", pickle.dumps(Bomb()))

    assert pickled_modules(path)
    assert [] == pickled_modules(write(tmp_path / "torn", b"\x80\x04\x95"))


@pytest.mark.parametrize(
    "content", [b"\x08", b"\x0a\xff\x01", b"\x09\x01", b"\xff" * 12, b"\x0b\x01", b"\x00\x01"]
)
def test_what_is_no_protobuf_has_no_fields(tmp_path, content):
    assert frozenset() == protobuf_fields(write(tmp_path / "x", content))


def test_formats_are_called_as_the_rules_have_it():
    """What is imported is found again without a config."""
    known = {(rule.backend, rule.filename) for rule in RULES}

    assert [] == [form for form in FORMATS if (form.backend, form.filename) not in known]


def test_a_json_that_is_large_is_still_read(tmp_path):
    content = json.dumps({"padding": "x" * 5000, "learner": {}})

    assert "xgboost" == recognise(write(tmp_path / "m.json", content.encode())).format.backend
