"""Settings: the config's parameters and the backend's command line settings as checked values. Pure.

Parameters of a model (all values are texts; a name in brackets is another one for the same):

=================================================  =============================================================
``INTRA_OP_THREAD_COUNT`` (``NUM_THREADS``)        threads within an operator, of each instance; 0 or absent: the
                                                   CPUs divided by the instances
``INTER_OP_THREAD_COUNT``                          threads across operators (``torch.jit.fork``), of the process
(``NUM_INTEROP_THREADS``)
``INFERENCE_MODE``                                 true (default): run in inference mode; false: without gradients
``DISABLE_OPTIMIZED_EXECUTION``                    true: TorchScript runs as it is written
``ENABLE_JIT_EXECUTOR``, ``ENABLE_JIT_PROFILING``, of the process; torch's own defaults when absent
``ENABLE_TENSOR_FUSER``, ``DISABLE_CUDNN``
``ENABLE_WEIGHT_SHARING``                          true: all instances run one module; false: each has its own
                                                   weights; absent: weights are shared, state is not
``ENABLE_CACHE_CLEANING``                          true: GPU memory goes back after each run
``TORCH_COMPILE``                                  true: through ``torch.compile``
``TORCH_COMPILE_OPTIONAL_PARAMETERS``              a JSON object of its arguments; implies ``TORCH_COMPILE``
``MODULE_CLASS``                                   the class of a ``model.py``
=================================================  =============================================================

Backend settings (``--backend-config=pytorch,key=value``): ``default-max-batch-size`` (4).

Source: Triton ``pytorch_backend`` (README; ``src/pt/model_state.cc``, ParseParameters; ``src/model.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bireme.backends.settings import SettingsReader, num_threads_per_instance
from bireme.config import ModelConfig

COMPILE: Final = "TORCH_COMPILE"
COMPILE_OPTIONS: Final = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
MODULE_CLASS: Final = "MODULE_CLASS"

PARAMETERS: Final = (
    "INTRA_OP_THREAD_COUNT",
    "NUM_THREADS",
    "INTER_OP_THREAD_COUNT",
    "NUM_INTEROP_THREADS",
    "INFERENCE_MODE",
    "DISABLE_OPTIMIZED_EXECUTION",
    "ENABLE_JIT_EXECUTOR",
    "ENABLE_JIT_PROFILING",
    "ENABLE_TENSOR_FUSER",
    "DISABLE_CUDNN",
    "ENABLE_WEIGHT_SHARING",
    "ENABLE_CACHE_CLEANING",
    COMPILE,
    COMPILE_OPTIONS,
    MODULE_CLASS,
)
_COMPILE_ARGUMENTS: Final = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What is set for a whole process; None: the model does not say."""

    num_inter_op_threads: int | None = None
    jit_executor: bool | None = None
    jit_profiling: bool | None = None
    tensor_fuser: bool | None = None
    cudnn: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What one model's config says to torch."""

    num_intra_op_threads: int
    inference_mode: bool
    optimized_execution: bool
    weight_sharing: bool | None
    cache_cleaning: bool
    compile_options: Mapping[str, Any] | None
    """Arguments of ``torch.compile``; None: the model is not compiled."""
    module_class: str
    process: ProcessSettings


def read_model_settings(config: ModelConfig, num_cpus: int) -> ModelSettings:
    """Return the settings of a model that may use ``num_cpus`` CPUs.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
    """
    reader = SettingsReader.of_model(config)
    default = num_threads_per_instance(config, num_cpus)
    return ModelSettings(
        num_intra_op_threads=_count(reader, "INTRA_OP_THREAD_COUNT", "NUM_THREADS") or default,
        inference_mode=reader.boolean("INFERENCE_MODE") is not False,
        optimized_execution=not reader.boolean("DISABLE_OPTIMIZED_EXECUTION"),
        weight_sharing=reader.boolean("ENABLE_WEIGHT_SHARING"),
        cache_cleaning=bool(reader.boolean("ENABLE_CACHE_CLEANING")),
        compile_options=_compile_options(reader),
        module_class=reader.text(MODULE_CLASS),
        process=ProcessSettings(
            num_inter_op_threads=_count(reader, "INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS") or None,
            jit_executor=reader.boolean("ENABLE_JIT_EXECUTOR"),
            jit_profiling=reader.boolean("ENABLE_JIT_PROFILING"),
            tensor_fuser=reader.boolean("ENABLE_TENSOR_FUSER"),
            cudnn=_inverted(reader.boolean("DISABLE_CUDNN")),
        ),
    )


def _count(reader: SettingsReader, key: str, other: str) -> int:
    return reader.count(key) or reader.count(other)


def _inverted(value: bool | None) -> bool | None:  # noqa: FBT001 - it is the value
    return None if value is None else not value


def _compile_options(reader: SettingsReader) -> Mapping[str, Any] | None:
    text = reader.text(COMPILE_OPTIONS)
    wanted = reader.boolean(COMPILE)
    if not text:
        return {} if wanted else None
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict) or not options.keys() <= set(_COMPILE_ARGUMENTS):
        raise reader.fault(COMPILE_OPTIONS, f"a JSON object with any of {', '.join(_COMPILE_ARGUMENTS)}")
    return None if wanted is False or options.get("disable") else options
