"""Settings: parameters, optimisation and backend settings as checked values."""

import pytest

from bireme.backends.settings import describe_unknown
from bireme.backends.tensorflow.settings import (
    PARAMETERS,
    BackendSettings,
    read_backend_settings,
    read_model_settings,
)
from bireme.config import ModelConfig
from bireme.config.model_config import (
    Accelerator,
    ExecutionAccelerators,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelParameter,
    OptimizationGraph,
)
from bireme.types import InvalidArgument, Unsupported


def config(count: int = 1, *, optimization=None, **parameters: str) -> ModelConfig:
    return ModelConfig(
        name="m",
        instance_group=(ModelInstanceGroup("g", "KIND_CPU", count),),
        parameters={key: ModelParameter(value) for key, value in parameters.items()},
        optimization=optimization,
    )


def graph(level: int) -> ModelOptimizationPolicy:
    return ModelOptimizationPolicy(graph=OptimizationGraph(level))


def test_the_defaults():
    settings = read_model_settings(config(), 4)

    assert (4, 4, True) == (
        settings.num_intra_threads,
        settings.num_inter_threads,
        settings.has_own_threads,
    )
    assert ((), "", "", 0) == (
        settings.tags,
        settings.signature,
        settings.init_ops_file,
        settings.xla_level,
    )


@pytest.mark.parametrize(("count", "expected"), [(1, 8), (2, 7), (8, 1), (20, 1)])
def test_instances_and_threads_together_fill_the_cpus(count, expected):
    settings = read_model_settings(config(count), 8)

    assert (expected, expected) == (settings.num_intra_threads, settings.num_inter_threads)


def test_threads_may_be_given_and_zero_means_the_default():
    given = read_model_settings(config(TF_NUM_INTRA_THREADS="3", TF_NUM_INTER_THREADS="2"), 8)
    zero = read_model_settings(config(TF_NUM_INTRA_THREADS="0", TF_NUM_INTER_THREADS="0"), 8)

    assert (3, 2) == (given.num_intra_threads, given.num_inter_threads)
    assert (8, 8) == (zero.num_intra_threads, zero.num_inter_threads)


def test_a_negative_number_of_operators_at_one_time_is_the_callers_thread():
    assert -1 == read_model_settings(config(TF_NUM_INTER_THREADS="-1"), 8).num_inter_threads


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("On", True),
        ("yes", True),
        ("1", True),
        ("False", False),
        ("off", False),
        ("0", False),
    ],
)
def test_threads_of_its_own(text, expected):
    assert expected == read_model_settings(config(TF_USE_PER_SESSION_THREADS=text), 1).has_own_threads


@pytest.mark.parametrize(
    ("text", "expected"), [("serve", ("serve",)), ("serve, gpu", ("serve", "gpu")), ("", ()), (",", ())]
)
def test_tags_are_separated_by_commas(text, expected):
    assert expected == read_model_settings(config(TF_GRAPH_TAG=text), 1).tags


@pytest.mark.parametrize(("level", "expected"), [(-1, -1), (0, 0), (1, 1), (2, 2), (7, 2)])
def test_graph_levels_are_those_of_xla(level, expected):
    assert expected == read_model_settings(config(optimization=graph(level)), 1).xla_level


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"TF_NUM_INTRA_THREADS": "-1"},
            "model 'm': parameter 'TF_NUM_INTRA_THREADS' is '-1'; expected a number of threads",
        ),
        (
            {"TF_NUM_INTER_THREADS": "100000"},
            "'TF_NUM_INTER_THREADS' is '100000'; expected a number of threads up to 1024",
        ),
        ({"TF_NUM_INTER_THREADS": "many"}, "'TF_NUM_INTER_THREADS' is 'many'; expected an integer"),
        (
            {"TF_USE_PER_SESSION_THREADS": "maybe"},
            "'TF_USE_PER_SESSION_THREADS' is 'maybe'; expected true, on",
        ),
        (
            {"MAX_SESSION_SHARE_COUNT": "0"},
            "'MAX_SESSION_SHARE_COUNT' is '0'; expected a number of instances",
        ),
    ],
)
def test_a_wrong_value_is_named(parameters, message):
    with pytest.raises(InvalidArgument) as refused:
        read_model_settings(config(**parameters), 1)
    assert message in refused.value.message


def test_a_graph_level_that_there_is_not_is_refused():
    with pytest.raises(InvalidArgument, match=r"optimization\.graph\.level is -2; expected -1"):
        read_model_settings(config(optimization=graph(-2)), 1)


@pytest.mark.parametrize("name", ["tensorrt", "auto_mixed_precision", "gpu_io"])
@pytest.mark.parametrize("kind", ["gpu_execution_accelerator", "cpu_execution_accelerator"])
def test_accelerators_are_refused(name, kind):
    accelerators = ExecutionAccelerators(**{kind: (Accelerator(name),)})

    with pytest.raises(Unsupported, match=f"model 'm': execution accelerator '{name}' is not supported by"):
        read_model_settings(
            config(optimization=ModelOptimizationPolicy(execution_accelerators=accelerators)), 1
        )


def test_parameters_that_look_like_tensorflows_are_told_if_they_are_none():
    given = config(TF_NUM_INTRA_THREAD="1", TF_XYZ="", other="x", TF_GRAPH_TAG="serve")

    found = describe_unknown(given, PARAMETERS, ("TF_",))

    assert [
        "model 'm': parameter 'TF_NUM_INTRA_THREAD' is unknown and ignored; did you mean 'TF_NUM_INTRA_THREADS'?",
        "model 'm': parameter 'TF_XYZ' is unknown and ignored",
    ] == found


def test_a_list_of_no_accelerators_is_none():
    nothing = ModelOptimizationPolicy(execution_accelerators=ExecutionAccelerators())

    assert read_model_settings(config(), 1) == read_model_settings(config(optimization=nothing), 1)


def test_backend_settings_have_defaults_and_can_be_given():
    given = {
        "default-max-batch-size": "16",
        "allow-soft-placement": "false",
        "gpu-memory-fraction": "0.5",
        "version": "2",
    }

    assert BackendSettings(4, allows_soft_placement=True) == read_backend_settings({})
    assert BackendSettings(16, allows_soft_placement=False) == read_backend_settings(given)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("gpu-memory-fraction", "1.5", "a number between 0 and 1"),
        ("gpu-memory-fraction", "half", "a number between 0 and 1"),
        ("allow-soft-placement", "soft", "true, on, yes or 1; or false, off, no or 0"),
        ("default-max-batch-size", "x", "an integer"),
        ("version", "two", "an integer"),
    ],
)
def test_a_wrong_backend_setting_is_named(key, value, expected):
    with pytest.raises(InvalidArgument) as refused:
        read_backend_settings({key: value})
    assert f"backend 'tensorflow': setting '{key}' is '{value}'; expected {expected}" == refused.value.message


def test_another_version_of_tensorflow_is_refused():
    with pytest.raises(Unsupported, match="'version' is '1', but only TensorFlow 2 is supported"):
        read_backend_settings({"version": "1"})
