"""PyTorch models on a real server, asked by the official clients; in the process and beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import bireme
from bireme.backends.pytorch.runtime import quiet, torch
from e2e_server import RunningServer
from official_client import connect, infer
from pytorch_models import (
    AddSub,
    Picky,
    Recurrent,
    Same,
    Scale,
    Texts,
    parameter,
    save_eager,
    save_exported,
    save_torchscript,
    tensors,
)
from serve_process import ServeProcess, running

ROW = np.arange(4, dtype=np.float32)[np.newaxis]
PAIR = tensors("INPUT__0:FP32:4 INPUT__1:FP32:4", "OUTPUT__0:FP32:4 OUTPUT__1:FP32:4")
BATCHING = """
platform: "pytorch_libtorch" max_batch_size: 16
dynamic_batching { max_queue_delay_microseconds: 20000 }
instance_group { count: 2 kind: KIND_CPU }
"""
STATE = """
max_batch_size: 4
sequence_batching { oldest {} state {
  input_name: "INPUT__1" output_name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 4 ]
} }
"""
SILERO = find_spec("silero_vad")
"""The package of an example of ours, which carries a real model."""


def configure(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pytorch")
    save_torchscript(configure(root / "pair", BATCHING + PAIR), AddSub())
    batch = {"x": {0: torch.export.Dim("batch")}}
    save_exported(root / "exported", Scale(), torch.zeros(2, 4), dynamic=batch)  # without a config
    save_torchscript(
        configure(root / "texts", tensors("words:STRING:-1", "twice:STRING:-1 length:INT64:-1")), Texts()
    )
    save_torchscript(configure(root / "picky", tensors("x:FP32:-1", "y:FP64:-1")), Picky())
    save_torchscript(configure(root / "bf16", tensors("x:BF16:-1", "y:BF16:-1")), Same())
    save_torchscript(
        configure(root / "sum", STATE + tensors("INPUT__0:FP32:4", "OUTPUT__0:FP32:4")), Recurrent()
    )
    isolated = parameter("isolation", "process") + "instance_group { count: 2 kind: KIND_CPU }"
    save_torchscript(configure(root / "isolated", isolated + tensors("x:FP32:-1,-1", "y:FP32:-1,-1")), Same())
    eager = 'backend: "pytorch" runtime: "model.py"' + tensors("x:FP32:-1,4", "y:FP32:-1,3")
    save_eager(
        configure(root / "eager", eager),
        """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.linear(x)
