"""What every backend reads from a config's parameters."""

import pytest

from bireme.backends.settings import (
    SettingsReader,
    num_instances,
    num_threads_per_instance,
    read_default_max_batch_size,
)
from bireme.config.model_config import ModelConfig, ModelInstanceGroup, ModelParameter
from bireme.types import InvalidArgument


def test_all_groups_but_passive_ones_count():
    groups = (
        ModelInstanceGroup("a", "KIND_CPU", 2),
        ModelInstanceGroup("b", "KIND_CPU", 3),
        ModelInstanceGroup("c", "KIND_CPU", 5, passive=True),
        ModelInstanceGroup("d", "KIND_GPU", 1, gpus=(0, 1)),
    )

    assert num_instances(ModelConfig(instance_group=groups)) == 7


@pytest.mark.parametrize(("count", "num_cpus", "expected"), [(1, 8, 8), (2, 8, 4), (3, 8, 2), (9, 8, 1)])
def test_instances_share_the_cpus(count, num_cpus, expected):
    config = ModelConfig(instance_group=(ModelInstanceGroup("a", "KIND_CPU", count),))

    assert num_threads_per_instance(config, num_cpus) == expected


def test_the_batch_size_of_files_that_batch_comes_from_the_command_line():
    assert read_default_max_batch_size("jax", {}) == 4
    assert read_default_max_batch_size("jax", {"default-max-batch-size": "16"}) == 16
    with pytest.raises(InvalidArgument, match="backend 'jax': setting 'default-max-batch-size' is 'x'"):
        read_default_max_batch_size("jax", {"default-max-batch-size": "x"})


def reader(**values: str) -> SettingsReader:
    parameters = {key: ModelParameter(value) for key, value in values.items()}
    return SettingsReader.of_model(ModelConfig(name="m", parameters=parameters))


def test_a_choice_is_one_of_those_that_there_are():
    assert reader().choice("mode", ("fast", "exact"), "fast") == "fast"
    assert reader(mode="exact").choice("mode", ("fast", "exact"), "fast") == "exact"
    with pytest.raises(
        InvalidArgument, match=r"model 'm': parameter 'mode' is 'slow'; expected 'fast' or 'exact'$"
    ):
        reader(mode="slow").choice("mode", ("fast", "exact"), "fast")


@pytest.mark.parametrize("text", ["-1", "1025", "99999999999999999999"])
def test_no_model_takes_all_threads_of_the_machine(text):
    assert reader(threads="1024").count("threads") == 1024
    with pytest.raises(
        InvalidArgument, match=f"'threads' is '{text}'; expected a number of threads up to 1024"
    ):
        reader(threads=text).count("threads")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("ON", True), ("yes", True), (" 1 ", True), ("off", False), ("0", False)],
)
def test_a_boolean_is_written_in_several_ways(text, expected):
    assert reader(flag=text).boolean("flag") is expected
    assert reader().boolean("flag") is None
