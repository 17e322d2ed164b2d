"""Parameters of models for Triton's FIL backend. Pure.

=================================  =================================================================================
``model_type``                     ``xgboost_json``, ``xgboost_ubj``, ``xgboost``, ``lightgbm``; absent: what is there
``is_classifier``                  whether labels or probabilities are wanted; ``output_class`` is its older name
``predict_proba``                  probabilities instead of labels
``threshold``                      of the labels of a binary classifier; 0.5
``cpu_nthread``                    threads of one run; 0 or less: shared among the instances
=================================  =================================================================================

The others choose how a GPU goes about it, or what a parser forgives, and have no effect on results.

Source: Triton FIL backend ``shared_state.h`` (load), ``serialization.h``, ``docs/model_config.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bireme.backends.settings import SettingsReader, num_threads_per_instance
from bireme.backends.trees.settings import ALL, ForestSettings
from bireme.config import ModelConfig
from bireme.types import Unsupported

FILENAMES: Final = MappingProxyType(
    {
        "xgboost_json": "xgboost.json",
        "xgboost_ubj": "xgboost.ubj",
        "xgboost": "xgboost.model",
        "lightgbm": "model.txt",
    }
)
"""Where the file of each model type is, unless the config names another."""
TREELITE: Final = "treelite_checkpoint"
CHECKPOINT: Final = "checkpoint.tl"
"""The file of a model of that type."""

IGNORED: Final = frozenset(
    {
        "algo",
        "blocks_per_sm",
        "chunk_size",
        "layout",
        "storage_type",
        "threads_per_tree",
        "transfer_threshold",
        "use_experimental_optimizations",
        "xgboost_allow_unknown_field",
    }
)
"""Parameters that are accepted without effect."""


@dataclass(frozen=True, slots=True)
class FilSettings:
    """What one model's config says."""

    model_type: str
    """Empty: the file says it."""
    is_classifier: bool | None
    """None: the file says it."""
    gives_probabilities: bool
    threshold: float | None
    """None: that of the model's own library."""
    forest: ForestSettings


def read_fil_settings(config: ModelConfig, num_cpus: int) -> FilSettings:
    """Return the settings of a model that may use ``num_cpus`` CPUs.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
        Unsupported: it is a Treelite checkpoint.
    """
    reader = SettingsReader.of_model(config)
    model_type = reader.text("model_type")
    if model_type == TREELITE:
        raise treelite_fault(config.name)
    if model_type:
        reader.choice("model_type", FILENAMES, "")
    is_classifier = reader.boolean("is_classifier")
    return FilSettings(
        model_type=model_type,
        is_classifier=reader.boolean("output_class") if is_classifier is None else is_classifier,
        gives_probabilities=reader.boolean("predict_proba") or False,
        threshold=reader.number("threshold"),
        forest=ForestSettings(
            num_threads=reader.count("cpu_nthread")
            if reader.integer("cpu_nthread", 0) > 0
            else num_threads_per_instance(config, num_cpus),
            num_iterations=ALL,
            missing=float("nan"),
        ),
    )


def ignored_parameters(config: ModelConfig) -> list[str]:
    """Return the parameters of ``config`` that have no effect here."""
    return sorted(IGNORED & set(config.parameters))


def treelite_fault(model: str) -> Unsupported:
    """Return the error of a Treelite checkpoint."""
    return Unsupported(
        f"model '{model}' is a Treelite checkpoint ({TREELITE}), which the fil backend cannot read here; write the model in its "
        f"own library's format instead: {', '.join(FILENAMES)}, or with joblib for the backend 'sklearn'"
    )
