"""Tables: how the tensors of a request become the X that an estimator takes.

==========  ==========================================================  ==================================================
layout      inputs                                                      X
==========  ==========================================================  ==================================================
matrix      ``input``: any number, or BYTES: ``[n, columns]``           the array itself; of texts, an object array of str
columns     one for each column, named as it is: ``[n, 1]``             an array: of objects where one column is of texts
texts       ``input``: BYTES ``[n, 1]``                                 a list of str
==========  ==========================================================  ==================================================

With a frame, X is a DataFrame instead of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np

from bireme.backends.signature import TensorSpec
from bireme.backends.sklearn.estimators import (
    column_kinds,
    column_names,
    column_samples,
    num_columns,
    takes_documents,
)
from bireme.backends.sklearn.settings import COLUMNS, MATRIX, NO_FRAME, TEXTS, SklearnSettings
from bireme.config import ModelConfig
from bireme.types import Array, InvalidArgument, Unsupported, datatypes

INPUT: Final = "input"

MakeTable = Callable[[Mapping[str, Array]], Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """What an estimator takes, and in which form it is given."""

    mode: str
    """`MATRIX`, `COLUMNS` or `TEXTS`."""
    names: tuple[str, ...]
    """Of the columns; empty: the estimator does not say how many there are, or takes texts."""
    kinds: tuple[str, ...]
    """The data type of each column, as the estimator would have it."""
    frame: str


def find_layout(estimator: Any, config: ModelConfig, settings: SklearnSettings) -> Layout:
    """Decide how the estimator is fed: by parameter, by the config's inputs, by the estimator itself.

    Raises:
        InvalidArgument: separate columns are asked for, but the estimator does not say which it has.
    """
    count = num_columns(estimator) or 0
    names = tuple(column_names(estimator, count)) if count else ()
    kinds = tuple(column_kinds(estimator, count))
    mode = settings.inputs or _mode_of_config(config, names) or _mode_of_estimator(estimator, kinds)
    if mode == COLUMNS and not names:
        raise InvalidArgument(
            f"model '{config.name}': parameter 'inputs' is '{COLUMNS}', but the estimator does not say which columns it was "
            f"fitted on"
        )
    return Layout(mode, names if mode != TEXTS else (), kinds, settings.frame)


def describe_inputs(layout: Layout) -> dict[str, TensorSpec]:
    """Return the inputs of a layout."""
    if layout.mode == COLUMNS:
        columns = zip(layout.names, layout.kinds, strict=True)
        return {name: TensorSpec(name, kind, (-1, 1), kind) for name, kind in columns}
    if layout.mode == TEXTS:
        return {INPUT: TensorSpec(INPUT, "BYTES", (-1, 1), "str")}
    kind = _common_kind(layout.kinds)
    return {INPUT: TensorSpec(INPUT, kind, (-1, len(layout.names) or -1), kind)}


def sample_inputs(layout: Layout, estimator: Any) -> dict[str, Array]:
    """Return one row that the estimator should be able to run."""
    if layout.mode == TEXTS:
        return {INPUT: np.array([["text"]], np.object_)}
    samples = column_samples(estimator, len(layout.names))
    if layout.mode == COLUMNS:
        return {
            name: _filled(kind, [0 if sample is None else sample])
            for name, kind, sample in zip(layout.names, layout.kinds, samples, strict=True)
        }
    kind = _common_kind(layout.kinds)
    return {INPUT: _filled(kind, [0 if sample is None else sample for sample in samples])}


def make_table_maker(model: str, layout: Layout) -> MakeTable:
    """Return the function that makes X of a batch's inputs.

    Raises:
        Unsupported: the package of the frames is not installed.
    """
    make_frame = None if layout.frame == NO_FRAME else _frame_maker(model, layout.frame)
    if layout.mode == TEXTS:
        return lambda inputs: _texts(INPUT, inputs[INPUT]).reshape(-1).tolist()
    if layout.mode == COLUMNS:
        return _columns_maker(layout.names, make_frame)
    if make_frame is None:
        return lambda inputs: _numbers_or_texts(INPUT, inputs[INPUT])

    def make_from_matrix(inputs: Mapping[str, Array]) -> Any:
        rows = _numbers_or_texts(INPUT, inputs[INPUT])
        return make_frame({name: rows[:, index] for index, name in enumerate(layout.names)})

    return make_from_matrix


def _columns_maker(names: tuple[str, ...], make_frame: Callable[[dict[str, Array]], Any] | None) -> MakeTable:
    def make(inputs: Mapping[str, Array]) -> Any:
        columns = [_numbers_or_texts(name, inputs[name]).reshape(-1) for name in names]
        if make_frame is not None:
            return make_frame(dict(zip(names, columns, strict=True)))
        if not any(column.dtype.hasobject for column in columns):
            return np.column_stack(columns)
        # Filled column by column: numpy would turn numbers beside texts into texts.
        table = np.empty((len(columns[0]), len(columns)), np.object_)
        for index, column in enumerate(columns):
            table[:, index] = column
        return table

    return make


def _frame_maker(model: str, package: str) -> Callable[[dict[str, Array]], Any]:
    try:
        frames = import_module(package)
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"model '{model}': parameter 'frame' is '{package}', which is not installed; install it with: pip install {package}"
        ) from error
    make: Callable[[dict[str, Array]], Any] = frames.DataFrame
    return make


def _mode_of_config(config: ModelConfig, names: tuple[str, ...]) -> str:
    given = {tensor.name for tensor in config.input}
    if given & set(names):
        return COLUMNS
    return MATRIX if INPUT in given and names else ""


def _mode_of_estimator(estimator: Any, kinds: tuple[str, ...]) -> str:
    if not kinds and takes_documents(estimator):
        return TEXTS
    return COLUMNS if len(set(kinds)) > 1 else MATRIX


def _common_kind(kinds: tuple[str, ...]) -> str:
    different = set(kinds)
    if len(different) == 1:
        return kinds[0]
    return "BYTES" if "BYTES" in different else "FP64"


def _filled(kind: str, values: list[Any]) -> Array:
    if kind == "BYTES":
        values = [str(value).encode() for value in values]
    return np.array([values], datatypes.NUMPY_DTYPES[kind])


def _numbers_or_texts(name: str, array: Array) -> Array:
    if array.dtype.hasobject:
        return _texts(name, array)
    # scikit-learn computes in single or double precision, and some of its compiled code takes aligned arrays alone.
    if array.dtype == np.float16:
        return array.astype(np.float32)
    return array if array.flags.aligned else array.copy()


def _texts(name: str, array: Array) -> Array:
    elements: list[bytes] = array.reshape(-1).tolist()
    texts: Array = np.empty(len(elements), np.object_)
    try:
        texts[:] = [element.decode() for element in elements]
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"input '{name}' is not UTF-8 text ({error.reason}: {error.object!r:.80}), as scikit-learn's strings must be"
        ) from error
    return texts.reshape(array.shape)
