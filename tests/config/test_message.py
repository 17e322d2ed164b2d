"""Messages behave as frozen dataclasses do."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest

from bireme.config import ModelConfig
from bireme.config.model_config import LatestPolicy, ModelInput, ModelParameter, SpecificPolicy

X = ModelInput("x", "TYPE_FP32", dims=(1,))


def test_is_a_dataclass():
    assert is_dataclass(ModelInput)
    assert [field.name for field in fields(X)][:3] == ["name", "data_type", "format"]
    assert replace(X, name="y") == ModelInput("y", "TYPE_FP32", dims=(1,))


@pytest.mark.parametrize("name", ["name", "optional", "nonsense"])
def test_cannot_be_changed(name):
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}' of ModelInput"):
        setattr(X, name, 1)
    with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}' of ModelInput"):
        delattr(X, name)

    assert X.name == "x"


def test_compares_by_fields_and_type():
    assert ModelInput("x") == ModelInput("x")
    assert ModelInput("x") != ModelInput("y")
    assert LatestPolicy() != SpecificPolicy()
    assert LatestPolicy() != 0


def test_hashes_by_fields_unless_one_is_a_map():
    assert len({X, ModelInput("x", "TYPE_FP32", dims=(1,)), ModelInput("y")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(ModelConfig())


def test_shows_what_is_set():
    config = ModelConfig(name="m", input=(X,), parameters={"a": ModelParameter("b")})

    assert repr(config) == (
        "ModelConfig(name='m', input=(ModelInput(name='x', data_type='TYPE_FP32', dims=(1,)),), "
        "parameters={'a': ModelParameter(string_value='b')})"
    )
    assert repr(ModelConfig()) == "ModelConfig()"


def test_default_maps_are_not_shared():
    assert ModelConfig().parameters is not ModelConfig().parameters


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))]
)
def test_can_be_copied_and_sent_to_another_process(duplicate):
    config = ModelConfig(name="m", input=(X,))

    assert duplicate(config) == config
