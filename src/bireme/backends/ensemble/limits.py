"""StepLimits: how many requests each step of an ensemble has in flight (``max_inflight_requests``), over all requests.

What comes too early waits in order, and meanwhile the decoupled steps that produce it are held, so that nothing piles up
between a fast step and a slow one.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from bireme.backends.ensemble.active_run import ActiveRun
from bireme.backends.interface import Host
from bireme.scheduling.ensemble_plan import EnsemblePlan, Step
from bireme.scheduling.ensemble_run import StepCall
from bireme.types import InferenceRequest

log = logging.getLogger("bireme.engine")

_LONGEST_HOLD_S: Final = 300.0
"""After that a producer goes on in any case. Source: Triton ``ensemble_scheduler.cc``."""


class StepLimits:
    """The limits of one ensemble. Loop thread only."""

    def __init__(self, plan: EnsemblePlan, host: Host) -> None:
        self._name = plan.name
        self._limit = plan.max_inflight_requests
        self._host = host
        self._num_active = [0] * len(plan.steps)
        self._waiting: list[deque[StepCall]] = [deque() for _ in plan.steps]
        self._producers = _producers_to_hold(plan, host)
        """By step, the decoupled steps that are held when calls of it wait."""

    def enter(self, call: StepCall) -> bool:
        """Tell whether ``call`` may begin; else it waits, until `leave` returns it or `drop` drops it."""
        index = call.step.index
        if self._num_active[index] < self._limit:
            self._num_active[index] += 1
            return True
        run = call.run
        assert isinstance(run, ActiveRun)
        self._waiting[index].append(call)
        run.num_waiting += 1
        run.waiting[index] = run.waiting.get(index, 0) + 1
        self._hold(run)
        return False

    def leave(self, step: Step) -> list[StepCall]:
        """A call of ``step`` has ended: return the one that takes its place, if any waits."""
        waiting = self._waiting[step.index]
        if not waiting:
            self._num_active[step.index] -= 1
            return []
        call = waiting.popleft()
        run = call.run
        assert isinstance(run, ActiveRun)
        run.num_waiting -= 1
        run.waiting[step.index] -= 1
        if not run.waiting[step.index]:
            self._resume(run)
        return [call]

    def is_holding(self, run: ActiveRun, request: InferenceRequest) -> bool:
        """Whether ``request``, to a decoupled step of ``run``, leads to a step whose calls wait."""
        producer = request.context.step.index
        return any(count and producer in self._producers[index] for index, count in run.waiting.items())

    def drop(self, run: ActiveRun) -> None:
        """``run`` has failed: what of it waits never begins."""
        if not run.num_waiting:
            return
        for index, waiting in enumerate(self._waiting):
            self._waiting[index] = deque(call for call in waiting if call.run is not run)
        run.num_in_flight -= run.num_waiting
        run.num_waiting = 0
        run.waiting.clear()
        self._resume(run)

    def _hold(self, run: ActiveRun) -> None:
        producers = [request for request in run.producers() if self.is_holding(run, request)]
        for request in producers:
            self._host.hold(request)
        if producers and run.valve is None:
            run.valve = self._host.loop.call_later(_LONGEST_HOLD_S, self._open_valve, run)

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
        if run.valve is not None and not run.num_waiting:
            run.valve.cancel()
            run.valve = None
        for request in run.producers():
            if not self.is_holding(run, request):
                self._host.resume(request)

    def __repr__(self) -> str:
        return f"StepLimits({self._limit}, active {self._num_active})"


def _producers_to_hold(plan: EnsemblePlan, host: Host) -> list[set[int]]:
    """Return, for each step, the decoupled steps that lead to it and can be held for it.

    None that comes later than the step: its calls could not end, for which the others wait. And none whose model a later
    step needs as well: that may need the very instance that is held.
    """
    models = [_models_in(step.model_name, step.model_version, host) for step in plan.steps]
    producers: list[set[int]] = [set() for _ in plan.steps]
    for producer in plan.steps:
        if not producer.is_decoupled:
            continue
        later = [step.index for step in plan.steps if producer.out_scope in _scopes_around(plan, step.scope)]
        if all(models[producer.index].isdisjoint(models[index]) for index in later):
            for index in later:
                producers[index].add(producer.index)
    return producers


def _scopes_around(plan: EnsemblePlan, scope: int) -> set[int]:
    found: set[int] = set()
    while scope >= 0:
        found.add(scope)
        scope = plan.parent_scopes[scope]
    return found


def _models_in(name: str, version: int, host: Host) -> set[str]:
    """Return the names of the models that run when ``name`` does, which may be an ensemble."""
    ensemble = host.find_config(name, version).ensemble_scheduling
    if ensemble is None:
        return {name}
    return {
        model for step in ensemble.step for model in _models_in(step.model_name, step.model_version, host)
    }
