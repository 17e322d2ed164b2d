"""Model: one loaded version — its scheduler, its instances and the requests between them.

All of it belongs to the loop thread. A request's way: `Model.enqueue` checks and queues it; `_dispatch` asks the
scheduler what runs next and hands the batch to a free instance. One that takes tensors runs it inline or on a thread, and
`_answer` answers; one that takes whole requests answers through `Model.respond` and says by `Model.finish` when it is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bireme.backends.interface import Instance, Placement, RequestInstance, SupervisedInstance
from bireme.backends.loop_calls import LoopCalls
from bireme.engine.answers import Answers, forget_call
from bireme.engine.direct_calls import DirectCalls
from bireme.engine.dispatch import Dispatch
from bireme.engine.instances import RequestSlot, Slot, TensorSlot
from bireme.engine.limited_pool import Resources, make_pool
from bireme.engine.loading import PreparedModel
from bireme.engine.request_deadlines import RequestDeadlines, default_deadline_ns, inherit_deadline
from bireme.engine.tensor_runs import TensorRuns
from bireme.engine.timer import Deadline, DeadlineTimer
from bireme.engine.validation import RequestValidator
from bireme.engine.waiting_calls import give_up_calls, would_wait_forever
from bireme.scheduling import DirectScheduler, InlinePolicy, make_response_order
from bireme.scheduling.sequence_batcher import SequenceBatcher
from bireme.telemetry import ModelStatistics, log as server_log
from bireme.types import (
    BiremeError,
    Cancelled,
    DeadlineExceeded,
    Execution,
    InferenceRequest,
    QueueFull,
    Unavailable,
    Way,
)

if TYPE_CHECKING:
    from bireme.engine.response_cache.lookup import CacheLookup
    from bireme.engine.response_cache.model_caches import ModelCaches
    from bireme.scheduling import Scheduler

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns

_STOPPING: Final = "Server is stopping, scheduler for model has stopped accepting new inference requests"
_STUCK_S: Final = 5.0
"""How long a retiring model may take to end requests that all their callers have given up."""
_DIRECT_CALL_S: Final = 0.002
"""Between two looks at whether the last direct calls have ended."""


class Model(Dispatch):
    """One version of a model that serves. Made and used on the loop thread."""

    _cache: CacheLookup | None = None

    _on_request_end: Callable[[InferenceRequest], None] | None = None
    """Called when a request has had its final response."""

    def __init__(
        self,
        prepared: PreparedModel,
        *,
        loop: asyncio.AbstractEventLoop,
        timer: DeadlineTimer,
        statistics: ModelStatistics,
        resources: Resources | None = None,
    ) -> None:
        """Take over ``prepared``: this model closes it. ``resources``: those that instances may need; None: no limits."""
        self.name = prepared.name
        self.version = prepared.version
        self.config = prepared.config
        self.labels = prepared.labels
        self.statistics = statistics
        self.validator = RequestValidator(prepared.config)
        self.inputs = self.validator.inputs
        self.outputs = self.validator.outputs
        self.max_batch_size = prepared.config.max_batch_size
        policy = prepared.config.model_transaction_policy
        self.is_decoupled = policy is not None and policy.decoupled
        """Whether a request has any number of responses."""
        self._prepared = prepared
        self._loop = loop
        self._timer = timer
        self._deadline: Deadline | None = None
        self._scheduler = self._take_scheduler(prepared)
        # Without batching there is nothing to wait for; a batch forms from all that came in one loop iteration.
        self._dispatch_at_once = isinstance(self._scheduler, DirectScheduler)
        self._dispatch_is_due = False
        self._is_dispatching = False
        self._answers = Answers(
            self,
            self.name,
            self.version,
            statistics,
            is_decoupled=self.is_decoupled,
            is_ensemble=prepared.config.ensemble_scheduling is not None,
            order=make_response_order(prepared.config),
            on_end=self._on_request_end,
            on_idle=self._note_idle,
            deadlines=RequestDeadlines(timer, default_deadline_ns(prepared.config), self._expire),
        )
        self.respond = self._answers.respond
        """See `bireme.backends.interface.ResponseSink`."""
        self._inline = InlinePolicy()
        self._may_run_inline = all(_may_run_inline(instance) for _, instance in prepared.instances)
        self.runs = TensorRuns(
            f"model '{self.name}' version {self.version}", prepared.plan, measures_cpu=self._may_run_inline
        )
        self._loop_calls = LoopCalls(loop)
        self.pool = make_pool(
            [self._make_slot(placement, instance) for placement, instance in prepared.instances],
            prepared.config,
            resources,
            wake=self._dispatch_soon,
            has_waiting=lambda: self.has_waiting,
        )
        lends = self._dispatch_at_once and not self.is_decoupled and self.pool.can_be_called
        self.direct_calls = DirectCalls(self) if lends else None
        """The way for other models of this process past the queue; None: there is none."""
        self.way: Way = self.pool.way if lends else "queue"
        """The shortest way for a call of another model."""
        self.has_ready_hook = self.pool.has_ready_hook
        """Whether the model itself is asked if it is ready."""
        self._refusal: str | None = None
        """Why no request is accepted now; None: they are."""
        for execution in prepared.warmup:
            self._count_warmup(execution)
        self._drained: asyncio.Future[None] | None = None
        self._retirement: asyncio.Task[None] | None = None

    def _take_scheduler(self, prepared: PreparedModel) -> Scheduler:
        assert not isinstance(prepared.scheduler, SequenceBatcher)  # see `SequenceModel`
        return prepared.scheduler

    def _make_slot(self, placement: Placement, instance: Instance | RequestInstance) -> Slot:
        if isinstance(instance, RequestInstance):
            instance.start(self)
            return RequestSlot(placement, instance)
        if isinstance(instance, SupervisedInstance):
            instance.watch(self.change)
        return TensorSlot(placement, instance, self.runs.run, self._finish, self._loop_calls)

    def _count_warmup(self, execution: Execution) -> None:
        requests, execution.requests = execution.requests, []
        for _ in requests:
            self.statistics.accept()
        self.statistics.start(len(requests))
        for request in requests:
            self.statistics.succeed(request, execution.compute_end_ns)
        self.statistics.finish_execution(execution)

    @property
    def num_sequences(self) -> int:
        """Sequences that have begun and are not over."""
        return 0

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not answered yet."""
        return self._answers.num_open

    def adopt_statistics(self, statistics: ModelStatistics) -> None:
        """Go on counting in ``statistics``, those of the model that this one replaces."""
        self.statistics = self._answers.statistics = statistics

    def queue_statistics(self) -> dict[str, Any]:
        """Return the state of queue and instances for people and metrics."""
        return {
            "queue": self._scheduler.statistics(),
            **self.pool.statistics(),
            "inline": self._inline.inline and self._may_run_inline,
        }

    def enqueue(self, request: InferenceRequest) -> None:
        """Check ``request`` and queue it. From here on it is answered exactly once, through ``request.respond``.

        Raises:
            InvalidArgument: the request does not fit the model.
            Unavailable: the model is retiring, its processes die time and again, its queue is full (`QueueFull`), or the
                request is a call that would wait for its own caller.
        """
        if self._refusal is not None:
            raise Unavailable(request.id_prefix + self._refusal)
        now_ns = _now_ns()
        self.validator.check(request)
        if request.parent is not None:
            self._note_call(request, request.parent)
        request.owner = self
        request.start_ns = request.start_ns or now_ns
        request.queue_ns = now_ns
        statistics = self.statistics
        statistics.accept()
        if self._cache is not None and self._cache.takes(request):
            return
        try:
            self._enqueue(request, now_ns)
        except BiremeError as error:
            request.owner = None
            statistics.fail(error.reason, _now_ns() - request.start_ns, was_pending=True)
            if request.parent is not None:
                forget_call(request, request.parent)
            raise
        self._answers.open(request)
        self._dispatch_for_new()

    def _dispatch_for_new(self) -> None:
        if not self._dispatch_at_once:
            self._dispatch_soon()
        elif self.pool.free and not self._is_dispatching:
            self._dispatch()

    def use_cache(self, caches: ModelCaches, token: Callable[[], bytes | None]) -> None:
        """Answer from the cache what it has; before the first request. See `CacheLookup`."""
        self._cache = caches.make_lookup(self._answers, self._enqueue_missed, self.outputs, token)
        # They would go past it.
        self.direct_calls = None
        self.way = "queue"

    def _enqueue_missed(self, request: InferenceRequest) -> None:
        """Queue a request that is open and was looked up on a thread."""
        request.queue_ns = now_ns = _now_ns()
        try:
            self._enqueue(request, now_ns)
        except BiremeError as error:
            self._answers.refuse(request, error)
        else:
            self._dispatch_for_new()

    def _note_call(self, request: InferenceRequest, caller: Execution) -> None:
        """Remember that the code of ``caller`` waits for ``request``, unless it would wait for ever."""
        if not self.pool.free and caller.holder is not None and would_wait_forever(self, caller):
            raise Unavailable(
                f"{request.id_prefix}a call to model '{self.name}' would never be answered: all of its instances "
                f"({len(self.pool.slots)}) wait for the model that calls; more instances (instance_group count) or an "
                "'async def execute' let it go on"
            )
        if caller.requests and caller.requests[0].deadline_ns > 0:
            inherit_deadline(request, caller)
        if caller.calls is None:
            caller.calls = set()
        caller.calls.add(request)
        if caller.holding is not None:
            caller.holding.lend()

    def _enqueue(self, request: InferenceRequest, now_ns: int) -> None:
        try:
            self._scheduler.enqueue(request, now_ns)
        except QueueFull:
            # Requests that only wait for the end of this loop iteration, while an instance is free, are not a queue.
            if not (self._dispatch_is_due and self.pool.free) or self._is_dispatching:
                raise
            self._dispatch()
            self._scheduler.enqueue(request, now_ns)

    def cancel(self, request: InferenceRequest) -> None:
        """Take ``request`` back: one that waits is answered `Cancelled` at once, one that runs is flagged."""
        if request.cancelled:
            return
        if self._withdraw(request):
            error = Cancelled(f"{request.id_prefix}the request was cancelled while it was queued")
            self._answers.refuse(request, error)
        else:
            self._give_up(request)

    def _withdraw(self, request: InferenceRequest) -> bool:
        """Mark ``request`` as cancelled, and take it out of what waits; whether it was there."""
        request.cancelled = True
        if self._scheduler.cancel(request) or (self._cache is not None and self._cache.forget(request)):
            if self._scheduler.num_waiting:
                self._dispatch_soon()  # without it, the rest may be a batch that need not wait longer
            return True
        return False

    def _give_up(self, request: InferenceRequest) -> None:
        """Tell whoever runs ``request`` that nobody waits for it."""
        self._answers.num_given_up += 1
        if request.instance is not None:
            request.instance.cancel(request)
        if request.execution is not None and request.execution.calls:
            give_up_calls(request.execution)

    def _expire(self, request: InferenceRequest) -> None:
        """Answer ``request``, whose deadline has passed, and take it back. Code that has it may go on for a while."""
        was_given_up = request.cancelled
        was_waiting = not was_given_up and self._withdraw(request)
        where = "while it was queued" if was_waiting else "while it ran"
        error = DeadlineExceeded(f"{request.id_prefix}the request's deadline has passed {where}")
        self._answers.answer_early(request, error)
        if was_waiting:
            self._answers.refuse(request, error)
            return
        if not was_given_up:
            self._give_up(request)
        self.resume(request)

    def hold(self, request: InferenceRequest) -> None:
        """Let the instance that has ``request`` send no more responses to it, until `resume`."""
        if request.instance is not None:
            request.instance.hold(request)

    def resume(self, request: InferenceRequest) -> None:
        """Let the responses to ``request`` come again."""
        if request.instance is not None:
            request.instance.resume(request)

    async def drain_and_close(self) -> None:
        """Accept nothing more, let the accepted requests finish, then close the instances and the model file.

        May be called again, and the caller may be cancelled: the retirement itself goes on.
        """
        if self._retirement is None:
            self._refusal = _STOPPING
            self._drained = self._loop.create_future()
            if self._answers.num_open == 0:
                self._drained.set_result(None)
            self._retirement = self._loop.create_task(self._retire(self._drained))
        await asyncio.shield(self._retirement)

    async def _retire(self, drained: asyncio.Future[None]) -> None:
        while not (await asyncio.wait([drained], timeout=_STUCK_S if self.pool.can_be_killed else None))[0]:
            if self._answers.num_given_up >= self._answers.num_open:
                self.pool.kill()  # code that ends by itself has had its time, and nobody waits for its answers
        stuck_s = self._loop.time() + _STUCK_S
        while executions := self.pool.executions:  # of direct calls, on other threads
            if self._loop.time() >= stuck_s and all(map(_is_given_up, executions)):
                self.pool.kill()  # its thread is left alone with it
                break
            await asyncio.sleep(_DIRECT_CALL_S)
        self._set_deadline(None)
        try:
            await self._loop.run_in_executor(None, self._close)
        finally:
            if self.direct_calls is not None:
                self.direct_calls.settle()
            self._let_go()

    def _let_go(self) -> None:
        """Break cycles: without this the model would live until a garbage collection finds it."""
        self.pool.clear()
        self._answers.close()
        self.direct_calls = self._cache = None
        del self.respond

    def stop_starts(self, grace_ns: int) -> bool:  # noqa: ARG002 (this model has no sequences)
        """Let no more sequences begin; whether there are any that may go on, as long as none is silent for ``grace_ns``."""
        return False

    def abort(self, error: BiremeError, *, kill: bool = False) -> None:
        """Answer every request that still waits with ``error``; running ones finish on their own.

        With ``kill``, processes are ended with what runs in them; frameworks in this process finish all the same.
        """
        for request in self._scheduler.drain():
            self._answers.refuse(request, error)
        for request in self._cache.drain() if self._cache is not None else ():
            self._answers.refuse(request, error)
        if kill:
            self.pool.kill()

    def _close(self) -> None:
        self.pool.close()
        replace(self._prepared, instances=[]).close()

    def _note_idle(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # What instances that take whole requests say: `bireme.backends.interface.ResponseSink`.

    def finish(self, execution: Execution, error: BiremeError | None = None) -> None:
        """Take the instance back; with ``error``, answer the requests of ``execution`` that are still open."""
        self.pool.leave(execution)
        requests, execution.requests = execution.requests, []
        if server_log.verbose_enabled:
            self._log(execution, len(requests))
        if self._scheduler.num_waiting and not self._is_dispatching:
            self._dispatch()
        if error is None:
            self.statistics.finish_execution(execution)
            return
        for request in requests:
            self._answers.fail(request, error)

    def run_again(self, request: InferenceRequest) -> bool:  # noqa: ARG002 (of use to a `SequenceModel`)
        """Let ``request``, whose execution is about to end, run again; False: the model is not iterative."""
        return False

    def change(self) -> None:
        """See which instances can run something now; one whose process has died cannot until it is started again."""
        self.statistics.num_restarts += self.pool.refresh()
        if self._drained is not None:
            return
        self._refusal = None
        # What waits is kept for a process that is being started. One that dies time and again is not waited for.
        if self.pool.is_given_up:
            self._refusal = (
                f"model '{self.name}' version {self.version} is not ready: {self.pool.away_reason}"
            )
            self.abort(Unavailable(self._refusal))
        elif self._scheduler.num_waiting:
            self._dispatch_soon()

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for an instance."""
        return self._scheduler.num_waiting > 0

    # What direct calls need to know, on any thread.

    def is_free_for_calls(self, request: InferenceRequest) -> bool:
        """Whether a call may go past the queue: requests are taken, none waits, and nobody need know of this one now."""
        return (
            self._refusal is None
            and self._scheduler.num_waiting == 0
            and not self._answers.deadlines.concern(request)
            and (request.parent is None or request.parent.holding is None)
        )

    def refuses(self) -> bool:
        """Whether no request is accepted now."""
        return self._refusal is not None

    def wake(self) -> None:
        """Have the loop look for something to run."""
        self.call_on_loop(self._dispatch)

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Call ``function`` on the loop thread, soon."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def call_later(self, delay_s: float, function: Callable[[], object]) -> None:
        """Call ``function`` after ``delay_s``. On the loop thread."""
        self._loop.call_later(delay_s, function)

    @property
    def is_up(self) -> bool:
        """Whether an instance can run something now or is running something."""
        return self.pool.is_up

    @property
    def away_reason(self) -> str:
        """Why no instance can run anything now, though the model serves; empty if one can."""
        return "" if self.pool.is_up else self.pool.away_reason

    async def check_ready(self) -> bool:
        """Whether the model can run now, and says so itself if it has an ``is_ready``."""
        return self._refusal is None and self.pool.is_up and await self.pool.check_ready()

    @property
    def can_start(self) -> bool:
        """As `InstancePool.can_start`."""
        return self.pool.can_start

    @property
    def executions(self) -> list[Execution]:
        """As `InstancePool.executions`."""
        return self.pool.executions

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r} v{self.version}, in flight {self.num_in_flight}, "
            f"{len(self.pool.slots) - len(self.pool.free)} of {len(self.pool.slots)} instances busy, {self._scheduler!r})"
        )


def _is_given_up(execution: Execution) -> bool:
    return all(request.cancelled for request in execution.requests)


def _may_run_inline(instance: Instance | RequestInstance) -> bool:
    """Whether the instance says that it is native code that never blocks on anything but arithmetic."""
    return bool(getattr(instance, "may_run_inline", False))
