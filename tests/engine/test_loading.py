"""Loading a version: what is said of it."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from bireme.backends.interface import ModelContext
from bireme.config.model_config import ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput
from bireme.engine.loading import load_version
from bireme.testing import FakeBackend


@pytest.mark.parametrize(("given", "said"), [(0, True), (6, False)])
def test_a_batch_size_that_comes_from_the_file_is_told(caplog, given, said):
    config = ModelConfig(
        name="m",
        backend="fake",
        max_batch_size=given,
        input=(ModelInput("X", "TYPE_FP32", dims=(2,)),),
        output=(ModelOutput("Y", "TYPE_FP32", dims=(2,)),),
        instance_group=(ModelInstanceGroup("m", "KIND_CPU", 1),),
    )
    backend = FakeBackend(complete=lambda config: replace(config, max_batch_size=6))

    with caplog.at_level(logging.INFO, "bireme"):
        prepared = load_version(ModelContext("m", 1, Path(), Path(), config), backend, auto_complete=True)
    prepared.close()

    assert prepared.config.max_batch_size == 6
    assert ("max_batch_size is set to 6, since the model file batches" in caplog.text) is said
