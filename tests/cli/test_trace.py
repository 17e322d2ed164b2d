"""``bireme trace``, against a repository in this process and against a server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from bireme.cli.main import run
from e2e_server import RunningServer
from thread_models import add_thread_model, calling, execute


@pytest.fixture
def repository(tmp_path):
    """Return a repository: "top" asks "plus" twice; "broken" does not load."""
    models = tmp_path / "models"
    add_thread_model(models, "plus", execute("x + 1"))
    add_thread_model(models, "top", calling('(call("plus"), call("plus"))[1].output_tensors()[0].as_numpy()'))
    add_thread_model(models, "broken", "def initialize(self, args):\n    raise ValueError('broken')")
    return models


@pytest.fixture(params=["in process", "over HTTP"])
def trace(request, repository) -> Iterator[Callable[..., int]]:
    """Return ``bireme trace`` with the way to the repository's models filled in."""
    if request.param == "in process":
        yield lambda *arguments: run(["trace", "-m", str(repository), *arguments])
        return
    server = RunningServer(repository, load_model=("plus", "top"))
    try:
        yield lambda *arguments: run(["trace", "--url", server.url, *arguments])
    finally:
        server.stop()


def test_a_waterfall_is_for_people(trace, capsys):
    assert 0 == trace("top", "X=[1]", "--runs=3", "--warmup=2")

    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("top version 1, ")
    assert "median of 3 runs" in " ".join(shown[:3])
    assert [line.split()[:2] for line in shown if "─ plus" in line] == [["├─", "plus"], ["└─", "plus"]]
    assert any(line.startswith("top, its own code") for line in shown)
    assert any(line.startswith("in the models") for line in shown)


def test_json_is_the_trace_itself(trace, capsys):
    assert 0 == trace("top", "X=[1]", "--json", "--id=7")

    record = json.loads(capsys.readouterr().out)
    assert ("top", "7", 0) == (record["model"], record["id"], record["request_start"])
    assert ["plus", "plus"] == [call["model"] for call in record["calls"]]


def test_only_some_of_a_repository_can_be_loaded(repository, capsys):
    assert 0 == run(["trace", "-m", str(repository), "--load", "plus", "plus", "X=[1]", "--json"])
    assert "broken" not in capsys.readouterr().err

    assert 1 == run(["trace", "-m", str(repository), "--load", "plus", "top", "X=[1]"])
    assert "top" in capsys.readouterr().err


def test_a_server_that_traces_nothing_is_told_from_others(repository, monkeypatch, capsys):
    monkeypatch.setattr("bireme.engine.request_deadlines.TRACE_PARAMETER", "something_else")

    assert 1 == run(["trace", "-m", str(repository), "--load=plus", "plus", "X=[1]"])

    assert "the server traces no requests" in capsys.readouterr().err


def test_a_failing_request_is_an_error_as_ever(trace, capsys):
    assert 1 == trace("top", "NO=[1]")
    assert "no input 'NO'" in capsys.readouterr().err


def test_a_terminal_that_knows_ascii_only_gets_that(repository, tmp_path, monkeypatch):
    models = tmp_path / "more"
    add_thread_model(models, "ünder", execute("x + 1"))
    with (tmp_path / "out.txt").open("w", encoding="ascii") as file:
        monkeypatch.setattr("sys.stdout", file)
        assert 0 == run(["trace", "-m", str(models), "ünder", "X=[1]"])

    assert "?nder version 1" in (tmp_path / "out.txt").read_text("ascii")
