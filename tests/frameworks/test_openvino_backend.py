"""OpenVINO models of every sort, opened through the backend as the engine does."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import Placement
from bireme.backends.openvino import instance
from bireme.backends.openvino.backend import OpenVinoBackend
from bireme.backends.openvino.runtime import ov
from bireme.config.model_config import (
    ModelInstanceGroup,
    ModelSequenceBatching,
    SequenceControl,
    SequenceControlInput,
    SequenceState,
)
from bireme.types import BackendFailed, BiremeError, InvalidArgument, NotFound, Unsupported, datatypes
from onnx_models import save_add
from openvino_models import (
    EMPTY,
    OV_TYPES,
    OpenModel,
    context,
    make_add,
    make_counter,
    make_fixed,
    make_identity,
    make_matmul,
    make_nonzero,
    named,
    ops,
    parameter,
    parameters,
    save,
    tensors,
)

TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def open_model(tmp_path):
    """Return a function that writes a model and opens it; keywords replace fields of the config."""
    opened: list[OpenModel] = []

    def open_it(model, *, config=EMPTY, backend_config=None, **fields) -> OpenModel:
        save(model, tmp_path / "1" / "model.xml")
        opened.append(OpenModel(context(tmp_path, replace(config, **fields), **(backend_config or {}))))
        return opened[-1]

    yield open_it
    for model in opened:
        model.close()


def ones(*shape):
    return np.ones(shape, np.float32)


# What is filled in


def test_the_config_is_filled_in_from_a_dynamic_model(open_model):
    config = open_model(make_add()).config

    assert tensors(EMPTY, "A:FP32:16 B:FP32:16", "S:FP32:16").input == config.input
    assert ["S"] == [tensor.name for tensor in config.output]
    assert 4 == config.max_batch_size
    assert config.dynamic_batching is not None


def test_a_model_of_one_item_is_left_as_it_is_unless_the_config_batches(open_model):
    assert (1, 8) == open_model(make_matmul()).config.input[0].dims

    batching = open_model(make_matmul(), max_batch_size=8)

    assert (8,) == batching.config.input[0].dims
    np.testing.assert_array_equal(2 * ones(5, 8), batching.execute(X=ones(5, 8))["Y"])


def test_a_model_whose_layouts_begin_with_a_batch_is_batched(open_model):
    model = make_matmul()
    for port in (*model.inputs, *model.outputs):
        port.get_node().set_layout(ov.Layout("NC"))

    config = open_model(model, backend_config={"default_max_batch_size": "6"}).config

    assert 6 == config.max_batch_size
    assert (8,) == config.input[0].dims


def test_a_tensor_goes_by_the_name_that_the_config_uses(open_model):
    model = make_add()
    model.inputs[0].get_tensor().set_names({"A", "A:0", "longer"})

    assert "A" == open_model(model).config.input[0].name
    config = tensors(EMPTY, "longer:FP32:16 B:FP32:16", "S:FP32:16")
    result = open_model(model, config=config, max_batch_size=4).execute(longer=ones(1, 16), B=ones(1, 16))
    np.testing.assert_array_equal(2 * ones(1, 16), result["S"])


def test_a_tensor_may_go_by_the_name_of_its_operation(open_model):
    x = parameter("X", [-1, 2])
    double = ops.add(x, x)
    double.set_friendly_name("double")

    config = tensors(EMPTY, "X:FP32:2", "double:FP32:2")

    model = open_model(ov.Model([double], [x], "unnamed"), config=config, max_batch_size=4)

    np.testing.assert_array_equal(2 * ones(1, 2), model.execute(X=ones(1, 2))["double"])


def test_one_tensor_may_be_an_output_twice(open_model):
    x = parameter("X", [-1, 2])
    y = named(ops.add(x, x), "Y")

    results = open_model(ov.Model([ops.result(y), ops.result(y)], [x], "twice")).execute(X=ones(1, 2))

    assert 2 == len(results)
    assert "Y" in results
    for array in results.values():
        np.testing.assert_array_equal(2 * ones(1, 2), array)


# Data types


@pytest.mark.parametrize("datatype", list(OV_TYPES))
def test_every_data_type_goes_in_and_comes_out(open_model, datatype):
    values = {
        "BOOL": [[True, False, True]],
        "BYTES": [[b"text", b"\xff\0bytes", b""]],
        "BF16": [[0x3F80, 0x4000, 0xC040]],
    }.get(datatype, [[1, 2, 3]])
    array = np.array(values, datatypes.NUMPY_DTYPES[datatype])
    model = open_model(make_identity((-1, 3), OV_TYPES[datatype]))

    output = model.infer({"X": array})["Y"]

    assert datatype == output.datatype
    np.testing.assert_array_equal(array, model.execute(X=array)["Y"])


def test_strings_may_be_none_at_all(open_model):
    model = open_model(make_identity((-1, -1), "string"))

    assert (1, 0) == model.execute(X=np.empty((1, 0), object))["Y"].shape


def test_scalars_have_the_dimension_of_the_config(open_model):
    x = parameter("X", [])
    model = open_model(ov.Model([named(ops.add(x, x), "Y")], [x], "scalar"))

    assert (1,) == model.config.input[0].dims
    assert [4.0] == model.execute(X=np.array([2], np.float32))["Y"].tolist()


def test_a_type_that_the_protocol_has_not_is_named(open_model):
    x = parameter("X", [4], "i4")

    with pytest.raises(Unsupported, match="input 'Y' of the model file is a i4, which no data type"):
        open_model(ov.Model([named(ops.result(x), "Y")], [x], "int4"))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [("A:UINT8:16 B:FP16:16", "S:FP16:16"), ("A:INT64:16 B:FP64:16", "S:FP64:16")],
)
def test_openvino_converts_to_the_types_of_the_config(open_model, inputs, outputs):
    model = open_model(make_add(), config=tensors(EMPTY, inputs, outputs), max_batch_size=4)
    given = {
        tensor.name: np.full((2, 16), 3, datatypes.NUMPY_DTYPES[datatypes.from_config_name(tensor.data_type)])
        for tensor in model.config.input
    }

    result = model.infer(given)["S"]

    assert model.config.output[0].data_type == f"TYPE_{result.datatype}"
    np.testing.assert_array_equal(np.full((2, 16), 6), model.execute(**given)["S"])


def test_other_types_are_a_fault(open_model):
    with pytest.raises(InvalidArgument) as caught:
        open_model(make_add(), config=tensors(EMPTY, "A:FP32:16 C:FP32:16", "S:INT32:16"), max_batch_size=4)

    assert (
        "unable to load model 'm': input 'C' is in the config, but not in the model file, which has 'A', 'B'; the model file "
        "needs input 'B' (f32, shape [-1, 16]), which the config does not list; it lists 'A', 'C'; output 'S': the config's "
        "data_type is TYPE_INT32, but the model file has TYPE_FP32"
    ) == caught.value.message


# Memory


def test_inputs_are_borrowed_and_not_kept(open_model):
    model = open_model(make_add((-1, 1024)))
    array = ones(64, 1024)
    references = sys.getrefcount(array)

    result = model.execute(A=array, B=array)["S"]

    assert references == sys.getrefcount(array)
    np.testing.assert_array_equal(2 * array, result)


def test_read_only_and_strided_inputs_are_taken(open_model):
    model = open_model(make_add((-1, 4)))
    read_only = ones(2, 4)
    read_only.flags.writeable = False
    strided = np.arange(16, dtype=np.float32).reshape(2, 8)[:, ::2]

    np.testing.assert_array_equal(strided + 1, model.execute(A=read_only, B=strided)["S"])


@pytest.mark.parametrize("num_rows", [1, 64, 1024], ids=["small", "large", "huge"])
@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed", "dynamic"])
def test_outputs_are_owned_by_the_caller(open_model, monkeypatch, is_fixed, num_rows):
    """They are copied, given up, and copied again, in the order of the sizes."""
    monkeypatch.setattr(instance, "MIN_GIVEN_NBYTES", 4096)
    monkeypatch.setattr(instance, "MAX_GIVEN_NBYTES", 16384)
    model = open_model(make_add((num_rows if is_fixed else -1, 16)))

    first = model.execute(A=ones(num_rows, 16), B=ones(num_rows, 16))["S"]
    second = model.execute(A=ones(num_rows, 16), B=2 * ones(num_rows, 16))["S"]
    model.close()

    assert (2, 3) == (first.min(), second.min())
    assert (2, 3) == (first.max(), second.max())
    assert first.flags.writeable


@pytest.mark.parametrize("shape", [(-1, 16), (64, 16)], ids=["dynamic", "fixed"])
@pytest.mark.parametrize("is_strided", [True, False], ids=["strided", "whole"])
def test_an_output_that_is_an_input_is_a_copy(open_model, monkeypatch, shape, is_strided):
    """OpenVINO returns the memory of the input itself, which is only borrowed."""
    monkeypatch.setattr(instance, "MIN_GIVEN_NBYTES", 0)
    x = parameter("X", shape)
    model = open_model(ov.Model([ops.result(x)], [x], "same"))
    array = ones(64, 32)[:, ::2] if is_strided else ones(64, 16)

    results = [model.execute(X=array)["X"] for _ in range(3)]

    array[:] = 2
    for result in results:
        np.testing.assert_array_equal(ones(64, 16), result)
    if model.instance.execute_into is not None:
        buffer, target = target_of(4096)
        placed = model.instance.execute_into({"X": array}, {"X": target})["X"]
        assert np.shares_memory(placed, np.frombuffer(buffer, np.uint8))
        np.testing.assert_array_equal(2 * ones(64, 16), placed)


def test_outputs_that_are_constants_are_the_callers(open_model, monkeypatch):
    monkeypatch.setattr(instance, "MIN_GIVEN_NBYTES", 0)
    x = parameter("X", [-1, 16])
    outputs = [named(ops.result(ops.constant(ones(4, 16))), "C"), named(ops.add(x, x), "Y")]
    model = open_model(ov.Model(outputs, [x], "constant"))

    for _ in range(2):
        found = model.execute(X=ones(4, 16))["C"]
        np.testing.assert_array_equal(ones(4, 16), found)
        found[:] = 7


COPIES = """
import sys
import numpy as np
from pathlib import Path
from openvino_models import OpenModel, context, make_add, save

