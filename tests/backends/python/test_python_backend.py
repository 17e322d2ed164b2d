"""PythonBackend: what it makes of a model's folder and parameters, and what a model is told."""

import asyncio
import json
from pathlib import Path

import pytest

from bireme.backends.interface import ModelContext, Placement
from bireme.backends.python.arguments import config_text, make_arguments
from bireme.backends.python.backend import (
    PythonBackend,
    _may_complete,
    check_name,
    find_model_file,
    read_settings,
)
from bireme.config import ModelConfig, parse_json, parse_text
from bireme.ipc.messages import Call, ErrorData, Started
from bireme.types import BackendFailed, InvalidArgument, NotFound
from model_dirs import until
from worker_fakes import FakeHost, FakeWorker


def context(model_dir: Path, config: ModelConfig | None = None, **settings) -> ModelContext:
    return ModelContext(
        "m", 1, model_dir, model_dir / "1", config or ModelConfig(name="m", backend="python"), **settings
    )


def with_parameters(**values: str) -> ModelConfig:
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    ]
    return parse_text("\n".join(['name: "m"', *lines]), Path("config.pbtxt"))


@pytest.fixture
def model_dir(tmp_path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m"


# The model file


def test_the_model_file_is_model_py(model_dir):
    (model_dir / "1" / "model.py").touch()

    assert find_model_file(context(model_dir)) == model_dir / "1" / "model.py"


def test_the_config_may_name_another_file(model_dir):
    (model_dir / "1" / "other.py").touch()
    config = ModelConfig(name="m", default_model_filename="other.py")

    assert find_model_file(context(model_dir, config)).name == "other.py"


def test_a_backend_that_is_a_directory_brings_the_file(model_dir, tmp_path):
    backend_dir = tmp_path / "backends" / "mine"
    backend_dir.mkdir(parents=True)
    (backend_dir / "model.py").touch()

    assert find_model_file(context(model_dir, backend_dir=backend_dir)) == backend_dir / "model.py"


def test_a_missing_file_is_answered_with_what_is_there(model_dir):
    (model_dir / "1" / "modle.py").touch()
    (model_dir / "1" / "weights.bin").touch()

    with pytest.raises(
        NotFound, match=r"unable to find '.*/m/1/model.py' .* holds 'modle.py', 'weights.bin'"
    ):
        PythonBackend().load(context(model_dir))


def test_a_missing_directory_holds_nothing(tmp_path):
    with pytest.raises(NotFound, match="holds nothing"):
        find_model_file(context(tmp_path / "gone"))


# Names and parameters


@pytest.mark.parametrize("name", ["a;b", "$(x)", "a b|c", "it's", "m*", "a#1"])
def test_names_with_a_meaning_to_a_shell_are_refused(name):
    with pytest.raises(InvalidArgument, match="contains invalid characters"):
        check_name(name)


@pytest.mark.parametrize("name", ["m_0_0", "a-b.c", "größe", "a b"])
def test_other_names_are_fine(name):
    check_name(name)


def test_without_parameters_a_model_runs_in_processes():
    settings = read_settings(ModelConfig(name="m"))

    assert settings.mode == "process"
    assert settings.max_concurrent == 32


def test_a_model_may_ask_for_a_thread_and_for_fewer_batches_at_a_time():
    settings = read_settings(with_parameters(EXECUTION_MODE="thread", MAX_CONCURRENT_EXECUTIONS="4"))

    assert settings.mode == "thread"
    assert settings.max_concurrent == 4


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "EXECUTION_MODE",
            "threads",
            "EXECUTION_MODE is 'threads'; expected 'process', 'thread' or 'inline'",
        ),
        ("MAX_CONCURRENT_EXECUTIONS", "0", "MAX_CONCURRENT_EXECUTIONS is '0'; expected a number from 1 on"),
        ("MAX_CONCURRENT_EXECUTIONS", "many", "is 'many'"),
        (
            "FORCE_CPU_ONLY_INPUT_TENSORS",
            "maybe",
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: 'maybe'",
        ),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_expected(key, value, text):
    with pytest.raises(InvalidArgument, match=text):
        read_settings(with_parameters(**{key: value}))


@pytest.mark.parametrize("value", ["yes", "no"])
def test_both_values_of_the_cpu_parameter_are_taken(value):
    read_settings(with_parameters(FORCE_CPU_ONLY_INPUT_TENSORS=value))


