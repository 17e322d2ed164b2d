"""ResponseOrder: lets responses out in the order of their requests (``preserve_ordering``).

Source: Triton core ``dynamic_batch_scheduler.cc`` (DelegateResponse, FinalizeResponses).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from bireme.config import ModelConfig
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

    def start(self, request: InferenceRequest, instance: int) -> None:
        """``request`` begins to run on an instance; it has its place already."""

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


class RunOrder(ResponseOrder):
    """The order in which the requests of an instance began to run: for sequences, whose requests wait for one another's responses.

    One that never ran has no place, and its error is let out at once. One that runs again keeps its place.
    """

    __slots__ = ("_of", "_orders")

    def __init__(self) -> None:
        super().__init__()
        self._orders: dict[int, ResponseOrder] = {}
        """By instance."""
        self._of: dict[InferenceRequest, ResponseOrder] = {}

    def admit(self, request: InferenceRequest) -> None:
        """Nothing: `start` gives the place."""

    def start(self, request: InferenceRequest, instance: int) -> None:
        """Give ``request`` the next place, unless it has one."""
        if request not in self._of:
            self._of[request] = order = self._orders.setdefault(instance, ResponseOrder())
            order.admit(request)

    def complete(self, request: InferenceRequest, response: InferenceResponse) -> list[Ready]:
        """See `ResponseOrder.complete`."""
        order = self._of.get(request)
        if order is None:
            return [(request, response)]
        if response.final:
            del self._of[request]
        return order.complete(request, response)

    def statistics(self) -> dict[str, Any]:
        """See `ResponseOrder.statistics`."""
        each = [order.statistics() for order in self._orders.values()]
        return {key: sum(found[key] for found in each) for key in ("open", "held")}

    def __repr__(self) -> str:
        return f"RunOrder({list(self._orders.values())})"


def make_response_order(config: ModelConfig) -> ResponseOrder | None:
    """Return what keeps the order of responses, as ``config`` asks; None: nobody does."""
    if config.dynamic_batching is not None:
        return ResponseOrder() if config.dynamic_batching.preserve_ordering else None
    sequences = config.sequence_batching
    if sequences is not None and sequences.oldest is not None and sequences.oldest.preserve_ordering:
        return RunOrder()
    return None
