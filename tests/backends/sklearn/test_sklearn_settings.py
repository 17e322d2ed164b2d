"""Parameters of scikit-learn's models."""

import pytest

from bireme.backends.sklearn.settings import read_settings
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInstanceGroup, ModelParameter
from bireme.types import InvalidArgument


def config_of(count: int = 1, **parameters: str) -> ModelConfig:
    return ModelConfig(
        name="m",
        instance_group=(ModelInstanceGroup("m", "KIND_CPU", count),),
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )


def test_instances_share_the_cpus_and_start_no_workers():
    settings = read_settings(config_of(count=2), 8)

    assert (4, 1) == (settings.num_threads, settings.num_jobs)


def test_a_number_of_threads_goes_for_workers_too():
    settings = read_settings(config_of(count=2, num_threads="3"), 8)

    assert (3, 3) == (settings.num_threads, settings.num_jobs)


def test_what_is_left_out_is_to_be_found_out():
    settings = read_settings(config_of(), 8)

    assert ("", "none", ()) == (settings.inputs, settings.frame, settings.trusted_types)


def test_parameters_are_read():
    settings = read_settings(config_of(inputs="columns", frame="pandas", trusted_types=" a.B , c.D,"), 8)

    assert ("columns", "pandas", ("a.B", "c.D")) == (settings.inputs, settings.frame, settings.trusted_types)


@pytest.mark.parametrize(
    ("key", "value"), [("inputs", "table"), ("frame", "dask"), ("num_threads", "-1"), ("num_threads", "all")]
)
def test_a_wrong_value_is_named(key, value):
    with pytest.raises(InvalidArgument, match=rf"model 'm': parameter '{key}' is '{value}'; expected"):
        read_settings(config_of(**{key: value}), 8)
