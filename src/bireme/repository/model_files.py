"""What a model file is, told by its content, and where that leaves a doubt by its name: its backend, and its name in a repository.

`recognise` is the one entry. A file that no backend serves is refused with what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from bireme.backends.model_file import explain_failure
from bireme.repository.file_content import archive_names, external_data, pickled_modules, protobuf_fields
from bireme.repository.layout import is_leftover, parse_version
from bireme.types import InvalidArgument

_START_SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class Format:
    """A format of model files that a backend serves."""

    title: str
    """As people call it."""
    backend: str
    filename: str
    """What the file, or the folder, is called in a version directory."""
    platform: str = ""
    """Where the backend has several and its file name doesn't say which."""
    names_tensors: bool = True
    """Whether the file tells its inputs and outputs."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file or folder that holds a model."""

    path: Path
    format: Format
    companions: tuple[tuple[Path, str], ...] = ()
    """Other files that belong to it, each with its path in the version directory."""
    is_content: bool = False
    """``path`` is a folder whose content, not itself, goes into the version directory."""


ONNX: Final = Format("ONNX model", "onnxruntime", "model.onnx")
ORT: Final = Format("ORT model", "onnxruntime", "model.ort")
TORCHSCRIPT: Final = Format(
    "TorchScript module", "pytorch", "model.pt", "pytorch_libtorch", names_tensors=False
)
PT2: Final = Format("PyTorch exported program", "pytorch", "model.pt2", "torch_aoti")
AOTI: Final = Format("PyTorch AOTInductor package", "pytorch", "model.pt2", "torch_aoti", names_tensors=False)
SAVED_MODEL: Final = Format(
    "TensorFlow SavedModel", "tensorflow", "model.savedmodel", "tensorflow_savedmodel"
)
GRAPHDEF: Final = Format("frozen TensorFlow graph", "tensorflow", "model.graphdef", "tensorflow_graphdef")
OPENVINO: Final = Format("OpenVINO IR", "openvino", "model.xml")
PLAN: Final = Format("TensorRT engine", "tensorrt", "model.plan", "tensorrt_plan")
PYTHON: Final = Format("Python model", "python", "model.py", names_tensors=False)
SKLEARN: Final = Format("scikit-learn model", "sklearn", "model.joblib")
SKOPS: Final = Format("scikit-learn model (skops)", "sklearn", "model.skops")
XGBOOST_JSON: Final = Format("XGBoost model", "xgboost", "model.json")
XGBOOST_UBJ: Final = Format("XGBoost model", "xgboost", "model.ubj")
XGBOOST_BINARY: Final = Format("XGBoost model (old binary format)", "xgboost", "model.bst")
LIGHTGBM: Final = Format("LightGBM model", "lightgbm", "model.txt")
JAX: Final = Format("JAX export", "jax", "model.jax")

FORMATS: Final = (
    ONNX,
    ORT,
    TORCHSCRIPT,
    PT2,
    AOTI,
    SAVED_MODEL,
    GRAPHDEF,
    OPENVINO,
    PLAN,
    PYTHON,
    SKLEARN,
    SKOPS,
    XGBOOST_JSON,
    XGBOOST_UBJ,
    XGBOOST_BINARY,
    LIGHTGBM,
    JAX,
)

_BY_SUFFIX: Final = {
    ".onnx": ONNX,
    ".ort": ORT,
    ".pt": TORCHSCRIPT,
    ".pt2": PT2,
    ".pb": GRAPHDEF,
    ".graphdef": GRAPHDEF,
    ".savedmodel": SAVED_MODEL,
    ".xml": OPENVINO,
    ".plan": PLAN,
    ".engine": PLAN,
    ".trt": PLAN,
    ".py": PYTHON,
    ".joblib": SKLEARN,
    ".pkl": SKLEARN,
    ".pickle": SKLEARN,
    ".skops": SKOPS,
    ".ubj": XGBOOST_UBJ,
    ".bst": XGBOOST_BINARY,
    ".jax": JAX,
}
"""For files whose content says too little."""

# Content that no backend serves: the first bytes from an offset on, what it is, and the way out.
_NOT_SERVED: Final = (
    (4, b"TFL3", "a TensorFlow Lite model", "convert it to ONNX (tf2onnx), or serve it by a Python model"),
    (0, b"\x89HDF", "an HDF5 file, Keras's old format", "save it as a SavedModel: model.export(FOLDER)"),
    (0, b"GGUF", "a GGUF file, which holds weights of a language model", "serve it by a Python model"),
    (0, b"\x93NUMPY", "a numpy array", "give the model itself"),
    (0, b"BZh", "compressed", "unpack it first"),
    (0, b"\xfd7zXZ", "compressed", "unpack it first"),
)


