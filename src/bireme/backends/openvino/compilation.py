"""Compiles models: with the properties that their devices take, and says what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.backends.openvino.data_types import differences
from bireme.backends.openvino.devices import CPU
from bireme.backends.openvino.errors import reason_of
from bireme.backends.openvino.runtime import log, ov
from bireme.backends.openvino.settings import (
    COMPILATION_THREADS,
    OWN_PARAMETERS,
    PRECISION,
    STREAMS,
    THREADS,
    ModelSettings,
    Properties,
    complete_properties,
)
from bireme.backends.settings import num_instances
from bireme.backends.signature import Signature
from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.types import InvalidArgument


def convert_types(model: Any, found: Signature, wanted: Signature) -> Any:
    """Return the model with the data types of ``wanted`` instead of ``found``; both describe it, in its order."""
    inputs = differences(found.inputs, wanted.inputs)
    outputs = differences(found.outputs, wanted.outputs)
    if not inputs and not outputs:
        return model
    processor = ov.preprocess.PrePostProcessor(model)
    for index, type_name in inputs.items():
        processor.input(index).tensor().set_element_type(getattr(ov.Type, type_name))
    for index, type_name in outputs.items():
        processor.output(index).tensor().set_element_type(getattr(ov.Type, type_name))
    return processor.build()


def compile_model(core: Any, model: Any, config: ModelConfig, settings: ModelSettings, num_cpus: int) -> Any:
    """Return the ``openvino.CompiledModel``. Blocking, with the GIL released.

    Raises:
        InvalidArgument: the device does not take a property, or the model.
    """
    device = settings.device
    properties = complete_properties(settings, config, num_cpus)
    if COMPILATION_THREADS in properties and COMPILATION_THREADS not in _properties_of(core, device):
        log.warning(
            "model '%s': parameter '%s' is none of OpenVINO's on %s and has no effect",
            config.name,
            COMPILATION_THREADS,
            device,
        )
        del properties[COMPILATION_THREADS]
    properties.update(_device_properties(core, config, settings))
    try:
        compiled = core.compile_model(model, device, properties)
    except Exception as error:
        given = ", ".join(f"{key}={value}" for key, value in properties.items())
        raise InvalidArgument(
            f"model '{config.name}': OpenVINO cannot compile it for {device} (with {given}): {reason_of(error)}"
        ) from error
    _tell(core, compiled, config, settings, properties)
    return compiled


def _device_properties(core: Any, config: ModelConfig, settings: ModelSettings) -> dict[str, str]:
    """Return the parameters that are properties of the device; warns of those that were probably meant to be some."""
    if not settings.others:
        return {}
    known = _properties_of(core, settings.device)
    for key in settings.others.keys() - known:
        near = near_name(key, {*known, *OWN_PARAMETERS})
        if near:
            log.warning(
                "model '%s': parameter '%s' is none of OpenVINO's on %s and has no effect; did you mean '%s'?",
                config.name,
                key,
                settings.device,
                near,
            )
    return {key: value for key, value in settings.others.items() if key in known}


def _properties_of(core: Any, device: str) -> frozenset[str]:
    """Return the names of the properties that can be set."""
    supported: Mapping[str, str] = core.get_property(device, "SUPPORTED_PROPERTIES")
    return frozenset(name for name, access in supported.items() if access != "RO")


def _tell(
    core: Any, compiled: Any, config: ModelConfig, settings: ModelSettings, properties: Properties
) -> None:
    """Log what the model runs on; warn where it runs otherwise than asked for."""
    devices = _text(compiled, "EXECUTION_DEVICES")
    capabilities: list[str] = []
    description = devices
    if settings.device == CPU:
        capabilities = core.get_property(CPU, "OPTIMIZATION_CAPABILITIES")
        description = (
            f"CPU ({core.get_property(CPU, 'FULL_DEVICE_NAME')}; has {' '.join(sorted(capabilities))})"
        )
    log.info(
        "model '%s': OpenVINO %s on %s: precision %s, %s streams, %s threads",
        config.name,
        ov.__version__.partition("-")[0],
        description,
        _precision(compiled),
        _text(compiled, STREAMS),
        _text(compiled, THREADS),
    )
    if capabilities and properties.get(PRECISION) == "bf16" and "BF16" not in capabilities:
        log.warning(
            "model '%s': bf16 is asked for, but this CPU cannot compute in it; it has %s",
            config.name,
            ", ".join(capabilities),
        )
    wanted = _text(compiled, "OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    if wanted.isdecimal() and int(wanted) > num_instances(config):
        log.info(
            "model '%s': has streams for %s executions at once, but %d instances; instance_group count: %s uses them all",
            config.name,
            wanted,
            num_instances(config),
            wanted,
        )


def _precision(compiled: Any) -> str:
    try:
        name: str = compiled.get_property(PRECISION).get_type_name()
    except (RuntimeError, AttributeError):
        return "of the device's choice"
    return name


def _text(compiled: Any, name: str) -> str:
    """Return a property for the log; devices need not have it."""
    try:
        value = compiled.get_property(name)
    except RuntimeError:
        return "?"
    return ", ".join(value) if isinstance(value, list) else str(value)
