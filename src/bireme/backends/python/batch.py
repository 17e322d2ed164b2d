"""What a model's ``execute`` may return, and how a batch fails; the same in processes and in threads.

Source: Triton ``pb_stub.cc`` (ProcessRequests, ProcessReturnedResponses), texts included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from bireme.backends.python.conversions import encodable
from bireme.backends.python.model_file import format_error
from bireme.backends.python.pb_utils.datatypes import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from bireme.backends.python.pb_utils.response import InferenceResponse


class BadReturn(Exception):
    """``execute`` returned what it must not; the text is for the client."""


def check_returned(
    returned: Any, requests: Sequence[Any], *, instance_name: str, is_decoupled: bool
) -> list[Any]:
    """Return what ``execute`` has for each of ``requests``: an ``InferenceResponse``, or None.

    Raises:
        BadReturn: it is not what the model's transaction policy allows.
    """
    if returned is None:
        return [None] * len(requests)
    if is_decoupled:
        raise BadReturn(
            f"Python model '{instance_name}' is using the decoupled mode and the execute function must return None."
        )
    if not isinstance(returned, list):
        raise BadReturn(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise BadReturn(
            f"Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for response, request in zip(returned, requests, strict=True):
        if response is None:
            continue
        if is_rescheduled(request):
            raise BadReturn(
                f"Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(response)}'."
            )
        if not isinstance(response, InferenceResponse):
            raise BadReturn(
                f"Expected an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response)}'."
            )
    return returned


def check_open(request: Any, open_requests: Collection[Any]) -> None:
    """Check that a request for which ``execute`` returned a response was not answered by its sender.

    Raises:
        BadReturn: it was.
    """
    if request not in open_requests:
        raise BadReturn("Unable to send response. Non-decoupled model cannot send more than one response.")


def is_rescheduled(request: Any) -> bool:
    """Whether the model wants ``request`` again in a later batch."""
    return bool(request.release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)


def failure_text(error: BaseException, instance_name: str) -> str:
    """Return the text with which the requests of a failed batch are answered."""
    message = str(error) if isinstance(error, BadReturn) else format_error(error)
    return encodable(f"Failed to process the request(s) for model '{instance_name}', message: {message}")
