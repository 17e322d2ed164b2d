"""Execution accelerators by name."""

import pytest

from bireme.backends.onnxruntime.providers import choose_providers
from bireme.config.model_config import (
    Accelerator,
    ExecutionAccelerators,
    ModelConfig,
    ModelOptimizationPolicy,
)
from bireme.types import InvalidArgument

EXISTING = [
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "OpenVINOExecutionProvider",
    "XnnpackExecutionProvider",
    "CPUExecutionProvider",
]


def choose(*, gpu=(), cpu=(), available=EXISTING):
    accelerators = ExecutionAccelerators(tuple(gpu), tuple(cpu))
    config = ModelConfig(name="m", optimization=ModelOptimizationPolicy(execution_accelerators=accelerators))
    return choose_providers(config, EXISTING, available)


@pytest.mark.parametrize("optimization", [None, ModelOptimizationPolicy()])
def test_without_accelerators_the_cpu_runs_it(optimization):
    assert choose_providers(ModelConfig(optimization=optimization), EXISTING, EXISTING) == [
        ("CPUExecutionProvider", {})
    ]


def test_accelerators_come_in_order_and_the_cpu_last():
    chosen = choose(
        gpu=[Accelerator("tensorrt"), Accelerator("cuda", {"a": "1"})], cpu=[Accelerator("openvino")]
    )

    assert chosen == [
        ("TensorrtExecutionProvider", {}),
        ("CUDAExecutionProvider", {"a": "1"}),
        ("OpenVINOExecutionProvider", {}),
        ("CPUExecutionProvider", {}),
    ]


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

    assert choose(gpu=[Accelerator("tensorrt", parameters)])[0][1] == {
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

    for place in ("gpu", "cpu"):
        with pytest.raises(InvalidArgument) as caught:
            choose(**{place: [accelerator]}, available=available)

        assert caught.value.message.startswith("model 'm': ")
        assert expected in caught.value.message


def test_a_wrong_precision_is_named():
    with pytest.raises(InvalidArgument, match="precision_mode is 'FP8'; expected FP32, FP16, BF16, INT8"):
        choose(gpu=[Accelerator("tensorrt", {"precision_mode": "FP8"})])
