"""SavedModels: finds the folder, and opens the graph and the signature that the config names.

Source: Triton ``tensorflow_backend_tf.cc`` (TRITONTF_ModelCreateFromSavedModel); TensorFlow ``saved_model.proto``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import explain_failure, missing_file
from bireme.backends.tensorflow.runtime import describe_error, v1
from bireme.backends.tensorflow.selection import choose_graph, choose_signature
from bireme.backends.tensorflow.session import OpenGraph, opening
from bireme.backends.tensorflow.settings import BackendSettings, ModelSettings
from bireme.backends.tensorflow.signature import GraphSignature, read_signature
from bireme.config import ModelConfig
from bireme.types import BiremeError, InvalidArgument, NotFound


class SavedModel:
    """One signature of a SavedModel, open."""

    def __init__(
        self,
        ctx: ModelContext,
        folder: Path,
        settings: ModelSettings,
        backend_settings: BackendSettings,
    ) -> None:
        """Read ``folder`` and its variables.

        Raises:
            InvalidArgument: it is no SavedModel, is damaged, or has no such tags or signature.
            NotFound: it is not there, or there is no SavedModel in it.
        """
        meta_graph = choose_graph(ctx.name, _read(ctx, folder).meta_graphs, settings.tags)
        definition = choose_signature(ctx.name, meta_graph.signature_def, settings.signature)
        self._found = read_signature(definition)
        self.opened = self._open(ctx, folder, list(meta_graph.meta_info_def.tags), settings, backend_settings)

    @staticmethod
    def _open(
        ctx: ModelContext,
        folder: Path,
        tags: list[str],
        settings: ModelSettings,
        backend_settings: BackendSettings,
    ) -> OpenGraph:
        try:
            with opening(ctx, settings, backend_settings) as opened:
                v1.saved_model.loader.load(opened.session, tags, str(folder), clear_devices=True)
        except BiremeError:
            raise
        except Exception as error:
            raise InvalidArgument(
                f"model '{ctx.name}': TensorFlow cannot load '{folder}': {_explain(folder, describe_error(error))}"
            ) from error
        return opened

    def describe(self, _config: ModelConfig) -> GraphSignature:
        """Return what the signature declares."""
        return self._found


def _read(ctx: ModelContext, folder: Path) -> Any:
    """Return the ``SavedModel`` message of a folder: graphs and signatures, but no weights."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel()
    binary, text = folder / "saved_model.pb", folder / "saved_model.pbtxt"
    if not binary.is_file() and not text.is_file():
        raise _no_saved_model(ctx, folder, binary)
    path = binary if binary.is_file() else text
    try:
        if path is binary:
            message.ParseFromString(path.read_bytes())
        else:
            text_format.Parse(path.read_text(), message)
    except Exception as error:
        raise InvalidArgument(
            f"model '{ctx.name}': '{path}' is no SavedModel: {explain_failure(path, describe_error(error))}"
        ) from error
    if not message.meta_graphs:
        raise InvalidArgument(
            f"model '{ctx.name}': '{path}' is no SavedModel: {explain_failure(path, 'there is no graph in it')}"
        )
    return message


def _no_saved_model(ctx: ModelContext, folder: Path, wanted: Path) -> Exception:
    if folder.is_file():
        return InvalidArgument(
            f"model '{ctx.name}': '{folder}' is a file; a SavedModel is a folder with a saved_model.pb in it"
        )
    places = sorted({path.parent for path in ctx.version_dir.rglob("saved_model.pb") if path.is_file()})
    error = (
        missing_file(ctx.name, wanted, folder)
        if folder.is_dir()
        else missing_file(ctx.name, folder, ctx.version_dir)
    )
    keras = next(
        (path.name for path in sorted(ctx.version_dir.glob("*")) if path.suffix in {".keras", ".h5"}), ""
    )
    if places:
        return NotFound(f"{error}; there is a SavedModel in '{places[0]}', but it must be '{folder}'")
    if keras:
        return NotFound(
            f"{error}; '{keras}' is no SavedModel: make one with keras.models.load_model(…).export(…)"
        )
    return error


def _explain(folder: Path, reason: str) -> str:
    """Say which file of the variables is to blame, if one is missing, empty or a pointer; else ``reason``."""
    index = folder / "variables" / "variables.index"
    if not index.is_file():
        return f"{reason} ('{index.relative_to(folder)}' is missing)"
    for path in sorted(index.parent.glob("*")):
        explained = explain_failure(path, "")
        if explained:
            return f"{path.relative_to(folder)}: {explained}"
    return reason