def recognise(path: Path, backend: str = "") -> ModelFile:
    """Find out what the file or folder at ``path`` is; with ``backend``, which of that one's formats.

    Raises:
        InvalidArgument: it is not there, it is no model that a backend serves, or not one of ``backend``; says what it is.
    """
    if not path.exists():
        raise InvalidArgument(f"'{path}' is not there")
    found = _in_folder(path) if path.is_dir() else _of_file(path)
    return _for_backend(found, backend) if backend and found.format.backend != backend else found


def _for_backend(found: ModelFile, backend: str) -> ModelFile:
    """Return ``found`` as a file of a backend that is not the one it looks like."""
    own = [form for form in FORMATS if form.backend == backend]
    by_name = _BY_SUFFIX.get(found.path.suffix.lower())
    if found.format is ONNX and backend == "openvino":  # which reads it, too
        form = Format(ONNX.title, backend, ONNX.filename)
    elif by_name in own and by_name is not None:
        form = by_name
    elif own:
        raise InvalidArgument(
            f"'{found.path}' is a file of backend '{found.format.backend}' ({found.format.title}), not of '{backend}'"
        )
    else:
        form = Format(f"file for backend '{backend}'", backend, found.path.name)
    return replace(found, format=form)


def _of_file(path: Path) -> ModelFile:
    with path.open("rb") as file:
        start = file.read(_START_SIZE)
    damage = explain_failure(path, "")
    if damage:
        raise InvalidArgument(f"'{path}': {damage}")
    for offset, magic, what, way_out in _NOT_SERVED:
        if start[offset : offset + len(magic)] == magic:
            raise InvalidArgument(f"'{path}' is {what}, which no backend serves; {way_out}")
    if start[8:9] == b"{" and b'"dtype"' in start:
        raise InvalidArgument(
            f"'{path}' holds weights alone (safetensors), which only their own code can use; export the model with it, by "
            f"torch.export or to ONNX"
        )
    form = next((form for probe in _PROBES if (form := probe(path, start)) is not None), None)
    form = form or _BY_SUFFIX.get(path.suffix.lower())
    if form is None or (form is GRAPHDEF and not protobuf_fields(path)):
        served = ", ".join(dict.fromkeys(f"{each.title}" for each in FORMATS))
        raise InvalidArgument(
            f"'{path}' is nothing that can be served, by its content and its name. Served are: {served}; "
            f"--backend says whose it is"
        )
    return ModelFile(path, form, _companions(path, form))


def _in_folder(path: Path) -> ModelFile:
    """Recognise a folder: a SavedModel, a Python model with what it needs, or one that holds one model file."""
    names = sorted(each.name for each in path.iterdir() if not is_leftover(each.name))
    if "saved_model.pb" in names:
        return ModelFile(path, SAVED_MODEL)
    if "model.py" in names:
        return ModelFile(path, PYTHON, is_content=True)
    if any(parse_version(name) for name in names):
        raise InvalidArgument(
            f"'{path}' is a model directory already, with versions in it: copy it as it is, or give the file of one version"
        )
    candidates = [
        path / name for name in names if Path(name).suffix.lower() in {*_BY_SUFFIX, ".json", ".txt"}
    ]
    found: list[ModelFile] = []
    for candidate in candidates:
        try:
            found.append(recognise(candidate))
        except InvalidArgument:
            continue  # a README, a list of labels
    if len(found) == 1:
        return found[0]
    what = ", ".join(each.path.name for each in found) if found else ", ".join(names[:20]) or "nothing"
    raise InvalidArgument(
        f"'{path}' holds {'several models' if found else 'no model'}: {what}; give one file"
    )


def _probe_protobuf(path: Path, start: bytes) -> Format | None:
    # ONNX begins with its ir_version, a SavedModel's file with its schema, a GraphDef with its first node.
    if start[0] not in (0x08, 0x0A):
        return None
    fields = protobuf_fields(path)
    if 1 in fields and 7 in fields and start[0] == 0x08:
        return ONNX
    if fields == {1, 2} and start[0] == 0x08:
        raise InvalidArgument(
            f"'{path}' is a part of a TensorFlow SavedModel: give its folder, '{path.parent}'"
        )
    if 1 in fields and fields <= {1, 2, 3, 4, 5} and start[0] == 0x0A:
        return GRAPHDEF
    return None


