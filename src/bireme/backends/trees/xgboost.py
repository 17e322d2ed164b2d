"""The xgboost backend: a booster, run in place on the arrays that requests bring.

Prediction in place makes no DMatrix of the rows, takes no lock and frees the GIL. Leaves, contributions and linear boosters
have no such way: they go through a DMatrix, which is a copy, one run at a time.

Source: XGBoost "Prediction" (thread safety), "Introduction to Model IO".
"""

from __future__ import annotations

import ctypes
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import xgboost

from bireme.backends.interface import ModelContext
from bireme.backends.predictor import PredictorModel
from bireme.backends.trees.forest import Forest
from bireme.backends.trees.predictor import load_forest, unreadable
from bireme.backends.trees.settings import BEST, ForestSettings, is_worth_threads
from bireme.backends.trees.ubjson import find_damage
from bireme.backends.trees.xgboost_dense import MARGIN, VALUE, make_predict
from bireme.telemetry.log import get_logger
from bireme.types import Array, BackendFailed, InvalidArgument

_log: Final = get_logger("bireme.backends.xgboost")
_LIBRARY: Final = f"XGBoost {xgboost.__version__}"
# "[14:58:16] WARNING: /workspace/src/common/json.cc:409: Unknown construct"
_POSITION: Final = re.compile(r"^\[[\d:]+\] (WARNING: )?\S+:\d+: ")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"{}[]")
_MAX_LEVELS: Final = 10_000
_INPLACE_BOOSTERS: Final = frozenset({"gbtree", "dart"})


class XGBoostBackend:
    """XGBoost models on the CPU."""

    name = "xgboost"

    def load(self, ctx: ModelContext) -> PredictorModel:
        """Open the model file.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
        """
        return load_forest(self.name, ctx, open_forest)


def open_forest(model: str, path: Path, settings: ForestSettings) -> Forest:
    """Return the forest in the file at ``path``, JSON or UBJSON whatever its name; ``model`` is for messages.

    Raises:
        InvalidArgument: it is no such file, or has fewer rounds than ``settings`` ask for.
    """
    label = f"model '{model}'"
    content = path.read_bytes()
    damage = _find_damage(content)
    if damage:
        raise unreadable(_LIBRARY, label, path, damage)
    try:
        booster = xgboost.Booster()
        # From memory, since XGBoost goes by the name of a file, and by its content only here.
        booster.load_model(bytearray(content))
        booster.set_param({"nthread": 1, "device": "cpu", "verbosity": 1})
        return XGBoostForest(label, booster, settings)
    except InvalidArgument:
        raise
    except Exception as error:
        raise unreadable(_LIBRARY, label, path, _shorten(error)) from error


