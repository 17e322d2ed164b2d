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
        self._models = [_models_in(step.model_name, step.model_version, host) for step in plan.steps]

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
        self._hold(run, index)
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
        if not run.num_waiting:
            self._resume(run)
        return [call]

    def drop(self, run: ActiveRun) -> None:
        """``run`` has failed: what of it waits never begins."""
        if not run.num_waiting:
            return
        for index, waiting in enumerate(self._waiting):
            self._waiting[index] = deque(call for call in waiting if call.run is not run)
        run.num_in_flight -= run.num_waiting
        run.num_waiting = 0
        self._resume(run)

    def _hold(self, run: ActiveRun, index: int) -> None:
        """Hold what leads to the step, but for what runs on the step's own model: the step may need that very instance."""
        models = self._models[index]
        producers = [
            request
            for request in run.producers()
            if models.isdisjoint(self._models[request.context.step.index])
        ]
        if not producers:
            return
        for request in producers:
            self._host.hold(request)
        if run.valve is None:
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
        self._resume(run)

    def _resume(self, run: ActiveRun) -> None:
        if run.valve is not None:
            run.valve.cancel()
            run.valve = None
        for request in run.producers():
            self._host.resume(request)

    def __repr__(self) -> str:
        return f"StepLimits({self._limit}, active {self._num_active})"


def _models_in(name: str, version: int, host: Host) -> set[str]:
    """Return the names of the models that run when ``name`` does, which may be an ensemble."""
    ensemble = host.find_config(name, version).ensemble_scheduling
    if ensemble is None:
        return {name}
    return {
        model for step in ensemble.step for model in _models_in(step.model_name, step.model_version, host)
    }