# auto_complete_config


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"class TritonPythonModel:\n    def execute(self, requests): ...", False),
        (b"class TritonPythonModel(object):\n    pass", False),
        (b"class TritonPythonModel():\n    pass", False),
        (b"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): return c", True),
        (b"class TritonPythonModel(Base):\n    pass", True),
        (b"from base import TritonPythonModel", True),
    ],
)
def test_a_process_is_started_only_for_a_file_that_may_complete_its_config(source, expected):
    assert _may_complete(source) is expected


COMPLETING = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): ..."


async def complete(model_dir: Path, monkeypatch, say) -> tuple[ModelConfig, FakeWorker]:
    """Have a model complete its config while ``say`` plays its process's part; return the config and the process."""
    (model_dir / "1" / "model.py").write_text(COMPLETING)
    worker = FakeWorker()
    monkeypatch.setattr("bireme.backends.python.backend._spawn", lambda host, environment: worker)
    loop = asyncio.get_running_loop()
    model = PythonBackend().load(context(model_dir, host=FakeHost(loop)))
    config = ModelConfig(name="m", backend="python", max_batch_size=2)
    completing = loop.run_in_executor(None, model.complete_config, config)
    await until(lambda: worker.sent)
    say(worker, json.loads(json.loads(worker.sent[0].settings["args"])["model_config"]))
    return await completing, worker


def test_a_model_completes_its_config_in_a_process_that_is_not_needed_afterwards(model_dir, monkeypatch):
    def say(worker, config):
        assert config["max_batch_size"] == 2
        config["input"] = [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}]
        config["dynamic_batching"] = {}
        worker.say(Started(facts={"config": json.dumps(config)}))

    config, worker = asyncio.run(complete(model_dir, monkeypatch, say))

    assert config.input[0].name == "X"
    assert config.dynamic_batching is not None
    assert worker.sent[0].settings["mode"] == "complete"
    assert worker.stopped == [30.0]


def test_a_model_with_nothing_to_complete_leaves_the_config_as_it_is(model_dir, monkeypatch):
    config, _ = asyncio.run(complete(model_dir, monkeypatch, lambda worker, config: worker.say(Started())))

    assert config == ModelConfig(name="m", backend="python", max_batch_size=2)


def test_a_failed_auto_complete_fails_the_load_with_the_models_text(model_dir, monkeypatch):
    def say(worker, config):
        worker.say(Started(ErrorData("INTERNAL", "ValueError: no")))

    with pytest.raises(BackendFailed, match="ValueError: no"):
        asyncio.run(complete(model_dir, monkeypatch, say))


def test_what_is_no_config_is_named_with_the_file(model_dir, monkeypatch):
    def say(worker, config):
        worker.say(Started(facts={"config": '{"inputs": []}'}))

    with pytest.raises(InvalidArgument, match=r"auto_complete_config of '.*model.py' returned: .*'inputs'"):
        asyncio.run(complete(model_dir, monkeypatch, say))


def test_a_call_to_the_server_is_refused_while_the_config_is_completed(model_dir, monkeypatch):
    def say(worker, config):
        worker.say(Call(3, "load_model", {"name": "other"}))
        worker.say(Started())

    _, worker = asyncio.run(complete(model_dir, monkeypatch, say))

    assert worker.sent[1].call == 3
    assert worker.sent[1].error.code == "UNAVAILABLE"


def test_a_config_that_a_model_gets_and_gives_back_is_the_same():
    config = parse_text(
        'name: "m" max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 100 } '
        'optimization { cuda { graph_spec { input { key: "X" value { dim: [ 3 ] } } } } } '
        "instance_group { kind: KIND_CPU secondary_devices { device_id: 1 } }",
        Path("config.pbtxt"),
    )

    assert parse_json(config_text(config), "model") == config


# args


def test_a_model_is_told_seven_texts():
    config = parse_text(
        """
        name: "m"
        max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
        parameters { key: "k" value { string_value: "v" } }
        """,
        Path("config.pbtxt"),
    )

    args = make_arguments(config, 3, Path("/models/m"), Placement("m_0_1", "KIND_GPU", 2))

    model_config = json.loads(args.pop("model_config"))
    assert args == {
        "model_instance_kind": "GPU",
        "model_instance_name": "m_0_1",
        "model_instance_device_id": "2",
        "model_repository": "/models/m",
        "model_version": "3",
        "model_name": "m",
    }
    assert model_config["parameters"] == {"k": {"string_value": "v"}}
    assert model_config["max_batch_size"] == 4
    assert model_config["input"][0]["data_type"] == "TYPE_FP32"
    assert model_config["input"][0]["optional"] is False
    assert "model_transaction_policy" not in model_config
