"""Settings: parameters and backend settings as checked values."""

import pytest

from bireme.backends.onnxruntime.settings import read_backend_settings, read_model_settings
from bireme.backends.settings import default_num_threads
from bireme.config.model_config import (
    ModelConfig,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelParameter,
    OptimizationGraph,
)
from bireme.types import InvalidArgument


def config(count: int = 1, *, level: int | None = None, **parameters: str) -> ModelConfig:
    return ModelConfig(
        name="m",
        instance_group=(ModelInstanceGroup("g", "KIND_CPU", count),),
        parameters={key.replace("__", "."): ModelParameter(value) for key, value in parameters.items()},
        optimization=None if level is None else ModelOptimizationPolicy(graph=OptimizationGraph(level)),
    )


@pytest.mark.parametrize(
    ("num_cpus", "count", "expected"),
    [(2, 1, 2), (2, 2, 1), (1, 4, 1), (16, 4, 13), (16, 1, 16)],
)
def test_callers_and_pool_together_are_as_many_threads_as_cpus(num_cpus, count, expected):
    """The pool's size counts the caller: n instances and the pool's other threads fill the CPUs."""
    assert default_num_threads(num_cpus, count) == expected
    assert read_model_settings(config(count), num_cpus).num_intra_op_threads == expected
    assert expected == 1 or count + expected - 1 == num_cpus


def test_the_defaults():
    settings = read_model_settings(config(), 4)

    assert (settings.num_intra_op_threads, settings.num_inter_op_threads, settings.runs_parallel) == (
        4,
        1,
        False,
    )
    assert settings.graph_level == "ORT_ENABLE_ALL"
    assert (settings.enable_mem_arena, settings.enable_mem_pattern, settings.arena_shrinkage) == (
        None,
        None,
        "",
    )
    assert settings.session_entries == {"session.force_spinning_stop": "1"}


def test_threads_may_be_given_and_zero_means_the_default():
    given = read_model_settings(config(intra_op_thread_count="3", inter_op_thread_count="2"), 8)
    zero = read_model_settings(config(intra_op_thread_count="0", inter_op_thread_count="0"), 8)

    assert (given.num_intra_op_threads, given.num_inter_op_threads) == (3, 2)
    assert (zero.num_intra_op_threads, zero.num_inter_op_threads) == (8, 1)


def test_parallel_execution_uses_threads_across_operators():
    settings = read_model_settings(config(execution_mode="1"), 4)

    assert settings.runs_parallel
    assert settings.num_inter_op_threads == 4


@pytest.mark.parametrize(
    ("level", "expected"),
    [(-1, "ORT_ENABLE_BASIC"), (0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_graph_levels_are_tritons(level, expected):
    assert read_model_settings(config(level=level), 1).graph_level == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("true", True), ("True", True), ("0", False), ("FALSE", False)]
)
def test_booleans(text, expected):
    settings = read_model_settings(config(enable_mem_arena=text, enable_mem_pattern=text), 1)

    assert settings.enable_mem_arena is expected
    assert settings.enable_mem_pattern is expected


def test_threads_that_are_not_to_spin_at_all_are_told_so():
    assert read_model_settings(config(session__intra_op__allow_spinning="off"), 1).session_entries == {
        "session.intra_op.allow_spinning": "0",
        "session.force_spinning_stop": "1",
    }


def test_session_entries_go_by_onnxruntimes_own_names():
    settings = read_model_settings(
        config(
            session__intra_op__allow_spinning="true",
            session__use_device_allocator_for_initializers="1",
            session__disable_prepacking="1",
            mlas__use_lut_gemm="1",
            memory__enable_memory_arena_shrinkage="cpu:0;gpu:1",
            something__else="x",
        ),
        1,
    )

    assert settings.session_entries == {
        "session.intra_op.allow_spinning": "1",
        "session.use_device_allocator_for_initializers": "1",
        "session.disable_prepacking": "1",
        "mlas.use_lut_gemm": "1",
    }
    assert settings.arena_shrinkage == "cpu:0;gpu:1"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"intra_op_thread_count": "two"}, "'intra_op_thread_count' is 'two'; expected an integer"),
        ({"intra_op_thread_count": "-1"}, "'intra_op_thread_count' is '-1'; expected a number of threads up to 1024, or 0 for the default"),
        ({"inter_op_thread_count": "1.5"}, "'inter_op_thread_count' is '1.5'; expected an integer"),
        ({"execution_mode": "2"}, "'execution_mode' is '2'; expected 0 (sequential) or 1 (parallel)"),
        ({"enable_mem_arena": "y"}, "'enable_mem_arena' is 'y'; expected true, on"),
        ({"enable_mem_pattern": ""}, "'enable_mem_pattern' is ''; expected true, on"),
        ({"session__intra_op__allow_spinning": "2"}, "'session.intra_op.allow_spinning' is '2'; expected true, on"),
        ({"memory__enable_memory_arena_shrinkage": "1"}, "'memory.enable_memory_arena_shrinkage' is '1'; expected devices such as cpu:0"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_what_was_expected(parameters, expected):
    with pytest.raises(InvalidArgument) as caught:
        read_model_settings(config(**parameters), 1)

    assert caught.value.message.startswith(f"model 'm': parameter {expected}")


def test_a_bad_graph_level_is_named():
    with pytest.raises(
        InvalidArgument, match=r"model 'm': optimization\.graph\.level is 3; expected -1 \(basic\), 0"
    ):
        read_model_settings(config(level=3), 1)


def test_backend_settings():
    defaults = read_backend_settings({}, 6)
    given = read_backend_settings(
        {
            "default-max-batch-size": "16",
            "enable-global-threadpool": "1",
            "intra_op_thread_count": "3",
            "inter_op_thread_count": "2",
        },
        6,
    )

    assert (defaults.default_max_batch_size, defaults.uses_global_pool) == (4, False)
    assert (defaults.num_intra_op_threads, defaults.num_inter_op_threads) == (6, 1)
    assert (given.default_max_batch_size, given.uses_global_pool) == (16, True)
    assert (given.num_intra_op_threads, given.num_inter_op_threads) == (3, 2)


def test_a_bad_backend_setting_is_named():
    with pytest.raises(
        InvalidArgument,
        match="backend 'onnxruntime': setting 'default-max-batch-size' is 'many'; expected an integer",
    ):
        read_backend_settings({"default-max-batch-size": "many"}, 1)
