"""ForestPredictor: a forest as the server sees it, with one input and up to five outputs.

==================  =======  ===========================================  ================================================
tensor              type     shape                                        holds
==================  =======  ===========================================  ================================================
``input``           as file  ``[n, features]``                            rows; NaN is a missing value
``predict``         as file  ``[n, values]``                              what the library's own predict gives
``label``           INT64    ``[n, 1]``; binary: ``[n, values]``          class of a classifier: its index
``margin``          as file  ``[n, groups]``                              raw scores
``leaf``            INT32    ``[n, trees]``                               leaves
``contributions``   as file  ``[n, features + 1]``, or with several       SHAP values
                             groups ``[n, groups, features + 1]``
==================  =======  ===========================================  ================================================

"As file": FP32 for XGBoost, FP64 for LightGBM; the config may ask for any other type of number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from bireme.backends.interface import Execute, ModelContext
from bireme.backends.model_file import explain_failure, find_model_file
from bireme.backends.predictor import NUMBERS, PredictorModel, adopt_datatypes, output_dtypes
from bireme.backends.signature import Signature, TensorSpec
from bireme.backends.trees.forest import Forest
from bireme.backends.trees.settings import ForestSettings, read_settings
from bireme.config import ModelConfig
from bireme.config.backend_rules import filenames_of
from bireme.ipc.cpu_limit import cpu_limit
from bireme.types import Array, InvalidArgument, datatypes

INPUT: Final = "input"
_FLOATS: Final = ("float32", "float64")

Compute = Callable[[Array], Array]


def load_forest(
    backend: str, ctx: ModelContext, open_forest: Callable[[str, Path, ForestSettings], Forest]
) -> PredictorModel:
    """Return a model of the forest in the model file.

    Raises:
        InvalidArgument: the file or a parameter is wrong.
        NotFound: there is no such file.
    """
    settings = read_settings(ctx.config, cpu_limit())
    forest = open_forest(ctx.name, find_model_file(ctx, filenames_of(backend)), settings)
    return PredictorModel(backend, ctx, ForestPredictor(forest))


class ForestPredictor:
    """See `bireme.backends.predictor.Predictor`."""

    may_run_inline = True
    """It is native code that waits for nothing but its own threads."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest

    def describe(self, config: ModelConfig) -> Signature:
        """See `bireme.backends.predictor.Predictor`."""
        forest, kind = self._forest, self._forest.datatype
        features = forest.num_features + 1
        shap = (features,) if forest.num_groups == 1 else (forest.num_groups, features)
        outputs = [
            TensorSpec("predict", kind, (-1, forest.num_values), kind),
            TensorSpec("margin", kind, (-1, forest.num_groups), kind),
            TensorSpec("contributions", kind, (-1, *shap), kind),
        ]
        if forest.num_trees:
            outputs.append(TensorSpec("leaf", "INT32", (-1, forest.num_trees), "int32"))
        if forest.num_classes:
            num_labels = forest.num_values if forest.num_classes == 2 else 1
            outputs.append(TensorSpec("label", "INT64", (-1, num_labels), "int64"))
        rows = TensorSpec(INPUT, kind, (-1, forest.num_features), kind)
        signature = Signature({INPUT: rows}, {output.name: output for output in outputs})
        return adopt_datatypes(config, signature, NUMBERS)

    def can_batch(self) -> bool:
        """See `bireme.backends.predictor.Predictor`."""
        return True

    def default_outputs(self) -> tuple[str, ...]:
        """Return what the library's own predict gives."""
        return ("predict",)

    def prepare(self, config: ModelConfig) -> Execute:
        """See `bireme.backends.predictor.Predictor`."""
        ways = {
            "predict": self._forest.predict,
            "margin": self._forest.margins,
            "leaf": self._forest.leaves,
            "contributions": self._contributions,
            "label": self._labels,
        }
        self._forest.expect(config.max_batch_size)
        kinds = output_dtypes(config)
        return make_execute(INPUT, {name: ways[name] for name in kinds}, kinds, self._forest.datatype)

    def _contributions(self, rows: Array) -> Array:
        result = self._forest.contributions(rows)
        return result[:, 0] if self._forest.num_groups == 1 else result

    def _labels(self, rows: Array) -> Array:
        return classes_of(self._forest, self._forest.predict(rows), self._forest.threshold)


def classes_of(forest: Forest, values: Array, threshold: float) -> Array:
    """Return the classes, ``[n, 1]``, that a classifier's ``values`` stand for; of a binary one ``[n, num_values]``."""
    if forest.num_classes == 2:
        labels: Array = values > threshold
        return labels
    return values if forest.num_values == 1 else values.argmax(axis=1)[:, np.newaxis]


def make_execute(source: str, ways: dict[str, Compute], kinds: dict[str, str], datatype: str) -> Execute:
    """Return the function that feeds the input ``source`` to each of ``ways`` and gives results in the types ``kinds``.

    Rows that are neither float32 nor float64 are converted to ``datatype``; others are passed on as they are.
    """
    native = datatypes.NUMPY_DTYPES[datatype]
    steps = [(name, way, datatypes.NUMPY_DTYPES[kinds[name]]) for name, way in ways.items()]

    def execute(inputs: dict[str, Array]) -> dict[str, Array]:
        rows = inputs[source]
        if rows.dtype.name not in _FLOATS:
            rows = rows.astype(native)
        elif not (rows.flags.c_contiguous and rows.flags.aligned):
            rows = rows.copy()
        if not len(rows):  # which the libraries refuse
            rows = np.zeros((1, rows.shape[1]), rows.dtype)
            return {name: _owned(way(rows)[:0], dtype) for name, way, dtype in steps}
        return {name: _owned(way(rows), dtype) for name, way, dtype in steps}

    return execute


def _owned(result: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(result, dtype)


def unreadable(library: str, label: str, path: Path, reason: str) -> InvalidArgument:
    """Return the error of a file that ``library`` (its name and version) cannot load."""
    explained = explain_failure(path, f"{reason} (is the file complete, and is it what save_model() wrote?)")
    return InvalidArgument(f"{label}: {library} cannot load '{path}': {explained}")
