"""SavedModels: finds the folder, picks the graph by its tags and the signature by its name, and opens them.

Source: Triton ``tensorflow_backend_tf.cc`` (TRITONTF_ModelCreateFromSavedModel); TensorFlow ``saved_model.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import explain_failure, missing_file
from bireme.backends.signature import quoted
from bireme.backends.tensorflow.runtime import describe_error, log, v1
from bireme.backends.tensorflow.session import OpenGraph, opening
from bireme.backends.tensorflow.settings import BackendSettings, ModelSettings
from bireme.backends.tensorflow.signature import GraphSignature, read_signature
from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.types import InvalidArgument, NotFound

_DEFAULT_TAGS: Final = ("serve",)
_DEFAULT_SIGNATURE: Final = "serving_default"


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
        except InvalidArgument:
            raise
        except Exception as error:
            raise InvalidArgument(
                f"model '{ctx.name}': TensorFlow cannot load '{folder}': {_explain(folder, describe_error(error))}"
            ) from error
        return opened

    def describe(self, _config: ModelConfig) -> GraphSignature:
        """Return what the signature declares."""
        return self._found


def choose_graph(model: str, meta_graphs: Any, tags: tuple[str, ...]) -> Any:
    """Return the ``MetaGraphDef`` that has exactly these tags; without any: ``serve``.

    Raises:
        InvalidArgument: there is none; lists those that there are.
    """
    wanted = set(tags or _DEFAULT_TAGS)
    for meta_graph in meta_graphs:
        if set(meta_graph.meta_info_def.tags) == wanted:
            return meta_graph
    found = [",".join(sorted(meta_graph.meta_info_def.tags)) for meta_graph in meta_graphs]
    raise InvalidArgument(
        f"model '{model}': the SavedModel has no graph with tag {quoted(sorted(wanted))}; it has {quoted(found)}: name one "
        f"of them in the parameter TF_GRAPH_TAG"
    )


def choose_signature(model: str, signatures: Mapping[str, Any], name: str) -> Any:
    """Return the ``SignatureDef`` called ``name``; without a name: ``serving_default``, or the only one that there is.

    Raises:
        InvalidArgument: there is none such; lists those that there are.
    """
    found = signatures.get(name or _DEFAULT_SIGNATURE)
    if found is not None:
        return found
    # The others run once, when a model is loaded or trained.
    usable = sorted(other for other in signatures if not other.startswith("__saved_model"))
    if not usable:
        raise InvalidArgument(
            f"model '{model}': the SavedModel has no signature, so nothing in it can be called from outside; save it with "
            f"tf.saved_model.save(…, signatures=…), or a Keras model with model.export(…)"
        )
    if not name and len(usable) == 1:
        log.warning(
            "model '%s': the SavedModel has no signature '%s'; its only one, '%s', is served",
            model,
            _DEFAULT_SIGNATURE,
            usable[0],
        )
        return signatures[usable[0]]
    near = near_name(name, usable) if name else None
    suggestion = f"; did you mean '{near}'?" if near else ""
    raise InvalidArgument(
        f"model '{model}': the SavedModel has no signature '{name or _DEFAULT_SIGNATURE}'; it has {quoted(usable)}: name one "
        f"of them in the parameter TF_SIGNATURE_DEF{suggestion}"
    )


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
    places = sorted({path.parent for path in ctx.version_dir.rglob("saved_model.pb")})
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
    """Say which file of the folder is to blame, if one is empty or a pointer; else ``reason``."""
    for path in sorted((folder / "variables").glob("*")):
        explained = explain_failure(path, "")
        if explained:
            return f"{path.relative_to(folder)}: {explained}"
    return reason
