"""StepLimits: how many requests each step of an ensemble has in flight (``max_inflight_requests``), over all requests.

What comes too early waits in order, and meanwhile the decoupled steps that produce it are held, so that nothing piles up
between a fast step and a slow one.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bireme.backends.ensemble.active_run import ActiveRun
from bireme.backends.ensemble.nesting import models_in
from bireme.backends.interface import Host
from bireme.scheduling.ensemble_plan import EnsemblePlan, Step
from bireme.scheduling.ensemble_run import StepCall
from bireme.types import InferenceRequest

log = logging.getLogger("bireme.engine")

_LONGEST_HOLD_S: Final = 300.0
"""After that a producer goes on in any case. Source: Triton ``ensemble_scheduler.cc``."""
_WATCH_S: Final = 0.1
"""Between two looks whether steps wait for what is held."""


_holding: Final = weakref.WeakKeyDictionary["Host", "weakref.WeakSet[StepLimits]"]()
"""By server, the limits that hold something: they may do so for each other."""


class StepLimits:
    """The limits of one ensemble. Loop thread only."""

    def __init__(self, plan: EnsemblePlan, host: Host, runs: Mapping[InferenceRequest, ActiveRun]) -> None:
        """``runs``: those of the ensemble that are not over, kept up to date by the owner."""
        self._name = plan.name
        self._runs = runs
        self._limit = plan.max_inflight_requests
        self._host = host
        self._num_active = [0] * len(plan.steps)
        self._waiting: list[OrderedDict[StepCall, None]] = [OrderedDict() for _ in plan.steps]
        """By step, in order. What fails may take its calls out, which must not cost a look at all the others."""
        models = [models_in(step.model_name, step.model_version, host) for step in plan.steps]
        self._producers = _producers_to_hold(plan, models)
        """By step, the decoupled steps that are held when calls of it wait."""
        self._unshared = _unshared(plan, models)
        """The decoupled steps that are held when their responses wait for something else."""
        self._watch: asyncio.TimerHandle | None = None
        """Looks for steps that wait for what is held, while something is."""
        self._queued: set[InferenceRequest] = set()
        """What the held producers have waited for at the last look, and waits itself, in a model's queue."""
        self.stuck: set[InferenceRequest] = set()
        """Those that had waited at the look before, too."""

    def enter(self, call: StepCall) -> bool:
        """Tell whether ``call`` may begin; else it waits, until `leave` returns it or `drop` drops it."""
        index = call.step.index
        if self._num_active[index] < self._limit:
            self._num_active[index] += 1
            return True
        run = call.run
        assert isinstance(run, ActiveRun)
        self._waiting[index][call] = None
        run.waiting.setdefault(index, set()).add(call)
        self._hold(run)
        return False

    def leave(self, step: Step) -> list[StepCall]:
        """A call of ``step`` has ended: return the one that takes its place, if any waits."""
        waiting = self._waiting[step.index]
        if not waiting:
            self._num_active[step.index] -= 1
            return []
        call, _ = waiting.popitem(last=False)
        run = call.run
        assert isinstance(run, ActiveRun)
        run.waiting[step.index].discard(call)
        if not run.waiting[step.index]:
            self._resume(run)
        return [call]

    def is_holding(self, run: ActiveRun, request: InferenceRequest) -> bool:
        """Whether ``request``, to a decoupled step of ``run``, leads to a step whose calls wait, or would, for the limit."""
        step = request.context.step
        producer = step.index
        if producer in self._unshared and run.num_blocked.get(step.out_scope, 0) >= self._limit:
            return True
        return any(calls and producer in self._producers[index] for index, calls in run.waiting.items())

    def look(self, run: ActiveRun) -> None:
        """Hold producers of which so many responses wait for a tensor from elsewhere, or let them go on."""
        if any(count >= self._limit for count in run.num_blocked.values()):
            run.is_blocked = True
            self._hold(run)
        elif run.is_blocked:
            run.is_blocked = False
            self._resume(run)

    def drop(self, run: ActiveRun) -> None:
        """``run`` has failed: what of it waits never begins."""
        if not run.num_waiting and not run.is_blocked:
            return
        run.is_blocked = False
        run.num_blocked.clear()
        for index, calls in run.waiting.items():
            for call in calls:
                del self._waiting[index][call]
        run.num_in_flight -= run.num_waiting
        run.waiting.clear()
        self._resume(run)

    def _hold(self, run: ActiveRun) -> None:
        producers = [request for request in run.producers() if self.is_holding(run, request)]
        for request in producers:
            self._host.hold(request)
        if producers and run.valve is None:
            run.valve = self._host.loop.call_later(_LONGEST_HOLD_S, self._open_valve, run)
        if producers and self._watch is None:
            self._watch = self._host.loop.call_later(_WATCH_S, self._look_for_standstill)
            _holding.setdefault(self._host, weakref.WeakSet()).add(self)

    def _look_for_standstill(self) -> None:
        """Hold no producer any more of whose model something is needed so that it could go on.

        A later step may call it by itself (BLS), or need a model that is held by another ensemble, which needs this one.
        """
        self._watch = None
        holding = [run for run in self._runs.values() if run.valve is not None]
        queued = self._find_queued(holding)
        self.stuck, self._queued = queued & self._queued, queued
        if not holding:
            _holding[self._host].discard(self)
            return
        wanted = self._find_wanted() if self.stuck else set()
        for request in self.find_held() if wanted else ():
            if wanted.isdisjoint(_models_of(request)):
                continue
            self._unshared.discard(request.context.step.index)
            for producers in self._producers:
                producers.discard(request.context.step.index)
        for run in holding:
            self._resume(run)
        self._watch = self._host.loop.call_later(_WATCH_S, self._look_for_standstill)

    def find_held(self) -> list[InferenceRequest]:
        """Return the producers that are held now."""
        runs = [run for run in self._runs.values() if run.valve is not None]
        return [request for run in runs for request in run.producers() if self.is_holding(run, request)]

    def _find_queued(self, holding: Sequence[ActiveRun]) -> set[InferenceRequest]:
        """Return which of the calls that have to end before the runs ``holding`` go on are in a model's queue."""
        if not holding:
            return set()
        held = {request.context.step.index for request in self.find_held()}
        later = {index for index, producers in enumerate(self._producers) if not held.isdisjoint(producers)}
        runs = self._runs.values()
        calls = [request for run in runs for request in run.open if request.context.step.index in later]
        calls += [request for run in holding if run.is_blocked for request in run.open]
        calls += [call for run in runs for request in run.open for call in calls_below(request)]
        return {call for call in calls if call.execution is None and call.owner is not None}

    def _find_wanted(self) -> set[object]:
        """Return the models that have to come free before what is held here goes on, through other ensembles as well."""
        wanted = {request.owner for request in self.stuck}
        others = [each for each in _holding[self._host] if each is not self and each.stuck]
        has_grown = True
        while has_grown:
            has_grown = False
            for other in others[:]:
                if any(not wanted.isdisjoint(_models_of(request)) for request in other.find_held()):
                    wanted.update(request.owner for request in other.stuck)
                    others.remove(other)
                    has_grown = True
        return wanted

    def _open_valve(self, run: ActiveRun) -> None:
        log.warning(
            "ensemble '%s': request '%s' has been held for %d s, as a later step has max_inflight_requests (%d) in flight; "
            "it goes on",
            self._name,
            run.request.id,
            _LONGEST_HOLD_S,
            self._limit,
        )
        run.valve = None
        for request in run.producers():
            self._host.resume(request)

    def _resume(self, run: ActiveRun) -> None:
        if run.valve is not None and not run.num_waiting and not run.is_blocked:
            run.valve.cancel()
            run.valve = None
        for request in run.producers():
            if not self.is_holding(run, request):
                self._host.resume(request)

    def __repr__(self) -> str:
        return f"StepLimits({self._limit}, active {self._num_active})"


