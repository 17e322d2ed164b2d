"""Execution accelerators: from the names and parameters of the config to onnxruntime's execution providers. Pure.

Source: Triton ``onnxruntime.cc`` (LoadModel) and the backend's README ("Parameter mapping").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bireme.backends.settings import SettingsReader
from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.config.model_config import Accelerator, ExecutionAccelerators
from bireme.types import InvalidArgument, Unsupported

Provider = tuple[str, dict[str, str]]
"""Name and options of an execution provider."""

CPU_PROVIDER: Final = "CPUExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
_SUFFIX: Final = "ExecutionProvider"

# Triton's own names of TensorRT options; all others are onnxruntime's.
_TENSORRT_OPTIONS: Final = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS: Final = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}


# Triton's own parameters of CUDA, which are older than its accelerator: the option's values by the parameter's.
_CUDA_PARAMETERS: Final[Mapping[str, Mapping[str, str]]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": {},
    "do_copy_in_default_stream": {},
}


def choose_providers(
    config: ModelConfig, existing: Iterable[str], available: Iterable[str], gpu: int | None = None
) -> list[Provider]:
    """Return the config's accelerators as providers, in order, and the CPU for what they do not run.

    On a GPU (``gpu`` is its number) these are the accelerators for GPUs, CUDA and then those for CPUs; on the CPU the last ones.
    ``existing`` are the providers that onnxruntime knows of, ``available`` those that this installation has.

    Raises:
        InvalidArgument: an accelerator is unknown or not available (lists the available ones), or a parameter is wrong.
        Unsupported: on a GPU, this installation was built without CUDA.
    """
    accelerators = config.optimization.execution_accelerators if config.optimization is not None else None
    accelerators = accelerators or ExecutionAccelerators()
    chosen: dict[str, dict[str, str]] = {}
    if gpu is not None:
        if CUDA_PROVIDER not in available:
            raise Unsupported(_without_cuda(config.name, available))
        for accelerator in accelerators.gpu_execution_accelerator:
            name, options = _provider(config.name, accelerator, existing, available)
            chosen[name] = {**options, "device_id": str(gpu)}
        chosen[CUDA_PROVIDER] = {
            **_cuda_parameters(config),
            **chosen.pop(CUDA_PROVIDER, {}),
            "device_id": str(gpu),
        }
    for accelerator in accelerators.cpu_execution_accelerator:
        name, options = _provider(config.name, accelerator, existing, available)
        chosen[name] = options
    chosen.setdefault(CPU_PROVIDER, {})
    return list(chosen.items())


def _without_cuda(model_name: str, available: Iterable[str]) -> str:
    found = ", ".join(provider.removesuffix(_SUFFIX) for provider in available)
    return (
        f"model '{model_name}': KIND_GPU needs an onnxruntime with {CUDA_PROVIDER}, the installed one has {found}: take the "
        f"package 'onnxruntime-gpu' in place of 'onnxruntime', or use KIND_CPU or KIND_AUTO"
    )


def _cuda_parameters(config: ModelConfig) -> dict[str, str]:
    reader = SettingsReader.of_model(config)
    options: dict[str, str] = {}
    for key, names in _CUDA_PARAMETERS.items():
        if key in config.parameters:
            value = reader.choice(key, names, "") if names else reader.text(key)
            options[key] = names.get(value, value)
    return options


def _provider(
    model_name: str, accelerator: Accelerator, existing: Iterable[str], available: Iterable[str]
) -> Provider:
    by_name = {provider.removesuffix(_SUFFIX).lower(): provider for provider in existing}
    name = accelerator.name.removesuffix(_SUFFIX).lower()
    usable = [short for short, provider in by_name.items() if provider in available]
    label = f"model '{model_name}': execution accelerator '{accelerator.name}'"
    found = by_name.get(name)
    if found is None:
        near = near_name(name, by_name)
        suggestion = f"; did you mean '{near}'?" if near else ""
        raise InvalidArgument(
            f"{label} is unknown; the installed onnxruntime has {', '.join(usable)}{suggestion}"
        )
    if found not in available:
        raise InvalidArgument(
            f"{label} is not available: the installed onnxruntime has {', '.join(usable)}; install an onnxruntime package "
            f"that was built with {found}, or take the accelerator out of the config"
        )
    options = accelerator.parameters
    return found, _tensorrt_options(label, options) if name == "tensorrt" else dict(options)


def _tensorrt_options(label: str, parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                raise InvalidArgument(
                    f"{label}: precision_mode is '{value}'; expected {', '.join(_TENSORRT_PRECISIONS)}"
                )
            options.update(_TENSORRT_PRECISIONS[value])
        else:
            options[_TENSORRT_OPTIONS.get(key, key)] = value
    return options
