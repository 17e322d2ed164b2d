"""Errors of models: what backends say alike, and the codes by which processes and models name them."""

from __future__ import annotations

from typing import Final, NoReturn

from bireme.types import (
    AlreadyExists,
    BackendFailed,
    BiremeError,
    Cancelled,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
)

_BY_CODE: Final[dict[str, type[BiremeError]]] = {
    error.code: error
    for error in (NotFound, InvalidArgument, Unavailable, Unsupported, AlreadyExists, Cancelled)
}

UNANSWERED: Final = (
    "dropped the response sender of a request without a final response: execute has to return a response for each "
    "request, or a sender has to send a final one"
)
"""What a model did that can't answer a request any more; follows its name."""
RESCHEDULED: Final = "asked for a request again, which needs sequence_batching with iterative_sequence"
"""What a model did that may not; follows its name."""


class ModelError(BiremeError):
    """A model answered a request with an error of its own, of code UNKNOWN."""

    reason = "BACKEND"


def refuse_run(_inputs: object) -> NoReturn:
    """Take the place of an instance's ``execute`` when it is closed.

    Raises:
        BackendFailed: always.
    """
    raise BackendFailed("the instance is closed")


def make_error(code: str, message: str) -> BiremeError:
    """Return the error that a model or a process named by ``code``. INTERNAL is the model's fault, not the server's."""
    if code == ModelError.code:
        return ModelError(message)
    return _BY_CODE.get(code, BackendFailed)(message)
