"""Python models in real worker processes: run, killed, started again, closed, with nothing left behind."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from bireme import Server
from bireme.types import BackendFailed, BiremeError, InferenceRequest, Tensor, Unavailable
from model_dirs import until

pytestmark = pytest.mark.slow

CONFIG = """
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
{extra}
"""
HEAD = "import os, signal, sys, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
PLUS_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x.size and x[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)]))
        return responses
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="plus", requested_output_names=["Y"], inputs=[request.inputs()[0]]
            )
            answer = call.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
            else:
                responses.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return responses
"""
REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in pb_utils.get_input_tensor_by_name(request, "X").as_numpy():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.float32))]))
                if value < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def add_model(root: Path, name: str, code: str, extra: str = "") -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(HEAD + dedent(code))
    (root / name / "config.pbtxt").write_text(CONFIG.format(extra=extra))


def workers() -> set[int]:
    """Return the processes of this one that are workers."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"bireme.ipc.worker" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


@asynccontextmanager
async def serve(root: Path, **options):
    before = workers()
    async with Server(str(root), strict_readiness=False, **options) as server:
        yield server
    await until(lambda: workers() <= before)


async def ask(server: Server, name: str, *values: float) -> list[float]:
    result = await server.ainfer(name, {"X": np.array(values, np.float32)})
    return result["Y"].tolist()


async def stream(server: Server, name: str, *values: float) -> list:
    """Return the responses of a decoupled model up to the final one."""
    responses = []
    done = asyncio.Event()

    def respond(request, response):
        responses.append(response)
        if response.final:
            done.set()

    tensor = Tensor.from_numpy("X", np.array(values, np.float32))
    server.submit(InferenceRequest(name, {"X": tensor}, respond))
    await asyncio.wait_for(done.wait(), 20)
    return responses


def test_a_model_runs_in_a_process_of_its_own_and_nothing_stays(tmp_path):
    add_model(tmp_path, "plus", PLUS_ONE)

    async def scenario():
        before = workers()
        async with serve(tmp_path) as server:
            assert len(workers() - before) == 1
            assert await ask(server, "plus", 1, 2) == [2, 3]
            large = np.ones(1_000_000, np.float32)
            result = await server.ainfer("plus", {"X": large})
            assert (result["Y"] == 2).all()
            assert (await ask(server, "plus")) == []

    asyncio.run(scenario())


def test_a_model_that_kills_its_process_costs_its_own_requests_and_serves_again(tmp_path):
    add_model(tmp_path, "plus", PLUS_ONE)

    async def scenario():
        async with serve(tmp_path) as server:
            with pytest.raises(
                Unavailable, match=r"was killed by signal 9 \(SIGKILL\); the request was lost"
            ):
                await ask(server, "plus", -1)

            assert await ask(server, "plus", 4) == [5]  # it waited for the new process

    asyncio.run(scenario())


def test_a_process_that_is_killed_from_outside_is_replaced(tmp_path):
    add_model(tmp_path, "plus", PLUS_ONE)

    async def scenario():
        before = workers()
        async with serve(tmp_path) as server:
            (pid,) = workers() - before
            os.kill(pid, signal.SIGKILL)
            await until(lambda: workers() - before - {pid})

            assert await ask(server, "plus", 1) == [2]

    asyncio.run(scenario())


def test_a_call_to_a_model_whose_process_dies_is_answered_and_the_caller_lives_on(tmp_path):
    add_model(tmp_path, "plus", PLUS_ONE)
    add_model(tmp_path, "caller", CALLER)

    async def scenario():
        async with serve(tmp_path) as server:
            assert await ask(server, "caller", 1, 2) == [2, 3]
            with pytest.raises(Unavailable, match="was killed by signal 9"):
                await ask(server, "caller", -1)
            assert await ask(server, "caller", 3) == [4]
            large = np.ones(1_000_000, np.float32)
            assert ((await server.ainfer("caller", {"X": large}))["Y"] == 2).all()

    asyncio.run(scenario())


def test_a_stream_ends_with_an_error_when_its_process_dies(tmp_path):
    add_model(tmp_path, "repeat", REPEAT, "model_transaction_policy { decoupled: true }")

    async def scenario():
        async with serve(tmp_path) as server:
            good = await stream(server, "repeat", 1, 2, 3)
            assert [response.outputs[0].to_numpy().tolist() for response in good[:-1]] == [[1], [2], [3]]
            assert good[-1].flag_only

            bad = await stream(server, "repeat", 1, -1, 3)
            assert isinstance(bad[-1].error, Unavailable)
            assert len(await stream(server, "repeat", 5)) == 2

    asyncio.run(scenario())


def test_an_exception_in_initialize_is_the_loads_error(tmp_path):
    add_model(tmp_path, "plus", PLUS_ONE)
    add_model(
        tmp_path,
        "broken",
        """
        class TritonPythonModel:
            def initialize(self, args):
                raise ValueError("no weights")
            def execute(self, requests): ...
        """,
    )

    async def scenario():
        async with serve(tmp_path, model_control_mode="explicit") as server:
            with pytest.raises(BiremeError, match="ValueError: no weights"):
                await server.load_model("broken")

    asyncio.run(scenario())


def test_an_exception_in_execute_fails_the_batch_and_nothing_else(tmp_path):
    add_model(
        tmp_path,
        "picky",
        """
        class TritonPythonModel:
            def execute(self, requests):
                x = requests[0].inputs()[0].as_numpy()
                if x[0] < 0:
                    raise ValueError("negative")
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
        """,
    )

    async def scenario():
        before = workers()
        async with serve(tmp_path) as server:
            with pytest.raises(
                BackendFailed, match=r"Failed to process the request\(s\).*ValueError: negative"
            ):
                await ask(server, "picky", -1)
            assert await ask(server, "picky", 1) == [1]
            assert len(workers() - before) == 1

    asyncio.run(scenario())


def test_a_model_completes_its_own_config(tmp_path):
    add_model(
        tmp_path,
        "auto",
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
                config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
                return config
            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() * 2)])
                    for request in requests
                ]
        """,
    )
    (tmp_path / "auto" / "config.pbtxt").unlink()

    async def scenario():
        async with serve(tmp_path) as server:
            assert await ask(server, "auto", 2) == [4]

    asyncio.run(scenario())


def test_readiness_is_the_models_own(tmp_path):
    add_model(
        tmp_path,
        "moody",
        """
        class TritonPythonModel:
            def __init__(self):
                self.is_good = True
            def is_ready(self):
                return self.is_good
            def execute(self, requests):
                self.is_good = False
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
        """,
    )

    async def scenario():
        async with serve(tmp_path) as server:
            assert await server.model("moody").check_ready()
            await ask(server, "moody", 1)
            assert not await server.model("moody").check_ready()

    asyncio.run(scenario())


def test_a_model_finalizes_when_it_is_unloaded(tmp_path):
    add_model(
        tmp_path,
        "tidy",
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.mark = args["model_repository"] + "/finalized"
            def execute(self, requests): ...
            def finalize(self):
                open(self.mark, "w").close()
        """,
    )

    async def scenario():
        async with serve(tmp_path, model_control_mode="explicit") as server:
            await server.load_model("tidy")
            await server.unload_model("tidy")
            await until((tmp_path / "tidy" / "finalized").exists)

    asyncio.run(scenario())
