"""Opens an estimator's file: joblib, pickle or skops. The first two run whatever code they hold."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import joblib
import sklearn

from bireme.backends.library_log import warnings_taken
from bireme.backends.model_file import explain_failure
from bireme.telemetry.log import get_logger
from bireme.types import InvalidArgument, Unsupported

METHODS: Final = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
    "transform",
)
"""What can be asked of an estimator, by the name of the output that it gives."""

log: Final = get_logger("bireme.backends.sklearn")


def open_estimator(model: str, path: Path, trusted_types: tuple[str, ...] = ()) -> Any:
    """Return the fitted estimator in the file at ``path``; warnings, such as of another version, go to the log.

    Raises:
        InvalidArgument: it cannot be read, or holds no estimator.
        Unsupported: it needs a package that is not installed.
    """
    try:
        estimator = with_warnings_in_log(model, lambda: _read(model, path, trusted_types))
    except (InvalidArgument, Unsupported):
        raise
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"model '{model}': '{path}' needs the Python module '{error.name}', which is not installed here; install it, or have "
            f"PYTHONPATH name the folder that it lies in"
        ) from error
    except Exception as error:
        raise InvalidArgument(
            f"model '{model}': scikit-learn {sklearn.__version__} cannot load '{path}': {explain_failure(path, _reason(error))}"
        ) from error
    if not any(callable(getattr(estimator, method, None)) for method in METHODS):
        raise InvalidArgument(
            f"model '{model}': '{path}' holds a {_type_name(estimator)}; expected a fitted estimator, with one of the methods "
            f"{', '.join(METHODS)}"
        )
    return estimator


def with_warnings_in_log(model: str, work: Callable[[], Any]) -> Any:
    """Do ``work`` and log the Python warnings that it gives, each once."""
    with warnings_taken(partial(log.warning, "model '%s': %s", model)):
        return work()


def _read(model: str, path: Path, trusted_types: tuple[str, ...]) -> Any:
    readers = MappingProxyType({".skops": _read_skops, ".pkl": _read_pickle, ".pickle": _read_pickle})
    return readers.get(path.suffix, _read_joblib)(model, path, trusted_types)


def _read_joblib(_model: str, path: Path, _trusted_types: tuple[str, ...]) -> Any:
    return joblib.load(path)


def _read_pickle(_model: str, path: Path, _trusted_types: tuple[str, ...]) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - the repository is the operator's; the docs say what that means


def _read_skops(model: str, path: Path, trusted_types: tuple[str, ...]) -> Any:
    try:
        from skops import io
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"model '{model}': '{path.name}' needs the package 'skops', which is not installed; install it with: pip install skops"
        ) from error
    untrusted = sorted(set(io.get_untrusted_types(file=path)) - set(trusted_types))
    if untrusted:
        raise InvalidArgument(
            f"model '{model}': '{path}' holds types that are not trusted: {', '.join(untrusted)}; if they are meant, name them in "
            f"the parameter 'trusted_types'"
        )
    return io.load(path, trusted=list(trusted_types))


def _reason(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, AttributeError) and "__main__" in text:
        text += " (the model uses a function or class of the script that made it; put it into a module that can be imported)"
    return text


def _type_name(thing: Any) -> str:
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
