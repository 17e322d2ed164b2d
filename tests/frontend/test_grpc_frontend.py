"""GrpcFrontend on a real port: from start to stop, with an access log."""

from __future__ import annotations

import asyncio
import json

import numpy as np

from bireme.frontend.grpc.frontend import GrpcFrontend
from bireme.frontend.grpc.options import GrpcOptions
from grpc_fakes import INFER, LIVE, in_loop, make_infer
from grpc_socket import GrpcSocket
from http_fakes import FakeServer, until

X = np.arange(4, dtype=np.float32)


def frontend(server: FakeServer, **options) -> GrpcFrontend:
    return GrpcFrontend(server, GrpcOptions(address="127.0.0.1", port=0, **options))  # type: ignore[arg-type]


@in_loop
async def test_it_serves_from_start_to_stop_and_logs_every_call(tmp_path):
    path = tmp_path / "access.log"
    front = frontend(FakeServer(), access_log=str(path), access_log_json=True)
    await front.start()

    def call() -> tuple[int | None, int | None]:
        with GrpcSocket(f"127.0.0.1:{front.port}") as client:
            return client.call(INFER, make_infer(id="7", X=X)).status, client.call("/absent").status

    assert await asyncio.to_thread(call) == (0, 12)
    await until(lambda: not front.num_connections)
    front.reopen()
    await front.stop()

    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["method"], first["route"], first["status"], first["id"]) == ("gRPC", INFER, 0, "7")
    assert first["client"] == "127.0.0.1"
    assert first["total_us"] >= 0
    assert (second["route"], second["status"], second["error"]) == ("/absent", 12, "unknown method /absent")
    assert repr(front).startswith("GrpcFrontend(GrpcListener(grpc://127.0.0.1:")


@in_loop
async def test_retired_it_refuses_inferences_and_stopped_it_finishes_what_has_begun():
    server = FakeServer()
    server.holds = True
    front = frontend(server)
    await front.start()
    assert front.url == f"grpc://127.0.0.1:{front.port}"
    client = await asyncio.to_thread(GrpcSocket, f"127.0.0.1:{front.port}")
    begun = client.ask(INFER, make_infer(X=X))
    await until(lambda: server.held)

    await front.retire(0.1)
    refused = await asyncio.to_thread(client.call, INFER, make_infer(X=X))
    live = await asyncio.to_thread(client.call, LIVE)
    stop = asyncio.ensure_future(front.stop(5.0))
    await asyncio.sleep(0)
    server.answer(server.held[0])
    await stop

    assert (refused.status, live.status) == (14, 0)
    assert client.goaway is not None
    answer = await asyncio.to_thread(client.wait, begun)
    assert answer.status == 0
    client.close()
