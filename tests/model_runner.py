"""A Python model's instance in a thread, with its runner and runtime, whose server is the test."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np

from bireme.backends.python import runtime as runtimes
from bireme.backends.python.async_runner import AsyncRunner, make_loop
from bireme.backends.python.batches import Batches
from bireme.backends.python.exchange import Exchange
from bireme.backends.python.pb_utils.response import InferenceResponse
from bireme.backends.python.pb_utils.tensor import Tensor
from bireme.backends.python.process_runtime import ProcessRuntime
from bireme.backends.python.runner import Runner
from bireme.ipc.messages import Execute, Executed, Finalize
from model_channel import FakeChannel, FakeLedger, tensor_data


class Bench:
    """A model instance that runs in a thread, which takes itself for the main one."""

    def __init__(self, execute, *, is_decoupled=False, answer=None, **methods):
        self.channel = FakeChannel(answer)
        self.ledger = FakeLedger()
        self.is_async = asyncio.iscoroutinefunction(execute)
        self.model = SimpleNamespace(execute=execute, **methods)
        self.is_decoupled = is_decoupled
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error = None

    def _run(self):
        try:
            self.runtime = ProcessRuntime(
                Exchange(self.channel, self.ledger), model_name="m", version_dir="/m/1"
            )
            runtimes.set_current(lambda: self.runtime)
            batches = Batches(
                self.runtime,
                instance_name="m_0_0",
                model_version=1,
                is_decoupled=self.is_decoupled,
                output_names=["Y", "Z"],
            )
            if not self.is_async:
                runner = Runner(self.model, batches)
                self._ready.set()
                runner.run()
                return
            runner = AsyncRunner(self.model, batches, make_loop(), self.channel.fileno())
            self._ready.set()
            runner.run()
            runner.close()
        except BaseException as error:  # noqa: BLE001
            self.error = error
            self._ready.set()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_):
        self.channel.put(Finalize())
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.channel.close()
        if self.error is not None:
            raise self.error

    def execute(self, number, *requests):
        self.channel.put(Execute(number, list(requests)))

    def executed(self, number=1):
        """Return the last of ``number`` batches' outcomes."""
        return self.channel.wait_for(Executed, number)[number - 1]

    def run(self, *requests):
        """Run one more batch and return its outcome."""
        number = len(self.channel.of(Executed)) + 1
        self.execute(number, *requests)
        return self.executed(number)


def x_data(*values):
    return tensor_data("X", np.array(values, np.float32))


def x_of(request):
    return request.inputs()[0].as_numpy()


def y(values):
    return InferenceResponse([Tensor("Y", np.asarray(values, np.float32))])


def values(response):
    return np.frombuffer(response.outputs[0].data, np.float32).tolist()