num_rows, shape = 6000, [int(sys.argv[2]), 1024]
save(make_add(shape), Path(sys.argv[1]) / "1/model.xml")
model = OpenModel(context(Path(sys.argv[1])))
array = np.ones((num_rows, 1024), np.float32)


def memory(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024


def growth(run):
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
    before = memory("VmRSS")
    result = run()
    return result, (memory("VmHWM") - before) / array.nbytes


kept = [model.execute(A=array, B=array)["S"] for _ in range(2)]  # whatever is needed once is there
result, owned = growth(lambda: model.execute(A=array, B=array)["S"])
print(owned)
if shape[0] > 0:
    target = bytearray(array.nbytes + 4096)
    placed, grown = growth(lambda: model.instance.execute_into({"A": array, "B": array}, {"S": memoryview(target)})["S"])
    assert np.shares_memory(placed, np.frombuffer(target, np.uint8))
    print(grown)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "expected"), [(-1, [1]), (6000, [1, 0])], ids=["dynamic", "fixed"])
def test_a_run_makes_no_copy_of_inputs_or_outputs(tmp_path, num_rows, expected):
    """Memory grows by the output itself, 24 MB, and by nothing where the caller provides memory."""
    found = subprocess.run(
        [sys.executable, "-c", COPIES, str(tmp_path), str(num_rows)],
        check=True,
        capture_output=True,
        text=True,
        # Large blocks are given back when they are free.
        env={"PYTHONPATH": TESTS, "HOME": str(tmp_path), "MALLOC_MMAP_THRESHOLD_": "131072"},
    ).stdout.split()

    assert expected == pytest.approx([float(text) for text in found], abs=0.25)


