"""Python models in threads of the server, written to a repository, and a way to ask them for any number of responses."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from bireme import Server
from bireme.types import InferenceRequest, InferenceResponse, Tensor

HEADER = (
    "import asyncio, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n"
)
CONFIG = """
backend: "python"
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]
parameters { key: "EXECUTION_MODE" value: { string_value: "thread" } }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
Scenario = Callable[[Server], Awaitable[None]]


def add_thread_model(
    root: Path, name: str, body: str, *, extra: str = "", header: str = HEADER, **parameters: str
) -> None:
    """Write a model whose class has ``body``; ``extra`` is appended to its config, as are ``parameters``."""
    version_dir = root / name / "1"
    version_dir.mkdir(parents=True)
    code = f"{header}class TritonPythonModel:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    (version_dir / "model.py").write_text(code, "utf-8")
    texts = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    (root / name / "config.pbtxt").write_text(CONFIG + extra + texts, "utf-8")


def execute(expression: str) -> str:
    """Return the body of a model whose Y is ``expression`` of the array ``x``."""
    return f"""
def execute(self, requests):
    responses = []
    for request in requests:
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", {expression})]))
    return responses
"""


def calling(expression: str) -> str:
    """Return the body of a model whose Y is ``expression``, where ``call(name, **settings)`` asks other models with X."""
    return f"""
def execute(self, requests):
    responses = []
    for request in requests:
        x = pb_utils.get_input_tensor_by_name(request, "X")
        def call(name, decoupled=False, **settings):
            asked = pb_utils.InferenceRequest(
                model_name=name, inputs=[x], requested_output_names=["Y"], **settings
            )
            return asked.exec(decoupled=decoupled)
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", {expression})]))
    return responses
"""


def serve(root: Path, scenario: Scenario, **settings: object) -> None:
    """Run ``scenario`` with a server of the models in ``root``."""

    async def main() -> None:
        async with Server(root, **settings) as server:
            await scenario(server)

    asyncio.run(main())


class Ask:
    """A request on its way: its responses, until the final one has come."""

    def __init__(self, server: Server, name: str, values: object = (1.0,), **settings: object) -> None:
        self.server = server
        self.responses: list[InferenceResponse] = []
        self.done = asyncio.Event()
        self._arrived = asyncio.Event()
        tensor = Tensor.from_numpy("X", np.asarray(values, np.float32))
        self.request = InferenceRequest(name, {"X": tensor}, self._take, **settings)
        server.submit(self.request)

    def _take(self, _request: InferenceRequest, response: InferenceResponse) -> None:
        self.responses.append(response)
        self._arrived.set()
        if response.final:
            self.done.set()

    async def first(self) -> InferenceResponse:
        """Return the first response."""
        await asyncio.wait_for(self._arrived.wait(), 10)
        return self.responses[0]

    async def all(self) -> list[InferenceResponse]:
        """Return all responses."""
        await asyncio.wait_for(self.done.wait(), 10)
        return self.responses

    async def error(self) -> str:
        """Return the text of the error that the last response is."""
        error = (await self.all())[-1].error
        assert error is not None
        return error.message

    async def values(self) -> list[list[float]]:
        """Return the Y of every response that has one."""
        found = []
        for response in await self.all():
            assert response.error is None, response.error
            found += [tensor.to_numpy().tolist() for tensor in response.outputs]
        return found
