"""Opens ONNX files through the backend, as the engine does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import ModelContext, Placement
from bireme.backends.onnxruntime import OnnxRuntimeBackend
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInstanceGroup
from bireme.engine.batch import BatchPlan, GatherBuffers
from bireme.types import Array, BiremeError, InferenceRequest, Tensor, datatypes

Save = Callable[[Path], Path]

EMPTY = ModelConfig(name="m", backend="onnxruntime", instance_group=(ModelInstanceGroup("m", "KIND_CPU", 1),))


class OpenModel:
    """A model that is ready to execute; ``infer`` is what a client would see."""

    def __init__(self, ctx: ModelContext) -> None:
        self.loaded = OnnxRuntimeBackend().load(ctx)
        self.config = self.loaded.complete_config(ctx.config)
        self.loaded.check_config(self.config)
        self.instance = self.loaded.create_instance(Placement("m_0"))
        self.plan = BatchPlan(self.config)

    def execute(self, **inputs: Array) -> dict[str, Array]:
        return self.instance.execute(inputs)

    def infer(self, inputs: dict[str, Array]) -> dict[str, Tensor]:
        kinds = {tensor.name: datatypes.from_config_name(tensor.data_type) for tensor in self.config.input}
        tensors = {name: Tensor.from_numpy(name, array, kinds[name]) for name, array in inputs.items()}
        request = InferenceRequest("m", tensors, lambda _request, _response: None)
        if self.config.max_batch_size:
            request.batch_size = next(iter(tensors.values())).shape[0]
        arrays = self.plan.gather([request], request.batch_size, GatherBuffers())
        (result,) = self.plan.scatter(self.instance.execute(arrays), [request])
        if isinstance(result, BiremeError):
            raise result
        return {tensor.name: tensor for tensor in result}

    def close(self) -> None:
        self.instance.close()
        self.loaded.close()


def context(folder: Path, config: ModelConfig = EMPTY, **backend_config: str) -> ModelContext:
    settings = {key.replace("_", "-"): value for key, value in backend_config.items()}
    return ModelContext("m", 1, folder, folder / "1", config, settings)


@pytest.fixture
def open_model(tmp_path):
    """Return a function that writes a model by ``save`` and opens it; keywords replace fields of the config."""
    opened: list[OpenModel] = []

    def open_it(save: Save, *, filename: str = "model.onnx", backend_config=None, **fields) -> OpenModel:
        save(tmp_path / "1" / filename)
        config = replace(EMPTY, default_model_filename=filename, **fields)
        opened.append(OpenModel(context(tmp_path, config, **(backend_config or {}))))
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
