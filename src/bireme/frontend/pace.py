"""Pace: has a decoupled model wait while the client of its responses is far behind."""

from __future__ import annotations

from bireme.types import InferenceRequest


class Pace:
    """Watches what one request's client has not taken. Loop thread only.

    The model is held at a quarter of what may be kept for the client, so that there is room for what is on its way; and
    for the responses of a model that cannot be held. It goes on when the client has taken half of that quarter.
    """

    __slots__ = ("_most", "is_held")

    def __init__(self, max_unsent_bytes: int) -> None:
        """``max_unsent_bytes``: how much may be kept before the client loses its request."""
        self._most = max_unsent_bytes // 4
        self.is_held = False

    def look(self, request: InferenceRequest, num_unsent: int) -> None:
        """Hold the model of ``request`` or let it go on, now that ``num_unsent`` bytes are kept for its client."""
        model = request.owner
        if num_unsent > self._most:
            self.is_held = True
            if model is not None:  # it has not had its final response
                model.hold(
                    request
                )  # each time: somebody else who held it, too, may have let it go on meanwhile
        elif self.is_held and num_unsent <= self._most // 2:
            self.is_held = False
            if model is not None:
                model.resume(request)