""",
        Scale(),
    )
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    running_server = RunningServer(repository)
    yield running_server
    running_server.stop()


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    with connect(server, request.param) as found:
        yield found


def test_torchscript_by_position(client):
    result = infer(client, "pair", {"INPUT__0": 3 * ROW, "INPUT__1": ROW})

    assert (4 * ROW).tolist() == result.as_numpy("OUTPUT__0").tolist()
    assert (2 * ROW).tolist() == result.as_numpy("OUTPUT__1").tolist()


@pytest.mark.parametrize(("name", "output"), [("exported", "OUTPUT__0"), ("eager", "y")])
def test_exported_and_eager_models(client, name, output):
    assert infer(client, name, {"x": ROW}).as_numpy(output).tolist() == [[6, 6, 6]]


def test_strings(client):
    words = np.array([b"ab", "é".encode()], np.object_)

    result = infer(client, "texts", {"words": words}, "BYTES")

    assert result.as_numpy("twice").tolist() == [b"abab", "éé".encode()]
    assert result.as_numpy("length").tolist() == [2, 2]


def test_bf16(client):
    result = infer(client, "bf16", {"x": np.array([1, -2, 3.5], ml_dtypes.bfloat16)}, "BF16")

    assert result.as_numpy("y").astype(np.float32).tolist() == [1, -2, 3.5]


def test_what_forward_raises_is_the_answer(client):
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "picky", {"x": np.float32([9])})

    assert "PyTorch execute failure: ValueError: too large" in caught.value.message()
    assert "Traceback" not in caught.value.message()


def test_large_tensors_of_a_model_in_a_process(client):
    large = np.random.default_rng(3).random((700, 500), np.float32)

    assert np.array_equal(large, infer(client, "isolated", {"x": large}).as_numpy("y"))


def test_implicit_state(client):
    sums = [
        infer(
            client, "sum", {"INPUT__0": ROW}, sequence_id=7, sequence_start=step == 0, sequence_end=step == 2
        ).as_numpy("OUTPUT__0")
        for step in range(3)
    ]

    assert [(step * ROW).tolist() for step in (1, 2, 3)] == [each.tolist() for each in sums]


def test_many_clients_share_batches(server):
    before = statistics(server, "pair")
    results: dict[int, float] = {}

    def ask(number: int) -> None:
        with tritonclient.http.InferenceServerClient(server.address) as connection:
            given = {"INPUT__0": number * ROW, "INPUT__1": ROW}
            result = infer((tritonclient.http, connection), "pair", given)
            results[number] = float(result.as_numpy("OUTPUT__0")[0, 1])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = statistics(server, "pair")

    assert {number: number + 1 for number in range(12)} == results
    assert after["inference_count"] - before["inference_count"] == 12
    assert after["execution_count"] - before["execution_count"] < 12


def statistics(server, name):
    with tritonclient.http.InferenceServerClient(server.address) as connection:
        return connection.get_inference_statistics(name)["model_stats"][0]


def test_a_program_has_the_same_models(repository):
    with bireme.Server(
        str(repository), model_control_mode="explicit", load_model=("exported", "pair")
    ) as server:
        assert server.infer("exported", {"x": ROW})["OUTPUT__0"].tolist() == [[6, 6, 6]]
        both = {"INPUT__0": ROW, "INPUT__1": torch.ones(1, 4)}
        assert server.infer("pair", both)["OUTPUT__0"].tolist() == [[1, 2, 3, 4]]


def test_what_does_not_load_says_why(tmp_path):
    path = save_torchscript(configure(tmp_path / "torn", PAIR), AddSub())
    path.write_bytes(path.read_bytes()[:700])
    save_torchscript(
        configure(tmp_path / "misnamed", tensors("left:FP32:4 rihgt:FP32:4 x:FP32:4", "y:FP32:4")), AddSub()
    )
    save_torchscript(tmp_path / "bare", AddSub())
    server = bireme.Server(
        str(tmp_path), model_control_mode="explicit", load_model=("*",), exit_on_error=False
    )

    with server as running_server:
        reasons = {each["name"]: each["reason"] for each in running_server.repository_index()}

    assert "it was cut off" in reasons["torn"]
    assert "did you mean 'right'?" in reasons["misnamed"]
    assert "forward(left: Tensor, right: Tensor)" in reasons["bare"]


@pytest.mark.slow
def test_the_command_serves_models_in_its_process_and_beside_it(repository):
    arguments = [f"--model-repository={repository}", "--model-control-mode=explicit"]
    with running(ServeProcess(*arguments, "--load-model=isolated", "--load-model=exported")) as process:
        process.wait_for("models loaded in", timeout_s=50)
        with tritonclient.grpc.InferenceServerClient(process.grpc_address) as connection:
            found = tritonclient.grpc, connection
            assert infer(found, "exported", {"x": ROW}).as_numpy("OUTPUT__0").tolist() == [[6, 6, 6]]
            assert ROW.tolist() == infer(found, "isolated", {"x": ROW}).as_numpy("y").tolist()
        process.popen.terminate()
        assert process.exit_status() == 0
    assert "Warning" not in process.output


if SILERO is not None:

    def test_a_real_model_with_a_state_and_a_number(tmp_path):
        """Silero VAD: ``forward(x, sr)`` with a number, and a state in the module."""
        assert SILERO.origin is not None
        source = Path(SILERO.origin).parent / "data" / "silero_vad.jit"
        text = tensors("x:FP32:1,512 sr:INT64:1", "speech:FP32:1,1")
        target = configure(tmp_path / "silero", text) / "1" / "model.pt"
        target.parent.mkdir()
        target.write_bytes(source.read_bytes())
        frames = np.random.default_rng(5).normal(0, 0.1, (6, 1, 512)).astype(np.float32)
        with quiet():
            model = torch.jit.load(str(source))
        with torch.inference_mode():
            expected = [float(model(torch.from_numpy(frame), 16000)) for frame in frames]

        rate = np.array([16000], np.int64)
        with bireme.Server(str(tmp_path)) as server:
            found = [server.infer("silero", {"x": frame, "sr": rate})["speech"].item() for frame in frames]

        assert np.allclose(expected, found, atol=1e-5)
