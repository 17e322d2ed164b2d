"""What is said when TensorRT refuses one of the calls of a run, and that nothing is left behind then."""

import numpy as np
import pytest

import fake_tensorrt
from bireme.backends.interface import Placement
from bireme.types import BackendFailed
from fake_tensorrt import PROFILE, X, Y, plan, tensor

ONES = {"x": np.ones((2, 3), np.float32)}


def make(model, profile=()):
    instance = model.loaded.create_instance(Placement("m_0", "KIND_GPU", 0, profile))
    model.instances.append(instance)
    return instance


def refuse(*_arguments):
    return False


def fail(*_arguments):
    raise RuntimeError("infer_shapes error code: -1")


REFUSALS = [
    ("set_input_shape", refuse, "TensorRT does not take shape [2, 3] for input 'x'"),
    ("set_tensor_address", refuse, "TensorRT does not take an address for 'x'"),
    ("infer_shapes", fail, "TensorRT cannot tell the shapes of outputs: infer_shapes error code: -1"),
    ("infer_shapes", lambda _: ["x"], "TensorRT cannot tell the shapes of outputs without x"),
]


@pytest.mark.parametrize(("method", "replacement", "message"), REFUSALS)
def test_a_call_that_is_refused_is_named_and_the_next_run_works(
    open_model, monkeypatch, method, replacement, message
):
    instance = make(open_model())
    with monkeypatch.context() as patch:
        patch.setattr(fake_tensorrt.Context, method, replacement)
        with pytest.raises(BackendFailed) as caught:
            instance.execute(ONES)

    assert caught.value.message.startswith(message)
    assert (instance.execute(ONES)["y"] == 2).all()


def test_an_allocator_that_is_refused(open_model, monkeypatch):
    tensors = [tensor("x", "INPUT", [-1]), tensor("y", "OUTPUT", [-1])]
    io = (
        'input { name: "x" data_type: TYPE_FP32 dims: -1 } output { name: "y" data_type: TYPE_FP32 dims: -1 }'
    )
    instance = make(open_model(plan("positive", tensors, [{"x": [[1], [4], [9]]}]), io))
    monkeypatch.setattr(fake_tensorrt.Context, "set_output_allocator", refuse)

    with pytest.raises(BackendFailed, match="does not take an allocator for 'y'"):
        instance.execute({"x": np.ones(4, np.float32)})


def test_a_profile_that_cannot_be_selected_gives_all_back(open_model, gpu, monkeypatch):
    model = open_model(plan(profiles=[PROFILE, PROFILE]))
    used = gpu.cuda.used(0)
    monkeypatch.setattr(fake_tensorrt.Context, "set_optimization_profile_async", fail)

    with pytest.raises(BackendFailed, match="TensorRT cannot select profile 1: "):
        make(model, ("0", "1"))

    assert (gpu.cuda.used(0), gpu.cuda.streams) == (used, {})


def test_a_recording_that_is_refused_leaves_no_graph(open_model, gpu, monkeypatch, caplog):
    """The engine runs, but not while the stream records; CUDA itself sees nothing wrong with the recording."""
    begin = fake_tensorrt.Context.execute_async_v3

    def refuse_recordings(context, stream):
        return gpu.cuda.stream_of(stream).capture is None and begin(context, stream)

    monkeypatch.setattr(fake_tensorrt.Context, "execute_async_v3", refuse_recordings)
    instance = make(open_model(config="optimization { cuda { graphs: true } }"))

    assert (
        "a CUDA graph could not be recorded, so such batches run without: TensorRT cannot run" in caplog.text
    )
    assert not gpu.cuda.graphs
    assert (instance.execute(ONES)["y"] == 2).all()


def test_one_of_two_outputs_that_nobody_asks_for_still_has_its_place(open_model):
    tensors = [X, Y, tensor("sum", "OUTPUT", [-1])]
    config = (
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 3 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 3 }'
    )
    result = make(open_model(plan("two", tensors), config)).execute(ONES)
    assert list(result) == ["y"]
