"""Execution accelerators by name."""

import pytest

from bireme.backends.onnxruntime.providers import choose_providers
from bireme.config.model_config import (
    Accelerator,
    ExecutionAccelerators,
    ModelConfig,
    ModelOptimizationPolicy,
    ModelParameter,
)
from bireme.types import InvalidArgument, Unsupported

EXISTING = [
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "OpenVINOExecutionProvider",
    "XnnpackExecutionProvider",
    "CPUExecutionProvider",
]


def choose(*, gpu=(), cpu=(), available=EXISTING, device=None, **parameters):
    accelerators = ExecutionAccelerators(tuple(gpu), tuple(cpu))
    config = ModelConfig(
        name="m",
        optimization=ModelOptimizationPolicy(execution_accelerators=accelerators),
        parameters={key: ModelParameter(value) for key, value in parameters.items()},
    )
    return choose_providers(config, EXISTING, available, device)


@pytest.mark.parametrize("optimization", [None, ModelOptimizationPolicy()])
def test_without_accelerators_the_cpu_runs_it(optimization):
    assert choose_providers(ModelConfig(optimization=optimization), EXISTING, EXISTING) == [
        ("CPUExecutionProvider", {})
    ]


def test_accelerators_come_in_order_and_the_cpu_last():
    accelerators = {
        "gpu": [Accelerator("tensorrt"), Accelerator("cuda", {"a": "1"})],
        "cpu": [Accelerator("openvino")],
    }

    assert choose(**accelerators, device=3) == [
        ("TensorrtExecutionProvider", {"device_id": "3"}),
        ("CUDAExecutionProvider", {"a": "1", "device_id": "3"}),
        ("OpenVINOExecutionProvider", {}),
        ("CPUExecutionProvider", {}),
    ]
    assert choose(**accelerators) == [("OpenVINOExecutionProvider", {}), ("CPUExecutionProvider", {})]


def test_cuda_runs_it_on_a_gpu_and_comes_after_the_configs_accelerators():
    assert [name for name, _ in choose(device=0)] == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    named = choose(gpu=[Accelerator("cuda"), Accelerator("tensorrt")], device=0)
    assert [name for name, _ in named][:2] == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]


def test_tritons_parameters_of_cuda_are_its_options_and_the_accelerators_stand():
    parameters = {
        "cudnn_conv_algo_search": "1",
        "gpu_mem_limit": "1000",
        "arena_extend_strategy": "1",
        "do_copy_in_default_stream": "0",
    }
    assert choose(device=0, **parameters)[0][1] == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "1000",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
        "device_id": "0",
    }
    options = choose(gpu=[Accelerator("cuda", {"gpu_mem_limit": "7"})], device=0, **parameters)[0][1]
    assert options["gpu_mem_limit"] == "7"


@pytest.mark.parametrize("key", ["cudnn_conv_algo_search", "arena_extend_strategy"])
def test_a_wrong_parameter_of_cuda_is_named(key):
    with pytest.raises(InvalidArgument, match=f"parameter '{key}' is '9'; expected '0' or '1'"):
        choose(device=0, **{key: "9"})


def test_a_gpu_needs_an_onnxruntime_with_cuda():
    with pytest.raises(Unsupported) as caught:
        choose(device=0, available=["AzureExecutionProvider", "CPUExecutionProvider"])
    assert caught.value.message == (
        "model 'm': KIND_GPU needs an onnxruntime with CUDAExecutionProvider, the installed one has Azure, CPU: take the package "
        "'onnxruntime-gpu' in place of 'onnxruntime', or use KIND_CPU or KIND_AUTO"
    )


@pytest.mark.parametrize("name", ["xnnpack", "XNNPACK", "XnnpackExecutionProvider"])
def test_any_provider_goes_by_its_name(name):
    assert choose(cpu=[Accelerator(name)])[0] == ("XnnpackExecutionProvider", {})


def test_the_cpu_may_be_named():
    assert choose(cpu=[Accelerator("cpu")]) == [("CPUExecutionProvider", {})]


def test_tritons_names_of_tensorrt_options_are_translated():
    parameters = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1024",
        "int8_use_native_calibration_table": "0",
        "trt_engine_cache_enable": "1",
    }

    assert choose(cpu=[Accelerator("tensorrt", parameters)])[0][1] == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1024",
        "trt_int8_use_native_calibration_table": "0",
        "trt_engine_cache_enable": "1",
    }


@pytest.mark.parametrize(
    ("accelerator", "expected"),
    [
        (Accelerator("openvino"), "execution accelerator 'openvino' is not available: the installed onnxruntime has xnnpack, cpu"),
        (Accelerator("open_vino"), "'open_vino' is unknown; the installed onnxruntime has xnnpack, cpu; did you mean 'openvino'?"),
        (Accelerator("warp"), "'warp' is unknown; the installed onnxruntime has xnnpack, cpu"),
    ],
)  # fmt: skip
def test_an_accelerator_that_is_not_there_is_answered_with_those_that_are(accelerator, expected):
    available = ["XnnpackExecutionProvider", "CPUExecutionProvider"]

    with pytest.raises(InvalidArgument) as caught:
        choose(cpu=[accelerator], available=available)

    assert caught.value.message.startswith("model 'm': ")
    assert expected in caught.value.message


def test_an_accelerator_of_gpus_that_is_not_there_is_told_on_a_gpu():
    available = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    with pytest.raises(
        InvalidArgument, match="'tensorrt' is not available: the installed onnxruntime has cuda, cpu"
    ):
        choose(gpu=[Accelerator("tensorrt")], available=available, device=0)


def test_a_wrong_precision_is_named():
    with pytest.raises(InvalidArgument, match="precision_mode is 'FP8'; expected FP32, FP16, BF16, INT8"):
        choose(gpu=[Accelerator("tensorrt", {"precision_mode": "FP8"})], device=0)
