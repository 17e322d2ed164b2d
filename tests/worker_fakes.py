"""A worker process, a server and an engine's model that only remember what they are asked, for tests of Python models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from bireme.ipc.messages import BlockRef, Execute, RequestData, TensorData
from bireme.telemetry.custom_metrics import CustomMetrics
from bireme.types import BiremeError, Execution, InferenceRequest, NotFound, Tensor


class FakeLedger:
    """Every tensor travels inside its message; leases are what a test says."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.taken_back: list[int] = []
        self.num_borrowed = 0

    def export(self, tensor: Tensor) -> TensorData:
        return TensorData(tensor.name, tensor.datatype, tensor.shape, bytearray(tensor.to_buffer()))

    def adopt(self, data: TensorData, *, writable: bool = True) -> Tensor:
        assert not isinstance(data.data, BlockRef)
        return Tensor(
            data.name, data.datatype, data.shape, np.frombuffer(data.data, np.float32).reshape(data.shape)
        )

    def take_back(self, leases) -> None:
        self.taken_back += leases

    def take_released(self) -> list[int]:
        taken, self.released = self.released, []
        return taken


class FakeWorker:
    """A process that says what a test says, by `say` and `die`."""

    last_pid = 1000

    def __init__(self) -> None:
        FakeWorker.last_pid += 1
        self.pid = FakeWorker.last_pid
        self.ledger = FakeLedger()
        self.sent: list = []
        self.is_killed = False
        self.stopped: list[float] = []

    def attach(self, loop, on_message, on_lost) -> None:
        self.say = on_message
        self.die = on_lost

    def send(self, message) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.is_killed = True

    def stop(self, timeout_s: float) -> None:
        self.stopped.append(timeout_s)

    def take(self) -> list:
        """Return what was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent

    @property
    def batches(self) -> list[Execute]:
        return [message for message in self.sent if isinstance(message, Execute)]


@dataclass
class FakeSink:
    """Remembers what an instance says, in order."""

    events: list[tuple] = field(default_factory=list)

    def respond(self, request, response) -> None:
        self.events.append(("respond", request, response))

    has_waiting = True

    def finish(self, execution, error=None) -> None:
        self.events.append(("finish", execution, error))
        execution.requests = []

    is_iterative = False

    def run_again(self, request) -> bool:
        self.events.append(("run_again", request))
        return self.is_iterative

    def change(self) -> None:
        self.events.append(("change",))

    @property
    def kinds(self) -> list[str]:
        return [event[0] for event in self.events]


class FakeHost:
    """A server whose models answer when a test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop
        self.arena = None
        self.custom_metrics = CustomMetrics()
        self.submitted: list[InferenceRequest] = []
        self.cancelled: list[InferenceRequest] = []
        self.held: list[InferenceRequest] = []
        self.resumed: list[InferenceRequest] = []
        self.decoupled: dict[str, bool] = {"callee": False, "stream": True}
        self.refusal: BiremeError | None = None
        self.control: list[tuple] = []

    def submit(self, request) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(request)

    def cancel(self, request) -> None:
        self.cancelled.append(request)

    def way_to(self, name, version):
        return "queue"

    def expect(self, name, version):
        pass

    def hold(self, request) -> None:
        self.held.append(request)

    def resume(self, request) -> None:
        self.resumed.append(request)

    def find_config(self, name, version):
        raise NotFound(f"no model '{name}'")

    def is_model_decoupled(self, name, version) -> bool:
        if name not in self.decoupled:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.decoupled[name]

    async def is_model_ready(self, name, version) -> bool:
        self.control.append(("ready", name, version))
        return name in self.decoupled

    async def load_model(self, name, config, files) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.control.append(("load", name, config, files))

    async def unload_model(self, name, *, unload_dependents) -> None:
        self.control.append(("unload", name, unload_dependents))


def tensor(name: str = "X", *values: float) -> Tensor:
    return Tensor.from_numpy(name, np.array(values or (1.0,), np.float32))


def tensor_data(name: str, *values: float) -> TensorData:
    return FakeLedger().export(tensor(name, *values))


def make_request(*values: float, **settings) -> InferenceRequest:
    return InferenceRequest("m", {"X": tensor("X", *values)}, _ignore, **settings)


def make_execution(*requests: InferenceRequest) -> Execution:
    return Execution(list(requests), len(requests), "single")


def call_data(model: str = "callee", number: int = 1, **settings) -> RequestData:
    """A worker's request to another model."""
    return RequestData(number, "id", [tensor_data("X", 3.0)], model_name=model, **settings)


def _ignore(request, response) -> None:
    """Nobody waits."""
