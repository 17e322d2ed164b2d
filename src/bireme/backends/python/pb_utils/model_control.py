"""Loading and unloading models of the server that runs this one, and the running model's own place."""

from __future__ import annotations

from typing import Any

from bireme.backends.python import runtime
from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.backends.python.pb_utils.text import to_text
from bireme.types import BiremeError


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model, or load it again, and wait until it serves. The server must control models explicitly.

    ``config`` is JSON text that replaces the model's config; ``files`` are those of the model, by
    ``file:<version>/<name>``, and need a ``config``.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the server refused, or the model failed to load.
    """
    model_name = to_text("load_model: model_name", model_name)
    config = to_text("load_model: config", config)
    if files is not None and not _is(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    for path, content in (files or {}).items():
        if not (_is(path, str) and _is(content, bytes)):
            raise TypeError(
                f"load_model: files must be str to bytes, found {path!r}: {type(content).__name__}"
            )
    try:
        runtime.current().load_model(model_name, config, files)
    except (BiremeError, RuntimeError) as error:
        raise TritonModelException(f"Failed to load model: {_text(error)}") from error


def unload_model(model_name: str, unload_dependents: bool = False) -> None:  # noqa: FBT001, FBT002 (Triton's)
    """Begin to unload a model, with ``unload_dependents`` those too that an ensemble consists of. Raises as `load_model`."""
    model_name = to_text("unload_model: model_name", model_name)
    try:
        runtime.current().unload_model(model_name, unload_dependents=bool(unload_dependents))
    except (BiremeError, RuntimeError) as error:
        raise TritonModelException(f"Failed to unload model: {_text(error)}") from error


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model version (empty: the latest) can run now.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the version is no number, or nobody could be asked.
    """
    model_name = to_text("is_model_ready: model_name", model_name)
    model_version = to_text("is_model_ready: model_version", model_version)
    if model_version and not (model_version.isascii() and model_version.isdecimal()):
        raise TritonModelException(
            f"Failed to check model readiness: failed to get model version from specified version string "
            f"'{model_version}', version should be an integral value > 0"
        )
    try:
        return runtime.current().is_model_ready(model_name, model_version)
    except (BiremeError, RuntimeError) as error:
        raise TritonModelException(f"Failed to check model readiness: {_text(error)}") from error


def get_model_dir() -> str:
    """Return the directory of the running model's version.

    Raises:
        RuntimeError: no model is running.
    """
    return runtime.current().version_dir


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind)


def _text(error: Exception) -> str:
    return error.message if isinstance(error, BiremeError) else str(error)