def _producers_to_hold(plan: EnsemblePlan, models: Sequence[set[str]]) -> list[set[int]]:
    """Return, for each step, the decoupled steps that lead to it and can be held for it; ``models``: those of each step.

    None that comes later than the step: its calls could not end, for which the others wait. And none whose model a later
    step needs as well: that may need the very instance that is held.
    """
    producers: list[set[int]] = [set() for _ in plan.steps]
    for producer in plan.steps:
        if not producer.is_decoupled:
            continue
        later = [step.index for step in plan.steps if producer.out_scope in _scopes_around(plan, step.scope)]
        if all(models[producer.index].isdisjoint(models[index]) for index in later):
            for index in later:
                producers[index].add(producer.index)
    return producers


def _unshared(plan: EnsemblePlan, models: Sequence[set[str]]) -> set[int]:
    """Return the decoupled steps whose models no other step needs: nothing waits for the instance that is held."""
    return {
        step.index
        for step in plan.steps
        if step.is_decoupled
        and all(
            models[step.index].isdisjoint(models[other.index]) for other in plan.steps if other is not step
        )
    }


def calls_below(request: InferenceRequest) -> Iterator[InferenceRequest]:
    """Yield the open requests that were made for ``request``, directly or not."""
    todo = [request]
    while todo:
        execution = todo.pop().execution
        # In one step: threads that call directly change it meanwhile.
        calls = tuple(execution.calls or ()) if execution is not None else ()
        yield from calls
        todo += calls


def _models_of(request: InferenceRequest) -> set[object]:
    """Return the models of which ``request`` keeps an instance."""
    return {request.owner, *(call.owner for call in calls_below(request))} - {None}


def _scopes_around(plan: EnsemblePlan, scope: int) -> set[int]:
    found: set[int] = set()
    while scope >= 0:
        found.add(scope)
        scope = plan.parent_scopes[scope]
    return found
