"""The onnxruntime backend over real files: every data type, every kind of file, and errors that say what to do."""

import logging
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from bireme.backends.interface import Placement
from bireme.backends.onnxruntime import runtime as runtime_module, session as session_module
from bireme.backends.onnxruntime.settings import BackendSettings
from bireme.config.model_config import (
    Accelerator,
    ExecutionAccelerators,
    ModelInput,
    ModelInstanceGroup,
    ModelOperations,
    ModelOptimizationPolicy,
    ModelOutput,
    ModelParameter,
    OptimizationGraph,
)
from bireme.types import BackendFailed, InvalidArgument, NotFound, Unsupported, datatypes
from onnx_models import save_add, save_graph, save_identity, save_matmul, save_plus_one, tensor_info


def ones(*shape: int):
    return np.ones(shape, np.float32)


# Running.


def test_an_add_model(open_model):
    model = open_model(save_add)

    outputs = model.execute(INPUT0=np.arange(16, dtype=np.float32), INPUT1=ones(16))

    assert list(outputs) == ["OUTPUT0", "OUTPUT1"]
    assert outputs["OUTPUT0"].tolist() == list(range(1, 17))
    assert outputs["OUTPUT1"].tolist() == list(range(-1, 15))


def test_only_the_outputs_that_the_config_lists_are_returned(open_model):
    model = open_model(
        save_add,
        output=(ModelOutput("OUTPUT1", "TYPE_FP32", dims=(16,)),),
        input=tuple(ModelInput(name, "TYPE_FP32", dims=(16,)) for name in ("INPUT1", "INPUT0")),
    )

    assert list(model.execute(INPUT0=ones(16), INPUT1=ones(16))) == ["OUTPUT1"]