def _probe_archive(path: Path, start: bytes) -> Format | None:
    if not start.startswith(b"PK"):
        return None
    names = archive_names(path)
    if not names:
        raise InvalidArgument(f"'{path}' is a damaged zip archive: is it copied as a whole?")
    inner = {name.partition("/")[2] or name for name in names}
    if any("/data/aotinductor/" in name for name in names):
        return AOTI
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return PT2
    if "schema.json" in names:
        return SKOPS
    if "data.pkl" in inner and any(name.startswith("code/") for name in inner):
        return TORCHSCRIPT
    if "data.pkl" in inner:
        raise InvalidArgument(
            f"'{path}' was written by torch.save: weights, or a module that only its own code can open. Save the module with "
            f"its code: torch.export.save(torch.export.export(module, inputs), 'model.pt2'), or "
            f"torch.jit.script(module).save('model.pt')"
        )
    if "config.json" in names and any(name.endswith(".weights.h5") for name in names):
        raise InvalidArgument(
            f"'{path}' is a Keras file, which needs Keras to open it; save it as a SavedModel: model.export(FOLDER)"
        )
    raise InvalidArgument(f"'{path}' is a zip archive, but no model: it holds {', '.join(names[:5])}")


def _probe_flatbuffer(_path: Path, start: bytes) -> Format | None:
    return ORT if start[4:8] == b"ORTM" else None


def _probe_plan(_path: Path, start: bytes) -> Format | None:
    return PLAN if start[:4] in (b"ftrt", b"ptrt", b"trtf") else None


def _probe_xml(path: Path, start: bytes) -> Format | None:
    if not start.lstrip().startswith((b"<?xml", b"<net")):
        return None
    if b"<net" not in start:
        raise InvalidArgument(f"'{path}' is XML, but no OpenVINO network: expected the element <net>")
    return OPENVINO


def _probe_trees(path: Path, start: bytes) -> Format | None:
    """Boosted trees: LightGBM's text, and XGBoost's JSON and UBJSON."""
    if start.startswith((b"tree\n", b"tree\r\n")):
        return LIGHTGBM
    if start.startswith(b"binf"):
        return XGBOOST_BINARY
    if start.startswith(b"{L") and b"learner" in start:
        return XGBOOST_UBJ
    if start.lstrip().startswith(b"{"):
        try:
            content = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError:
            content = None
        if isinstance(content, dict) and "learner" in content:
            return XGBOOST_JSON
        raise InvalidArgument(f"'{path}' is no model of XGBoost, whose JSON has a 'learner'")
    return None


def _probe_pickle(path: Path, start: bytes) -> Format | None:
    if start[0] != 0x80:
        return None
    modules = pickled_modules(path)
    first = next((module.partition(".")[0] for module in modules if module != "builtins"), "")
    if first in ("torch", "collections") and any(module.startswith("torch") for module in modules):
        raise InvalidArgument(
            f"'{path}' was written by torch.save and holds weights: save the module with its code, by torch.export or as "
            f"TorchScript"
        )
    return SKLEARN


def _probe_python(path: Path, _start: bytes) -> Format | None:
    if path.suffix.lower() != ".py":
        return None
    if b"TritonPythonModel" not in path.read_bytes():
        raise InvalidArgument(
            f"'{path}' has no class TritonPythonModel, which every Python model has; a class of torch's is served with a "
            f"config by hand (docs/frameworks.md)"
        )
    return PYTHON


_PROBES: Final[tuple[Callable[[Path, bytes], Format | None], ...]] = (
    _probe_archive,
    _probe_flatbuffer,
    _probe_plan,
    _probe_python,
    _probe_xml,
    _probe_trees,
    _probe_pickle,
    _probe_protobuf,
)


def _companions(path: Path, form: Format) -> tuple[tuple[Path, str], ...]:
    """Return the other files of a model; each must be there.

    Raises:
        InvalidArgument: one is missing, or lies outside the folder of ``path``.
    """
    if form is ONNX:
        return tuple((_inside(path, name), name) for name in external_data(path))
    if form is OPENVINO:
        weights = path.with_suffix(".bin")
        if not weights.is_file():
            raise InvalidArgument(f"'{path}' has its weights in '{weights}', which is not there")
        return ((weights, "model.bin"),)
    return ()


def _inside(path: Path, name: str) -> Path:
    data = path.parent / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InvalidArgument(
            f"'{path}' has weights in '{name}', outside its own folder; save it with data files beside it"
        )
    if not data.is_file():
        raise InvalidArgument(f"'{path}' has weights in '{data}', which is not there")
    return data
