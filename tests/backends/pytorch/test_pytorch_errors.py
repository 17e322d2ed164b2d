"""What torch raises, in one line."""

from __future__ import annotations

import pytest

from bireme.backends.pytorch.errors import explain, one_line

INTERPRETER = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "model.py", line 21, in forward
        self.h += x
        ~~~~~~~~~~~ <--- HERE
        self.k = self.k + x
{}"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "RuntimeError: plain"),
        ("", "RuntimeError"),
        ("two\n  lines", "RuntimeError: two lines"),
        (
            "sizes differ\nException raised from add at a.cpp:1 (most recent call first):\nframe #0",
            "RuntimeError: sizes differ",
        ),
        (INTERPRETER.format("RuntimeError: sizes differ"), "RuntimeError: sizes differ"),
        (
            INTERPRETER.format("builtins.ValueError: too large: 5\n[ CPUFloatType{} ]"),
            "ValueError: too large: 5 [ CPUFloatType{} ]",
        ),
    ],
)
def test_tracebacks_stay_out(text, line):
    assert line == explain(RuntimeError(text))


def test_a_long_text_is_cut():
    assert len(one_line(RuntimeError("x" * 5000))) == 2000
