"""The fil backend: models made for Triton's FIL backend, on the CPU, with their configs unchanged.

The model is run by its own library (XGBoost, LightGBM), whose results Triton's are meant to equal.

==================  =====================================  ===========================================================
tensor, FP32        shape                                  holds
==================  =====================================  ===========================================================
``input__0``        ``[n, features]``                      rows; NaN is a missing value
``output__0``       ``[n, 1]`` of a classifier             the class: its index, as a number
                    ``[n, classes]``                       probabilities (``predict_proba``) of several classes
                    ``[n, 1]`` or ``[n, 2]``               of two classes: the second's, or both, as the config has it
                    ``[n, values]`` of anything else       what the library predicts
``treeshap_output`` ``[n, groups x (features + 1)]``       SHAP values; the last of each group is the bias
==================  =====================================  ===========================================================

Source: Triton FIL backend ``tl_model.h`` (predict), ``model.h``, ``docs/explainability.md``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np

from bireme.backends.interface import Execute, ModelContext
from bireme.backends.model_file import find_model_file
from bireme.backends.predictor import PredictorModel, log, output_dtypes
from bireme.backends.signature import Signature, TensorSpec
from bireme.backends.trees.fil_settings import (
    CHECKPOINT,
    FILENAMES,
    FilSettings,
    ignored_parameters,
    read_fil_settings,
    treelite_fault,
)
from bireme.backends.trees.forest import Forest
from bireme.backends.trees.predictor import classes_of, make_execute
from bireme.config import ModelConfig
from bireme.ipc.cpu_limit import cpu_limit
from bireme.types import Array, Unsupported

INPUT: Final = "input__0"
OUTPUT: Final = "output__0"
SHAP: Final = "treeshap_output"


class FilBackend:
    """Models of Triton's FIL backend."""

    name = "fil"

    def load(self, ctx: ModelContext) -> PredictorModel:
        """Open the model file.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
            Unsupported: it is a Treelite checkpoint, or its library is not installed.
        """
        settings = read_fil_settings(ctx.config, cpu_limit())
        ignored = ignored_parameters(ctx.config)
        if ignored:
            log.debug("model '%s': parameters without effect on the CPU: %s", ctx.name, ", ".join(ignored))
        forest = _open_forest(ctx.name, _find_file(ctx, settings.model_type), settings)
        return PredictorModel(self.name, ctx, FilPredictor(forest, settings))


def _find_file(ctx: ModelContext, model_type: str) -> Path:
    """Return the model file: where the config names none that is special, the model type says which it is."""
    by_type = FILENAMES.get(model_type)
    is_usual = ctx.config.default_model_filename in {"", *FILENAMES.values()}
    if by_type and is_usual and (ctx.version_dir / by_type).is_file():
        return ctx.version_dir / by_type
    path = find_model_file(ctx, (by_type,) if by_type else (*FILENAMES.values(), CHECKPOINT))
    if path.name == CHECKPOINT:
        raise treelite_fault(ctx.name)
    return path


def _open_forest(model: str, path: Path, settings: FilSettings) -> Forest:
    """Open the file with the library that wrote it, which is imported only now."""
    is_lightgbm = settings.model_type == "lightgbm" or (
        not settings.model_type and path.name == FILENAMES["lightgbm"]
    )
    name = "lightgbm" if is_lightgbm else "xgboost"
    try:
        library = import_module(f"bireme.backends.trees.{name}")
    except ImportError as error:
        raise Unsupported(
            f"model '{model}': backend 'fil' needs the package '{name}' for '{path.name}', which cannot be imported "
            f"({error}); install it with: pip install {name}"
        ) from error
    forest: Forest = library.open_forest(model, path, settings.forest)
    return forest


class FilPredictor:
    """See `bireme.backends.predictor.Predictor`."""

    may_run_inline = True

    def __init__(self, forest: Forest, settings: FilSettings) -> None:
        self._forest = forest
        is_classifier = settings.is_classifier
        self._is_classifier = forest.num_classes > 0 if is_classifier is None else is_classifier
        self._gives_labels = self._is_classifier and not settings.gives_probabilities
        self._gives_probabilities = self._is_classifier and settings.gives_probabilities
        self._threshold = forest.threshold if settings.threshold is None else settings.threshold

    def describe(self, config: ModelConfig) -> Signature:
        """See `bireme.backends.predictor.Predictor`."""
        forest = self._forest
        num_values = 1 if self._gives_labels else forest.num_values
        if self._gives_probabilities and num_values == 1 and _wants_both(config):
            num_values = 2
        num_parts = forest.num_groups * (forest.num_features + 1)
        tensors = [
            TensorSpec(name, "FP32", (-1, size), "float32")
            for name, size in ((INPUT, forest.num_features), (OUTPUT, num_values), (SHAP, num_parts))
        ]
        return Signature({INPUT: tensors[0]}, {output.name: output for output in tensors[1:]})

    def can_batch(self) -> bool:
        """See `bireme.backends.predictor.Predictor`."""
        return True

    def default_outputs(self) -> tuple[str, ...]:
        """Return the main output; SHAP values are for those who list them."""
        return (OUTPUT,)

    def prepare(self, config: ModelConfig) -> Execute:
        """See `bireme.backends.predictor.Predictor`."""
        predict = self._forest.predict
        if self._gives_labels:
            predict = self._labels
        elif self._gives_probabilities and self._forest.num_values == 1 and _wants_both(config):
            predict = self._both_probabilities
        ways = {OUTPUT: predict, SHAP: self._shap_values}
        self._forest.expect(config.max_batch_size)
        kinds = output_dtypes(config)
        return make_execute(INPUT, {name: ways[name] for name in kinds}, kinds, self._forest.datatype)

    def _labels(self, rows: Array) -> Array:
        return classes_of(self._forest, self._forest.predict(rows), self._threshold)

    def _both_probabilities(self, rows: Array) -> Array:
        second = self._forest.predict(rows)
        return np.concatenate([1 - second, second], axis=1)

    def _shap_values(self, rows: Array) -> Array:
        return self._forest.contributions(rows).reshape(len(rows), -1)


def _wants_both(config: ModelConfig) -> bool:
    """Whether the config wants the probabilities of both classes of a binary classifier."""
    return any(output.name == OUTPUT and output.dims[-1:] == (2,) for output in config.output)