VALUES = {
    "BOOL": [True, False],
    "UINT64": [0, 2**64 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP16": [1.5, float("inf")],
    "FP32": [-0.25, 1e30],
    "FP64": [1e300, -1.0],
    "BYTES": ["é".encode(), b"a\0b"],
}


@pytest.mark.parametrize("datatype", list(datatypes.NUMPY_DTYPES))
@pytest.mark.parametrize("batch", [False, True])
def test_every_data_type_goes_in_and_out_unchanged(open_model, datatype, batch):
    model = open_model(partial(save_identity, datatype=datatype, dims=(2,), batch=batch))
    array = np.array(VALUES.get(datatype, [0, 1]), dtype=object).astype(datatypes.NUMPY_DTYPES[datatype])
    array = array.reshape(1, 2) if batch else array

    result = model.infer({"X": array})["Y"]

    assert (result.datatype, result.shape) == (datatype, array.shape)
    assert result.to_numpy().tolist() == array.tolist()


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16", "INT64"])
def test_tensors_without_elements(open_model, datatype):
    model = open_model(partial(save_identity, datatype=datatype, dims=(-1, 3)), max_batch_size=0)
    array = np.empty((0, 3), datatypes.NUMPY_DTYPES[datatype])

    assert model.infer({"X": array})["Y"].shape == (0, 3)


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16"])
def test_scalars_are_one_element_for_clients(open_model, datatype):
    model = open_model(partial(save_identity, datatype=datatype, dims=()))
    value = {"BYTES": b"x", "BF16": 0x3F80}.get(datatype, 2.0)

    result = model.infer({"X": np.array([value], datatypes.NUMPY_DTYPES[datatype])})["Y"]

    assert model.config.input[0].dims == model.config.output[0].dims == (1,)
    assert result.to_numpy().tolist() == [value]


def test_an_output_of_unknown_rank_may_have_any(open_model):
    """The file says nothing about the shape of Y, which looks like a scalar, and is a matrix."""

    def save(path):
        return save_graph(
            path,
            [helper.make_node("Reshape", ["X", "S"], ["Y"])],
            [tensor_info("X", "FP32", (6,)), tensor_info("S", "INT64", (-1,))],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        )

    model = open_model(save, output=(ModelOutput("Y", "TYPE_FP32", dims=(-1, -1)),))

    assert model.infer({"X": ones(6), "S": np.array([2, 3])})["Y"].shape == (2, 3)


def test_dynamic_shapes(open_model):
    model = open_model(partial(save_identity, dims=(-1, 2, -1), batch=True))

    for shape in ((1, 3, 2, 1), (2, 1, 2, 7)):
        assert model.infer({"X": ones(*shape)})["Y"].shape == shape


def test_a_strided_or_unaligned_input_is_read_right(open_model):
    model = open_model(save_add)
    strided = np.arange(32, dtype=np.float32)[::2]
    unaligned = np.frombuffer(b"\0" + np.arange(16, dtype=np.float32).tobytes(), np.float32, 16, 1)

    outputs = model.execute(INPUT0=strided, INPUT1=unaligned)

    assert outputs["OUTPUT0"].tolist() == [3.0 * i for i in range(16)]


def test_a_result_is_no_copy_and_outlives_its_session(open_model):
    model = open_model(partial(save_identity, dims=(1000,)))
    array = np.arange(1000, dtype=np.float32)

    result = model.execute(X=array)["Y"]
    model.close()

    assert not result.flags.owndata
    assert not np.shares_memory(result, array)
    assert np.array_equal(result, array)


@pytest.mark.parametrize("datatype", ["BF16", "FP32"])
def test_a_bf16_model_may_have_other_tensors_too(open_model, datatype):
    def save(path):
        return save_graph(
            path,
            [
                helper.make_node("Cast", ["X"], ["Y"], to=TensorProto.FLOAT),
                helper.make_node("Identity", ["Z"], ["W"]),
            ],
            [tensor_info("X", "BF16", (2,)), tensor_info("Z", "FP32", (1,))],
            [tensor_info("Y", "FP32", (2,)), tensor_info("W", "FP32", (1,))],
        )

    model = open_model(save)
    bits = np.array([1.5, -2], ml_dtypes.bfloat16)

    outputs = model.infer({"X": bits, "Z": ones(1)})

    assert outputs["Y"].to_numpy().tolist() == [1.5, -2]
    assert outputs["W"].to_numpy().tolist() == [1]


def test_a_bf16_result_is_a_view_that_keeps_its_memory(open_model):
    model = open_model(partial(save_identity, datatype="BF16", dims=(-1,)), max_batch_size=0)
    results = [model.execute(X=np.full(1000, i, np.uint16))["Y"] for i in range(20)]

    assert [int(result[0]) for result in results] == list(range(20))
    assert all(not result.flags.owndata for result in results)


def test_strings_that_are_no_text(open_model):
    """Bytes that are not UTF-8 go in; only text comes out of onnxruntime's Python interface."""

    def save(path):
        node = helper.make_node("StringConcat", ["X", "X"], ["Y"])
        same = helper.make_node("Equal", ["X", "X"], ["Z"])
        return save_graph(
            path,
            [node, same],
            [tensor_info("X", "BYTES", (2,))],
            [tensor_info("Z", "BOOL", (2,)), tensor_info("Y", "BYTES", (2,))],
            opset=20,
        )

    outputs = (ModelOutput("Z", "TYPE_BOOL", dims=(2,)),)
    model = open_model(save, output=outputs)

    assert model.execute(X=np.array([b"\xff", b"ab"], object))["Z"].tolist() == [True, True]
    with pytest.raises(
        InvalidArgument, match="input 'X': element 1 holds a NUL byte, and not every element is UTF-8"
    ):
        model.execute(X=np.array([b"\xff", b"a\0b"], object))


def test_a_string_result_that_is_no_text_is_named(open_model):
    model = open_model(partial(save_identity, datatype="BYTES", dims=(1,)))

    with pytest.raises(BackendFailed, match="a string output is not UTF-8 text"):
        model.execute(X=np.array([b"\xff"], object))


def test_strings_and_bf16_do_not_mix(open_model):
    def save(path):
        return save_graph(
            path,
            [helper.make_node("Identity", ["X"], ["Y"]), helper.make_node("Identity", ["B"], ["C"])],
            [tensor_info("X", "BYTES", (1,)), tensor_info("B", "BF16", (1,))],
            [tensor_info("Y", "BYTES", (1,)), tensor_info("C", "BF16", (1,))],
        )

    with pytest.raises(
        InvalidArgument, match=r"takes strings \(input 'X'\) and has BF16 .* FP16 or FP32 instead"
    ):
        open_model(save)


def test_an_initializer_may_be_overridden_or_left_out(open_model):
    def save(path):
        weight = helper.make_tensor("W", TensorProto.FLOAT, [1], [10.0])
        return save_graph(
            path,
            [helper.make_node("Add", ["X", "W"], ["Y"])],
            [tensor_info("X", "FP32", (1,)), tensor_info("W", "FP32", (1,))],
            [tensor_info("Y", "FP32", (1,))],
            [weight],
        )

    model = open_model(
        save,
        input=(
            ModelInput("X", "TYPE_FP32", dims=(1,)),
            ModelInput("W", "TYPE_FP32", dims=(1,), optional=True),
        ),
    )

    assert model.execute(X=ones(1))["Y"].tolist() == [11]
    assert model.execute(X=ones(1), W=ones(1))["Y"].tolist() == [2]


def test_a_failing_run_raises_what_onnxruntime_says(open_model, caplog):
    model = open_model(save_add)

    with caplog.at_level(logging.DEBUG), pytest.raises(Exception, match="Got: 15 Expected: 16"):
        model.execute(INPUT0=ones(15), INPUT1=ones(16))

    assert caplog.records == []


def test_a_closed_instance_does_not_run(open_model):
    model = open_model(save_add)
    model.close()

    with pytest.raises(BackendFailed, match="the instance is closed"):
        model.execute(INPUT0=ones(16), INPUT1=ones(16))


# One session.


def test_all_instances_share_one_session(open_model, monkeypatch):
    opened = []
    make = onnxruntime.InferenceSession
    monkeypatch.setattr(
        session_module.ort,
        "InferenceSession",
        lambda *args, **kwargs: opened.append(1) or make(*args, **kwargs),
    )

    model = open_model(save_matmul, instance_group=(ModelInstanceGroup("g", "KIND_CPU", 8),))
    instances = [model.loaded.create_instance(Placement(f"g_{index}")) for index in range(8)]

    assert len(opened) == 1
    assert all(np.array_equal(each.execute({"X": ones(1, 256)})["Y"], ones(1, 256)) for each in instances)
    assert all(each.may_run_inline for each in instances)


def test_instances_run_at_the_same_time_and_keep_their_own_results(open_model):
    model = open_model(save_matmul)
    instances = [model.loaded.create_instance(Placement(f"m_{index}")) for index in range(4)]

    def run(number: int) -> bool:
        array = np.full((1, 256), number, np.float32)
        return all(np.array_equal(instances[number].execute({"X": array})["Y"], array) for _ in range(25))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(4))) == [True] * 4


