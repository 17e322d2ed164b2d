"""FakeRuntime: the server as pb_utils sees it, under a test's control."""

from __future__ import annotations

import asyncio
from collections import deque

from bireme.backends.python import pb_utils
from bireme.telemetry.custom_metrics import CustomMetrics
from bireme.types import InferenceRequest, InferenceResponse, Tensor


class FakeStream:
    """Responses that are there already."""

    def __init__(self, responses):
        self.responses = deque(responses)
        self.calls = []

    def __next__(self):
        if not self.responses:
            raise StopIteration
        return self.responses.popleft()

    async def __anext__(self):
        await asyncio.sleep(0)
        if not self.responses:
            raise StopAsyncIteration
        return self.responses.popleft()

    def cancel(self):
        self.calls.append("cancel")

    def close(self):
        self.calls.append("close")


class FakeRuntime:
    """Records what models do. ``answers`` are the responses to their calls; ``failure``, where set, is raised instead."""

    model_name = "asker"
    version_dir = "/models/asker/1"

    def __init__(self):
        self.sent = []
        self.answers = []
        self.responses = []
        self.abandoned = []
        self.cancelled = set()
        self.lines = []
        self.calls = []
        self.metrics = CustomMetrics()
        self.failure = None
        self.is_ready = True
        self.stream_object = None
        self.gate = None

    def _send(self, request):
        if self.failure is not None:
            raise self.failure
        self.sent.append(request)

    def infer(self, request):
        self._send(request)
        return self.answers.pop(0)

    def infer_async(self, request):
        self._send(request)
        self.gate = asyncio.get_running_loop().create_future()
        if self.answers:
            self.gate.set_result(self.answers.pop(0))
        return self.gate

    def stream(self, request):
        self._send(request)
        self.stream_object = FakeStream(self.answers)
        return self.stream_object

    def respond(self, request, response):
        self.responses.append((request, response))

    def abandon(self, request):
        if self.failure is not None:
            raise self.failure
        self.abandoned.append(request)

    def is_cancelled(self, request):
        return request in self.cancelled

    def log(self, level, message, file, line):
        self.lines.append((level, message, file, line))

    def load_model(self, name, config, files):
        self._call("load", name, config, files)

    def unload_model(self, name, *, unload_dependents):
        self._call("unload", name, unload_dependents)

    def is_model_ready(self, name, version):
        self._call("ready", name, version)
        return self.is_ready

    def _call(self, *call):
        if self.failure is not None:
            raise self.failure
        self.calls.append(call)

    def metric(self, operation, **arguments):
        if self.failure is not None:
            raise self.failure
        return self.metrics.do(self, operation, arguments)

    def incoming(self, *names, is_decoupled=False, outputs=None, output_names=("Y", "Z"), **fields):
        """Return a request to the model, of scalar inputs of those names."""
        request = InferenceRequest(
            "asker",
            {name: tensor(name) for name in names},
            respond=None,
            model_version=1,
            id="7",
            outputs=outputs,
            **fields,
        )
        served = pb_utils.Served(self, output_names, is_decoupled)
        return pb_utils.InferenceRequest.incoming(request, served)


def tensor(name, value=1.0):
    """Return a tensor of the server, ``FP64[1]``."""
    return Tensor.from_numpy(name, [value])


def answer(*values, final=True, error=None, **fields):
    """Return what another model answers: outputs ``Y``, one per value."""
    return InferenceResponse(
        "asked", 1, "", [tensor("Y", value) for value in values], final=final, error=error, **fields
    )
