"""SklearnPredictor: an estimator as the server sees it. Each output is named after the method that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from sklearn.exceptions import NotFittedError

from bireme.backends.interface import Execute
from bireme.backends.predictor import NUMBERS, adopt_datatypes, output_dtypes
from bireme.backends.signature import Signature, TensorSpec
from bireme.backends.sklearn.estimator_file import METHODS, log, with_warnings_in_log
from bireme.backends.sklearn.settings import MATRIX, SklearnSettings
from bireme.backends.sklearn.tables import (
    MakeTable,
    describe_inputs,
    find_layout,
    make_table_maker,
    sample_inputs,
)
from bireme.backends.sklearn.threads import ThreadLimit
from bireme.config import ModelConfig
from bireme.types import Array, InvalidArgument, datatypes

_WITH_TEXTS: Final = NUMBERS | {"BYTES"}


class SklearnPredictor:
    """See `bireme.backends.predictor.Predictor`."""

    def __init__(
        self, config: ModelConfig, estimator: Any, settings: SklearnSettings, *, may_run_inline: bool
    ) -> None:
        """Find out what the estimator takes and, by running it on one row, what it gives.

        Raises:
            InvalidArgument: it is not fitted, or its columns are unknown.
            Unsupported: the package of its frames is not installed.
        """
        self.may_run_inline = may_run_inline
        self._estimator = estimator
        self._layout = find_layout(estimator, config, settings)
        self._make_table = make_table_maker(config.name, self._layout)
        self._limit = ThreadLimit(settings.num_threads)
        self._outputs = with_warnings_in_log(config.name, lambda: self._probe(config.name))
        if not self._outputs:
            raise InvalidArgument(
                f"model '{config.name}': no method of {type(estimator).__name__} gives one array of numbers or texts"
            )

    def describe(self, config: ModelConfig) -> Signature:
        """See `bireme.backends.predictor.Predictor`."""
        signature = Signature(describe_inputs(self._layout), self._outputs)
        adopted = adopt_datatypes(config, signature, NUMBERS)
        if self._layout.mode != MATRIX and not self._layout.names:
            return adopted
        # What a column holds is not always to be told from the estimator: the config may say that it is texts.
        inputs = adopt_datatypes(config, signature, _WITH_TEXTS).inputs
        return Signature(inputs, adopted.outputs)

    def can_batch(self) -> bool:
        """See `bireme.backends.predictor.Predictor`."""
        return True

    def default_outputs(self) -> tuple[str, ...]:
        """Return what an estimator is for: classes and probabilities, predictions, or what it transforms to."""
        if "predict" in self._outputs:
            is_classifier = hasattr(self._estimator, "classes_") and "predict_proba" in self._outputs
            return ("predict", "predict_proba") if is_classifier else ("predict",)
        return ("transform",) if "transform" in self._outputs else (next(iter(self._outputs)),)

    def prepare(self, config: ModelConfig) -> Execute:
        """See `bireme.backends.predictor.Predictor`."""
        make_table, limit = self._make_table, self._limit
        if not self._runs_as_it_is(config):
            make_table = _with_doubles(make_table)
        steps = [
            (name, getattr(self._estimator, name), datatypes.NUMPY_DTYPES[kind])
            for name, kind in output_dtypes(config).items()
        ]

        def execute(inputs: dict[str, Array]) -> dict[str, Array]:
            limit.apply()
            table = make_table(inputs)
            try:
                results = [method(table) for _, method, _ in steps]
            except ValueError as error:  # so estimators say that a value is not for them, such as NaN
                raise InvalidArgument(
                    f"{type(self._estimator).__name__}: {' '.join(str(error).split())}"
                ) from error
            return {
                name: _as_output(result, dtype)
                for (name, _, dtype), result in zip(steps, results, strict=True)
            }

        return execute

    def _runs_as_it_is(self, config: ModelConfig) -> bool:
        """Whether the estimator takes single precision, where the config has it: some take only what they were fitted with."""
        kinds = {tensor.name: tensor.data_type for tensor in config.input}
        if "TYPE_FP32" not in kinds.values():
            return True
        samples = sample_inputs(self._layout, self._estimator)
        singles = {
            name: array.astype(np.float32) if kinds.get(name) == "TYPE_FP32" else array
            for name, array in samples.items()
        }
        try:
            for output in config.output:
                getattr(self._estimator, output.name)(self._make_table(singles))
        except Exception as error:  # noqa: BLE001 - it may be the made-up row: double precision does no harm then
            log.info("model '%s': inputs are converted to FP64, since with FP32: %s", config.name, error)
            return False
        return True

    def _probe(self, model: str) -> dict[str, TensorSpec]:
        self._limit.apply()
        inputs = sample_inputs(self._layout, self._estimator)
        found = (self._probe_method(model, method, inputs) for method in METHODS)
        return {output.name: output for output in found if output is not None}

    def _probe_method(self, model: str, name: str, inputs: dict[str, Array]) -> TensorSpec | None:
        """Return what the method gives; None: there is no such method, or it gives something else than an array."""
        method: Callable[..., Any] | None = getattr(self._estimator, name, None)
        if method is None:
            return None
        try:
            with np.errstate(all="ignore"):
                result = _to_table(method(self._make_table(inputs)))
        except NotFittedError as error:
            raise InvalidArgument(f"model '{model}': the estimator is not fitted: {error}") from error
        except Exception as error:  # noqa: BLE001 - a made-up row need not be one that the estimator can run
            log.info("model '%s': %s cannot be tried on a made-up row: %s", model, name, error)
            return self._guess(name)
        try:
            kind = datatypes.from_numpy(result.dtype)
        except (KeyError, AttributeError):
            return None
        return TensorSpec(name, kind, (-1, *result.shape[1:]), str(result.dtype))

    def _guess(self, name: str) -> TensorSpec:
        """Return what follows of a method's result from the estimator's attributes."""
        classes = getattr(self._estimator, "classes_", None)
        if isinstance(classes, np.ndarray):
            if name == "predict":
                return TensorSpec(name, datatypes.from_numpy(classes.dtype), (-1, 1), str(classes.dtype))
            if name in {"predict_proba", "predict_log_proba"}:
                return TensorSpec(name, "FP64", (-1, len(classes)), "float64")
        return TensorSpec(name, "FP64", (-1, 1 if name == "predict" else -1), "float64")


def _with_doubles(make_table: MakeTable) -> MakeTable:
    def make(inputs: Mapping[str, Array]) -> Any:
        return make_table(
            {
                name: array.astype(np.float64) if array.dtype == np.float32 else array
                for name, array in inputs.items()
            }
        )

    return make


def _to_table(result: Any) -> Any:
    """Return a method's result as an array with a row for each row of the input; what is no array as it is."""
    if hasattr(result, "toarray"):  # sparse
        result = result.toarray()
    elif hasattr(result, "to_numpy"):  # a DataFrame
        result = result.to_numpy()
    return result.reshape(-1, 1) if isinstance(result, np.ndarray) and result.ndim == 1 else result


def _as_output(result: Any, dtype: np.dtype[Any]) -> Array:
    table = _to_table(result)
    if dtype.hasobject:
        texts = np.empty(table.shape, np.object_)
        flat = [item if isinstance(item, str | bytes) else str(item) for item in table.reshape(-1).tolist()]
        texts.reshape(-1)[:] = flat
        return texts
    return np.ascontiguousarray(table, dtype)
