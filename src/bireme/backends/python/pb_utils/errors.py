"""Errors as models raise them, catch them and put them into responses."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from bireme.backends.python.pb_utils.text import to_text


class TritonModelException(Exception):
    """What the functions and classes of this package raise."""


class ErrorCode(IntEnum):
    """Numbers of ``TRITONSERVER_Error_Code``; the names are the codes of `bireme.types` errors."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __str__(self) -> str:
        """Return what models write into their logs with Triton, whose class has this name."""
        return f"__ErrorCode.{self.name}"


class TritonError:
    """An error to answer a request with. No exception: it cannot be raised.

    Raises:
        TypeError: the message is neither str nor bytes, or the code is none of those below.
    """

    __slots__ = ("_code", "_message")

    UNKNOWN: ClassVar = ErrorCode.UNKNOWN
    INTERNAL: ClassVar = ErrorCode.INTERNAL
    NOT_FOUND: ClassVar = ErrorCode.NOT_FOUND
    INVALID_ARG: ClassVar = ErrorCode.INVALID_ARG
    UNAVAILABLE: ClassVar = ErrorCode.UNAVAILABLE
    UNSUPPORTED: ClassVar = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS: ClassVar = ErrorCode.ALREADY_EXISTS
    CANCELLED: ClassVar = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        text = to_text("TritonError: message", message)
        if not isinstance(code, ErrorCode):
            raise TypeError(f"TritonError: code must be one such as TritonError.INTERNAL, found {code!r}")
        self._message = text
        self._code = code

    def code(self) -> ErrorCode:
        """Return the code."""
        return self._code

    def message(self) -> str:
        """Return the text for the client."""
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, TritonError.{self._code.name})"


def error_from_code(code: str, message: str) -> TritonError:
    """Return the error that models see for one of `bireme.types`; ``code`` is that error's own."""
    if code == "DEADLINE_EXCEEDED":  # Triton has no such code
        return TritonError(message, ErrorCode.UNAVAILABLE)
    return TritonError(message, ErrorCode.__members__.get(code, ErrorCode.INTERNAL))
