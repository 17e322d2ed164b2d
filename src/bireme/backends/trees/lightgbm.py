"""The lightgbm backend: a booster out of LightGBM's text format. Runs of it may overlap, and free the GIL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.predictor import PredictorModel
from bireme.backends.trees.forest import Forest
from bireme.backends.trees.lightgbm_text import find_damage, read_head
from bireme.backends.trees.predictor import load_forest, unreadable
from bireme.backends.trees.settings import ForestSettings, is_worth_threads
from bireme.telemetry.log import get_logger
from bireme.types import Array, InvalidArgument

try:
    import lightgbm
except OSError as missing_library:  # libgomp.so.1, which it does not bring along
    raise ImportError(str(missing_library)) from missing_library

_log: Final = get_logger("bireme.backends.lightgbm")
_LIBRARY: Final = f"LightGBM {lightgbm.__version__}"


class LightGbmBackend:
    """LightGBM models on the CPU."""

    name = "lightgbm"

    def load(self, ctx: ModelContext) -> PredictorModel:
        """Open the model file.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
        """
        return load_forest(self.name, ctx, open_forest)


def open_forest(model: str, path: Path, settings: ForestSettings) -> Forest:
    """Return the forest in the file at ``path``; ``model`` is for messages.

    Raises:
        InvalidArgument: it is no such file, or has fewer rounds than ``settings`` ask for.
    """
    label = f"model '{model}'"
    content = path.read_bytes()
    damage = find_damage(content)
    if damage:
        raise unreadable(_LIBRARY, label, path, damage)
    lightgbm.register_logger(_QuietLog())
    try:
        booster = lightgbm.Booster(model_file=path)
    except Exception as error:
        raise unreadable(_LIBRARY, label, path, " ".join(str(error).split())) from error
    return LightGbmForest(label, booster, read_head(content).get("objective", ""), settings)


class LightGbmForest:
    """See `bireme.backends.trees.forest.Forest`."""

    datatype = "FP64"
    threshold = 0.5

    def __init__(self, label: str, booster: Any, objective: str, settings: ForestSettings) -> None:
        """``objective`` as the file has it.

        Raises:
            InvalidArgument: it has fewer rounds than ``settings`` ask for.
        """
        self._booster = booster
        self.num_features = booster.num_feature()
        self.num_groups = booster.num_model_per_iteration()
        self.num_values = self.num_groups
        self.num_classes = _num_classes(objective, self.num_groups)
        num_rounds = booster.num_trees() // self.num_groups
        # A file has no more than the best rounds, unless it was asked to be written with others.
        num_iterations = max(settings.num_iterations, 0) or num_rounds
        if num_iterations > num_rounds:
            raise InvalidArgument(
                f"{label}: parameter 'iterations' is '{num_iterations}', but the model file has {num_rounds} rounds"
            )
        self.num_trees = num_iterations * self.num_groups
        self._num_iterations = num_iterations
        self._num_threads = settings.num_threads

    def expect(self, max_rows: int) -> None:
        """See `Forest`. Every run says anew how many threads it may have."""

    def predict(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run(rows)

    def margins(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run(rows, raw_score=True)

    def leaves(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run(rows, pred_leaf=True)

    def contributions(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run(rows, pred_contrib=True).reshape(len(rows), self.num_groups, -1)

    def _run(self, rows: Array, **kind: bool) -> Array:
        predict: Callable[..., Array] = self._booster.predict
        num_threads = self._num_threads if is_worth_threads(len(rows), self.num_trees) else 1
        result = predict(rows, num_iteration=self._num_iterations, num_threads=num_threads, **kind)
        return result.reshape(len(rows), -1)


def _num_classes(objective: str, num_groups: int) -> int:
    name = objective.partition(" ")[0]
    if name in {"multiclass", "multiclassova"}:
        return num_groups
    return 2 if name == "binary" else 0


class _QuietLog:
    """Takes what LightGBM would print, but for its errors, which are also raised: they go to stderr all the same."""

    def info(self, message: str) -> None:
        """Log a line of information."""
        _log.debug("%s", message.strip())

    def warning(self, message: str) -> None:
        """Log a warning."""
        _log.info("%s", message.strip())
