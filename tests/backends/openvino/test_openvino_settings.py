"""What parameters mean to OpenVINO, old names and new ones."""

from dataclasses import replace

import pytest

from bireme.backends.openvino.settings import (
    ModelSettings,
    complete_properties,
    read_model_settings,
)
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInstanceGroup, ModelParameter
from bireme.types import InvalidArgument

CONFIG = ModelConfig(name="m", instance_group=(ModelInstanceGroup("m", "KIND_CPU", 1),))


def config_of(values, **fields):
    return replace(CONFIG, parameters={key: ModelParameter(value) for key, value in values.items()}, **fields)


def read(values, **fields):
    return read_model_settings(config_of(values, **fields))


@pytest.mark.parametrize(
    ("values", "properties"),
    [
        ({}, {}),
        ({"INFERENCE_NUM_THREADS": "3"}, {"INFERENCE_NUM_THREADS": 3}),
        ({"CPU_THREADS_NUM": "3"}, {"INFERENCE_NUM_THREADS": 3}),
        ({"CPU_THREADS_NUM": "3", "INFERENCE_NUM_THREADS": "2"}, {"INFERENCE_NUM_THREADS": 2}),
        ({"INFERENCE_NUM_THREADS": "0"}, {}),
        ({"COMPILATION_NUM_THREADS": "1"}, {"COMPILATION_NUM_THREADS": 1}),
        ({"NUM_STREAMS": "2"}, {"NUM_STREAMS": 2}),
        ({"NUM_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"CPU_THROUGHPUT_STREAMS": "CPU_THROUGHPUT_AUTO"}, {"NUM_STREAMS": "AUTO"}),
        ({"CPU_THROUGHPUT_STREAMS": "CPU_THROUGHPUT_NUMA"}, {"NUM_STREAMS": "NUMA"}),
        ({"CPU_BIND_THREAD": "YES"}, {"ENABLE_CPU_PINNING": True}),
        ({"CPU_BIND_THREAD": "NUMA"}, {"ENABLE_CPU_PINNING": True}),
        ({"CPU_BIND_THREAD": "no"}, {"ENABLE_CPU_PINNING": False}),
        ({"ENABLE_CPU_PINNING": "true"}, {"ENABLE_CPU_PINNING": True}),
        ({"PERFORMANCE_HINT": "latency"}, {"PERFORMANCE_HINT": "LATENCY"}),
        ({"EXECUTION_MODE_HINT": "accuracy"}, {"EXECUTION_MODE_HINT": "ACCURACY"}),
        ({"ENFORCE_BF16": "YES"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"HINT_BF16": "yes"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"ENFORCE_BF16": "NO"}, {}),
        ({"INFERENCE_PRECISION_HINT": "BF16"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"INFERENCE_PRECISION_HINT": "undefined"}, {"INFERENCE_PRECISION_HINT": "dynamic"}),
        ({"CACHE_DIR": "/cache"}, {"CACHE_DIR": "/cache"}),
        ({"openvino.LOG_LEVEL": "LOG_INFO"}, {"LOG_LEVEL": "LOG_INFO"}),
    ],
    ids=str,
)
def test_parameters_become_properties(values, properties):
    assert properties == read(values).properties


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("INFERENCE_NUM_THREADS", "many", "an integer"),
        ("CPU_THREADS_NUM", "-1", "a number of threads up to 1024, or 0 for the default"),
        ("NUM_STREAMS", "0", "a number of streams, AUTO or NUMA"),
        ("CPU_THROUGHPUT_STREAMS", "all", "a number of streams, AUTO or NUMA"),
        ("PERFORMANCE_HINT", "FAST", "LATENCY, THROUGHPUT, CUMULATIVE_THROUGHPUT"),
        ("INFERENCE_PRECISION_HINT", "int8", "f32, bf16, f16 or dynamic"),
        ("EXECUTION_MODE_HINT", "QUICK", "PERFORMANCE or ACCURACY"),
        ("CPU_BIND_THREAD", "maybe", "YES, NO, NUMA or HYBRID_AWARE"),
        ("ENFORCE_BF16", "2", "YES or NO"),
        ("ENABLE_BATCH_PADDING", "off?", "YES or NO"),
        ("RESHAPE_IO_LAYOUTS", "x", "YES or NO"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(key, value, expected):
    with pytest.raises(InvalidArgument) as caught:
        read({key: value})

    assert f"model 'm': parameter '{key}' is '{value}'; expected {expected}" == caught.value.message


def test_what_is_not_known_may_be_a_property_of_the_device():
    settings = read({"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64", "isolation": "process", "NUM_STREAMS": "1"})

    assert {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"} == settings.others


def test_the_rest_of_the_settings():
    values = {
        "TARGET_DEVICE": " gpu.1",
        "CPU_EXTENSION_PATH": "/lib.so",
        "SKIP_OV_DYNAMIC_BATCHSIZE": "YES",
        "ENABLE_BATCH_PADDING": "YES",
        "RESHAPE_IO_LAYERS": "yes",
        "ENABLE_MMAP": "YES",
    }

    assert ModelSettings("GPU.1", {}, {}, "/lib.so", True, True, True, True) == read(values, max_batch_size=4)
    assert ModelSettings() == read({})


def test_a_fixed_batch_needs_a_size():
    with pytest.raises(
        InvalidArgument, match="SKIP_OV_DYNAMIC_BATCHSIZE needs a max_batch_size in the config"
    ):
        read({"SKIP_OV_DYNAMIC_BATCHSIZE": "YES"})


DEFAULTS = {
    "INFERENCE_PRECISION_HINT": "f32",
    "INFERENCE_NUM_THREADS": 8,
    "ENABLE_CPU_PINNING": False,
    "NUM_STREAMS": 1,
}


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({}, {}),
        ({"INFERENCE_NUM_THREADS": "2"}, {"INFERENCE_NUM_THREADS": 2}),
        ({"CPU_BIND_THREAD": "YES"}, {"ENABLE_CPU_PINNING": True}),
        ({"HINT_BF16": "YES"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": None}),
        ({"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "2"}, {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 2}),
        (
            {"EXECUTION_MODE_HINT": "PERFORMANCE"},
            {"EXECUTION_MODE_HINT": "PERFORMANCE", "INFERENCE_PRECISION_HINT": None},
        ),
        (
            {"EXECUTION_MODE_HINT": "ACCURACY"},
            {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": None},
        ),
        (
            {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "bf16"},
            {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "bf16"},
        ),
        ({"TARGET_DEVICE": "GPU"}, {"INFERENCE_NUM_THREADS": None, "ENABLE_CPU_PINNING": None, "NUM_STREAMS": None}),
    ],
    ids=str,
)  # fmt: skip
def test_what_models_are_compiled_with(values, changed):
    """None: the device decides."""
    expected = {key: value for key, value in {**DEFAULTS, **changed}.items() if value is not None}

    assert expected == complete_properties(read(values), config_of(values), 8)


@pytest.mark.parametrize(("count", "num_cpus", "streams"), [(1, 8, 1), (4, 8, 4), (12, 8, 8), (2, 1, 1)])
def test_there_is_a_stream_for_each_instance_but_no_more_than_cpus(count, num_cpus, streams):
    config = replace(CONFIG, instance_group=(ModelInstanceGroup("m", "KIND_CPU", count),))

    properties = complete_properties(ModelSettings(), config, num_cpus)

    assert streams == properties["NUM_STREAMS"]
    assert num_cpus == properties["INFERENCE_NUM_THREADS"]
