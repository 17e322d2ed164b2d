"""What the openvino backend decides without OpenVINO: devices, data types, states, fixed batches, texts of errors."""

import numpy as np
import pytest

from bireme.backends.openvino.data_types import differences, narrowed, with_config_types
from bireme.backends.openvino.devices import check_device
from bireme.backends.openvino.errors import reason_of
from bireme.backends.openvino.fixed_batch import FixedBatch
from bireme.backends.openvino.states import SequenceStart, find_start, without_foreign_controls
from bireme.backends.signature import Signature, TensorSpec
from bireme.config import ModelConfig
from bireme.config.model_config import (
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    SequenceControl,
    SequenceControlInput,
    StrategyDirect,
    StrategyOldest,
)
from bireme.types import BackendFailed, Unsupported


@pytest.mark.parametrize(
    "device",
    ["CPU", "AUTO", "GPU", "GPU.1", "AUTO:GPU,CPU", "MULTI:GPU.0,CPU", "HETERO:CPU", "AUTO:-NPU", "BATCH:GPU(4)"],
)  # fmt: skip
def test_devices_that_are_there(device):
    check_device("m", device, ["CPU", "GPU.0", "GPU.1"])


@pytest.mark.parametrize(
    ("device", "missing"),
    [("GPU", "GPU"), ("NPU", "NPU"), ("GPU.7", "GPU.7"), ("AUTO:CPU,GPU", "GPU"), ("CUDA:0", "CUDA")],
)
def test_a_device_that_is_not_there_is_named_with_those_that_are(device, missing):
    with pytest.raises(Unsupported) as caught:
        check_device("m", device, ["CPU"])

    assert (
        f"model 'm': parameter TARGET_DEVICE is '{device}', but OpenVINO finds no device '{missing}' here; it finds 'CPU'"
        == caught.value.message
    )


def spec(name, datatype, shape=(-1, 4)):
    return TensorSpec(name, datatype, shape, str(datatype).lower())


def signature_of(given, taken):
    return Signature({"x": spec("x", given)}, {"y": spec("y", taken)})


@pytest.mark.parametrize(
    ("file", "config", "becomes"),
    [
        ("FP32", "FP16", "FP16"),
        ("INT64", "INT32", "INT32"),
        ("FP32", "UINT8", "UINT8"),
        ("FP32", "BOOL", "FP32"),
        ("INT64", "FP32", "INT64"),
        ("BYTES", "UINT8", "BYTES"),
        (None, "FP32", None),
    ],
)
def test_inputs_are_converted_where_that_loses_nothing_by_its_nature(file, config, becomes):
    model = ModelConfig(input=(ModelInput("x", f"TYPE_{config}"),), output=(ModelOutput("y", "TYPE_FP32"),))
    found = signature_of(file, "FP32")

    wanted = with_config_types(found, model)

    assert becomes == wanted.inputs["x"].datatype
    assert ({} if becomes == file else {0: {"FP16": "f16", "INT32": "i32", "UINT8": "u8"}[config]}) == differences(
        found.inputs, wanted.inputs
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "config", "becomes"),
    [("FP32", "FP16", "FP16"), ("INT64", "INT32", "INT32"), ("FP32", "UINT8", "FP32"), ("INT64", "FP32", "INT64")],
)  # fmt: skip
def test_outputs_are_converted_to_their_own_sort_alone(file, config, becomes):
    model = ModelConfig(output=(ModelOutput("y", f"TYPE_{config}"), ModelOutput("z", "TYPE_FP32")))

    assert becomes == with_config_types(signature_of("FP32", file), model).outputs["y"].datatype


def test_what_openvino_narrows_is_found():
    assert ["x"] == narrowed(signature_of("INT64", "INT32"))
    assert ["y"] == narrowed(signature_of("FP32", "FP64"))


START = SequenceControl("CONTROL_SEQUENCE_START", int32_false_true=(0, 1))
CONTROLS = (
    SequenceControlInput("READY", (SequenceControl("CONTROL_SEQUENCE_READY", int32_false_true=(0, 1)),)),
    SequenceControlInput("START", (START,)),
)


def sequences(max_batch_size=0, **fields):
    return ModelConfig(
        max_batch_size=max_batch_size,
        sequence_batching=ModelSequenceBatching(control_input=CONTROLS, **fields),
    )


@pytest.mark.parametrize(
    ("config", "start"),
    [
        (ModelConfig(), None),
        (sequences(), SequenceStart("START", 1.0)),
        (sequences(1, direct=StrategyDirect()), SequenceStart("START", 1.0)),
        (sequences(2), None),
        (sequences(oldest=StrategyOldest()), None),
        (ModelConfig(sequence_batching=ModelSequenceBatching()), None),
    ],
    ids=["no sequences", "default", "direct", "batches", "oldest", "no controls"],
)
def test_states_last_where_an_instance_has_one_sequence_at_a_time(config, start):
    assert start == find_start(config)


def test_a_sequence_starts_where_its_control_says_so():
    start = SequenceStart("START", 7.0)

    assert start.is_set({"START": np.array([7], np.int32)})
    assert not start.is_set({"START": np.array([[0]], np.int32)})
    assert start.is_set({})


def test_controls_that_the_file_lacks_are_for_the_instance():
    signature = Signature({"READY": spec("READY", "INT32")}, {})

    assert (CONTROLS[0],) == without_foreign_controls(sequences(), signature).sequence_batching.control_input
    assert ModelConfig() == without_foreign_controls(ModelConfig(), signature)


def double(inputs):
    assert all(array.shape[0] == 4 for array in inputs.values())
    return {"y": inputs["x"] + inputs["x"]}


def test_a_fixed_batch_is_filled_up_and_cut():
    fixed = FixedBatch(double, 4, pads=True)

    for num_rows in (1, 3, 4):
        result = fixed({"x": np.ones((num_rows, 2), np.float32)})["y"]
        np.testing.assert_array_equal(np.full((num_rows, 2), 2, np.float32), result)


def test_strings_are_filled_up_with_empty_ones():
    seen = []
    fixed = FixedBatch(lambda inputs: seen.append(inputs["x"]) or {}, 3, pads=True)

    fixed({"x": np.array([b"a"], object)})

    assert [b"a", b"", b""] == seen[0].tolist()


def test_a_smaller_batch_is_refused_unless_it_may_be_filled_up():
    with pytest.raises(
        BackendFailed, match=r"expected requests with batch size '4', got '1'.*ENABLE_BATCH_PADDING"
    ):
        FixedBatch(double, 4, pads=False)({"x": np.ones((1, 2))})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Exception from src/inference/src/cpp/core.cpp:84:\nCheck 'a <= b(c)' failed at src/x_y.cpp:887:\nEmpty weights\n\n",
            "Empty weights",
        ),
        ("plain", "plain"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_errors_are_told_without_places_in_the_source(text, reason):
    assert reason == reason_of(RuntimeError(text))