# Completing and checking the config.


def test_a_config_is_completed_from_the_file(open_model):
    model = open_model(partial(save_add, batch=True), backend_config={"default_max_batch_size": "6"})

    assert model.config.max_batch_size == 6
    assert model.config.dynamic_batching is not None
    assert [tensor.name for tensor in model.config.input] == ["INPUT0", "INPUT1"]


def test_a_model_of_vectors_batches_its_only_dimension(open_model):
    model = open_model(save_plus_one)

    assert model.infer({"X": np.array([[1], [2]], np.float32)})["Y"].to_numpy().tolist() == [[2], [3]]


def test_all_faults_of_a_config_are_told_at_once(open_model):
    with pytest.raises(InvalidArgument) as caught:
        open_model(
            save_add,
            input=(
                ModelInput("INPUT0", "TYPE_INT32", dims=(16,)),
                ModelInput("INPUT1", "TYPE_FP32", dims=(4,)),
            ),
            output=(ModelOutput("OUT", "TYPE_FP32", dims=(16,)),),
        )

    assert caught.value.message == (
        "unable to load model 'm': input 'INPUT0': the config's data_type is TYPE_INT32, but the model file has TYPE_FP32; "
        "input 'INPUT1': the config's dims [4], but the model file has [16]; output 'OUT' is in the config, but not in the "
        "model file, which has 'OUTPUT0', 'OUTPUT1'"
    )


