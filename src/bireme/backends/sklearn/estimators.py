"""What lies inside an estimator: its parts, the columns that it was fitted on, and what may be changed for serving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from sklearn.base import BaseEstimator

from bireme.types import datatypes

_TREE_PACKAGES: Final = frozenset({"xgboost", "lightgbm"})
_OWN_PACKAGES: Final = _TREE_PACKAGES | {"sklearn"}
_NUMBER: Final = "FP64"


def parts_of(estimator: Any) -> Iterator[Any]:
    """Yield ``estimator`` and every estimator that it holds, at any depth, once each."""
    seen: set[int] = set()
    waiting = [estimator]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, list | tuple):
            waiting.extend(thing)
        elif isinstance(thing, dict):
            waiting.extend(thing.values())
        elif isinstance(thing, np.ndarray) and thing.dtype.hasobject:
            waiting.extend(thing.reshape(-1).tolist())
        elif isinstance(thing, BaseEstimator) and id(thing) not in seen:
            seen.add(id(thing))
            yield thing
            waiting.extend(vars(thing).values())


def limit_jobs(estimator: Any, num_jobs: int) -> int:
    """Let no part of ``estimator`` start more than ``num_jobs`` workers; return the most that any starts.

    A part that was fitted with ``n_jobs=-1`` would start one for each core of the machine.
    """
    most = 1
    for part in parts_of(estimator):
        jobs = getattr(part, "n_jobs", None)
        if jobs is None and _package_of(part) in _TREE_PACKAGES:
            jobs = -1  # as which they take it
        if isinstance(jobs, int) and jobs not in {0, 1}:
            part.n_jobs = num_jobs if jobs < 0 else min(jobs, num_jobs)
            most = max(most, part.n_jobs)
            if hasattr(part, "get_booster"):  # XGBoost's has read it already
                part.get_booster().set_param({"nthread": part.n_jobs})
    return most


def is_foreign(estimator: Any) -> bool:
    """Whether any part of ``estimator`` may run code that is neither scikit-learn's nor a tree library's."""
    return any(
        _package_of(part) not in _OWN_PACKAGES or hasattr(part, "func") for part in parts_of(estimator)
    )


def _package_of(part: Any) -> str:
    return type(part).__module__.partition(".")[0]


def select_by_number(estimator: Any) -> None:
    """Have ColumnTransformers select columns by number instead of name, so that they take arrays.

    What a name selects was settled when the estimator was fitted, on a DataFrame. An array in its place saves the making of a
    DataFrame for every batch, which takes longer than most estimators, and saves its package.
    """
    for part in parts_of(estimator):
        names = getattr(part, "feature_names_in_", None)
        if names is None or not hasattr(part, "transformers_"):
            continue
        numbers = {name: index for index, name in enumerate(names)}
        part.transformers_ = [
            (name, transformer, _numbers_of(selected, numbers))
            for name, transformer, selected in part.transformers_
        ]


def _numbers_of(selected: Any, numbers: dict[str, int]) -> Any:
    if isinstance(selected, str):
        return numbers.get(selected, selected)
    if isinstance(selected, list | np.ndarray) or hasattr(selected, "tolist"):
        items = list(selected)
        if items and all(isinstance(item, str) and item in numbers for item in items):
            return [numbers[item] for item in items]
    return selected


def num_columns(estimator: Any) -> int | None:
    """Return the number of columns that ``estimator`` takes; None: it doesn't say."""
    count = getattr(estimator, "n_features_in_", None)
    return int(count) if count is not None else None


def column_names(estimator: Any, count: int) -> list[str]:
    """Return the names of the columns: those of the DataFrame of the fit, else ``x0``, ``x1``, … as scikit-learn itself says."""
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{index}" for index in range(count)] if names is None else [str(name) for name in names]


def takes_documents(estimator: Any) -> bool:
    """Whether ``estimator`` takes a list of texts instead of a table."""
    step = _first_step(estimator)
    if hasattr(step, "transformer_list"):
        return all(takes_documents(each) for _, each in step.transformer_list)
    return hasattr(step, "analyzer") and hasattr(step, "build_analyzer")


def column_kinds(estimator: Any, count: int) -> list[str]:
    """Return the data type that each column is best given in: that of the categories or texts it was fitted on, else FP64."""
    kinds = [_NUMBER] * count
    for index, sample in enumerate(column_samples(estimator, count)):
        if sample is not None:
            kinds[index] = _kind_of(np.asarray([sample]))
    return kinds


def column_samples(estimator: Any, count: int) -> list[Any]:
    """Return a value that each column may hold, where the estimator knows some; None: any number goes."""
    step = _first_step(estimator)
    if hasattr(step, "transformers_"):
        return _samples_of_columns(step, count)
    if hasattr(step, "transformer_list"):
        step = _first_step(step.transformer_list[0][1])
    if takes_documents(step):
        return ["text"] * count
    values = getattr(step, "categories_", None)
    if values is not None and len(values) == count:
        return [_plain(each[0]) if len(each) else None for each in values]
    statistics = getattr(step, "statistics_", None)
    if statistics is not None and len(statistics) == count and statistics.dtype.hasobject:
        return [each if isinstance(each, str) else None for each in statistics]
    return [None] * count


def _samples_of_columns(transformer: Any, count: int) -> list[Any]:
    samples: list[Any] = [None] * count
    names = list(getattr(transformer, "feature_names_in_", ()))
    for _, part, selected in transformer.transformers_:
        if isinstance(part, str):  # passthrough, drop
            continue
        numbers = _positions(selected, names, count)
        for number, sample in zip(numbers, column_samples(part, len(numbers)), strict=True):
            samples[number] = sample if samples[number] is None else samples[number]
    return samples


def _positions(selected: Any, names: list[str], count: int) -> list[int]:
    if isinstance(selected, slice) and not isinstance(selected.start or selected.stop, str):
        return list(range(count))[selected]
    items = [selected] if isinstance(selected, str | int) else list(selected) if np.iterable(selected) else []
    if items and all(isinstance(item, bool | np.bool_) for item in items):
        return [number for number, chosen in enumerate(items) if chosen]
    numbers = [names.index(item) if isinstance(item, str) and item in names else item for item in items]
    return [int(number) % count for number in numbers if isinstance(number, int | np.integer)]


def _first_step(estimator: Any) -> Any:
    """Return what the input meets first: the first step of a pipeline, the best of a search."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            steps = [step for _, step in estimator.steps if step is not None and step != "passthrough"]
            if not steps:
                return None
            estimator = steps[0]
        else:
            return estimator


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _kind_of(values: Any) -> str:
    try:
        return datatypes.from_numpy(values.dtype)
    except KeyError:
        return _NUMBER
