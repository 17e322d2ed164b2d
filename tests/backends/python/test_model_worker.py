"""A model in a real worker process, whose server is the test: memory shared both ways, forks, and the end."""

import asyncio
import json
import os
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from bireme.ipc.arena import Arena
from bireme.ipc.messages import (
    Execute,
    Executed,
    Finalize,
    Infer,
    LogLine,
    Reply,
    RequestData,
    ResponseData,
    Start,
    Started,
)
from bireme.ipc.worker_process import WorkerProcess
from bireme.types import Tensor

pytestmark = pytest.mark.slow

LARGE = 1 << 20

ADD_SUB = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                a, b = (tensor.as_numpy() for tensor in request.inputs())
                outputs = [pb_utils.Tensor("A", a + b), pb_utils.Tensor("B", a - b)]
                responses.append(pb_utils.InferenceResponse(outputs))
            return responses

        def finalize(self):
            pb_utils.Logger.log_info("finalized")
"""
FORWARD = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        {prefix}def execute(self, requests):
            responses = []
            for request in requests:
                call = pb_utils.InferenceRequest(
                    model_name="other", inputs=request.inputs(), requested_output_names=["X0"]
                )
                answer = {call}
                responses.append(pb_utils.InferenceResponse(answer.output_tensors()))
            return responses
"""
FORK = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", np.array([os.getpid()]))])]
"""


class Peer:
    """The server of one worker: answers its calls with their own inputs."""

    def __init__(self, model_dir, source):
        version_dir = model_dir / "1"
        version_dir.mkdir()
        (version_dir / "model.py").write_text(dedent(source))
        self.messages = asyncio.Queue()
        self.worker = WorkerProcess.start("bireme.backends.python.model_process:main", Arena())
        self.ledger = self.worker.ledger
        self.num_executions = 0
        args = {
            "model_config": json.dumps({"name": "m", "output": []}),
            "model_name": "m",
            "model_instance_name": "m_0_0",
            "model_version": "1",
        }
        self.worker.attach(asyncio.get_running_loop(), self.on_message, self.messages.put_nowait)
        self.worker.send(
            Start(
                {
                    "mode": "serve",
                    "model_file": str(version_dir / "model.py"),
                    "model_dir": str(model_dir),
                    "version_dir": str(version_dir),
                    "backend_dir": "",
                    "args": json.dumps(args),
                    "is_decoupled": "",
                }
            )
        )

    def on_message(self, message):
        if type(message) is not Infer:
            self.messages.put_nowait(message)
            return
        self.ledger.take_back(message.released)
        data = [self.ledger.export(self.ledger.adopt(tensor)) for tensor in message.request.inputs]
        response = ResponseData(data, model_name="other", model_version=1)
        self.worker.send(Reply(message.request.number, response, self.ledger.take_released()))

    async def execute(self, *arrays):
        """Run a batch of one request; return its output arrays."""
        self.num_executions += 1
        number = self.num_executions
        inputs = [
            self.ledger.export(Tensor.from_numpy(f"X{index}", array)) for index, array in enumerate(arrays)
        ]
        self.worker.send(Execute(number, [RequestData(number, "", inputs)], self.ledger.take_released()))
        executed = await self.messages.get()
        assert type(executed) is Executed, executed
        assert executed.error is None, executed.error
        self.ledger.take_back(executed.released)
        return [self.ledger.adopt(tensor).to_numpy() for tensor in executed.responses[0].outputs]

    async def end(self):
        """Have the worker finalize; return what it said, its last words included."""
        self.worker.send(Finalize())
        said = [await self.messages.get()]
        while not isinstance(said[-1], str):
            said.append(await self.messages.get())
        return said


def run(tmp_path, source, scenario):
    async def body():
        peer = Peer(tmp_path, source)
        try:
            started = await peer.messages.get()
            assert started == Started(facts=started.facts)
            await scenario(peer)
        finally:
            peer.worker.kill()

    asyncio.run(body())


def test_model_computes_in_shared_memory(tmp_path):
    async def scenario(peer):
        for size in (4, LARGE):
            a, b = np.arange(size, dtype=np.float32), np.ones(size, np.float32)
            total, difference = await peer.execute(a, b)

            assert np.array_equal(total, a + b)
            assert np.array_equal(difference, a - b)
        del total, difference
        await peer.execute(np.ones(1, np.float32), np.ones(1, np.float32))
        assert (peer.ledger.num_lent, peer.ledger.num_borrowed) == (0, 0)

        line, last = await peer.end()
        assert (type(line), line.message) == (LogLine, "finalized")
        assert last == "ended with exit code 0"

    run(tmp_path, ADD_SUB, scenario)


@pytest.mark.parametrize(
    ("prefix", "call"), [("", "call.exec()"), ("async ", "await call.async_exec()")], ids=["sync", "async"]
)
def test_model_asks_another_one_without_copies(tmp_path, prefix, call):
    """The input of the request is lent on to the other model, and what that answers is this model's own response."""

    async def scenario(peer):
        for size in (4, LARGE):
            array = np.arange(size, dtype=np.float32)
            (result,) = await peer.execute(array)

            assert np.array_equal(result, array)
        used = peer.ledger.arena.used_bytes
        del result
        assert used == LARGE * 4  # the one copy, made when the request was handed over
        await peer.execute(np.ones(1, np.float32))
        assert peer.ledger.arena.used_bytes == 0

    run(tmp_path, FORWARD.format(prefix=prefix, call=call), scenario)


def test_forked_copy_of_a_model_says_nothing(tmp_path):
    async def scenario(peer):
        for _ in range(2):
            (pid,) = await peer.execute()

            assert pid.tolist() == [peer.worker.pid]
        assert await peer.end() == ["ended with exit code 0"]

    run(tmp_path, FORK, scenario)


def test_memory_of_a_busy_model_stays_flat(tmp_path):
    async def scenario(peer):
        def resident():
            statm = Path(f"/proc/{peer.worker.pid}/statm").read_text()
            return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

        array = np.ones(100_000, np.float32)
        for _ in range(200):
            await peer.execute(array, array)
        before = resident()
        for _ in range(500):
            await peer.execute(array, array)

        assert resident() - before < 1 << 20
        assert peer.ledger.num_lent <= 2

    run(tmp_path, ADD_SUB, scenario)