def save_iris(path: Path) -> Path:
    """A classifier as scikit-learn exports it: its second output is a sequence of maps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(Path(onnxruntime.__file__).parent / "datasets" / "logreg_iris.onnx", path))


def test_an_output_that_is_no_tensor_cannot_be_served(open_model):
    with pytest.raises(
        Unsupported, match=r"output 'probabilities' .* is a seq\(map.*list the outputs to serve.*'label'"
    ):
        open_model(save_iris)


def test_the_tensor_beside_it_can(open_model):
    model = open_model(save_iris, output=(ModelOutput("label", "TYPE_INT64", dims=(3,)),))

    assert model.infer({"float_input": ones(3, 2)})["label"].shape == (3,)


# Files.


def test_a_folder_may_hold_the_model_and_its_external_data(open_model, load, tmp_path):
    folder = tmp_path / "1" / "model.onnx"

    def save(path):
        return save_matmul(path / "model.onnx", size=64)

    save(folder)
    onnx.save(
        onnx.load(folder / "model.onnx"),
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    assert (folder / "weights.bin").stat().st_size >= 64 * 64 * 4

    model = open_model(lambda path: path)
    assert model.execute(X=ones(1, 64))["Y"].tolist() == [[1] * 64]

    (folder / "weights.bin").unlink()
    with pytest.raises(
        InvalidArgument, match=r"cannot load '.*': External data path .* does not exist: .*weights\.bin"
    ):
        load(default_model_filename="model.onnx")


def save_ort(path: Path) -> Path:
    """Write an ORT-format file, as onnxruntime's own converter does."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(save_add(path.with_name("source.onnx")), options)
    return path


@pytest.mark.parametrize("filename", ["model.ort", ""])
def test_ort_files(load, tmp_path, filename):
    save_ort(tmp_path / "1" / "model.ort")

    loaded = load(default_model_filename=filename)

    assert list(loaded.signature.inputs) == ["INPUT0", "INPUT1"]
    loaded.close()


def test_any_file_name(open_model):
    assert open_model(save_add, filename="add_v7.onnx").config.output


def test_a_missing_file_is_answered_with_what_is_there(load, tmp_path):
    save_add(tmp_path / "1" / "modell.onnx")

    with pytest.raises(NotFound) as caught:
        load(default_model_filename="model.onnx")

    folder = tmp_path / "1"
    assert (
        caught.value.message
        == f"unable to find '{folder}/model.onnx' for model 'm'; '{folder}' holds 'modell.onnx'"
    )


def test_a_missing_folder_is_named(load, tmp_path):
    with pytest.raises(
        NotFound,
        match=f"unable to find '{tmp_path}/1/model.onnx' for model 'm'; '{tmp_path}/1' holds nothing",
    ):
        load()


def test_an_empty_folder_is_named(load, tmp_path):
    folder = tmp_path / "1" / "model.onnx"
    folder.mkdir(parents=True)

    with pytest.raises(
        NotFound, match=f"unable to find '{folder}/model.onnx' for model 'm'; '{folder}' holds nothing"
    ):
        load(default_model_filename="model.onnx")


