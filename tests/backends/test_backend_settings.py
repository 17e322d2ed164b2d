"""What every backend reads from a config's parameters."""

import pytest

from bireme.backends.settings import SettingsReader, num_instances
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