def target_of(nbytes):
    buffer = bytearray(nbytes)
    return buffer, memoryview(buffer)


FIXED = (2, 16)


@pytest.mark.parametrize("room", [2 * 16 * 4, 2 * 16 * 4 + 100], ids=["exact", "more"])
def test_outputs_of_fixed_shapes_are_written_into_given_memory(open_model, room):
    model = open_model(make_add(FIXED))
    buffer, target = target_of(room)

    result = model.instance.execute_into({"A": ones(2, 16), "B": ones(2, 16)}, {"S": target})["S"]

    np.testing.assert_array_equal(2 * ones(2, 16), result)
    assert np.shares_memory(result, np.frombuffer(buffer, np.uint8))
    np.testing.assert_array_equal(2 * ones(32), np.frombuffer(buffer, np.float32, 32))
    again = model.execute(A=2 * ones(2, 16), B=ones(2, 16))["S"]
    np.testing.assert_array_equal(2 * ones(2, 16), result)
    np.testing.assert_array_equal(3 * ones(2, 16), again)


@pytest.mark.parametrize(
    ("room", "offset"), [(0, 0), (127, 0), (200, 1)], ids=["none", "too small", "unaligned"]
)
def test_memory_that_does_not_fit_is_left_alone(open_model, room, offset):
    model = open_model(make_add(FIXED))
    buffer, target = target_of(room)

    result = model.instance.execute_into({"A": ones(2, 16), "B": ones(2, 16)}, {"S": target[offset:]})["S"]

    np.testing.assert_array_equal(2 * ones(2, 16), result)
    assert bytes(room) == bytes(buffer)


