"""What of a SavedModel is served: the graph by its tags, the signature by its name. Pure, but for a warning.

A SavedModel may hold several graphs (for serving, for training, for accelerators), and each graph several signatures.

Source: Triton ``tensorflow_backend_tf.cc`` (TRITONTF_ModelCreateFromSavedModel); TensorFlow ``saved_model.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bireme.backends.signature import quoted
from bireme.config.faults import near_name
from bireme.telemetry.log import get_logger
from bireme.types import InvalidArgument

_DEFAULT_TAGS: Final = ("serve",)
_DEFAULT_SIGNATURE: Final = "serving_default"

_log: Final = get_logger("bireme.backends.tensorflow")


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
        _log.warning(
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
