"""Settings: the config's parameters as checked values. Pure.

==================  ==================================================================================================
``num_threads``     threads of one run (OpenMP, BLAS, joblib); 0 or absent: the CPUs shared among the instances for the first
                    two, and no workers of joblib, which are started anew for each run and cost it 10 ms
``inputs``          ``matrix``: one input with all columns; ``columns``: an input for each; ``texts``: documents. Absent: what
                    the config's inputs, or else the estimator's first steps, suggest
``frame``           ``pandas`` or ``polars``: hand the estimator a DataFrame; ``none`` (the default): an array
``trusted_types``   of a ``model.skops``: types beyond scikit-learn's own that may be loaded, separated by commas
==================  ==================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bireme.backends.settings import SettingsReader, num_threads_per_instance
from bireme.config import ModelConfig

MATRIX: Final = "matrix"
COLUMNS: Final = "columns"
TEXTS: Final = "texts"
NO_FRAME: Final = "none"


@dataclass(frozen=True, slots=True)
class SklearnSettings:
    """What one model's config says."""

    num_threads: int
    num_jobs: int
    """Workers of joblib, for parts that were fitted with ``n_jobs``."""
    inputs: str
    """`MATRIX`, `COLUMNS`, `TEXTS`; empty: to be found out."""
    frame: str
    """``pandas``, ``polars`` or `NO_FRAME`."""
    trusted_types: tuple[str, ...]


def read_settings(config: ModelConfig, num_cpus: int) -> SklearnSettings:
    """Return the settings of a model that may use ``num_cpus`` CPUs.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
    """
    reader = SettingsReader.of_model(config)
    inputs = reader.text("inputs")
    if inputs:
        reader.choice("inputs", (MATRIX, COLUMNS, TEXTS), "")
    trusted = reader.text("trusted_types")
    num_threads = reader.count("num_threads")
    return SklearnSettings(
        num_threads=num_threads or num_threads_per_instance(config, num_cpus),
        num_jobs=num_threads or 1,
        inputs=inputs,
        frame=reader.choice("frame", (NO_FRAME, "pandas", "polars"), NO_FRAME),
        trusted_types=tuple(name.strip() for name in trusted.split(",") if name.strip()),
    )