def with_operator(path: Path, operator: str) -> None:
    model = onnx.load(save_add(path))
    model.graph.node[0].op_type = operator
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_bytes(b"not a model at all"), "Protobuf parsing failed."),
        (
            lambda path: path.write_bytes(
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
            ),
            "the file is a Git LFS pointer, not the model itself; fetch it with: git lfs pull",
        ),
        (lambda path: with_operator(path, "Foo"), "No Op registered for Foo with domain_version of 17"),
    ],
    ids=["empty", "junk", "git lfs", "unknown operator"],
)
def test_a_file_that_cannot_be_loaded_is_named_with_the_reason(load, tmp_path, write, expected):
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    write(path)

    with pytest.raises(InvalidArgument) as caught:
        load(default_model_filename="model.onnx")

    assert caught.value.message.startswith(f"model 'm': onnxruntime cannot load '{path}': ")
    assert expected in caught.value.message
    assert "ONNXRuntimeError" not in caught.value.message
    assert "\n" not in caught.value.message


def test_an_unreadable_file_is_named(load, tmp_path, monkeypatch):
    path = save_add(tmp_path / "1" / "model.onnx")
    monkeypatch.setattr(
        session_module.ort, "InferenceSession", lambda *_args, **_kwargs: path.unlink() or 1 / 0
    )

    with pytest.raises(InvalidArgument, match=f"cannot load '{path}': No such file or directory"):
        load()


# Options.


def test_every_option_reaches_onnxruntime(open_model):
    parameters = {
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "false",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
    }
    model = open_model(
        save_add,
        parameters={key: ModelParameter(value) for key, value in parameters.items()},
        optimization=ModelOptimizationPolicy(graph=OptimizationGraph(level=-1)),
    )

    options = model.loaded._sessions[None].get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    with pytest.raises(Exception, match="arena"):  # there is no arena to shrink: the run option arrived
        model.execute(INPUT0=ones(16), INPUT1=ones(16))


def test_an_arena_may_be_shrunk_after_each_run(open_model):
    model = open_model(save_add, parameters={"memory.enable_memory_arena_shrinkage": ModelParameter("cpu:0")})

    assert model.execute(INPUT0=ones(16), INPUT1=ones(16))["OUTPUT0"][0] == 2


def test_an_accelerator_that_is_not_installed_is_answered_with_those_that_are(open_model):
    accelerators = ExecutionAccelerators(cpu_execution_accelerator=(Accelerator("tensorrt"),))

    with pytest.raises(
        InvalidArgument, match=r"'tensorrt' is not available: the installed onnxruntime has .*cpu"
    ):
        open_model(save_add, optimization=ModelOptimizationPolicy(execution_accelerators=accelerators))


def test_an_operator_library_that_cannot_be_loaded_is_named(open_model, tmp_path):
    (tmp_path / "libops.so").write_bytes(b"not a library")

    with pytest.raises(
        InvalidArgument, match=rf"operator library 'libops\.so' cannot be loaded: .*{tmp_path}/libops\.so"
    ):
        open_model(save_add, model_operations=ModelOperations(("libops.so",)))


def test_operators_may_be_registered_by_a_python_file(open_model, tmp_path):
    (tmp_path / "ops.py").write_text(
        "def register_operators(session_options):\n"
        "    session_options.add_free_dimension_override_by_name('seen', 1)\n"
        f"    open({str(tmp_path / 'seen')!r}, 'w').close()\n"
    )

    model = open_model(save_add, model_operations=ModelOperations(("ops.py",)))

    assert model.execute(INPUT0=ones(16), INPUT1=ones(16))["OUTPUT0"][0] == 2
    assert (tmp_path / "seen").exists()


