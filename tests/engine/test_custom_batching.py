"""A model's ``batchstrategy.py``: where it is found, what is wrong with it, and the batches that it makes."""

import asyncio

import numpy as np
import pytest

from bireme.config import ModelConfig
from bireme.config.model_config import ModelDynamicBatching, ModelParameter
from bireme.engine import Server
from bireme.engine.custom_batching import find_strategy
from bireme.testing import FakeBackend
from bireme.types import InferenceRequest, InvalidArgument, NotFound, Tensor, Unsupported
from model_dirs import add_fake_model, until

VOLUME = """
def batcher_initialize(config):
    return float(config["parameters"]["MAX"]["string_value"])

def batch_initialize(batcher):
    return [batcher]

def batch_include_request(request, batch):
    batch[0] -= float(request.inputs["X"].to_numpy().sum())
    return batch[0] >= 0
"""


def find(tmp_path, named="", **settings):
    parameters = {"MAX": ModelParameter("6")}
    if named:
        parameters["TRITON_BATCH_STRATEGY_PATH"] = ModelParameter(named)
    config = ModelConfig("m", dynamic_batching=ModelDynamicBatching(), parameters=parameters)
    places = {"version_dir": tmp_path / "1", "model_dir": tmp_path, "backend_dir": None}
    return find_strategy(config, **(places | settings))


def request(value):
    tensor = Tensor.from_numpy("X", np.full((1, 1), value, np.float32))
    return InferenceRequest("m", {"X": tensor}, lambda *_: None)


def test_most_models_have_none(tmp_path):
    assert find(tmp_path) is None
    (tmp_path / "batchstrategy.py").write_text(VOLUME)
    assert find_strategy(ModelConfig("m"), version_dir=tmp_path, model_dir=tmp_path, backend_dir=None) is None


def test_the_functions_are_called_for_a_batch(tmp_path):
    (tmp_path / "batchstrategy.py").write_text(VOLUME)
    strategy = find(tmp_path)

    batch = strategy.begin()

    assert [strategy.includes(request(value), batch) for value in (1, 5, 1)] == [True, True, False]
    strategy.end(batch)


@pytest.mark.parametrize("place", ["1", ".", "backend"])
def test_it_is_in_the_version_the_model_or_the_backend(tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "batchstrategy.py").write_text("def batch_include_request(request, batch): return 1")

    assert find(tmp_path, backend_dir=tmp_path / "backend").includes(request(1), None) is True


def test_a_parameter_names_another_file(tmp_path):
    (tmp_path / "by_volume.py").write_text(VOLUME)

    assert find(tmp_path, "by_volume.py") is not None
    assert find(tmp_path, str(tmp_path / "by_volume.py")) is not None


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ("none.py", NotFound, "Batching library path not found: .* is 'none.py', looked in"),
        ("../other.py", InvalidArgument, "Batching library path escapes model repository"),
        ("/etc/hosts", InvalidArgument, "Batching library path escapes model repository"),
        ("strategy.so", Unsupported, "is a C library, and strategies are written in Python here"),
        ("bare.py", InvalidArgument, "has no function batch_include_request"),
        ("broken.py", InvalidArgument, "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_fails_the_load(tmp_path, named, error, message):
    (tmp_path / "strategy.so").touch()
    (tmp_path / "bare.py").touch()
    (tmp_path / "broken.py").write_text("1/0")

    with pytest.raises(error, match=message):
        find(tmp_path, named)


def test_a_library_where_triton_looks_for_one_fails_the_load(tmp_path):
    (tmp_path / "batchstrategy.so").touch()

    with pytest.raises(Unsupported, match=r"put a batchstrategy\.py with a function batch_include_request"):
        find(tmp_path)


def test_what_a_function_raises_ends_the_batch_and_is_logged_once(tmp_path, caplog):
    (tmp_path / "batchstrategy.py").write_text(
        "def batch_initialize(batcher): 1/0\n"
        "def batch_include_request(request, batch): raise ValueError(batch)\n"
        "def batch_finalize(batch): exit()\n"
    )
    strategy = find(tmp_path)

    batch = strategy.begin()
    assert not strategy.includes(request(1), batch)
    strategy.end(batch)

    assert len(caplog.records) == 1
    assert "batch_initialize of its batching strategy failed" in caplog.text


def test_a_server_batches_as_the_strategy_says(tmp_path):
    backend = FakeBackend()

    async def main():
        extra = 'max_batch_size: 8 dynamic_batching {} parameters { key: "MAX" value { string_value: "6" } }'
        folder = add_fake_model(tmp_path, "m", extra=extra)
        (folder / "batchstrategy.py").write_text(VOLUME)
        async with Server(tmp_path, backends={"fake": backend}) as server:
            backend.gate.clear()
            calls = [asyncio.ensure_future(server.ainfer("m", {"X": [[9]]}))]
            await until(lambda: backend.started.acquire(blocking=False))
            calls += [asyncio.ensure_future(server.ainfer("m", {"X": [[value]]})) for value in (1, 2, 3, 4)]
            await asyncio.sleep(0)
            backend.gate.set()
            results = await asyncio.gather(*calls)
            assert [result["Y"].tolist() for result in results] == [[[9]], [[1]], [[2]], [[3]], [[4]]]
            closed = 'bireme_batch_close_total{model="m",reason="strategy",version="1"} 1'
            assert closed in server.metrics.expose().decode()
            statistics = server.model_statistics("m")["model_stats"][0]["batch_stats"]
            return {each["batch_size"]: each["compute_infer"]["count"] for each in statistics}

    assert asyncio.run(main()) == {1: 2, 3: 1}
