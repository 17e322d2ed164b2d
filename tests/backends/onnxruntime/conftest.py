"""Opens ONNX files through the backend, as the engine does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import ModelContext
from bireme.backends.onnxruntime import OnnxRuntimeBackend
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInstanceGroup
from bireme.types import Array
from opened_model import OpenedModel

Save = Callable[[Path], Path]

EMPTY = ModelConfig(name="m", backend="onnxruntime", instance_group=(ModelInstanceGroup("m", "KIND_CPU", 1),))


def context(folder: Path, config: ModelConfig = EMPTY, **backend_config: str) -> ModelContext:
    settings = {key.replace("_", "-"): value for key, value in backend_config.items()}
    return ModelContext("m", 1, folder, folder / "1", config, settings)


@pytest.fixture
def open_model(tmp_path):
    """Return a function that writes a model by ``save`` and opens it; keywords replace fields of the config."""
    opened: list[OpenedModel] = []

    def open_it(save: Save, *, filename: str = "model.onnx", backend_config=None, **fields) -> OpenedModel:
        save(tmp_path / "1" / filename)
        config = replace(EMPTY, default_model_filename=filename, **fields)
        opened.append(OpenedModel(OnnxRuntimeBackend(), context(tmp_path, config, **(backend_config or {}))))
        return opened[-1]

    yield open_it
    for model in opened:
        model.close()


@pytest.fixture
def load(tmp_path):
    """Return a function that loads what lies in the model's folder, and nothing more."""

    def load_it(**fields):
        return OnnxRuntimeBackend().load(context(tmp_path, replace(EMPTY, **fields)))

    return load_it


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)