@pytest.mark.parametrize(
    ("text", "reason"), [("", r"it has no function register_operators"), ("1/0", "division by zero")]
)
def test_a_python_file_that_registers_nothing_is_named(open_model, tmp_path, text, reason):
    (tmp_path / "ops.py").write_text(text)

    with pytest.raises(InvalidArgument, match=rf"operator library 'ops\.py' cannot be loaded: {reason}"):
        open_model(save_add, model_operations=ModelOperations(("ops.py",)))


# The process.


def save_noisy(path: Path) -> Path:
    """A model that onnxruntime has a warning about: the declared shape of the output is wrong."""
    return save_graph(
        path,
        [helper.make_node("Identity", ["X"], ["Y"])],
        [tensor_info("X", "FP32", (-1,))],
        [tensor_info("Y", "FP32", (7,))],
        [helper.make_tensor("unused", TensorProto.FLOAT, [1], [0.0])],
    )


def test_onnxruntimes_own_warnings_go_to_our_log_at_a_low_level(open_model, caplog, capfd):
    with caplog.at_level(logging.DEBUG, "bireme"):
        open_model(save_noisy, max_batch_size=0).execute(X=ones(3))

    (record,) = [record for record in caplog.records if "unused" in record.getMessage()]
    assert record.levelno == logging.INFO
    assert record.name == "bireme.backends.onnxruntime"
    assert capfd.readouterr() == ("", "")


def test_an_onnxruntime_that_cannot_log_through_us_is_silenced(monkeypatch):
    """Before version 1.32 there is no way to hand records on."""
    severities = []
    monkeypatch.delattr(runtime_module.ort, "set_default_logger_callback")
    monkeypatch.setattr(runtime_module.ort, "set_default_logger_severity", severities.append)

    runtime_module._route_log()

    assert severities == [3]


def test_the_global_pool_is_made_once(monkeypatch, caplog):
    made = []
    monkeypatch.setattr(session_module.ort, "set_global_thread_pool_sizes", lambda *sizes: made.append(sizes))
    pool = session_module._GlobalPool()

    def use(uses: bool, threads: int = 3) -> bool:
        return pool.use(BackendSettings(4, uses, threads, 1))

    assert not use(False)
    assert use(True)
    assert use(True)
    assert caplog.records == []
    assert use(True, 5)
    assert "has sizes (3, 1) (intra, inter) already; (5, 1) is ignored" in caplog.text
    assert use(False)
    assert made == [(3, 1)]


def run_python(code: str, tmp_path: Path) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=50
    ).stdout


def test_importing_the_backend_starts_no_thread_and_opens_no_file(tmp_path):
    """onnxruntime 1.32 would start telemetry: a thread, and a database in the home directory."""
    code = """
import os
import numpy
threads, files = os.listdir("/proc/self/task"), os.listdir("/proc/self/fd")
import bireme.backends.onnxruntime
print(os.listdir("/proc/self/task") == threads, os.listdir("/proc/self/fd") == files)
"""
    assert run_python(code, tmp_path) == "True True\n"


def test_models_may_share_a_global_thread_pool(tmp_path):
    for name in ("a", "b"):
        save_matmul(tmp_path / name / "1" / "model.onnx")
    code = """
import os, sys
from pathlib import Path
import numpy as np
from bireme.backends.interface import ModelContext, Placement
from bireme.backends.onnxruntime import OnnxRuntimeBackend
from bireme.config import ModelConfig
root, backend = Path(sys.argv[1]), OnnxRuntimeBackend()
settings = {"enable-global-threadpool": "1", "intra_op_thread_count": "3"}
before = len(os.listdir("/proc/self/task"))
for name, given in (("a", settings), ("b", {**settings, "intra_op_thread_count": "4"}), ("a", {})):
    model = backend.load(ModelContext(name, 1, root / name, root / name / "1", ModelConfig(name=name), given))
    model.complete_config(ModelConfig(name=name))
    print(model.create_instance(Placement("i")).execute({"X": np.ones((1, 256), np.float32)})["Y"].sum())
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run_python(code, tmp_path) == "256.0\n256.0\n256.0\n2\n"
