"""What torch raises, in one line: without the traceback of TorchScript's interpreter and the frames of its C++. Pure."""

from __future__ import annotations

import re
from typing import Final

_CPP_FRAMES: Final = "\nException raised from"
_LAST_LINE: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception): .*)", re.MULTILINE | re.DOTALL)
_INTERPRETER: Final = "TorchScript interpreter"
_MAX_LENGTH: Final = 2000


def one_line(error: BaseException) -> str:
    """Return what the error says."""
    text = str(error).partition(_CPP_FRAMES)[0]
    if _INTERPRETER in text:
        # The traceback first, and what went wrong at its end.
        found = _LAST_LINE.search(text.rpartition("<--- HERE")[2])
        text = found[1] if found else text
    return " ".join(text.split())[:_MAX_LENGTH]


def explain(error: BaseException) -> str:
    """Return the kind of the error and what it says."""
    text = one_line(error)
    name = type(error).__name__
    return text if _INTERPRETER in str(error) else f"{name}: {text}" if text else name
