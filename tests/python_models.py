"""A ``bireme serve`` process with Python models that tests write, load and torment; and what is left of it in the system."""

from __future__ import annotations

import http.client
import json
import queue
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple, Self

import numpy as np
import tritonclient.grpc as grpc_client

from e2e_server import wait_until
from serve_process import ServeProcess

HEAD = """\
import asyncio, gc, json, os, signal, socket, subprocess, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def x_of(request):
    return pb_utils.get_input_tensor_by_name(request, "X").as_numpy()

def reply(array, name="Y"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.asarray(array))])

def word(value):
    return reply(np.array([value], np.float32))

def ask(model, array, **settings):
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", np.asarray(array, np.float32))]
    )
    return request.exec(**settings)

def pass_on(response):
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return reply(pb_utils.get_output_tensor_by_name(response, "Y").as_numpy())

def signal_file(name, text=""):
    with open(os.path.join(os.environ["SIGNALS"], name), "a") as file:
        file.write(text + "\\n")
"""
"""Before each model's code."""
CONFIG = """
backend: "python"
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
{more}
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
PLUS_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        return [reply(x_of(request) + 1) for request in requests]
"""
CALLER = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.callee = config["parameters"]["callee"]["string_value"]
    def execute(self, requests):
        return [pass_on(ask(self.callee, x_of(request))) for request in requests]
"""
TOOL = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            scope = globals() | {"x": x_of(request), "answer": reply(x_of(request))}
            exec(json.loads(request.parameters()).get("code", ""), scope)
            responses.append(scope["answer"])
        if len(responses) == 1 and not isinstance(responses[0], (pb_utils.InferenceResponse, type(None))):
            return responses[0]
        return responses
"""
"""Runs the code in its requests' parameter ``code``, which sets ``answer``: what is returned."""


def instances(count: int) -> str:
    return f"instance_group {{ kind: KIND_CPU count: {count} }}"


def calls(callee: str) -> str:
    return f'parameters {{ key: "callee" value {{ string_value: "{callee}" }} }}'


class Reply(NamedTuple):
    """An HTTP reply."""

    status: int
    body: Any

    @property
    def error(self) -> str:
        return str(self.body["error"])

    @property
    def values(self) -> list[float]:
        assert self.status == 200, self
        (output,) = self.body["outputs"]
        return list(output["data"])