def test_outputs_of_dynamic_shapes_are_not(open_model):
    assert open_model(make_add()).instance.execute_into is None


def test_a_failed_run_into_given_memory_says_what_is_wrong(open_model):
    model = open_model(make_add(FIXED))
    _, target = target_of(1024)

    with pytest.raises(BackendFailed, match="incompatible"):
        model.instance.execute_into({"A": ones(2, 8), "B": ones(2, 8)}, {"S": target})

    np.testing.assert_array_equal(2 * ones(2, 16), model.execute(A=ones(2, 16), B=ones(2, 16))["S"])


def test_bf16_goes_into_given_memory_as_bits(open_model):
    model = open_model(make_identity((2, 4), "bf16"))
    buffer, target = target_of(64)
    bits = np.full((2, 4), 0x3F80, np.uint16)

    result = model.instance.execute_into({"X": bits}, {"Y": target})["Y"]

    np.testing.assert_array_equal(bits, result)
    assert np.shares_memory(result, np.frombuffer(buffer, np.uint8))


def test_outputs_may_have_shapes_that_depend_on_the_data(open_model):
    model = open_model(make_nonzero(), config=tensors(EMPTY, "X:FP32:-1", "Y:INT64:-1"))

    for values in ([0, 1, 0, 1], [0, 0], [1] * 50):
        array = np.array(values, np.float32)
        np.testing.assert_array_equal(np.flatnonzero(array), np.atleast_1d(model.execute(X=array)["Y"]))


# Batches


def test_a_model_that_cannot_batch_says_why_and_what_to_do(open_model):
    with pytest.raises(InvalidArgument) as caught:
        open_model(make_fixed(), max_batch_size=2)

    assert "a dynamic batch dimension was tried: " in caught.value.message
    assert "SKIP_OV_DYNAMIC_BATCHSIZE, value YES" in caught.value.message


def test_a_fixed_batch_is_refused_or_filled_up(open_model):
    fixed = parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")
    padded = parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES", ENABLE_BATCH_PADDING="YES")

    model = open_model(make_fixed(), max_batch_size=2, parameters=fixed)
    np.testing.assert_array_equal(ones(2, 4), model.execute(X=ones(2, 4))["Y"])
    with pytest.raises(BackendFailed, match="expected requests with batch size '2', got '1'"):
        model.execute(X=ones(1, 4))
    assert (4,) == model.config.input[0].dims

    model = open_model(make_fixed(), max_batch_size=2, parameters=padded)
    np.testing.assert_array_equal(ones(1, 4), model.execute(X=ones(1, 4))["Y"])


