"""Model files of small frameworks: put into a repository, opened by their backend, or served and asked by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton_http

from bireme.backends.interface import Backend, ModelContext
from bireme.backends.predictor import PredictorModel
from bireme.config import ModelConfig, parse_text
from bireme.config.model_config import ModelInstanceGroup
from bireme.types import datatypes
from e2e_server import RunningServer
from opened_model import OpenedModel

RNG = np.random.default_rng(7)
ROWS = RNG.normal(size=(120, 4))
TWO_CLASSES = (ROWS[:, 0] > 0).astype(np.int64)
THREE_CLASSES = np.digitize(ROWS[:, 0], [-0.5, 0.5])


def place(root: Path, name: str, filename: str, config: str = "") -> Path:
    """Return where the model file of ``name`` belongs; ``config`` empty: it has no config.pbtxt."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    if config:
        (root / name / "config.pbtxt").write_text(config)
    return folder / filename


def parameters(**values: str) -> str:
    """Return the lines of config.pbtxt that set parameters."""
    return "\n".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )


def context(path: Path, config: str = "", **backend_config: str) -> ModelContext:
    """Return the context of the model file at ``path``."""
    parsed = parse_text(f'name: "m" {config}', "config.pbtxt") if config else ModelConfig(name="m")
    groups = parsed.instance_group or (ModelInstanceGroup("m", "KIND_CPU", 1),)
    parsed = replace(parsed, instance_group=groups)
    settings = {key.replace("_", "-"): value for key, value in backend_config.items()}
    return ModelContext("m", 1, path.parent.parent, path.parent, parsed, settings)


class OpenModel(OpenedModel):
    """A model of a backend that is a `bireme.backends.predictor.Predictor`."""

    def __init__(self, backend: Backend, path: Path, config: str = "", **backend_config: str) -> None:
        super().__init__(backend, context(path, config, **backend_config))
        assert isinstance(self.loaded, PredictorModel)

    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, type and dims of each input and output in the config."""
        listed = [*self.config.input, *self.config.output]
        return [
            (tensor.name, datatypes.from_config_name(tensor.data_type), tuple(tensor.dims))
            for tensor in listed
        ]

    run = OpenedModel.execute


class Served:
    """A server of a repository, and a client."""

    def __init__(self, server: RunningServer, client: triton_http.InferenceServerClient) -> None:
        self.server = server
        self.client = client

    def infer(self, model: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return all outputs of a model by name."""
        return _arrays(self.client.infer(model, _inputs(inputs)))

    def infer_at_once(
        self, model: str, requests: list[dict[str, np.ndarray]]
    ) -> tuple[list[dict[str, np.ndarray]], int, int]:
        """Return the outputs of requests that are sent together, how many rows they were, and in how many runs."""
        rows, runs = self._figures(model)
        answers = [_arrays(each.get_result()) for each in self.send_at_once(model, requests)]
        rows_after, runs_after = self._figures(model)
        return answers, rows_after - rows, runs_after - runs

    def send_at_once(self, model: str, requests: list[dict[str, np.ndarray]]) -> list[Any]:
        """Return the pending answers of requests that are sent together."""
        return [self.client.async_infer(model, _inputs(inputs)) for inputs in requests]

    def _figures(self, model: str) -> tuple[int, int]:
        (found,) = self.client.get_inference_statistics(model)["model_stats"]
        return found["inference_count"], found["execution_count"]


@contextmanager
def serving(root: Path, **options: Any) -> Iterator[Served]:
    """Serve all models below ``root``."""
    server = RunningServer(root, **options)
    try:
        with triton_http.InferenceServerClient(server.address, concurrency=8) as client:
            yield Served(server, client)
    finally:
        server.stop()


def _inputs(arrays: dict[str, np.ndarray]) -> list[triton_http.InferInput]:
    made = []
    for name, array in arrays.items():
        datatype = triton_http.np_to_triton_dtype(array.dtype)
        made.append(triton_http.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


def _arrays(result: triton_http.InferResult) -> dict[str, np.ndarray]:
    names = [output["name"] for output in result.get_response()["outputs"]]
    return {name: result.as_numpy(name) for name in names}
