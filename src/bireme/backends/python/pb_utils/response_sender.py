"""InferenceResponseSender: answers one request, from any thread and after ``execute`` too."""

from __future__ import annotations

import logging

from bireme import types
from bireme.backends.python.pb_utils.datatypes import TRITONSERVER_RESPONSE_COMPLETE_FINAL
from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.backends.python.pb_utils.response import InferenceResponse
from bireme.backends.python.runtime import Runtime

log = logging.getLogger("bireme.backends.python")


class InferenceResponseSender:
    """Sends the responses of one request; dropped before a final one, it gives the request up.

    A request has one sender at most, which does not hold the request as models see it: it lives for as long as the model
    keeps one of the two. Nothing here is locked: state is checked and changed without a call in between.
    """

    __slots__ = ("_is_decoupled", "_is_final_sent", "_request", "_runtime", "is_closed", "number_sent")

    def __init__(self, request: types.InferenceRequest, runtime: Runtime, *, is_decoupled: bool) -> None:
        self._request = request
        self._runtime = runtime
        self._is_decoupled = is_decoupled
        self._is_final_sent = False
        self.is_closed = False
        """No more responses are taken from the model."""
        self.number_sent = 0
        """How often the model has sent something, a mere flag included."""

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the last one with ``flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL``.

        The tensors are taken as they are: nobody may write to their arrays afterwards.

        Raises:
            TritonModelException: the flags or the order are wrong, or an ordinary model sends a second response.
            TypeError: ``response`` is no `InferenceResponse`.
        """
        if flags not in {0, TRITONSERVER_RESPONSE_COMPLETE_FINAL}:
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None:
            if not flags:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags is set to zero."
                )
        elif not isinstance(response, InferenceResponse):
            raise TypeError(f"send: response must be an InferenceResponse, found {type(response).__name__}")
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.count(response is not None, is_final=is_final)
        request = self._request
        if response is None:
            if self._is_final_sent:
                return
            message = types.InferenceResponse(
                request.model_name, request.model_version, request.id, flag_only=True
            )
        else:
            # The one response of an ordinary model is its last, whether the model says so now, later or never.
            is_final = is_final or not self._is_decoupled
            message = response.to_response(request, final=is_final)
        if is_final:
            self._is_final_sent = True
        self._runtime.respond(request, message)

    def count(self, has_response: bool, *, is_final: bool) -> None:  # noqa: FBT001 (the subject of the question)
        """Note a response that is sent, or that ``execute`` returned, and check that there may be one.

        Raises:
            TritonModelException: there may not.
        """
        if not self._is_decoupled:
            if has_response and self.number_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if is_final and not has_response and not self.number_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        if self.is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if is_final:
            self.is_closed = True
        self.number_sent += 1

    def is_cancelled(self) -> bool:
        """Whether the caller has taken the request back."""
        return self._runtime.is_cancelled(self._request)

    @property
    def is_answered(self) -> bool:
        """Whether the final response has left, or somebody else has seen to it (`close`)."""
        return self._is_final_sent

    def close(self) -> bool:
        """Take nothing more from the model: the caller sends the final response, unless this returns False."""
        was_open = not self._is_final_sent
        self._is_final_sent = self.is_closed = True
        return was_open

    def __del__(self) -> None:
        if getattr(self, "_is_final_sent", True):
            return
        self._is_final_sent = True
        try:
            self._runtime.abandon(self._request)
        except Exception:  # nobody is there to catch it
            log.exception("cannot give up %r", self._request)
