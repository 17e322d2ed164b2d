"""Settings: the config's parameters and the backend's command line settings as checked values. Pure.

Parameters of a model; the older names of Triton's backend mean the newer ones:

=============================  ==========================  ====================================================
parameter                      older name                  value
=============================  ==========================  ====================================================
``INFERENCE_NUM_THREADS``      ``CPU_THREADS_NUM``         a number of threads; default: the CPUs there are
``COMPILATION_NUM_THREADS``                                a number of threads
``NUM_STREAMS``                ``CPU_THROUGHPUT_STREAMS``  a number, AUTO or NUMA; default: one per instance
``PERFORMANCE_HINT``                                       LATENCY, THROUGHPUT or CUMULATIVE_THROUGHPUT
``INFERENCE_PRECISION_HINT``   ``ENFORCE_BF16`` and        f32 (default), bf16, f16, or dynamic: as OpenVINO
                               ``HINT_BF16`` (YES)         sees fit
``ENABLE_CPU_PINNING``         ``CPU_BIND_THREAD``         YES or NO (default)
``CACHE_DIR``                                              where compiled models are kept
``TARGET_DEVICE``                                          CPU (default), GPU, NPU, AUTO, HETERO:…
``CPU_EXTENSION_PATH``                                     a library with operators
``SKIP_OV_DYNAMIC_BATCHSIZE``                              YES: compile for batches of max_batch_size alone
``ENABLE_BATCH_PADDING``                                   YES: fill smaller batches up to that
``RESHAPE_IO_LAYERS``          ``RESHAPE_IO_LAYOUTS``      YES: give the model the shapes that the config says
``ENABLE_MMAP``                                            YES: map weights from their file instead of reading it
=============================  ==========================  ====================================================

Any other property of OpenVINO goes by its own name where the device knows it, or as ``openvino.<NAME>``.

Backend settings (``--backend-config=openvino,key=value``): ``default-max-batch-size`` (4).

Source: Triton's openvino_backend ``openvino.cc`` (ParseParameters) and README of 2021 to 2026; OpenVINO
``openvino/runtime/properties.hpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from bireme.backends.settings import BOOLEANS, SettingsReader, num_instances
from bireme.config import ModelConfig
from bireme.types import InvalidArgument

PREFIX: Final = "openvino."
"""In front of a property's name: it is one of OpenVINO's, whether or not this module or the device knows it."""

THREADS: Final = "INFERENCE_NUM_THREADS"
COMPILATION_THREADS: Final = "COMPILATION_NUM_THREADS"
STREAMS: Final = "NUM_STREAMS"
PRECISION: Final = "INFERENCE_PRECISION_HINT"
PINNING: Final = "ENABLE_CPU_PINNING"
HINT: Final = "PERFORMANCE_HINT"
MODE: Final = "EXECUTION_MODE_HINT"

_OLDER_NAMES: Final = {
    THREADS: ("CPU_THREADS_NUM",),
    STREAMS: ("CPU_THROUGHPUT_STREAMS",),
    PINNING: ("CPU_BIND_THREAD",),
    "RESHAPE_IO_LAYERS": ("RESHAPE_IO_LAYOUTS",),
}
_PRECISIONS: Final = {
    "f32": "f32",
    "bf16": "bf16",
    "f16": "f16",
    "dynamic": "dynamic",
    "undefined": "dynamic",
}
_HINTS: Final = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")
_MODES: Final = ("PERFORMANCE", "ACCURACY")
_AUTOMATIC_STREAMS: Final = {
    "AUTO": "AUTO",
    "NUMA": "NUMA",
    "CPU_THROUGHPUT_AUTO": "AUTO",
    "CPU_THROUGHPUT_NUMA": "NUMA",
}
# NUMA and HYBRID_AWARE: ways of pinning that OpenVINO now chooses between by itself.
_BINDINGS: Final = {**BOOLEANS, "numa": True, "hybrid_aware": True}

OWN_PARAMETERS: Final = frozenset(
    {
        THREADS,
        COMPILATION_THREADS,
        STREAMS,
        HINT,
        MODE,
        PRECISION,
        "ENFORCE_BF16",
        "HINT_BF16",
        PINNING,
        "CACHE_DIR",
        "TARGET_DEVICE",
        "CPU_EXTENSION_PATH",
        "SKIP_OV_DYNAMIC_BATCHSIZE",
        "ENABLE_BATCH_PADDING",
        "RESHAPE_IO_LAYERS",
        "ENABLE_MMAP",
        *(older for names in _OLDER_NAMES.values() for older in names),
    }
)
"""The parameters that this module reads."""

Value = TypeVar("Value")
Properties = dict[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What one model's config says to OpenVINO."""

    device: str = "CPU"
    """As OpenVINO names devices: ``CPU``, ``GPU.1``, ``AUTO:GPU,CPU``."""
    properties: Mapping[str, str | int | bool] = field(default_factory=dict)
    """OpenVINO's properties that the config sets, by their newer names."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Parameters that may be properties of the device."""
    extension: str = ""
    """Path of a library with operators; empty: none."""
    has_fixed_batch: bool = False
    """Whether the model is compiled for batches of max_batch_size alone."""
    pads_batches: bool = False
    """Whether smaller batches are filled up then."""
    takes_config_shapes: bool = False
    """Whether the model gets the shapes of the config."""
    maps_weights: bool = False
    """Whether weights are mapped from their file instead of being read; who changes that file then ends the server."""


