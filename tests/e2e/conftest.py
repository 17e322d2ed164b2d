"""Servers for the end-to-end tests: one for all that only look, and makers of one's own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bireme.telemetry import log
from bireme.testing import FakeBackend
from e2e_server import RunningServer, build_repository, wait_until
from python_models import TOOL, PythonServer
from serve_process import running


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_repository(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[RunningServer]:
    """One server with all models of `build_repository` loaded; tests leave it as they found it."""
    shared = RunningServer(repository)
    yield shared
    shared.stop()


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """A function that starts a server of the test's own."""
    started: list[RunningServer] = []

    def start(*args: Any, **kwargs: Any) -> RunningServer:
        started.append(RunningServer(*args, **kwargs))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def start_fake(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> Callable[..., tuple[RunningServer, FakeBackend]]:
    """A function that starts a server of fake models, given by name with their configs."""

    def start(configs: Mapping[str, str], **settings: Any) -> tuple[RunningServer, FakeBackend]:
        for name, config in configs.items():
            (tmp_path / name / "1").mkdir(parents=True)
            (tmp_path / name / "config.pbtxt").write_text(config)
        backend = FakeBackend()
        return start_server(tmp_path, backends={"fake": backend}, **settings), backend

    return start


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


@pytest.fixture
def restored_log_settings() -> Iterator[None]:
    yield
    log.settings.uninstall()


@pytest.fixture(scope="session")
def shared_python_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonServer]:
    with running(PythonServer(tmp_path_factory.mktemp("python"))) as server:
        server.write("tool", TOOL)
        assert server.load("tool").status == 200
        # From here on the server knows the memory that this model shares.
        assert server.infer("tool", 1, parameters={"code": "answer = reply(np.zeros(10_000, np.float32))"})
        yield server


@pytest.fixture
def python_server(shared_python_server: PythonServer) -> Iterator[PythonServer]:
    """A ``bireme serve`` process with the model ``tool``, and nothing left of what the test adds to it."""
    server = shared_python_server
    assert server.infer("tool", 1).values == [1]
    before = server.workers(), server.num_descriptors()
    yield server
    server.unload_all()
    wait_until(lambda: server.workers() == before[0])
    # Two more for memory that the server keeps to share with whoever comes.
    wait_until(lambda: server.num_descriptors() <= before[1] + 2)
    assert server.infer("tool", 1).values == [1]
