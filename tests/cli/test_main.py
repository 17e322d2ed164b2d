"""The ``bireme`` command as a whole: version, help, and what an error becomes."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

import bireme
from bireme.cli.main import cli, main, run


@pytest.fixture
def failing(monkeypatch):
    """Return a function that adds a command ``fail`` which raises what it is given."""

    def add(error: BaseException) -> None:
        def callback() -> None:
            raise error

        monkeypatch.setitem(cli.commands, "fail", click.Command("fail", callback=callback))

    return add


def test_the_version_is_the_package_s(capsys):
    assert 0 == run(["--version"])
    assert f"bireme, version {bireme.__version__}\n" == capsys.readouterr().out


def test_help_names_the_commands(capsys):
    assert 0 == run(["-h"])
    shown = capsys.readouterr().out
    assert ["import", "infer", "repo", "serve", "trace"] == [
        line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines()
    ]
    assert "..." not in shown.partition("Commands:\n")[2]  # nothing is cut off


def test_an_unknown_command_is_a_usage_error(capsys):
    assert 1 == run(["sevre"])
    assert "No such command 'sevre'" in capsys.readouterr().err


def test_an_error_of_ours_is_its_message(failing, capsys):
    failing(bireme.InvalidArgument("this is wrong"))

    assert 1 == run(["fail"])
    assert "Error: this is wrong\n" == capsys.readouterr().err


def test_a_bug_keeps_its_traceback(failing):
    failing(ZeroDivisionError("a bug"))

    with pytest.raises(ZeroDivisionError, match="a bug"):
        run(["fail"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_exits_with_130(failing, error):
    failing(error)

    assert 130 == run(["fail"])


def test_a_reader_that_leaves_is_no_traceback(failing, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # restored afterwards
    failing(BrokenPipeError())

    assert 1 == run(["fail"])


def test_main_leaves_with_the_exit_status():
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert 0 == caught.value.code


def test_the_package_is_a_program_too():
    shown = subprocess.run(
        [sys.executable, "-m", "bireme", "--version"], capture_output=True, text=True, check=True
    )

    assert bireme.__version__ in shown.stdout