def test_a_fixed_batch_that_the_file_cannot_have_is_named(open_model):
    with pytest.raises(
        InvalidArgument, match=r"SKIP_OV_DYNAMIC_BATCHSIZE: .* cannot have a first dimension of 3"
    ):
        open_model(make_fixed(), max_batch_size=3, parameters=parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES"))


def test_a_model_gets_the_shapes_of_the_config(open_model):
    reshape = parameters(RESHAPE_IO_LAYERS="YES")
    config = tensors(EMPTY, "A:FP32:-1,5 B:FP32:-1,5", "S:FP32:-1,5")

    model = open_model(make_add((1, 16)), config=config, parameters=reshape)
    np.testing.assert_array_equal(2 * ones(3, 5), model.execute(A=ones(3, 5), B=ones(3, 5))["S"])

    with pytest.raises(
        InvalidArgument, match=r"RESHAPE_IO_LAYERS: the model file cannot have inputs 'X' \[1, 5\]: "
    ):
        open_model(make_matmul(), config=tensors(EMPTY, "X:FP32:1,5", "Y:FP32:1,8"), parameters=reshape)


MAPPED = "model.bin"


def mappings():
    return sum(MAPPED in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("values", [{}, {"ENABLE_MMAP": "YES"}], ids=["read", "mapped"])
def test_weights_are_mapped_only_if_asked_for(open_model, values):
    """A mapped file that is overwritten by a smaller one ends the process."""
    before = mappings()
    x = parameter("X", [-1], "i64")
    rows = ops.gather(ops.constant(ones(1000, 100)), x, ops.constant(0))

    model = open_model(ov.Model([named(rows, "Y")], [x], "table"), parameters=parameters(**values))

    assert (mappings() > before) == bool(values)
    np.testing.assert_array_equal(ones(2, 100), model.execute(X=np.array([1, 5]))["Y"])


# States


def test_a_models_own_states_begin_anew_with_each_request(open_model, caplog):
    caplog.set_level(logging.INFO)
    model = open_model(make_counter())

    assert [[1.0]] * 3 == [model.execute(X=ones(1))["Y"].tolist() for _ in range(3)]
    assert "model 'm': the states of its own begin anew with every request" in caplog.text


def test_a_models_own_states_are_kept_within_a_sequence(open_model):
    control = SequenceControl("CONTROL_SEQUENCE_START", int32_false_true=(0, 1))
    batching = ModelSequenceBatching(control_input=(SequenceControlInput("START", (control,)),))
    model = open_model(make_counter(), sequence_batching=batching)

    found = [
        model.execute(X=ones(1), START=np.array([start], np.int32))["Y"].item() for start in (1, 0, 0, 1, 0)
    ]

    assert [1, 2, 3, 1, 2] == found


def test_states_that_the_server_carries_come_and_go(open_model):
    state = SequenceState("B", "S", "TYPE_FP32", (16,))
    model = open_model(make_add(), max_batch_size=4, sequence_batching=ModelSequenceBatching(state=(state,)))

    assert ["A"] == [tensor.name for tensor in model.config.input]
    np.testing.assert_array_equal(2 * ones(1, 16), model.execute(A=ones(1, 16), B=ones(1, 16))["S"])


# Files


def load(tmp_path, **fields):
    return OpenVinoBackend().load(context(tmp_path, replace(EMPTY, **fields)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "the file is a Git LFS pointer"),
        (b"garbage", "the file is no XML: it begins with b'garbage'"),
        (b"<net>", "Unable to read the model"),
    ],
)
def test_a_file_that_is_no_model_is_explained(tmp_path, content, reason, capfd):
    path = tmp_path / "1" / "model.xml"
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(InvalidArgument) as caught:
        load(tmp_path)

    assert caught.value.message.startswith(f"model 'm': OpenVINO cannot load '{path}': {reason}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "model.bin, the file with its weights, is missing"),
        (b"", "model.bin, the file with its weights: the file is empty"),
        (b"half", "model.bin, the file with its weights, has 4 bytes: Incorrect weights"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "model.bin, the file with its weights: the file is a Git LFS"),
    ],
)  # fmt: skip
def test_missing_weights_are_explained(tmp_path, content, reason):
    weights = save(make_matmul(), tmp_path / "1" / "model.xml").with_suffix(".bin")
    weights.unlink()
    if content is not None:
        weights.write_bytes(content)

    with pytest.raises(InvalidArgument, match=reason):
        load(tmp_path)


