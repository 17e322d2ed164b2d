"""ResponseOrder: lets responses out in the order of their requests (``preserve_ordering``).

Source: Triton core ``dynamic_batch_scheduler.cc`` (DelegateResponse, FinalizeResponses).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from bireme.types import InferenceRequest, InferenceResponse

Ready = tuple[InferenceRequest, InferenceResponse]


class ResponseOrder:
    """Holds a finished response back until all requests before its own have got theirs.

    A request that never ran (refused, expired, cancelled while it waited) has no place in the order: its error is
    let out at once, as in Triton, because an error that is due now must not wait for somebody's execution. Nobody
    waits for such a request either.

    Every operation is O(1) amortised. A held response keeps its outputs alive.
    """

    __slots__ = ("_held", "_num_held")

    def __init__(self) -> None:
        # What is held for each request that is not finished, in order of admission.
        self._held: OrderedDict[InferenceRequest, list[InferenceResponse]] = OrderedDict()
        self._num_held = 0

    def admit(self, request: InferenceRequest) -> None:
        """Give ``request`` the next place. Call once, when it has entered the queue."""
        self._held[request] = []

    def complete(self, request: InferenceRequest, response: InferenceResponse) -> list[Ready]:
        """Take in a response of ``request`` and return all that may be sent now, in order.

        Responses that are not final (of decoupled models) are ordered like the final one: those of the first request
        pass at once, those of later ones wait.

        Raises:
            KeyError: ``request`` was not admitted, or has had its final response.
        """
        own = self._held[request]
        if response.error is not None and request.execution is None and not own:
            del self._held[request]
            return [(request, response), *self._release()]
        if next(iter(self._held)) is not request:
            own.append(response)
            self._num_held += 1
            return []
        if not response.final:
            return [(request, response)]
        del self._held[request]
        return [(request, response), *self._release()]

    def _release(self) -> list[Ready]:
        """Take out what is held for the requests at the front, up to the first that is not finished."""
        ready: list[Ready] = []
        while self._held:
            request, responses = next(iter(self._held.items()))
            ready += ((request, response) for response in responses)
            self._num_held -= len(responses)
            if not responses or not responses[-1].final:
                responses.clear()
                break
            del self._held[request]
        return ready

    def statistics(self) -> dict[str, Any]:
        """Return the number of unfinished requests and of responses held back."""
        return {"open": len(self._held), "held": self._num_held}

    def __repr__(self) -> str:
        return f"ResponseOrder({len(self._held)} open, {self._num_held} responses held)"
