"""Settings: the config's parameters and the backend's command line settings as checked values. Pure.

Parameters of a model (all values are texts, as in Triton):

=================================================  =============================================================
``intra_op_thread_count``                          threads within an operator; 0 or absent: see `default_num_threads`
``inter_op_thread_count``                          threads across operators, with ``execution_mode`` 1; as above
``execution_mode``                                 0 sequential (default), 1 parallel
``enable_mem_arena``, ``enable_mem_pattern``       booleans; onnxruntime's own defaults (on) when absent
``memory.enable_memory_arena_shrinkage``           devices to give memory back on after each run, as ``cpu:0;gpu:0``
``session.…``, ``optimization.…``, ``mlas.…``,     any session configuration entry of onnxruntime, by its own name;
``ep.…``                                           booleans may be written true and false
=================================================  =============================================================

Threads of a run spin from one operator to the next, and sleep from one run to the next (``session.force_spinning_stop`` is 1),
unless the model sets an ``allow_spinning`` to 1: then they spin always. If they never spin, runs take a fifth to a third longer, and more CPU time: waking
is dear (measured at 2 threads: ResNet-50 50.5 ms and 99.6 ms of CPU time a run against 43.3 and 86.2; a detector with 3 ms between
runs 6.7 and 13.9 against 5.5 and 10.6). If they always spin, runs are as fast, but the time in between is spent, too: 14.0 ms.

Backend settings (``--backend-config=onnxruntime,key=value``): ``default-max-batch-size`` (4), and
``enable-global-threadpool`` with ``intra_op_thread_count`` and ``inter_op_thread_count``: one thread pool for all models.

Source: Triton ``onnxruntime.cc`` (ModelState), ``onnxruntime_loader.cc``; onnxruntime
``onnxruntime_session_options_config_keys.h``.
"""

from __future__ import annotations

import re
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
from bireme.types import InvalidArgument

SPINNING_ENTRIES: Final = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
ARENA_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"

_ENTRY_PREFIXES: Final = ("session.", "optimization.", "mlas.", "ep.")
_SPINNING_STOP: Final = "session.force_spinning_stop"
_BOOLEAN_ENTRIES: Final = frozenset(
    {*SPINNING_ENTRIES, _SPINNING_STOP, "session.use_device_allocator_for_initializers"}
)
_GRAPH_LEVELS: Final = {
    -1: "ORT_ENABLE_BASIC",
    0: "ORT_ENABLE_ALL",
    1: "ORT_ENABLE_EXTENDED",
    2: "ORT_DISABLE_ALL",
}


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What one model's config says to onnxruntime."""

    num_intra_op_threads: int
    num_inter_op_threads: int
    runs_parallel: bool
    graph_level: str
    """Name of the ``GraphOptimizationLevel``."""
    enable_mem_arena: bool | None
    """None: onnxruntime's default."""
    enable_mem_pattern: bool | None
    arena_shrinkage: str
    """Empty: no shrinkage."""
    session_entries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What the command line says to the backend."""

    default_max_batch_size: int
    uses_global_pool: bool
    num_intra_op_threads: int
    """Of the global pool, as the next."""
    num_inter_op_threads: int


def read_model_settings(config: ModelConfig, num_cpus: int) -> ModelSettings:
    """Return the settings of a model that may use ``num_cpus`` CPUs.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
    """
    parameters = {key: parameter.string_value for key, parameter in config.parameters.items()}
    reader = SettingsReader.of_model(config)
    num_threads = default_num_threads(num_cpus, num_instances(config))
    execution_mode = reader.integer("execution_mode", 0)
    if execution_mode not in (0, 1):
        raise reader.fault("execution_mode", "0 (sequential) or 1 (parallel)")
    shrinkage = parameters.get(ARENA_SHRINKAGE, "")
    if shrinkage and not re.fullmatch(r"(cpu|gpu):\d+(;(cpu|gpu):\d+)*", shrinkage):
        raise reader.fault(ARENA_SHRINKAGE, "devices such as cpu:0 or cpu:0;gpu:0")
    return ModelSettings(
        num_intra_op_threads=reader.count("intra_op_thread_count") or num_threads,
        num_inter_op_threads=reader.count("inter_op_thread_count") or (num_threads if execution_mode else 1),
        runs_parallel=execution_mode == 1,
        graph_level=_graph_level(config),
        enable_mem_arena=reader.boolean("enable_mem_arena"),
        enable_mem_pattern=reader.boolean("enable_mem_pattern"),
        arena_shrinkage=shrinkage,
        session_entries=_session_entries(reader, parameters),
    )


def read_backend_settings(settings: Mapping[str, str], num_cpus: int) -> BackendSettings:
    """Return the backend's settings from ``--backend-config``, in a process that may use ``num_cpus`` CPUs.

    Raises:
        InvalidArgument: names the setting, its value and what is expected.
    """
    reader = SettingsReader.of_backend("onnxruntime", settings)
    return BackendSettings(
        default_max_batch_size=read_default_max_batch_size("onnxruntime", settings),
        uses_global_pool=reader.boolean("enable-global-threadpool") or False,
        num_intra_op_threads=reader.count("intra_op_thread_count") or num_cpus,
        num_inter_op_threads=reader.count("inter_op_thread_count") or 1,
    )


def _graph_level(config: ModelConfig) -> str:
    graph = config.optimization.graph if config.optimization is not None else None
    level = graph.level if graph is not None else 0
    if level not in _GRAPH_LEVELS:
        raise InvalidArgument(
            f"model '{config.name}': optimization.graph.level is {level}; expected -1 (basic), 0 (all), 1 (extended) or 2 "
            f"(none)"
        )
    return _GRAPH_LEVELS[level]


def _session_entries(reader: SettingsReader, parameters: Mapping[str, str]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for key, value in parameters.items():
        if key in _BOOLEAN_ENTRIES:
            entries[key] = "1" if reader.boolean(key) else "0"
        elif key.startswith(_ENTRY_PREFIXES):
            entries[key] = value
    if not any(entries.get(key) == "1" for key in SPINNING_ENTRIES):
        entries.setdefault(_SPINNING_STOP, "1")
    return entries