def test_a_missing_file_is_named_with_what_there_is(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "modell.xml").touch()

    with pytest.raises(
        NotFound, match=r"unable to find '.*model\.xml' for model 'm'; '.*' holds 'modell\.xml'"
    ):
        load(tmp_path, default_model_filename="model.xml")


@pytest.mark.parametrize("filename", ["model.onnx", "net.onnx"])
def test_onnx_files_are_read_too(tmp_path, filename):
    """A config that names no file has been given model.xml."""
    save_add(tmp_path / "1" / filename, batch=True)
    named_file = "model.xml" if filename == "model.onnx" else filename

    model = OpenModel(context(tmp_path, replace(EMPTY, default_model_filename=named_file)))

    results = model.execute(INPUT0=ones(2, 16), INPUT1=ones(2, 16))
    np.testing.assert_array_equal(2 * ones(2, 16), results["OUTPUT0"])
    np.testing.assert_array_equal(0 * ones(2, 16), results["OUTPUT1"])
    model.close()


def test_a_broken_onnx_file_is_explained(tmp_path):
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(b"garbage")

    with pytest.raises(
        InvalidArgument, match=r"OpenVINO cannot load '.*model\.onnx': Unable to read the model"
    ):
        load(tmp_path)


# Devices and properties


def test_a_device_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        Unsupported,
        match=r"TARGET_DEVICE is 'NPU.9', but OpenVINO finds no device 'NPU.9' here; it finds .*'CPU'",
    ):
        load(tmp_path, parameters=parameters(TARGET_DEVICE="NPU.9"))


def test_an_instance_on_a_gpu_is_refused_with_the_devices_there_are(open_model):
    model = open_model(make_add())

    with pytest.raises(
        Unsupported, match=r"KIND_GPU is not supported by the openvino backend here: .*'CPU'.*TARGET_DEVICE"
    ):
        model.loaded.create_instance(Placement("m_0", "KIND_GPU"))


@pytest.mark.parametrize("device", ["AUTO", "HETERO:CPU"])
def test_virtual_devices_hand_on_to_the_cpu(open_model, device):
    model = open_model(make_add(), parameters=parameters(TARGET_DEVICE=device))

    np.testing.assert_array_equal(2 * ones(1, 16), model.execute(A=ones(1, 16), B=ones(1, 16))["S"])
    assert not model.instance.may_run_inline


def test_a_library_that_cannot_be_loaded_is_named(tmp_path):
    save(make_add(), tmp_path / "1" / "model.xml")

    with pytest.raises(InvalidArgument, match=r"CPU_EXTENSION_PATH: '/no/such\.so' cannot be loaded: "):
        load(tmp_path, parameters=parameters(CPU_EXTENSION_PATH="/no/such.so"))


def compiled_property(model, name):
    return model.loaded._compiled.get_property(name)


def test_precision_is_that_of_the_file_unless_asked_for_less(open_model):
    assert "f32" == compiled_property(open_model(make_add()), "INFERENCE_PRECISION_HINT").get_type_name()

    faster = open_model(make_add(), parameters=parameters(HINT_BF16="YES"))

    if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert "bf16" == compiled_property(faster, "INFERENCE_PRECISION_HINT").get_type_name()


def test_threads_for_compiling_are_none_of_the_cpus(open_model, caplog):
    open_model(make_add(), parameters=parameters(COMPILATION_NUM_THREADS="2"))

    assert "'COMPILATION_NUM_THREADS' is none of OpenVINO's on CPU and has no effect" in caplog.text


