"""Logger: lines of models, with where they come from."""

import inspect
import logging
import re

import pytest

from bireme.backends.python import pb_utils

LEVELS = [("info", logging.INFO), ("warn", logging.WARNING), ("error", logging.ERROR), ("verbose", 5)]


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_line_says_where_it_was_written(server, name, level):
    getattr(pb_utils.Logger, f"log_{name}")("hello")
    line = inspect.currentframe().f_lineno - 1

    assert server.lines == [(level, "hello", __file__, line)]


def test_levels_by_name(server):
    pb_utils.Logger.log("hello")
    pb_utils.Logger.log(message="hello", level=pb_utils.Logger.WARNING)

    assert [(level, file) for level, _, file, _ in server.lines] == [
        (logging.INFO, __file__),
        (logging.WARNING, __file__),
    ]


def test_anything_can_be_logged(server):
    pb_utils.Logger.log_info(ValueError("hello"))

    assert server.lines[0][1] == "hello"


def test_a_level_must_be_one(server):
    with pytest.raises(TypeError, match=r"Logger\.INFO"):
        pb_utils.Logger.log("hello", 20)


@pytest.mark.parametrize(("name", "letter"), [("info", "I"), ("warn", "W"), ("error", "E"), ("verbose", "I")])
def test_outside_of_models_lines_go_to_stderr(nowhere, capsys, name, letter):
    getattr(pb_utils.Logger, f"log_{name}")("hello")

    assert re.fullmatch(
        rf"{letter}\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} \d+ test_pb_logger\.py:\d+\]  hello\n",
        capsys.readouterr().err,
    )
