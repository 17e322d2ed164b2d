"""Finds a model file and reads it; says what is wrong with one that OpenVINO only calls unreadable."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import explain_failure, find_model_file
from bireme.backends.openvino.errors import reason_of
from bireme.types import InvalidArgument, NotFound

IR: Final = "model.xml"
DEFAULT_FILENAMES: Final = (IR, "model.onnx", "model.pdmodel", "model.json", "model.tflite", "model.pb")
"""In the order in which they are tried."""

_SAVED_MODELS: Final = ("model.savedmodel", "model.saved_model")
_SAVED_MODEL: Final = "saved_model.pb"


def find_file(ctx: ModelContext) -> Path:
    """Return the model file, or the directory of a SavedModel.

    A config that names none has been given ``model.xml``, so that name stands for any of the default ones.

    Raises:
        NotFound: lists what the version directory holds.
    """
    filename = ctx.config.default_model_filename
    for name in (filename,) if filename else _SAVED_MODELS:
        if name and (ctx.version_dir / name / _SAVED_MODEL).is_file():
            return ctx.version_dir / name
    try:
        return find_model_file(ctx, DEFAULT_FILENAMES)
    except NotFound:
        if filename in {"", IR}:
            for name in (*DEFAULT_FILENAMES, *_SAVED_MODELS):
                path = ctx.version_dir / name
                if path.is_file() or (path / _SAVED_MODEL).is_file():
                    return path
        raise


def read_model(core: Any, model: str, path: Path) -> Any:
    """Return the ``openvino.Model`` at ``path``. Blocking, with the GIL released.

    Raises:
        InvalidArgument: it cannot be read.
    """
    # First, since OpenVINO tries one reader after the other, and TensorFlow's writes its complaints to stderr.
    reason = explain_failure(path, "") or (_explain_ir(path) if path.suffix == ".xml" else "")
    if not reason:
        try:
            return core.read_model(path)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this file
            reason = reason_of(error)
            if "weights" in reason:
                reason = _explain_weights(path, reason) or reason
    raise InvalidArgument(f"model '{model}': OpenVINO cannot load '{path}': {reason}")


def _explain_ir(path: Path) -> str:
    """Say what is wrong with an IR that can be seen from outside; empty: nothing."""
    with path.open("rb") as file:
        start = file.read(64)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return ""
    return f"the file is no XML: it begins with {start[:16]!r}"


def _explain_weights(path: Path, told: str) -> str:
    """Say what is wrong with the weights of an IR that cannot be read; empty: nothing. One without weights may lack them."""
    weights = path.with_suffix(".bin")
    if path.suffix != ".xml":
        return ""
    label = f"{weights.name}, the file with its weights"
    if not weights.is_file():
        return f"{label}, is missing"
    reason = explain_failure(weights, "")
    return f"{label}: {reason}" if reason else f"{label}, has {weights.stat().st_size} bytes: {told}"
