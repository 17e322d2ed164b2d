"""Settings: what the config and the command line say to TensorRT, as checked values. Pure.

Parameters of a model: ``execution_context_allocation_strategy``, ``STATIC`` (default: each context has memory for the largest shapes of
any profile) or ``ON_PROFILE_CHANGE`` (for those of its own).

Backend settings (``--backend-config=tensorrt,key=value``):

==========================  ====================================================================================
``plugins``                 libraries with plugins, separated by semicolons
``version-compatible``      true: engines of other TensorRT versions run, too, if they were built to be compatible.
                            They bring code along, so who made them must be trusted
``execution-policy``        ``DEVICE_BLOCKING`` (default): instances on one GPU begin their work one after the other;
                            ``BLOCKING``: they do not wait for each other
``coalesce-request-input``  without effect: the inputs of a batch are always gathered once, into one array
==========================  ====================================================================================

Source: Triton ``tensorrt.cc`` (TRITONBACKEND_Initialize), ``model_state.cc`` (ParseParameters), ``tensorrt_model.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bireme.backends.settings import SettingsReader
from bireme.config import ModelConfig
from bireme.config.model_config import GraphSpec
from bireme.types import Unsupported

STRATEGY: Final = "execution_context_allocation_strategy"
_MULTI_DEVICE: Final = "enable_multi_device"


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What the command line says to the backend."""

    plugins: tuple[str, ...]
    is_version_compatible: bool
    begins_in_turn: bool
    """Whether instances on one device begin their work one after the other."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What one model's config says."""

    strategy: str
    """A name of TensorRT's ``ExecutionContextAllocationStrategy``."""
    priority: str
    uses_graphs: bool
    graph_specs: tuple[GraphSpec, ...]
    """Empty: as `bireme.backends.tensorrt.graphs` chooses."""
    libraries: tuple[str, ...]
    """``model_operations.op_library_filename``."""


def read_backend_settings(settings: Mapping[str, str]) -> BackendSettings:
    """Return the backend's settings.

    Raises:
        InvalidArgument: names the setting, its value and what is expected.
    """
    reader = SettingsReader.of_backend("tensorrt", settings)
    reader.boolean("coalesce-request-input")
    policy = reader.choice("execution-policy", ("DEVICE_BLOCKING", "BLOCKING"), "DEVICE_BLOCKING")
    return BackendSettings(
        plugins=tuple(path for path in map(str.strip, reader.text("plugins").split(";")) if path),
        is_version_compatible=reader.boolean("version-compatible") or False,
        begins_in_turn=policy == "DEVICE_BLOCKING",
    )


def read_model_settings(config: ModelConfig) -> ModelSettings:
    """Return the settings of a model.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
        Unsupported: the config asks for several GPUs per instance, or for a DLA core.
    """
    reader = SettingsReader.of_model(config)
    if reader.boolean(_MULTI_DEVICE):
        raise Unsupported(
            f"model '{config.name}': parameter '{_MULTI_DEVICE}' is not supported: an instance has one GPU"
        )
    if any(group.secondary_devices for group in config.instance_group):
        raise Unsupported(
            f"model '{config.name}': secondary_devices (NVDLA) are not supported by the tensorrt backend"
        )
    optimization = config.optimization
    cuda = optimization.cuda if optimization is not None else None
    operations = config.model_operations
    return ModelSettings(
        strategy=reader.choice(STRATEGY, ("STATIC", "ON_PROFILE_CHANGE"), "STATIC"),
        priority=optimization.priority if optimization is not None else "PRIORITY_DEFAULT",
        uses_graphs=cuda is not None and cuda.graphs,
        graph_specs=cuda.graph_spec if cuda is not None else (),
        libraries=operations.op_library_filename if operations is not None else (),
    )
