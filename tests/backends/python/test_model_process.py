"""A model in its worker, from `Start` to ``finalize``: what the server is told of what the model's code does."""

import gc
import json
import sys
import textwrap
import threading

import numpy as np
import pytest

from bireme.backends.python import model_process, runtime
from bireme.ipc.messages import (
    Call,
    Execute,
    Executed,
    Finalize,
    LogLine,
    Result,
    Start,
    Started,
)
from model_channel import FakeChannel, FakeLedger, request_data, tensor_data

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


@pytest.fixture(autouse=True)
def clean_process():
    """What a worker does to its process must not stay in that of the tests."""
    path, modules = sys.path[:], set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("1", "triton_python", "c_python")):
            del sys.modules[name]
    gc.unfreeze()
    runtime.set_current(None)


class Worker:
    """The worker's entry in a thread of this process."""

    def __init__(self, model_dir, source, *, mode="serve", is_decoupled="", answer=None, config=None):
        version_dir = model_dir / "1"
        version_dir.mkdir(parents=True, exist_ok=True)
        (version_dir / "model.py").write_text(textwrap.dedent(source))
        args = {
            "model_config": json.dumps(config or {"name": "m", "output": [{"name": "Y"}]}),
            "model_instance_kind": "CPU",
            "model_instance_name": "m_0_0",
            "model_instance_device_id": "0",
            "model_repository": str(model_dir),
            "model_version": "1",
            "model_name": "m",
        }
        self.args = args
        self.channel = FakeChannel(answer)
        self.thread = threading.Thread(target=model_process.main, args=(self.channel, FakeLedger()))
        self.channel.put(
            Start(
                {
                    "mode": mode,
                    "model_file": str(version_dir / "model.py"),
                    "model_dir": str(model_dir),
                    "version_dir": str(version_dir),
                    "backend_dir": "",
                    "args": json.dumps(args),
                    "is_decoupled": is_decoupled,
                }
            )
        )

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.channel.put(Finalize())
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.channel.close()

    @property
    def started(self):
        return self.channel.wait_for(Started)[0]

    def run(self, *requests):
        number = len(self.channel.of(Executed)) + 1
        self.channel.put(Execute(number, list(requests)))
        return self.channel.wait_for(Executed, number)[-1]


@pytest.fixture
def make_worker(tmp_path):
    return lambda source, **settings: Worker(tmp_path / "m", source, **settings)


def test_model_serves_from_start_to_finalize(make_worker):
    with make_worker(IDENTITY) as worker:
        assert worker.started == Started(facts={"is_async": "", "has_is_ready": "", "has_drop_sequence": ""})
        executed = worker.run(request_data(1, tensor_data("X", np.arange(3, dtype=np.int32))))

    assert executed.responses[0].outputs[0].datatype == "INT32"


def test_initialize_gets_its_arguments(make_worker):
    source = """
        import json
        class TritonPythonModel:
            def initialize(self, args):
                raise ValueError(json.dumps(args))
            def execute(self, requests):
                pass
    """
    with make_worker(source) as worker:
        text = worker.started.error.message.removeprefix("ValueError: ").partition("\n")[0]

    assert json.loads(text) == worker.args


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        (
            "async def execute(self, requests): pass",
            {"is_async": "1", "has_is_ready": "", "has_drop_sequence": ""},
        ),
        (
            "def execute(self, requests): pass\n    def is_ready(self): return True",
            {"is_async": "", "has_is_ready": "1", "has_drop_sequence": ""},
        ),
    ],
)
def test_server_learns_what_the_model_can_do(make_worker, source, facts):
    with make_worker(f"class TritonPythonModel:\n    {source}\n") as worker:
        assert worker.started == Started(facts=facts)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("def __init__(self): self.x", "AttributeError: "),
        ("def initialize(self, args): raise KeyError('weights')", "KeyError: 'weights'\n\nAt:\n"),
        ("def initialize(self, args): exit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError: division by zero\n\nAt:\n"),
    ],
)
def test_failures_of_the_lifecycle_are_told_with_their_place(make_worker, body, text):
    source = f"class TritonPythonModel:\n    def execute(self, requests): pass\n    {body}\n"
    with make_worker(source) as worker:
        error = worker.started.error
        worker.thread.join(10)

        assert not worker.thread.is_alive()
    assert error.code == "INTERNAL"
    assert error.message.startswith(text)
    assert "m/1/model.py(" in error.message


