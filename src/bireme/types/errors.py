"""The error tree, ordered by who must act. Every error that reaches a client is one of these.

Each class has a stable ``code`` (the name of Triton's ``TRITONSERVER_Error_Code``) and a failure ``reason`` (the
label of ``nv_inference_request_failure``). How a code looks on the wire is each front end's own table.

A message says what was wrong, where, what was expected and what came; it never holds a traceback.
"""

from __future__ import annotations

from typing import ClassVar


class BiremeError(Exception):
    """Base of all errors that a client may see. Raise one of the subclasses."""

    code: ClassVar[str] = "UNKNOWN"
    reason: ClassVar[str] = "OTHER"

    @property
    def message(self) -> str:
        """The text for the client."""
        return str(self.args[0]) if self.args else ""


class InvalidArgument(BiremeError):
    """The caller sent something wrong and must change the request."""

    code = "INVALID_ARG"


class AlreadyExists(BiremeError):
    """The caller asked to create something whose name is taken."""

    code = "ALREADY_EXISTS"


class NotFound(BiremeError):
    """The named model, version or region does not exist."""

    code = "NOT_FOUND"


class Unsupported(BiremeError):
    """The request is understood, and this server does not do it."""

    code = "UNSUPPORTED"


class Unavailable(BiremeError):
    """The server or the model cannot answer now; the same request may succeed later."""

    code = "UNAVAILABLE"


class QueueFull(Unavailable):
    """The model's queue holds as many requests as its policy allows."""

    reason = "REJECTED"


class RequestTimedOut(Unavailable):
    """The request waited in the queue for longer than its timeout."""

    reason = "REJECTED"


class Cancelled(BiremeError):
    """The client took the request back."""

    code = "CANCELLED"
    reason = "CANCELED"


class DeadlineExceeded(BiremeError):
    """The answer was not there when the client, or the model's config, wanted it at the latest."""

    code = "DEADLINE_EXCEEDED"
    reason = "CANCELED"


class Internal(BiremeError):
    """Bireme is at fault, or something that it could not foresee. Logged with its traceback."""

    code = "INTERNAL"


class BackendFailed(Internal):
    """The model's own execution failed. Logged with its traceback."""

    reason = "BACKEND"
