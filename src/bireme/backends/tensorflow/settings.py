"""Settings: the config's parameters and the backend's command line settings as checked values. Pure.

Parameters of a model (all values are texts, as in Triton):

================================  ==================================================================================
``TF_NUM_INTRA_THREADS``          threads within an operator; 0 or absent: see `default_num_threads`
``TF_NUM_INTER_THREADS``          operators at one time; 0 or absent: as above; negative: on the caller's thread alone
``TF_USE_PER_SESSION_THREADS``    whether operators run on threads of the model's own (default true; Triton's is false)
``TF_GRAPH_TAG``                  tags of the graph in a SavedModel, separated by commas; default ``serve``
``TF_SIGNATURE_DEF``              name of the signature in a SavedModel; default ``serving_default``
``TF_INIT_OPS_FILE``              JSON file with operations to run once: ``{"init_ops": ["init"]}``
``MAX_SESSION_SHARE_COUNT``       checked, no more: all instances of a model share one session
================================  ==================================================================================

``optimization { graph { level } }``: -1 switches XLA off, 1 and more compile with it.

Backend settings (``--backend-config=tensorflow,key=value``): ``default-max-batch-size`` (4), ``allow-soft-placement`` (true),
``gpu-memory-fraction`` (checked, no more) and ``version`` (2 is the only one).

Source: Triton ``tensorflow.cc`` (ParseParameters, CreateModel, TRITONBACKEND_Initialize), ``tensorflow_backend_tf.cc``
(NewSessionOptions), and the backend's README.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bireme.backends.settings import (
    SettingsReader,
    default_num_threads,
    num_instances,
    read_default_max_batch_size,
)
from bireme.config import ModelConfig
from bireme.types import InvalidArgument, Unsupported

PARAMETERS: Final = (
    "TF_NUM_INTRA_THREADS",
    "TF_NUM_INTER_THREADS",
    "TF_USE_PER_SESSION_THREADS",
    "TF_GRAPH_TAG",
    "TF_SIGNATURE_DEF",
    "TF_INIT_OPS_FILE",
    "MAX_SESSION_SHARE_COUNT",
)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What one model's config says to TensorFlow."""

    num_intra_threads: int
    num_inter_threads: int
    has_own_threads: bool
    tags: tuple[str, ...]
    """Empty: the config names none."""
    signature: str
    """Empty: the config names none."""
    init_ops_file: str
    """Empty: there is none."""
    xla_level: int
    """-1: XLA is off; 0: TensorFlow's own choice; 1 and 2: operators are compiled together where that pays."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What the command line says to the backend."""

    default_max_batch_size: int
    allows_soft_placement: bool


def read_model_settings(config: ModelConfig, num_cpus: int) -> ModelSettings:
    """Return the settings of a model that may use ``num_cpus`` CPUs.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
        Unsupported: the config asks for an execution accelerator.
    """
    reader = SettingsReader.of_model(config)
    if reader.integer("MAX_SESSION_SHARE_COUNT", 1) < 1:
        raise reader.fault("MAX_SESSION_SHARE_COUNT", "a number of instances, 1 or more")
    _refuse_accelerators(config)
    num_threads = default_num_threads(num_cpus, num_instances(config))
    tags = (tag.strip() for tag in reader.text("TF_GRAPH_TAG").split(","))
    return ModelSettings(
        num_intra_threads=reader.count("TF_NUM_INTRA_THREADS") or num_threads,
        num_inter_threads=_num_inter_threads(reader) or num_threads,
        has_own_threads=reader.boolean("TF_USE_PER_SESSION_THREADS") is not False,
        tags=tuple(tag for tag in tags if tag),
        signature=reader.text("TF_SIGNATURE_DEF"),
        init_ops_file=reader.text("TF_INIT_OPS_FILE"),
        xla_level=_xla_level(config),
    )


def _num_inter_threads(reader: SettingsReader) -> int:
    """Return the number of operators at one time; -1: those of the caller's thread; 0: the default."""
    is_negative = reader.integer("TF_NUM_INTER_THREADS", 0) < 0
    return -1 if is_negative else reader.count("TF_NUM_INTER_THREADS")


def read_backend_settings(settings: Mapping[str, str]) -> BackendSettings:
    """Return the backend's settings from ``--backend-config``.

    Raises:
        InvalidArgument: names the setting, its value and what is expected.
        Unsupported: another version of TensorFlow than 2 is asked for.
    """
    reader = SettingsReader.of_backend("tensorflow", settings)
    if reader.integer("version", 2) != 2:
        raise Unsupported(
            f"backend 'tensorflow': setting 'version' is '{settings['version']}', but only TensorFlow 2 is supported; it "
            f"runs models that TensorFlow 1 saved, too: leave the setting out"
        )
    _check_fraction(reader)
    return BackendSettings(
        default_max_batch_size=read_default_max_batch_size("tensorflow", settings),
        allows_soft_placement=reader.boolean("allow-soft-placement") is not False,
    )


def _check_fraction(reader: SettingsReader) -> None:
    key = "gpu-memory-fraction"
    try:
        fits = 0 <= float(reader.text(key, "0")) <= 1
    except ValueError:
        fits = False
    if not fits:
        raise reader.fault(key, "a number between 0 and 1")


def _refuse_accelerators(config: ModelConfig) -> None:
    optimization = config.optimization
    accelerators = optimization.execution_accelerators if optimization is not None else None
    if accelerators is None:
        return
    for accelerator in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
        raise Unsupported(
            f"model '{config.name}': execution accelerator '{accelerator.name}' is not supported by the tensorflow backend, "
            f"which runs models on the CPU; take it out of the config (XLA: optimization {{ graph {{ level: 1 }} }})"
        )


def _xla_level(config: ModelConfig) -> int:
    graph = config.optimization.graph if config.optimization is not None else None
    level = graph.level if graph is not None else 0
    if level < -1:
        raise InvalidArgument(
            f"model '{config.name}': optimization.graph.level is {level}; expected -1 (XLA off), 0 (default), 1 or 2 (XLA)"
        )
    return min(level, 2)
