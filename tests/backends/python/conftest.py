"""Who runs the model whose code a test is."""

import pytest

from bireme.backends.python import runtime
from fake_runtime import FakeRuntime


@pytest.fixture
def server(monkeypatch):
    """A server that runs it, under the test's control."""
    fake = FakeRuntime()
    monkeypatch.setattr(runtime, "_find_current", lambda: fake)
    return fake


@pytest.fixture
def nowhere(monkeypatch):
    """Nobody."""
    monkeypatch.setattr(runtime, "_find_current", None)
