"""DirectRuns: steps whose models run on threads of this process, run one after the other as function calls on one thread.

From the loop, each such step costs two hand-overs between threads. A run that has exactly one step to make is given to a
thread as a whole instead, which calls model after model, until there is an answer, more than one step to make, or a model
that cannot be called now; then the loop goes on with it. While a thread has a run, nobody else touches its state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from bireme.backends.ensemble.active_run import ActiveRun
from bireme.backends.ensemble.steps import name_error, name_fault, name_refusal, step_request
from bireme.backends.interface import Host
from bireme.backends.loop_calls import LoopCalls
from bireme.scheduling.ensemble_plan import EnsemblePlan
from bireme.types import BiremeError, InferenceRequest, InferenceResponse

_MOST_THREADS: Final = 4
"""Runs of one ensemble that are driven at a time; others go by the loop."""
_STUCK_S: Final = 1.0
"""How long a thread has to end."""


class DirectRuns:
    """The threads of one ensemble."""

    def __init__(self, plan: EnsemblePlan, host: Host, give_back: Callable[[ActiveRun], None]) -> None:
        """``give_back`` is called on the loop when a thread is done with a run."""
        self._plan = plan
        self._host = host
        self._give_back = give_back
        self._loop_calls = LoopCalls(host.loop)
        self._idle: list[SimpleQueue[ActiveRun | None]] = []
        self._threads: dict[threading.Thread, SimpleQueue[ActiveRun | None]] = {}
        """Each with where it gets its runs from."""

    def take(self, run: ActiveRun) -> bool:
        """Give ``run`` to a thread, if one step is to be made, of a model that is called directly. On the loop thread."""
        if run.goes_by_loop or not run.has_one_call:
            return False
        step = run.calls[0].step
        if self._host.way_to(step.model_name, step.model_version) != "thread":
            return False
        queue = self._idle_thread()
        if queue is None:
            return False
        run.is_driven = True
        queue.put(run)
        return True

    def _idle_thread(self) -> SimpleQueue[ActiveRun | None] | None:
        if self._idle:
            return self._idle.pop()
        if len(self._threads) == _MOST_THREADS:
            return None
        queue: SimpleQueue[ActiveRun | None] = SimpleQueue()
        thread = threading.Thread(
            target=self._work, args=(queue,), name=f"{self._plan.name}_{len(self._threads)}", daemon=True
        )
        self._threads[thread] = queue
        thread.start()
        return queue

    def _work(self, queue: SimpleQueue[ActiveRun | None]) -> None:
        while (run := queue.get()) is not None:
            self.drive(run)
            self._loop_calls.put(self._end, queue, run)
            del run

    def _end(self, queue: SimpleQueue[ActiveRun | None], run: ActiveRun) -> None:
        self._idle.append(queue)
        run.is_driven = False
        # A model that was not free would not be now: its queue decides when it is this step's turn.
        run.goes_by_loop = True
        self._give_back(run)

    def drive_here(self, run: ActiveRun) -> None:
        """Make the steps of ``run`` on the loop thread for as long as there is one whose model runs there anyway."""
        while run.has_one_call:
            step = run.calls[0].step
            if self._host.way_to(step.model_name, step.model_version) != "inline" or not self._step(run):
                return

    def drive(self, run: ActiveRun) -> None:
        """Make the steps of ``run`` on this thread for as long as there is one, and its model can be called."""
        while run.has_one_call and run.stop_error is None:
            if not self._step(run):
                return

    def _step(self, run: ActiveRun) -> bool:
        """Make the one step that is to be made; whether it could be made here."""
        call = run.calls[0]
        request = step_request(run, call, _no_response)
        run.current = request
        try:
            response = self._host.call_directly(request)
            if response is None:
                return False
            run.calls.popleft()
            run.end()
            run.add_times(request.execution)
            if response.error is not None:
                run.fail(name_error(self._plan, call.step, response.error))
            else:
                run.take(call, response.outputs, response.parameters)
        except BiremeError as error:
            run.fail(name_refusal(self._plan, call.step, error))
        except Exception as error:  # noqa: BLE001 - it is logged there
            run.fail(name_fault(self._plan, call.step, error))
        finally:
            run.current = None
        return True

    def close(self) -> None:
        """End the threads. One that is stuck in a model's code is left alone with it."""
        for queue in self._threads.values():
            queue.put(None)
        for thread in self._threads:
            thread.join(_STUCK_S)


def _no_response(request: InferenceRequest, response: InferenceResponse) -> None:
    """Take nothing: the response of a direct call is what it returns."""
