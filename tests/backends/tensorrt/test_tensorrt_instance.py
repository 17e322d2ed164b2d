"""Runs of a TensorRT engine: results, copies, waits, profiles, shape tensors, allocators, device arrays, and what goes wrong."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bireme.backends.interface import Placement
from bireme.types import BackendFailed, InvalidArgument
from fake_tensorrt import PROFILE, X, Y, plan, tensor

KIND = "KIND_GPU"


def make(model, device=0, profile=()):
    instance = model.loaded.create_instance(Placement("m_0", KIND, device, profile))
    model.instances.append(instance)
    return instance


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def test_a_batch_is_computed_with_one_copy_each_way_and_one_wait(open_model, gpu):
    instance = make(open_model())

    result = instance.execute({"x": numbers(2, 3)})

    assert list(result) == ["y"]
    np.testing.assert_array_equal(result["y"], numbers(2, 3) * 2)
    assert gpu.cuda.copies_in == [24]
    assert gpu.cuda.copies_out == [24]
    assert gpu.cuda.num_waits == 1


def test_results_belong_to_the_caller(open_model):
    instance = make(open_model())
    first = instance.execute({"x": ones(2, 3)})["y"]

    instance.execute({"x": ones(2, 3) * 7})

    assert (first == 2).all()
    assert first.flags.writeable


def test_buffers_are_used_again_and_grow_when_they_must(open_model, gpu):
    big = tensor("x", "INPUT", [-1, 1000]), tensor("y", "OUTPUT", [-1, 1000])
    instance = make(open_model(plan(tensors=big, profiles=[{"x": [[1, 1000], [4, 1000], [8, 1000]]}])))
    instance.execute({"x": ones(2, 1000)})
    memory, pinned = set(gpu.cuda.device_memory), set(gpu.cuda.host_memory)

    instance.execute({"x": ones(1, 1000)})
    assert (set(gpu.cuda.device_memory), set(gpu.cuda.host_memory)) == (memory, pinned)

    result = instance.execute({"x": ones(8, 1000)})["y"]
    assert result.shape == (8, 1000)
    assert len(gpu.cuda.device_memory) == len(memory)
    assert len(gpu.cuda.host_memory) == len(pinned)


def test_the_same_shapes_are_inferred_once(open_model, gpu):
    instance = make(open_model())
    for size in (2, 2, 3, 3, 2):
        assert instance.execute({"x": ones(size, 3)})["y"].shape == (size, 3)

    assert gpu.trt.num_inferred == 3


def test_strided_and_read_only_inputs_are_taken(open_model):
    instance = make(open_model())
    array = numbers(6, 6)[::2, ::2]
    array.flags.writeable = False

    np.testing.assert_array_equal(instance.execute({"x": array})["y"], array * 2)


@pytest.mark.parametrize(
    ("native", "dtype"),
    [
        ("FLOAT", np.float32),
        ("HALF", np.float16),
        ("BF16", np.uint16),
        ("INT8", np.int8),
        ("UINT8", np.uint8),
        ("INT32", np.int32),
        ("INT64", np.int64),
        ("BOOL", np.bool_),
    ],
)
def test_data_types_pass_through(open_model, native, dtype):
    tensors = [tensor("x", "INPUT", [-1, 3], native), tensor("y", "OUTPUT", [-1, 3], native)]
    instance = make(open_model(plan("copy", tensors)))
    array = numbers(2, 3).astype(dtype)

    result = instance.execute({"x": array})["y"]

    assert result.dtype == dtype
    np.testing.assert_array_equal(result, array)


def test_an_array_of_another_data_type_is_not_cast_in_silence(open_model):
    instance = make(open_model())
    with pytest.raises(TypeError, match="Cannot cast"):
        instance.execute({"x": numbers(2, 3, dtype=np.int32)})


def test_only_outputs_of_the_config_are_copied(open_model, gpu):
    tensors = [X, Y, tensor("sum", "OUTPUT", [-1])]
    config = (
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 3 } '
        'output { name: "sum" data_type: TYPE_FP32 dims: 1 reshape: { } }'
    )
    instance = make(open_model(plan("two", tensors), config))

    result = instance.execute({"x": numbers(2, 3)})

    assert list(result) == ["sum"]
    np.testing.assert_array_equal(result["sum"], [3, 12])
    assert gpu.cuda.copies_out == [8]


def test_two_inputs_and_a_missing_one(open_model):
    tensors = [X, tensor("z", "INPUT", [-1, 3]), Y]
    instance = make(open_model(plan("add", tensors, [{**PROFILE, "z": PROFILE["x"]}])))

    np.testing.assert_array_equal(instance.execute({"x": ones(1, 3), "z": ones(1, 3)})["y"], ones(1, 3) * 2)
    with pytest.raises(InvalidArgument, match="input 'z' is missing"):
        instance.execute({"x": ones(1, 3)})


def test_fixed_shapes_and_scalars_without_batching(open_model):
    tensors = [tensor("x", "INPUT", []), tensor("y", "OUTPUT", [])]
    model = open_model(plan(tensors=tensors, profiles=[{}]))
    assert model.config.max_batch_size == 0
    assert [tuple(each.dims) for each in (*model.config.input, *model.config.output)] == [(1,), (1,)]

    result = make(model).execute({"x": ones(1)})["y"]

    assert result.shape == (1,)
    assert result[0] == 2


def test_empty_tensors_are_not_copied(open_model, gpu):
    profiles = [{"x": [[0, 3], [4, 3], [8, 3]]}]
    instance = make(open_model(plan(profiles=profiles)))

    assert instance.execute({"x": ones(0, 3)})["y"].shape == (0, 3)
    assert gpu.cuda.copies_in == gpu.cuda.copies_out == []


# --- profiles ---


SMALL_LARGE = [PROFILE, {"x": [[8, 3], [16, 3], [32, 3]]}]


def test_each_batch_runs_with_the_nearest_profile(open_model):
    model = open_model(plan(profiles=SMALL_LARGE), 'instance_group { profile: [ "0", "1" ] }')
    assert model.config.max_batch_size == 32
    instance = make(model, profile=("0", "1"))

    for size in (1, 30, 8, 2, 32):
        np.testing.assert_array_equal(instance.execute({"x": numbers(size, 3)})["y"], numbers(size, 3) * 2)


def test_without_a_profile_it_is_the_first_and_an_error_names_one_that_would_do(open_model):
    config = 'max_batch_size: 8 instance_group [ { profile: "0" }, { profile: "1" } ]'
    instance = make(open_model(plan(profiles=SMALL_LARGE), config))

    with pytest.raises(InvalidArgument) as caught:
        instance.execute({"x": ones(20, 3)})

    assert caught.value.message == (
        "no optimization profile holds the batch: input 'x' has shape [20, 3], profile 0 takes [1 to 8, 3]; profile 1 of the "
        "engine would do: list it in 'profile' of the instance_group"
    )
    assert instance.execute({"x": ones(8, 3)})["y"].shape == (8, 3)


def test_a_profile_other_than_the_first_is_selected(open_model):
    instance = make(open_model(plan(profiles=SMALL_LARGE), 'instance_group { profile: "1" }'), profile=("1",))
    assert instance.execute({"x": ones(20, 3)})["y"].shape == (20, 3)


def test_a_profile_that_the_engine_does_not_have(open_model):
    with pytest.raises(InvalidArgument, match="names 7, but the engine has 2 optimization profiles: 0, 1"):
        open_model(plan(profiles=SMALL_LARGE), 'instance_group { profile: "7" }')


@pytest.mark.parametrize("strategy", ["STATIC", "ON_PROFILE_CHANGE"])
def test_a_context_for_each_profile_with_the_models_strategy(open_model, gpu, strategy):
    config = (
        f'parameters {{ key: "execution_context_allocation_strategy" value {{ string_value: "{strategy}" }} }}'
        'instance_group { profile: [ "0", "1", "1" ] }'
    )
    make(open_model(plan(profiles=SMALL_LARGE), config), profile=("0", "1", "1"))
    assert gpu.trt.strategies == [strategy, strategy]


# --- shapes that depend on data, and shape tensors ---


def test_an_output_whose_shape_only_the_data_tell(open_model):
    instance = make(open_model(plan("positive", [tensor("x", "INPUT", [-1]), tensor("y", "OUTPUT", [-1])], [{"x": [[1], [4], [9000]]}]), "max_batch_size: 0 " + IO_1D))  # fmt: skip

    for values in ([1, -2, 3], [-1, -1], list(range(5000)), [4]):
        array = np.array(values, np.float32)
        np.testing.assert_array_equal(instance.execute({"x": array})["y"], array[array > 0])


IO_1D = 'input { name: "x" data_type: TYPE_FP32 dims: -1 } output { name: "y" data_type: TYPE_FP32 dims: -1 }'


def test_no_memory_for_such_an_output_is_told_and_the_next_run_works(open_model, gpu):
    tensors = [tensor("x", "INPUT", [-1]), tensor("y", "OUTPUT", [-1])]
    model = open_model(plan("positive", tensors, [{"x": [[1], [4], [9000]]}]), IO_1D)
    instance = make(model)
    gpu.cuda.memory_limit = gpu.cuda.used(0) + 40_000

    with pytest.raises(
        BackendFailed, match=r"cudaMalloc of \d+ bytes failed: out of memory .*no memory for y"
    ):
        instance.execute({"x": ones(8000)})

    assert instance.execute({"x": ones(4)})["y"].shape == (4,)


SIZE = tensor("size", "INPUT", [2], "INT32", is_shape=True, location="HOST")
RESIZE = plan(
    "resize",
    [X, SIZE, tensor("y", "OUTPUT", [-1, -1])],
    [{**PROFILE, "size": [[1, 1], [4, 4], [8, 100]]}],
)


def test_shape_tensors_of_a_batching_engine(open_model):
    model = open_model(RESIZE)
    assert model.config.max_batch_size == 8
    size = next(each for each in model.config.input if each.name == "size")
    assert (tuple(size.dims), size.is_shape_tensor) == ((1,), True)
    instance = make(model)

    for length in (5, 5, 60):
        sizes = np.full((2, 1), length, np.int32)
        result = instance.execute({"x": ones(2, 3), "size": sizes})["y"]
        np.testing.assert_array_equal(result, np.full((2, length), 6, np.float32))


def test_a_batch_has_one_shape(open_model):
    instance = make(open_model(RESIZE))
    with pytest.raises(InvalidArgument, match="the rows of shape tensor 'size' differ"):
        instance.execute({"x": ones(2, 3), "size": np.array([[3], [4]], np.int32)})


def test_values_of_shape_tensors_outside_of_the_profile(open_model):
    instance = make(open_model(RESIZE))
    with pytest.raises(
        InvalidArgument, match=r"'size' has values \[2, 101\], profile 0 takes \[1 to 8, 1 to 100\]"
    ):
        instance.execute({"x": ones(2, 3), "size": np.full((2, 1), 101, np.int32)})


def test_shape_tensors_without_batching(open_model):
    config = (
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }, '
        '{ name: "size" data_type: TYPE_INT32 dims: 2 is_shape_tensor: true } ] '
        'output { name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] }'
    )
    instance = make(open_model(RESIZE, config))

    result = instance.execute({"x": ones(2, 3), "size": np.array([1, 7], np.int32)})["y"]

    np.testing.assert_array_equal(result, np.full((1, 7), 6, np.float32))


@pytest.mark.parametrize(("batches", "expected"), [(True, [[3], [3]]), (False, [2, 3])])
def test_shape_tensors_as_outputs(open_model, gpu, batches, expected):
    tensors = [X, tensor("size", "OUTPUT", [2], "INT64", is_shape=True, location="HOST")]
    config = (
        ""
        if batches
        else 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } '
        'output { name: "size" data_type: TYPE_INT64 dims: 2 is_shape_tensor: true }'
    )
    instance = make(open_model(plan("measure", tensors), config))

    np.testing.assert_array_equal(instance.execute({"x": ones(2, 3)})["size"], expected)
    assert gpu.cuda.copies_out == []  # TensorRT writes it in memory of the host


# --- memory of the caller ---


def test_outputs_go_into_given_memory_where_they_fit(open_model):
    instance = make(open_model())
    memory = bytearray(64)

    result = instance.execute_into({"x": ones(2, 3)}, {"y": memoryview(memory)})["y"]

    np.testing.assert_array_equal(np.frombuffer(memory, np.float32, 6), np.full(6, 2))
    assert np.shares_memory(result, np.frombuffer(memory, np.uint8))
    other = instance.execute_into({"x": ones(8, 3)}, {"y": memoryview(memory)})["y"]
    assert not np.shares_memory(other, np.frombuffer(memory, np.uint8))
    np.testing.assert_array_equal(other, np.full((8, 3), 2))


def test_unaligned_memory_is_not_written_to(open_model):
    memory = bytearray(65)
    result = make(open_model()).execute_into({"x": ones(2, 3)}, {"y": memoryview(memory)[1:]})["y"]

    assert (result == 2).all()
    assert not any(memory)


def test_an_input_that_tensorrt_reads_on_the_host_is_not_copied_to_the_device(open_model, gpu):
    tensors = [tensor("x", "INPUT", [-1, 3], location="HOST"), Y]
    instance = make(open_model(plan(tensors=tensors)))

    np.testing.assert_array_equal(instance.execute({"x": numbers(2, 3)})["y"], numbers(2, 3) * 2)
    assert gpu.cuda.copies_in == []


class DeviceArray:
    """As CuPy and others show theirs."""

    def __init__(self, cuda, array, device=0, **changes):
        before = cuda.device
        cuda.cudaSetDevice(device)
        _, self.address = cuda.cudaMalloc(array.nbytes)
        cuda.cudaSetDevice(before)
        cuda.memory_at(self.address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        self.shape = array.shape
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.address, False),
            "version": 3,
            **changes,
        }


@pytest.fixture
def on_device(gpu):
    arrays = []

    def put(array, device=0, **changes):
        arrays.append(DeviceArray(gpu.cuda, array, device, **changes))
        return arrays[-1]

    yield put
    for array in arrays:
        gpu.cuda.cudaFree(array.address)


def test_an_input_on_the_device_is_not_copied(open_model, gpu, on_device):
    instance = make(open_model())

    result = instance.execute({"x": on_device(numbers(2, 3), strides=(12, 4), stream=1)})["y"]

    np.testing.assert_array_equal(result, numbers(2, 3) * 2)
    assert gpu.cuda.copies_in == []
    assert gpu.cuda.others_waited_for == [1]
    np.testing.assert_array_equal(instance.execute({"x": ones(2, 3)})["y"], ones(2, 3) * 2)


def test_an_empty_input_on_the_device(open_model, on_device):
    instance = make(open_model(plan(profiles=[{"x": [[0, 3], [4, 3], [8, 3]]}])))
    empty = on_device(ones(1, 3), shape=(0, 3), data=(0, False))
    assert instance.execute({"x": empty})["y"].shape == (0, 3)


@pytest.mark.parametrize(
    ("array", "device", "changes", "message"),
    [
        (numbers(2, 3), 1, {}, "input 'x' is on device 1; the instance runs on GPU 0"),
        (numbers(2, 3), 0, {"strides": (4, 8)}, "must be C-contiguous"),
        (numbers(2, 3, dtype=np.int32), 0, {}, "a device array of int32; the engine takes float32"),
        (numbers(2, 3), 0, {"data": (256 * 99, False)}, "input 'x' is on device -1"),
        (numbers(2, 3), 0, {"data": (256 * 99 + 4, False)}, "at an address that is no multiple of 256"),
    ],
)
def test_an_array_on_the_device_that_does_not_fit(open_model, on_device, array, device, changes, message):
    instance = make(open_model())
    with pytest.raises(InvalidArgument, match=message):
        instance.execute({"x": on_device(array, device, **changes)})


# --- failures ---


def test_why_an_engine_fails_is_told(open_model, caplog):
    instance = make(open_model(plan("fails")))

    with pytest.raises(BackendFailed) as caught:
        instance.execute({"x": ones(2, 3)})

    assert caught.value.message == (
        "TensorRT cannot run the engine: IExecutionContext::enqueueV3: Error Code 2: Internal Error (Assertion failed)"
    )
    assert "enqueueV3: Error Code 2" in caplog.text


def test_instances_do_not_get_each_others_errors(open_model):
    model = open_model(plan("fails"))
    first, second = make(model), make(model)
    for instance in (first, second):
        with pytest.raises(BackendFailed) as caught:
            instance.execute({"x": ones(2, 3)})
        assert caught.value.message.count("enqueueV3") == 1


def test_an_error_of_the_device_is_raised_by_the_wait(open_model, gpu):
    instance = make(open_model())
    stream = next(iter(gpu.cuda.streams.values()))
    stream.pending.append(lambda: type(gpu.cuda.runtime.cudaError_t.cudaSuccess).cudaErrorIllegalAddress)

    with pytest.raises(
        BackendFailed, match=r"an illegal memory access was encountered \(cudaErrorIllegalAddress\)"
    ):
        instance.execute({"x": ones(2, 3)})


def test_no_memory_on_the_device_is_told_and_the_next_run_works(open_model, gpu):
    big = tensor("x", "INPUT", [-1, 1000]), tensor("y", "OUTPUT", [-1, 1000])
    model = open_model(plan(tensors=big, profiles=[{"x": [[1, 1000], [4, 1000], [800, 1000]]}]))
    instance = make(model)
    gpu.cuda.memory_limit = gpu.cuda.used(0) + 20_000

    with pytest.raises(BackendFailed, match=r"CUDA: cudaMalloc of \d+ bytes failed: out of memory"):
        instance.execute({"x": ones(500, 1000)})

    assert instance.execute({"x": ones(1, 1000)})["y"].shape == (1, 1000)


def test_what_was_begun_before_a_failure_is_waited_for(open_model, gpu):
    instance = make(open_model(plan("fails")))
    with pytest.raises(BackendFailed):
        instance.execute({"x": ones(2, 3)})

    assert all(not stream.pending for stream in gpu.cuda.streams.values())


def test_no_memory_for_a_context_gives_all_back(open_model, gpu):
    model = open_model(plan(profiles=SMALL_LARGE))
    gpu.cuda.memory_limit = gpu.cuda.used(0) + 1500

    with pytest.raises(
        BackendFailed, match=r"TensorRT cannot make an execution context: .*cudaErrorMemoryAllocation"
    ):
        make(model, profile=("0", "1"))

    assert not gpu.cuda.streams
    assert not gpu.trt.contexts


def test_a_closed_instance_says_so_and_closes_once(open_model):
    instance = make(open_model())
    instance.close()

    with pytest.raises(BackendFailed, match="the instance is closed"):
        instance.execute({"x": ones(2, 3)})


# --- several instances ---


def test_instances_share_the_weights_of_their_gpu_and_run_at_once(open_model, gpu):
    model = open_model()
    instances = [make(model, device) for device in (0, 0, 1, 1)]
    assert gpu.trt.num_engines == 2  # one for each GPU
    assert gpu.cuda.used(0) == gpu.cuda.used(1)

    def run(index):
        array = np.full((index % 8 + 1, 3), index, np.float32)
        for _ in range(20):
            np.testing.assert_array_equal(instances[index].execute({"x": array})["y"], array * 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


@pytest.mark.parametrize(("policy", "waits"), [("DEVICE_BLOCKING", True), ("BLOCKING", False)])
def test_instances_of_a_gpu_begin_in_turn_unless_told_otherwise(open_model, policy, waits):
    model = open_model(execution_policy=policy)
    first, second = make(model), make(model)
    done = threading.Event()

    def run():
        second.execute({"x": ones(1, 3)})
        done.set()

    thread = threading.Thread(target=run)
    with first._engine.turn:
        thread.start()
        assert done.wait(0.05 if waits else 10) is not waits
    thread.join()


def test_instances_wait_for_their_gpu_and_so_never_run_on_the_loop(open_model):
    assert not make(open_model()).may_run_inline
