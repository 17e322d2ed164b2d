"""CUDA graphs: for which batches they are recorded, that they compute the same, and what ends them."""

import numpy as np
import pytest

from bireme.backends.interface import Placement
from bireme.types import InvalidArgument
from fake_tensorrt import PROFILE, X, Y, plan, tensor

GRAPHS = "optimization { cuda { graphs: true } }"
IO = 'input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 3 }'


def make(model):
    instance = model.loaded.create_instance(Placement("m_0", "KIND_GPU"))
    model.instances.append(instance)
    return instance


def check(instance, size):
    array = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
    np.testing.assert_array_equal(instance.execute({"x": array})["y"], array * 2)


def launches(gpu, instance, sizes):
    """How many of the batches ran by a graph."""
    before = gpu.cuda.num_launches
    for size in sizes:
        check(instance, size)
    return gpu.cuda.num_launches - before


def test_batches_of_the_usual_sizes_run_by_graphs(open_model, gpu):
    instance = make(open_model(config=GRAPHS))
    assert len(gpu.cuda.executables) == 6

    assert launches(gpu, instance, [1, 2, 3, 4, 6, 8, 1]) == 7
    assert launches(gpu, instance, [5, 7]) == 0


@pytest.mark.parametrize(
    ("config", "with_graphs"),
    [
        ("dynamic_batching { preferred_batch_size: [ 4, 5 ] }", [1, 4, 5, 8]),
        ("sequence_batching { oldest { preferred_batch_size: 3 } }", [1, 3, 8]),
        ("sequence_batching { direct { } }", [1, 2, 3, 4, 6, 8]),
    ],
)
def test_preferred_batch_sizes_have_graphs(open_model, gpu, config, with_graphs):
    instance = make(open_model(config=f"max_batch_size: 8 {config} {GRAPHS}"))
    assert [size for size in range(1, 9) if launches(gpu, instance, [size])] == with_graphs


def test_a_model_that_does_not_batch_has_one_for_the_best_shapes(open_model, gpu):
    config = IO.replace("dims: 3", "dims: [ -1, 3 ]") + GRAPHS
    instance = make(open_model(config=config))
    assert launches(gpu, instance, [4]) == 1
    assert launches(gpu, instance, [3]) == 0


WIDE = [tensor("x", "INPUT", [-1, -1]), tensor("y", "OUTPUT", [-1, -1])]
WIDE_PROFILE = [{"x": [[1, 1], [4, 2], [8, 9]]}]


def spec(*specs):
    texts = (f"graph_spec {{ batch_size: {size} {rest} }}" for size, rest in specs)
    return f"optimization {{ cuda {{ graphs: true {' '.join(texts)} }} }}"


def shape(name, *dims):
    return f'input {{ key: "{name}" value {{ dim: {list(dims)} }} }}'


def test_graph_specs_choose_the_shapes(open_model, gpu):
    instance = make(
        open_model(plan(tensors=WIDE, profiles=WIDE_PROFILE), spec((2, shape("x", 3)), (7, shape("x", 3))))
    )
    assert launches(gpu, instance, [2, 7]) == 2
    assert launches(gpu, instance, [1, 8]) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (spec((9, shape("x", 3))), "graph_spec.batch_size is 9; expected 1 to 8"),
        (spec((0, shape("x", 3))), "graph_spec.batch_size is 0; expected 1 to 8"),
        (spec((2, shape("z", 3))), "a graph_spec gives no shape for input 'x'"),
    ],
)
def test_graph_specs_that_do_not_fit_the_model(open_model, wrong, message):
    model = open_model(plan(tensors=WIDE, profiles=WIDE_PROFILE), wrong)
    with pytest.raises(InvalidArgument, match=message):
        make(model)


def test_a_batch_size_without_batching(open_model):
    config = IO.replace("dims: 3", "dims: [ -1, 3 ]") + spec((2, shape("x", 2, 3)))
    with pytest.raises(InvalidArgument, match="expected 0, as max_batch_size is 0"):
        make(open_model(config=config))


def test_shapes_that_no_profile_holds_and_lower_bounds_are_told(open_model, gpu, caplog):
    bound = f"{shape('x', 3)} graph_lower_bound {{ batch_size: 1 {shape('x', 3)} }}"
    instance = make(
        open_model(plan(tensors=WIDE, profiles=WIDE_PROFILE), spec((2, shape("x", 99)), (4, bound)))
    )

    assert "no profile holds the shapes {'x': (2, 99)} of a graph_spec" in caplog.text
    assert "graph_lower_bound has no effect" in caplog.text
    assert launches(gpu, instance, [4]) == 1
    assert launches(gpu, instance, [3]) == 0


def test_a_graph_is_recorded_anew_when_its_buffers_have_moved(open_model, gpu):
    config = "max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }" + spec((2, shape("x", 300)))
    wide = [{"x": [[1, 1], [4, 2], [8, 900]]}]
    instance = make(open_model(plan(tensors=WIDE, profiles=wide), config))

    def run(*dims):
        array = np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
        np.testing.assert_array_equal(instance.execute({"x": array})["y"], array * 2)

    run(2, 300)
    assert gpu.cuda.num_launches == 1
    run(8, 900)  # larger buffers, at other places
    run(2, 300)
    assert gpu.cuda.num_launches == 1
    run(2, 300)
    assert gpu.cuda.num_launches == 2
    assert len(gpu.cuda.executables) == 1


def test_an_engine_with_shape_tensors_runs_without_graphs(open_model, gpu, caplog):
    size = tensor("size", "INPUT", [2], "INT32", is_shape=True, location="HOST")
    tensors = [X, size, tensor("y", "OUTPUT", [-1, -1])]
    make(open_model(plan("resize", tensors, [{**PROFILE, "size": [[1, 1], [4, 4], [8, 9]]}]), GRAPHS))

    assert "no CUDA graph is recorded for the engine, as it has shape tensors ('size')" in caplog.text
    assert not gpu.cuda.executables


def test_what_cannot_be_recorded_runs_without_a_graph(open_model, gpu, caplog):
    """An allocator waits for the device, which ends a recording."""
    tensors = [tensor("x", "INPUT", [-1]), tensor("y", "OUTPUT", [-1])]
    io = (
        'input { name: "x" data_type: TYPE_FP32 dims: -1 } output { name: "y" data_type: TYPE_FP32 dims: -1 }'
    )
    instance = make(open_model(plan("positive", tensors, [{"x": [[1], [4], [90]]}]), io + GRAPHS))

    assert "a CUDA graph could not be recorded" in caplog.text
    array = np.array([1, -1, 2, -2], np.float32)
    np.testing.assert_array_equal(instance.execute({"x": array})["y"], [1, 2])
    assert not gpu.cuda.executables


def test_without_the_hint_nothing_is_recorded(open_model, gpu):
    instance = make(open_model(plan(tensors=[X, Y])))
    assert launches(gpu, instance, [1, 2]) == 0
