"""Settings of tree models: the config's parameters as checked values. Pure.

==================  ==================================================================================================
``num_threads``     threads of one run; 0 or absent: the CPUs shared among the instances, see `num_threads_per_instance`
``iterations``      rounds of boosting to use: ``all`` (the default), ``best`` (up to the best one, where training stopped
                    early), or their number
``missing``         the value that means "missing" in an XGBoost model's input, beside NaN; a number
==================  ==================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bireme.backends.settings import SettingsReader, num_threads_per_instance
from bireme.config import ModelConfig

ALL: Final = 0
BEST: Final = -1

_WORTH_THREADS: Final = 50_000
"""Rows times trees, about a millisecond for one thread. Below it a team of OpenMP threads gains nothing, and spins
afterwards: one row then takes twice the CPU time (measured with two threads: 195 and 441 µs)."""


@dataclass(frozen=True, slots=True)
class ForestSettings:
    """How a model file is opened."""

    num_threads: int
    num_iterations: int
    """`ALL`, `BEST` or how many."""
    missing: float
    """NaN: nothing but NaN."""


def read_settings(config: ModelConfig, num_cpus: int) -> ForestSettings:
    """Return the settings of a model that may use ``num_cpus`` CPUs.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
    """
    reader = SettingsReader.of_model(config)
    missing = reader.number("missing")
    return ForestSettings(
        num_threads=reader.count("num_threads") or num_threads_per_instance(config, num_cpus),
        num_iterations=_num_iterations(reader),
        missing=float("nan") if missing is None else missing,
    )


def _num_iterations(reader: SettingsReader) -> int:
    text = reader.text("iterations", "all").strip()
    if text in {"all", "best"}:
        return ALL if text == "all" else BEST
    if not text.isdecimal() or int(text) == 0:
        raise reader.fault("iterations", "'all', 'best' or a number of rounds")
    return int(text)


def is_worth_threads(num_rows: int, num_trees: int) -> bool:
    """Whether a run over so many rows is long enough for more than one thread."""
    return num_rows * num_trees >= _WORTH_THREADS
