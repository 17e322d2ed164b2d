"""A real server for official clients: engine and front ends on a loop of their own, in a background thread."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bireme.engine import Server, ServerOptions
from bireme.frontend.grpc.frontend import GrpcFrontend
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.http import HttpFrontend, HttpOptions, ListenOptions
from bireme.frontend.metrics import MetricsFrontend
from onnx_models import add_model, save_add, save_identity, save_plus_one

T = TypeVar("T")

LABELS = [f"class {index}" for index in range(10)]


class RunningServer:
    """A server with its HTTP, gRPC and metrics ports. `stop` it, or use the fixtures."""

    def __init__(
        self,
        repository: Path | None,
        *,
        backends: Mapping[str, Any] | None = None,
        http: HttpOptions | None = None,
        grpc: GrpcOptions | None = None,
        grpc_port: int = 0,
        **options: Any,
    ) -> None:
        paths = (str(repository),) if repository else ()
        settings = {"model_control_mode": "explicit", "load_model": ("*",)} | options
        self.engine = Server(options=ServerOptions(model_repository=paths, **settings), backends=backends)
        http = http or HttpOptions()
        self._http = http if http.unix_path else replace(http, address="127.0.0.1", port=0)
        grpc = grpc or GrpcOptions()
        self._grpc = grpc if grpc.unix_path else replace(grpc, address="127.0.0.1", port=grpc_port)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.call(self._start())

    async def _start(self) -> None:
        await self.engine.start()
        self.http = HttpFrontend(self.engine, self._http)
        self.metrics = MetricsFrontend(self.engine, ListenOptions("127.0.0.1", 0))
        await self.http.start()
        self.grpc = GrpcFrontend(self.engine, self._grpc)
        await self.grpc.start()
        await self.metrics.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.http.port}"

    @property
    def url(self) -> str:
        """Where HTTP is listened on, with the host that certificates are issued to if there is TLS."""
        return f"https://localhost:{self.http.port}" if self._http.tls else f"http://{self.address}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics.port}/metrics"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc.port}"

    def failures(self) -> dict[str, int]:
        """Return the failure counters of the metrics page by reason, all models together."""
        with urllib.request.urlopen(self.metrics_url, timeout=5) as page:
            lines = page.read().decode().splitlines()
        counters: dict[str, int] = {}
        for line in lines:
            if line.startswith("nv_inference_request_failure{"):
                reason = line.split('reason="')[1].split('"')[0]
                counters[reason] = counters.get(reason, 0) + int(line.rpartition(" ")[2])
        return counters

    def stop(self) -> None:
        try:
            self.call(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _stop(self) -> None:
        await self.http.stop(1)
        await self.grpc.stop(1)
        await self.metrics.stop(1)
        await self.engine.stop(5)


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait for what happens on the server's thread or in its process."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.002)


def build_repository(root: Path) -> Path:
    """Write the models that the tests use; their names say what they do."""
    add_model(root, "add", save_add)
    add_model(root, "add_batch", partial(save_add, batch=True))
    add_model(root, "plus_one", save_plus_one, config=_vector("FP32"))
    add_model(root, "versions", save_add, versions=(1, 3), config="version_policy { all {} }")
    for datatype in ("BYTES", "FP16", "INT32", "BOOL", "FP64", "INT64"):
        name = f"identity_{datatype.lower()}"
        save = partial(save_identity, datatype=datatype)
        add_model(root, name, save, config=_vector(datatype))
    matrix = partial(save_identity, datatype="UINT8", dims=(-1, -1))
    add_model(root, "identity_uint8", matrix, config=_vector("UINT8", "[-1, -1]"))
    classes = partial(save_identity, datatype="FP32", dims=(10,), batch=True)
    config = f"""
        max_batch_size: 8
        {_vector("FP32", "[10]", label_filename="labels.txt")}
    """
    model_dir = add_model(root, "classifier", classes, config=config)
    (model_dir / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return root


def _vector(datatype: str, dims: str = "[-1]", **output: str) -> str:
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    more = " ".join(f'{key}: "{value}"' for key, value in output.items())
    return (
        f'input [{{ name: "X" data_type: {kind} dims: {dims} }}]\n'
        f'output [{{ name: "Y" data_type: {kind} dims: {dims} {more} }}]'
    )


def fake_config(
    name: str, *, datatype: str = "FP32", dims: str = "[-1]", max_batch_size: int = 0, more: str = ""
) -> str:
    """The config of an identity model on a `FakeBackend`."""
    return (
        f'name: "{name}" backend: "fake" max_batch_size: {max_batch_size}\n{_vector(datatype, dims)}\n{more}'
    )