def test_properties_reach_openvino(open_model, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    cache = tmp_path / "cache"
    given = parameters(
        CPU_THREADS_NUM="1",
        CPU_BIND_THREAD="NO",
        DYNAMIC_QUANTIZATION_GROUP_SIZE="64",
        CACHE_DIR=str(cache),
        DYNAMIC_QUANTISATION_GROUP_SIZE="1",
        **{"openvino.CPU_DENORMALS_OPTIMIZATION": "YES"},
    )

    model = open_model(make_add(), parameters=given)

    assert 1 == compiled_property(model, "INFERENCE_NUM_THREADS")
    assert 64 == compiled_property(model, "DYNAMIC_QUANTIZATION_GROUP_SIZE")
    assert compiled_property(model, "CPU_DENORMALS_OPTIMIZATION")
    assert list(cache.glob("*.blob"))
    assert "precision f32, 1 streams, 1 threads" in caplog.text
    assert (
        "'DYNAMIC_QUANTISATION_GROUP_SIZE' is none of OpenVINO's on CPU and has no effect; did you mean"
        in caplog.text
    )


@pytest.mark.parametrize("key", ["openvino.NO_SUCH_PROPERTY", "SCHEDULING_CORE_TYPE"])
def test_what_openvino_refuses_is_told(open_model, key):
    with pytest.raises(
        InvalidArgument,
        match=rf"OpenVINO cannot compile it for CPU \(with .*{key.removeprefix('openvino.')}=x",
    ):
        open_model(make_add(), parameters=parameters(**{key: "x"}))


def test_streams_without_instances_are_told(open_model, caplog):
    caplog.set_level(logging.INFO)

    open_model(make_add(), parameters=parameters(NUM_STREAMS="2", INFERENCE_NUM_THREADS="2"))

    assert "has streams for 2 executions at once, but 1 instances" in caplog.text


def test_instances_share_weights_and_have_a_stream_each(open_model):
    groups = (ModelInstanceGroup("m", "KIND_CPU", 2),)
    model = open_model(make_add(), instance_group=groups)
    other = model.loaded.create_instance(Placement("m_1"))

    np.testing.assert_array_equal(2 * ones(1, 16), other.execute({"A": ones(1, 16), "B": ones(1, 16)})["S"])
    other.close()
    with pytest.raises(BackendFailed, match="closed"):
        other.execute({})


def test_numbers_that_openvino_narrows_are_told(open_model, caplog):
    caplog.set_level(logging.INFO)

    model = open_model(make_add((-1, 2), "i64"))

    assert "it has such values in 'A', 'B', 'S'" in caplog.text
    big = np.full((1, 2), 2**40 + 5, np.int64)
    assert 5 == model.execute(A=big, B=0 * big)["S"][0, 0]


# Quiet


QUIET = """
import socket, sys, threading

def refuse(*args, **kwargs):
    raise AssertionError(f"something wants to talk to {args}")

socket.socket.connect = socket.getaddrinfo = refuse
import numpy as np
from pathlib import Path
from openvino_models import OpenModel, context, make_add, save

save(make_add(), Path(sys.argv[1]) / "1/model.xml")
model = OpenModel(context(Path(sys.argv[1])))
model.execute(A=np.ones((1, 16), np.float32), B=np.ones((1, 16), np.float32))
assert "openvino_telemetry" not in sys.modules
assert ["MainThread"] == [thread.name for thread in threading.enumerate()]
import openvino_telemetry  # it is there for those who want it
"""


@pytest.mark.slow
def test_nothing_phones_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET, str(tmp_path / "m")],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": TESTS, "HOME": str(home)},
    )

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    assert [] == list(home.iterdir())


def test_errors_of_a_run_are_readable(open_model):
    with pytest.raises(BiremeError) as caught:
        open_model(make_add()).execute(A=ones(1, 8), B=ones(1, 8))

    assert "src/" not in caught.value.message
    assert "shape=[?,16]" in caught.value.message
