"""CacheLookup: the response cache as one model version uses it. Loop thread only.

A request is looked up when it has been accepted, before it is queued. What is found answers it, without the model; what is
not found goes the usual way, and is kept on its way back to the caller, if it is no error.

Where a look-up takes longer than the loop can spare (a large input, a cache that is asked over a network), it is made on a
thread. Until it comes back the request is accepted, as one that waits: it can be cancelled, and stopping waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Final

from bireme.engine.response_cache.keeping import keep, own_inputs
from bireme.engine.response_cache.key import MAX_LOOP_NBYTES, Question, make_key, read_question
from bireme.types import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from bireme.engine.answers import Answers
    from bireme.engine.response_cache.interface import CachedResponse, ResponseCache
    from bireme.types.request import Respond

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns

_MAX_WAITING: Final = 64
"""Requests of a model that may wait for a cache over a network. Others are not looked up: running the model is faster."""
_MAX_LATE: Final = 64
"""Responses that may wait for a thread to keep them. More are dropped: a slow cache must not fill the memory."""


class CacheLookup:
    """Answers a model's requests from the cache, as far as it can."""

    __slots__ = (
        "_answers",
        "_cache",
        "_clients_have_memory",
        "_enqueue",
        "_executor",
        "_is_answering",
        "_loop",
        "_num_late",
        "_outputs",
        "_put_executor",
        "_token",
        "_waiting",
    )

    def __init__(
        self,
        cache: ResponseCache,
        answers: Answers,
        enqueue: Callable[[InferenceRequest], None],
        *,
        outputs: Iterable[str],
        token: Callable[[], bytes | None],
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        put_executor: Executor,
        clients_have_memory: bool,
    ) -> None:
        """``enqueue`` takes a request whose look-up came back with nothing. ``outputs``: the names of all the model's.

        ``clients_have_memory``: inputs may lie in memory that clients share.

        ``token`` stands for what answers now: another load, another token. None: it is not known, and nothing is cached.
        """
        self._cache = cache
        self._answers = answers
        self._enqueue = enqueue
        self._outputs = sorted(outputs)
        self._token = token
        self._loop = loop
        self._executor = executor
        self._put_executor = put_executor
        self._clients_have_memory = clients_have_memory
        self._waiting: dict[InferenceRequest, None] = {}
        """Those that a thread, or the end of this loop iteration, will bring back."""
        self._is_answering = False
        self._num_late = 0

    def takes(self, request: InferenceRequest) -> bool:
        """Whether ``request``, which has been accepted, is answered now or comes back later; else it is to be queued."""
        cache = self._cache
        token = self._token()
        if token is None or cache.is_away:
            return False
        if self._clients_have_memory:
            own_inputs(request)
        if cache.may_block and len(self._waiting) >= _MAX_WAITING:
            return False
        question = read_question(request, token, self._outputs)
        if question is None:
            return False
        if cache.may_block or question.nbytes > MAX_LOOP_NBYTES:
            self._answers.open(request)
            self._waiting[request] = None
            self._executor.submit(self._look_up_beside, request, question)
            return True
        start_ns = _now_ns()
        key = make_key(question)
        found = self._get(key)
        lookup_ns = _now_ns() - start_ns
        if found is None:
            self._miss(request, key, lookup_ns)
            return False
        self._answers.open(request)
        if self._is_answering:
            # A caller that sends its next request from within an answer, again and again: not on one stack.
            self._waiting[request] = None
            self._loop.call_soon(self._go_on, request, key, found, lookup_ns)
        else:
            self._hit(request, found, lookup_ns)
        return True

    def forget(self, request: InferenceRequest) -> bool:
        """Whether ``request`` was being looked up. It will be neither answered nor queued any more."""
        if request not in self._waiting:
            return False
        del self._waiting[request]
        return True

    def drain(self) -> list[InferenceRequest]:
        """Forget all requests that are being looked up, and return them."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def _look_up_beside(self, request: InferenceRequest, question: Question) -> None:
        """On a thread: make the key, and ask a cache that may block."""
        start_ns = _now_ns()
        key = make_key(question)
        found = self._get(key) if self._cache.may_block else None
        go_on = partial(self._go_on, request, key, found, _now_ns() - start_ns)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(go_on)

    def _go_on(
        self,
        request: InferenceRequest,
        key: bytes,
        found: CachedResponse | None,
        lookup_ns: int,
    ) -> None:
        """Answer or queue a request that was waiting, unless it has been taken back."""
        if not self.forget(request):
            return
        if found is None and not self._cache.may_block:
            found = self._get(key)
        if found is not None:
            self._hit(request, found, lookup_ns)
            return
        self._miss(request, key, lookup_ns)
        self._enqueue(request)

    def _get(self, key: bytes) -> CachedResponse | None:
        try:
            return self._cache.get(key)
        except Exception:  # it breaks its word; no request is to suffer from that
            log.exception("response cache: a look-up failed")
            return None

    def _hit(self, request: InferenceRequest, found: CachedResponse, lookup_ns: int) -> None:
        answers = self._answers
        outer, self._is_answering = self._is_answering, True
        try:
            outputs = [output.to_tensor() for output in found.outputs]
            answers.answer_hit(request, outputs, found.parameters, lookup_ns)
        finally:
            self._is_answering = outer

    def _miss(self, request: InferenceRequest, key: bytes, lookup_ns: int) -> None:
        """Count it, and see that the answer is kept."""
        counts = self._answers.statistics.cache
        assert counts is not None
        counts.miss(lookup_ns, _now_ns())
        request.respond = partial(self._keep, key, request.respond)

    def _keep(
        self, key: bytes, respond: Respond, request: InferenceRequest, response: InferenceResponse
    ) -> None:
        """Put what a model has answered into the cache, then pass it on: afterwards, its memory may be another's."""
        if response.error is None:
            start_ns = _now_ns()
            try:
                self._put(key, keep(response))
            except Exception:
                log.exception("response cache: a response of model '%s' cannot be kept", response.model_name)
            counts = self._answers.statistics.cache
            assert counts is not None
            counts.miss_ns += _now_ns() - start_ns
        respond(request, response)

    def _put(self, key: bytes, kept: CachedResponse) -> None:
        if not self._cache.may_block:
            self._cache.put(key, kept)
        elif self._num_late < _MAX_LATE:
            self._num_late += 1
            self._put_executor.submit(self._cache.put, key, kept).add_done_callback(self._note_put)

    def _note_put(self, done: Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("response cache: a response was not kept", exc_info=error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._forget_put)

    def _forget_put(self) -> None:
        self._num_late -= 1

    def __repr__(self) -> str:
        return f"CacheLookup({self._cache!r}, {len(self._waiting)} look-ups on threads)"
