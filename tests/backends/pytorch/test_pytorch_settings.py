"""The parameters of PyTorch models."""

from __future__ import annotations

import pytest

from bireme.backends.pytorch.settings import (
    PARAMETERS,
    ProcessSettings,
    read_model_settings,
)
from bireme.backends.settings import describe_unknown
from bireme.config import parse_text
from bireme.types import InvalidArgument


def config(*, count=1, **parameters):
    lines = [
        f"parameters {{ key: \"{key}\" value {{ string_value: '{value}' }} }}"
        for key, value in parameters.items()
    ]
    text = f'name: "m" instance_group {{ count: {count} kind: KIND_CPU }} ' + " ".join(lines)
    return parse_text(text, "m")


def settings(*, num_cpus=4, **parameters):
    return read_model_settings(config(**parameters), num_cpus)


def test_what_holds_without_parameters():
    found = settings()

    assert found.num_intra_op_threads == 4
    assert found.inference_mode
    assert found.optimized_execution
    assert found.weight_sharing is None
    assert not found.cache_cleaning
    assert found.compile_options is None
    assert found.process == ProcessSettings()


@pytest.mark.parametrize(("count", "num_threads"), [(1, 4), (2, 2), (3, 1), (8, 1)])
def test_instances_share_the_cpus(count, num_threads):
    assert num_threads == settings(count=count).num_intra_op_threads


@pytest.mark.parametrize("key", ["INTRA_OP_THREAD_COUNT", "NUM_THREADS"])
def test_threads_within_operators_have_two_names(key):
    assert settings(**{key: "3"}).num_intra_op_threads == 3


def test_what_belongs_to_the_process_is_kept_apart():
    found = settings(
        NUM_INTEROP_THREADS="2",
        ENABLE_JIT_EXECUTOR="false",
        ENABLE_JIT_PROFILING="0",
        ENABLE_TENSOR_FUSER="true",
        DISABLE_CUDNN="True",
    )

    assert found.process == ProcessSettings(
        2, jit_executor=False, jit_profiling=False, tensor_fuser=True, cudnn=False
    )


def test_booleans_of_the_model():
    found = settings(
        INFERENCE_MODE="false",
        DISABLE_OPTIMIZED_EXECUTION="true",
        ENABLE_WEIGHT_SHARING="false",
        ENABLE_CACHE_CLEANING="1",
    )

    assert not found.inference_mode
    assert not found.optimized_execution
    assert found.weight_sharing is False
    assert found.cache_cleaning


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ({"TORCH_COMPILE": "true"}, {}),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"mode": "max-autotune"}'}, {"mode": "max-autotune"}),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"disable": true}'}, None),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": "{}", "TORCH_COMPILE": "false"}, None),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": "{}"}, {}),
    ],
)
def test_compilation_is_asked_for(parameters, options):
    assert options == settings(**parameters).compile_options


@pytest.mark.parametrize("text", ["[]", "{", '{"model": 1}'])
def test_arguments_that_compile_does_not_take_are_refused(text):
    with pytest.raises(
        InvalidArgument, match="expected a JSON object with any of fullgraph, dynamic, backend"
    ):
        settings(TORCH_COMPILE_OPTIONAL_PARAMETERS=text)


def test_a_wrong_number_is_named():
    with pytest.raises(InvalidArgument, match="parameter 'NUM_THREADS' is 'many'; expected an integer"):
        settings(NUM_THREADS="many")


def test_a_parameter_that_is_nearly_one_is_told_of():
    given = config(INTRA_OP_THREADS_COUNT="2", isolation="none", ENABLE_WEIGHT_SHARING="true")

    (line,) = describe_unknown(given, PARAMETERS)

    assert line.endswith(
        "'INTRA_OP_THREADS_COUNT' is unknown and ignored; did you mean 'INTRA_OP_THREAD_COUNT'?"
    )
