"""Front ends on UNIX domain sockets: the address, the file, and who it belongs to."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest
import uvloop

from bireme.frontend.http import HttpFrontend, HttpOptions, ListenOptions
from bireme.frontend.http.listener import HttpListener
from bireme.frontend.metrics import MetricsFrontend
from bireme.frontend.unix_socket import UnixSocket
from bireme.telemetry import ServerMetrics
from bireme.types import InvalidArgument, Unavailable
from http_fakes import FakeServer, echo, parse_replies, request

GET = request("/v2/health/live", headers={"Connection": "close"})


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    def run_scenario(scenario):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(scenario(), 10))

    return run_scenario


@pytest.fixture
def path(tmp_path_factory) -> Path:
    """Return a path that is short enough for a socket, whatever the test is called."""
    return tmp_path_factory.mktemp("s") / "s"


async def ask(path: Path, data: bytes = GET) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("unix:/run/a.sock", "/run/a.sock"),
        ("unix:///run/a.sock", "/run/a.sock"),
        ("unix:a.sock", "a.sock"),
        ("unix:./a", "./a"),
        ("0.0.0.0", ""),
        ("::1", ""),
        ("unix", ""),
    ],
)
def test_an_address_of_a_unix_socket_names_its_path(address, path):
    assert path == ListenOptions(address).unix_path


@pytest.mark.parametrize("address", ["unix:", "unix://", "unix://run/a.sock"])
def test_an_address_without_a_path_is_refused_before_anything_is_bound(address):
    with pytest.raises(InvalidArgument, match=f"address '{address}'"):
        HttpListener(echo, ListenOptions(address))


def test_requests_are_answered_and_the_client_is_called_unix(run, path, tmp_path):
    async def scenario():
        log = tmp_path / "access.log"
        frontend = HttpFrontend(FakeServer(), HttpOptions(f"unix:{path}", 0, access_log=str(log)))
        await frontend.start()
        (reply,) = parse_replies(await ask(path))
        assert (200, f"unix:{path}", 0) == (reply.status, frontend.url, frontend.port)
        await frontend.stop(1)
        assert log.read_text().split()[1] == "unix"

    run(scenario)


def test_metrics_are_served_there_too(run, path):
    class Server:
        metrics = ServerMetrics()

    async def scenario():
        frontend = MetricsFrontend(Server(), ListenOptions(f"unix:{path}"))
        await frontend.start()
        (reply,) = parse_replies(await ask(path, request("/metrics", headers={"Connection": "close"})))
        assert reply.status == 200
        await frontend.stop(1)

    run(scenario)


def test_the_file_is_gone_after_the_stop_and_the_path_free_again(run, path):
    async def scenario():
        for _ in range(2):
            listener = HttpListener(echo, ListenOptions(f"unix:{path}"))
            await listener.start()
            assert stat.S_ISSOCK(path.lstat().st_mode)
            await listener.stop(0)
            assert not path.exists()

    run(scenario)


def test_a_file_that_somebody_listens_on_is_left_alone(run, path):
    async def scenario():
        first = HttpListener(echo, ListenOptions(f"unix:{path}"))
        await first.start()
        with pytest.raises(Unavailable, match=f"cannot listen on 'unix:{path}': already in use"):
            await HttpListener(echo, ListenOptions(f"unix:{path}")).start()
        (reply,) = parse_replies(await ask(path))
        assert reply.status == 200
        await first.stop(0)

    run(scenario)


def test_a_file_that_took_our_place_is_not_removed(run, path):
    async def scenario():
        listener = HttpListener(echo, ListenOptions(f"unix:{path}"))
        await listener.start()
        path.unlink()
        other = UnixSocket(str(path))
        await listener.stop(0)
        assert path.exists()
        other.unlink()
        other.socket.close()
        assert not path.exists()

    run(scenario)


def test_the_file_of_a_killed_server_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    bound = UnixSocket(str(path))
    bound.socket.close()

    assert path.exists()


def test_a_full_backlog_is_no_sign_of_death(path):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = []
        while True:
            client = socket.socket(socket.AF_UNIX)
            waiting.append(client)
            client.setblocking(False)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        with pytest.raises(Unavailable, match="already in use"):
            UnixSocket(str(path))
        for client in waiting:
            client.close()


def test_a_file_that_is_no_socket_is_not_touched(path):
    path.write_text("precious")
    with pytest.raises(Unavailable, match="a file that is no socket is in the way"):
        UnixSocket(str(path))

    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("x" * 200, r"the path has \d+ bytes, and a UNIX domain socket's may have \d+$"),
        ("no/such/folder", "cannot listen on 'unix:.*/no/such/folder': No such file or directory$"),
    ],
)
def test_a_path_that_cannot_be_bound_is_named_with_the_reason(path, name, complaint):
    with pytest.raises(Unavailable, match=complaint):
        UnixSocket(str(path.parent / name))


def test_the_umask_decides_who_may_connect(path):
    before = os.umask(0o117)
    try:
        bound = UnixSocket(str(path))
    finally:
        os.umask(before)
    bound.socket.close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o660