def read_model_settings(config: ModelConfig) -> ModelSettings:
    """Return the settings of a model.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
    """
    values = {key: parameter.string_value for key, parameter in config.parameters.items()}
    reader = _Reader(f"model '{config.name}': parameter", values)
    fixed = reader.switch("SKIP_OV_DYNAMIC_BATCHSIZE") or False
    if fixed and config.max_batch_size <= 0:
        raise InvalidArgument(
            f"model '{config.name}': parameter SKIP_OV_DYNAMIC_BATCHSIZE needs a max_batch_size in the config: the model is "
            f"compiled for batches of that size"
        )
    return ModelSettings(
        device=values.get("TARGET_DEVICE", "").strip().upper() or "CPU",
        properties=_properties(reader, values),
        others={key: value for key, value in values.items() if _may_be_property(key)},
        extension=values.get("CPU_EXTENSION_PATH", ""),
        has_fixed_batch=fixed,
        pads_batches=reader.switch("ENABLE_BATCH_PADDING") or False,
        takes_config_shapes=reader.switch("RESHAPE_IO_LAYERS") or False,
        maps_weights=reader.switch("ENABLE_MMAP") or False,
    )


def complete_properties(settings: ModelSettings, config: ModelConfig, num_cpus: int) -> Properties:
    """Return the properties to compile a model with, in a process that may use ``num_cpus`` CPUs.

    Accuracy first: OpenVINO itself would compute in bfloat16 wherever the CPU can. On the CPU, all streams together have
    ``num_cpus`` threads, and there is a stream for each instance, so that instances don't wait for one another. No thread
    is bound to a core: those of several models would be bound to the same ones.
    """
    given = settings.properties
    properties: Properties = {}
    if given.get(MODE) != "PERFORMANCE":
        properties[PRECISION] = "f32"
    if settings.device == "CPU":
        properties[THREADS] = num_cpus
        properties[PINNING] = False
        if HINT not in given:
            properties[STREAMS] = min(max(num_instances(config), 1), num_cpus)
    properties.update(given)
    if properties.get(MODE) == "ACCURACY" and PRECISION not in given:
        del properties[PRECISION]  # the mode means f32 then, or whatever the model file itself computes in
    return properties


def _may_be_property(key: str) -> bool:
    return key not in OWN_PARAMETERS and key.isupper() and not key.startswith(PREFIX)


def _properties(reader: _Reader, values: Mapping[str, str]) -> Properties:
    properties: Properties = {
        key.removeprefix(PREFIX): value for key, value in values.items() if key.startswith(PREFIX)
    }
    if (key := reader.find(THREADS)) and (threads := reader.count(key)):
        properties[THREADS] = threads
    if (key := reader.find(COMPILATION_THREADS)) and (threads := reader.count(key)):
        properties[COMPILATION_THREADS] = threads
    if key := reader.find(STREAMS):
        properties[STREAMS] = reader.streams(key)
    if key := reader.find(PINNING):
        properties[PINNING] = reader.one_of(key, _BINDINGS, "YES, NO, NUMA or HYBRID_AWARE")
    if key := reader.find(HINT):
        properties[HINT] = reader.one_of(key, {hint.lower(): hint for hint in _HINTS}, ", ".join(_HINTS))
    if key := reader.find(MODE):
        properties[MODE] = reader.one_of(key, {mode.lower(): mode for mode in _MODES}, " or ".join(_MODES))
    if reader.switch("ENFORCE_BF16") or reader.switch("HINT_BF16"):
        properties[PRECISION] = "bf16"
    if key := reader.find(PRECISION):
        properties[PRECISION] = reader.one_of(key, _PRECISIONS, "f32, bf16, f16 or dynamic")
    if cache := values.get("CACHE_DIR"):
        properties["CACHE_DIR"] = cache
    return properties


class _Reader(SettingsReader):
    """Reads values as OpenVINO's users write them: upper or lower case, YES and NO."""

    def find(self, name: str) -> str:
        """Return the key that sets ``name``, which may be an older one; empty: none does."""
        return next((key for key in (name, *_OLDER_NAMES.get(name, ())) if self.text(key)), "")

    def switch(self, name: str) -> bool | None:
        """Return whether it is set and on; None when absent."""
        key = self.find(name)
        return self.one_of(key, BOOLEANS, "YES or NO") if key else None

    def one_of(self, key: str, values: Mapping[str, Value], expected: str) -> Value:
        """Return what the text stands for, in any case."""
        text = self.text(key).strip().lower()
        if text not in values:
            raise self.fault(key, expected)
        return values[text]

    def streams(self, key: str) -> str | int:
        text = self.text(key).strip()
        automatic = _AUTOMATIC_STREAMS.get(text.upper())
        if automatic is not None:
            return automatic
        if not (text.isascii() and text.isdecimal() and int(text) > 0):
            raise self.fault(key, "a number of streams, AUTO or NUMA")
        return int(text)