class PythonServer(ServeProcess):
    """A server in explicit mode over ``root``. Models leave signs of life in ``signals``."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.root = root / "models"
        self.signals = root / "signals"
        self.added: set[str] = set()
        for folder in (self.root, self.signals):
            folder.mkdir(exist_ok=True)
        super().__init__(
            f"--model-repository={self.root}",
            "--model-control-mode=explicit",
            "--strict-readiness=false",
            *arguments,
            environment={"SIGNALS": str(self.signals)},
        )
        self.wait_for(r"models loaded in")

    # Models

    def write(self, name: str, code: str, more: str = "", *, version: int = 1) -> None:
        folder = self.root / name / str(version)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.py").write_text(HEAD + dedent(code))
        (self.root / name / "config.pbtxt").write_text(CONFIG.format(more=more))

    def write_and_load(self, name: str, code: str, more: str = "") -> Reply:
        self.write(name, code, more)
        return self.load(name)

    def load(self, name: str) -> Reply:
        return self.post(f"/v2/repository/models/{name}/load", {})

    def add(self, name: str, code: str = PLUS_ONE, more: str = "") -> None:
        """Write and load a model."""
        loaded = self.write_and_load(name, code, more)
        assert loaded.status == 200, loaded
        self.added.add(name)

    def unload(self, name: str) -> None:
        assert self.post(f"/v2/repository/models/{name}/unload", {}).status == 200

    def unload_all(self) -> None:
        """Unload what was `add`ed, and wait until it is gone."""
        names = list(self.added)
        self.added.clear()
        for name in names:
            self.unload(name)
        self.wait_unloaded(*names)

    def index(self, name: str) -> dict[str, str]:
        found = [entry for entry in self.post("/v2/repository/index", {}).body if entry["name"] == name]
        return dict(found[0]) if found else {}

    def wait_unloaded(self, *names: str, timeout_s: float = 10.0) -> None:
        wait_until(lambda: all(self.index(name).get("state") == "UNAVAILABLE" for name in names), timeout_s)

    def wait_signal(self, name: str, timeout_s: float = 10.0) -> str:
        path = self.signals / name
        wait_until(path.exists, timeout_s)
        return path.read_text()

    # Requests

    def request(self, method: str, path: str, body: object = None, timeout_s: float = 20.0) -> Reply:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            client.request(method, path, None if body is None else json.dumps(body))
            answer = client.getresponse()
            data = answer.read()
        finally:
            client.close()
        with suppress(ValueError):
            return Reply(answer.status, json.loads(data))
        return Reply(answer.status, data)

    def post(self, path: str, body: object, timeout_s: float = 20.0) -> Reply:
        return self.request("POST", path, body, timeout_s)

    def infer(
        self, name: str, *values: float, parameters: dict[str, Any] | None = None, timeout_s: float = 20.0
    ) -> Reply:
        return self.post(f"/v2/models/{name}/infer", body_of(*values, parameters=parameters), timeout_s)

    def is_ready(self, name: str) -> bool:
        return self.request("GET", f"/v2/models/{name}/ready").status == 200

    def is_live(self) -> bool:
        return self.request("GET", "/v2/health/live").status == 200

    def metrics(self) -> str:
        port = int(self.wait_for(r"metrics requests on http://127\.0\.0\.1:(\d+)"))
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            client.request("GET", "/metrics")
            return client.getresponse().read().decode()
        finally:
            client.close()

    def count(self, counter: str, model: str, reason: str = "") -> int:
        """Return a counter of the metrics page, all versions together."""
        lines = re.findall(rf"^{counter}{{(.*)}} (\d+)$", self.metrics(), re.MULTILINE)
        return sum(
            int(value)
            for labels, value in lines
            if f'model="{model}"' in labels and (not reason or f'reason="{reason}"' in labels)
        )

    # Processes

    def workers(self) -> set[int]:
        """Return the worker processes of this server, not reaped ones included."""
        return workers_of(self.popen.pid)

    def worker(self) -> int:
        (pid,) = self.workers()
        return pid


class GrpcStream:
    """A stream of the official client; what comes back is taken one by one."""

    def __init__(self, server: PythonServer) -> None:
        self.client = grpc_client.InferenceServerClient(server.grpc_address)
        self._answers: queue.Queue[Any] = queue.Queue()
        self.client.start_stream(lambda result, error: self._answers.put(error or result))

    def ask(self, name: str, *values: float, **settings: Any) -> None:
        self.client.async_stream_infer(name, grpc_inputs(*values), **settings)

    def take(self, timeout_s: float = 10.0) -> Any:
        """Return the values of the next answer, or its error."""
        answer = self._answers.get(timeout=timeout_s)
        return answer if isinstance(answer, Exception) else answer.as_numpy("Y").tolist()

    def take_message(self, timeout_s: float = 10.0) -> Any:
        answer = self._answers.get(timeout=timeout_s)
        return answer if isinstance(answer, Exception) else answer.get_response()

    def has_more(self, within_s: float) -> bool:
        try:
            self._answers.get(timeout=within_s)
        except queue.Empty:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_stream(cancel_requests=True)
        self.client.close()


def grpc_inputs(*values: float) -> list[grpc_client.InferInput]:
    item = grpc_client.InferInput("X", [len(values)], "FP32")
    item.set_data_from_numpy(np.array(values, np.float32))
    return [item]


def body_of(*values: float, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    item = {"name": "X", "datatype": "FP32", "shape": [len(values)], "data": list(values)}
    return {"inputs": [item], **({"parameters": parameters} if parameters else {})}


def workers_of(server_pid: int) -> set[int]:
    """Return the leaders of process groups below the server, but for the process that forks the others."""
    parents: dict[int, int] = {}
    leaders = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            parent, group = map(int, (entry / "stat").read_text().rpartition(")")[2].split()[1:3])
            parents[pid] = parent
            is_fork_server = parent == server_pid and b"fork_server" in (entry / "cmdline").read_bytes()
            if group == pid and not is_fork_server:
                leaders.add(pid)
    return {pid for pid in leaders if server_pid in _ancestors(pid, parents)}


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while (pid := parents.get(pid, 0)) > 1:
        yield pid


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def num_descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def memory_kb(pid: int, which: str = "Rss") -> int:
    """Return a process's resident memory (``Rss``), or its share of it (``Pss``)."""
    found = re.search(rf"^{which}:\s*(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found
    return int(found[1])