class XGBoostForest:
    """See `bireme.backends.trees.forest.Forest`."""

    datatype = "FP32"

    def __init__(self, label: str, booster: Any, settings: ForestSettings) -> None:
        """``booster`` has its parameters.

        Raises:
            InvalidArgument: it has fewer rounds than ``settings`` ask for, or no best one.
        """
        learner = json.loads(booster.save_config())["learner"]
        self._booster = booster
        self._missing = settings.missing
        self._num_threads = settings.num_threads
        self._range = (0, _last_round(label, booster, settings.num_iterations))
        self._ways = {
            kind: make_predict(booster, kind, self._range[1], settings.missing) for kind in (VALUE, MARGIN)
        }
        self._runs_in_place = learner["gradient_booster"]["name"] in _INPLACE_BOOSTERS
        self._lock = threading.Lock()
        objective = learner["objective"]["name"]
        self.threshold = 0.0 if objective == "binary:logitraw" else 0.5
        self.num_features = int(booster.num_features())
        rows = np.zeros((1, self.num_features), np.float32)
        self.num_values = self.predict(rows).shape[1]
        self.num_groups = self.margins(rows).shape[1]
        self.num_classes = _num_classes(objective, self.num_groups)
        self.num_trees = self.leaves(rows).shape[1] if self._runs_in_place else 0

    def expect(self, max_rows: int) -> None:
        """See `Forest`. The number of threads belongs to the booster: it cannot follow each run's number of rows."""
        if not max_rows or is_worth_threads(max_rows, self.num_trees):
            self._booster.set_param({"nthread": self._num_threads})

    def predict(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run(rows, VALUE)

    def margins(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run(rows, MARGIN)

    def leaves(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run_matrix(rows, pred_leaf=True).reshape(len(rows), -1)

    def contributions(self, rows: Array) -> Array:
        """See `Forest`."""
        return self._run_matrix(rows, pred_contribs=True)

    def _run(self, rows: Array, kind: str) -> Array:
        if not self._runs_in_place:
            return self._run_matrix(rows, output_margin=kind == MARGIN)
        try:
            return self._ways[kind](rows)
        except xgboost.core.XGBoostError as error:
            raise BackendFailed(_shorten(error)) from error

    def _run_matrix(self, rows: Array, **kind: bool) -> Array:
        predict: Callable[..., Array] = self._booster.predict
        try:
            # Not a thread per core, and not within the lock: this copies.
            matrix = xgboost.DMatrix(rows, missing=self._missing, nthread=1)
            with self._lock:
                return predict(
                    matrix, iteration_range=self._range, validate_features=False, strict_shape=True, **kind
                )
        except xgboost.core.XGBoostError as error:
            raise BackendFailed(_shorten(error)) from error


def _last_round(label: str, booster: Any, num_iterations: int) -> int:
    """Return the end of XGBoost's ``iteration_range``; 0 means all."""
    if num_iterations == BEST:
        best = booster.attr("best_iteration")
        if best is None:
            raise InvalidArgument(
                f"{label}: parameter 'iterations' is 'best', but the model file does not say which round was: its training "
                f"did not stop early; leave the parameter out"
            )
        return int(best) + 1
    num_rounds = booster.num_boosted_rounds()
    if num_iterations > num_rounds:
        raise InvalidArgument(
            f"{label}: parameter 'iterations' is '{num_iterations}', but the model file has {num_rounds} rounds"
        )
    return num_iterations


def _num_classes(objective: str, num_groups: int) -> int:
    if objective.startswith("multi:"):
        return num_groups
    return 2 if objective.startswith("binary:") else 0


def _find_damage(content: bytes) -> str:
    """Return why XGBoost should not even be given the file: what is no object ends the process, or is misread."""
    if not content.startswith(b"{"):
        return (
            f"it is neither JSON nor UBJSON: it begins with {content[:4]!r}. If it has XGBoost's binary format of old, load it "
            f"with XGBoost 3.0 or older and write it anew with save_model('model.ubj')"
        )
    # In JSON a quote, a blank or the end follows: XGBoost tells the two apart by the same byte.
    is_json = content[1:2] in b'"} \t\r\n'
    if not is_json:
        return find_damage(content)
    deepest = _count_levels(content)
    return (
        f"its values are {deepest} levels deep, those of models are some ten" if deepest > _MAX_LEVELS else ""
    )


def _count_levels(content: bytes) -> int:
    """Return how deep the values of a JSON text lie in each other: XGBoost's parser calls itself for each level.

    Brackets in texts, such as names of features, count too; there are few.
    """
    brackets = np.frombuffer(content.translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where((brackets == ord("{")) | (brackets == ord("[")), 1, -1)
    return int(steps.cumsum(dtype=np.int64).max(initial=0))


def _shorten(error: Exception) -> str:
    """Return XGBoost's message in one line, without its C++ stack and source positions."""
    text = str(error).split("Stack trace:", maxsplit=1)[0]
    return " ".join(_POSITION.sub("", text).split())


def _forward(message: bytes) -> None:
    """Hand a line of XGBoost's to our log, which it would print or make a Python warning of."""
    text = message.decode(errors="replace")
    write = _log.warning if "WARNING" in text else _log.info
    write("%s", _shorten(Exception(text)))


_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_forward)
"""Kept alive: the library calls it as long as it is loaded."""


def _route_log() -> None:
    register = getattr(getattr(xgboost.core, "_LIB", None), "XGBRegisterLogCallback", None)
    if register is not None:
        register(_CALLBACK)


_route_log()
