"""Parameters of JAX models, and the sizes that batches are padded to."""

import pytest

from bireme.backends.jax.settings import batch_sizes, read_settings
from bireme.config import ModelConfig
from bireme.config.model_config import ModelParameter
from bireme.types import InvalidArgument


def config_of(**parameters: str) -> ModelConfig:
    return ModelConfig(
        name="m", parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()}
    )


@pytest.mark.parametrize(
    ("max_batch_size", "sizes"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))],
)
def test_batches_are_padded_to_powers_of_two_and_the_largest(max_batch_size, sizes):
    assert sizes == batch_sizes(max_batch_size)


def test_both_are_on_unless_they_are_switched_off():
    settings = read_settings(config_of())
    assert settings.pads_batches
    assert settings.compiles_at_load

    settings = read_settings(config_of(pad_batches="false", compile_at_load="0"))
    assert not settings.pads_batches
    assert not settings.compiles_at_load


def test_a_wrong_value_is_named():
    with pytest.raises(
        InvalidArgument, match="parameter 'pad_batches' is 'sometimes'; expected true, on, yes or 1; or false"
    ):
        read_settings(config_of(pad_batches="sometimes"))