def test_syntax_errors_are_told(make_worker):
    with make_worker("class TritonPythonModel\n") as worker:
        assert worker.started.error.message.startswith("SyntaxError: ")


def test_file_without_an_execute_is_told(make_worker):
    with make_worker("class TritonPythonModel:\n    pass\n") as worker:
        assert "does not implement `execute` method" in worker.started.error.message


def test_initialize_cannot_ask_other_models_and_the_server_answers_it(make_worker):
    source = """
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.Logger.log_info("loading")
                assert pb_utils.is_model_ready("n")
                pb_utils.InferenceRequest(model_name="n", inputs=[], requested_output_names=[]).exec()
            def execute(self, requests):
                pass
    """

    def answer(message):
        return [Result(message.call, None, 1)] if type(message) is Call else None

    with make_worker(source, answer=answer) as worker:
        assert "BLS is only supported during the 'execute' function." in worker.started.error.message

        assert [line.message for line in worker.channel.of(LogLine)] == ["loading"]


@pytest.mark.parametrize("prefix", ["", "async "])
def test_failure_of_finalize_is_logged(make_worker, prefix):
    source = f"""
        class TritonPythonModel:
            def execute(self, requests): pass
            {prefix}def finalize(self): raise ValueError("too late")
    """
    with make_worker(source) as worker:
        assert worker.started.error is None

    (line,) = worker.channel.of(LogLine)
    assert line.level == 40
    assert line.message.startswith("Failed to finalize the model: ValueError: too late")


def test_async_model_finalizes_on_its_loop(make_worker):
    source = """
        import asyncio
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            async def execute(self, requests):
                self.loop = asyncio.get_running_loop()
                self.task = asyncio.ensure_future(asyncio.sleep(100))
            async def finalize(self):
                assert asyncio.get_running_loop() is self.loop
                pb_utils.Logger.log_info("finalized")
    """
    with make_worker(source, is_decoupled="1") as worker:
        assert worker.run(request_data(1)).error is None

    assert [line.message for line in worker.channel.of(LogLine)] == ["finalized"]


def test_helper_files_are_found_beside_the_model(make_worker, tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "beside.py").write_text("VALUE = 7")
    source = """
        import triton_python_backend_utils as pb_utils
        from .beside import VALUE
        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.Logger.log_info(f"{VALUE} {pb_utils.get_model_dir()}")
            def execute(self, requests): pass
    """
    with make_worker(source) as worker:
        assert worker.started.error is None
        assert worker.channel.of(LogLine)[0].message == f"7 {tmp_path / 'm' / '1'}"


# auto_complete_config


def test_model_completes_its_config(make_worker):
    source = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(8)
                config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [4]})
                return config
            def execute(self, requests): pass
    """
    config = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
    with make_worker(source, mode="complete", config=config) as worker:
        completed = json.loads(worker.started.facts["config"])
        worker.thread.join(10)

        assert not worker.thread.is_alive()
    assert completed["max_batch_size"] == 8
    assert completed["output"] == [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}]


def test_model_that_has_nothing_to_complete(make_worker):
    with make_worker(IDENTITY, mode="complete") as worker:
        assert worker.started == Started()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "return None",
            "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
        ),
        ("raise ValueError('no')", "ValueError: no\n\nAt:\n"),
    ],
)
def test_failure_to_complete_is_told(make_worker, body, text):
    source = f"""
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                {body}
            def execute(self, requests): pass
    """
    with make_worker(source, mode="complete") as worker:
        assert worker.started.error.message.startswith(text)


def test_log_lines_of_completion_go_to_stderr(make_worker, capsys):
    source = """
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                pb_utils.Logger.log_info("completing")
                return config
            def execute(self, requests): pass
    """
    with make_worker(source, mode="complete") as worker:
        assert worker.started.error is None
        assert worker.channel.of(LogLine) == []

    assert "completing" in capsys.readouterr().err


def test_worker_whose_server_is_gone_before_the_start_just_ends(make_worker):
    channel = FakeChannel()
    channel.put(None)

    model_process.main(channel, FakeLedger())

    assert channel.sent == []
    channel.close()
