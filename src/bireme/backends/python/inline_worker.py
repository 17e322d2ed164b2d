"""InlineWorker: executes a model's requests where they are put, on the server's own loop thread.

For code that takes microseconds and waits for nothing: an ensemble's step then costs a function call. While it runs, the server
does nothing else.
"""

from __future__ import annotations

from bireme.backends.python.thread_batches import Batches
from bireme.backends.python.thread_runtime import enter, execution_of_context
from bireme.backends.python.thread_worker import Report, UserModel, describe
from bireme.types import BackendFailed, Execution

_NO_CALLS = (
    "a model with EXECUTION_MODE 'inline' cannot call other models: it would wait on the thread that runs them; take 'thread' or "
    "'process'"
)


class InlineWorker:
    """What `bireme.backends.python.thread_worker.ModelThread` is for other instances, without a thread."""

    def __init__(self, model: UserModel, batches: Batches, report: Report) -> None:
        """``report`` takes the outcomes."""
        self._model = model
        self._batches = batches
        self._report = report

    def start(self) -> None:
        """Initialise the model, on the loading thread.

        Raises:
            BackendFailed: with the exception's text and where it was raised; or ``execute`` is asynchronous.
        """
        model = self._model
        before = enter(model.runtime)
        try:
            if not model.is_initialised:
                initialize = model.load()
                if model.is_async:
                    raise BackendFailed(
                        "EXECUTION_MODE 'inline' is for a plain 'def execute'; an 'async def execute' needs 'thread' or 'process'"
                    )
                initialize()
        except BackendFailed:
            raise
        except BaseException as error:  # noqa: BLE001 - a model may even call exit()
            raise BackendFailed(describe(error)) from None
        finally:
            enter(before)
        model.num_users += 1
        model.runtime.refuse_calls(_NO_CALLS)

    def put(self, execution: Execution) -> None:
        """Run ``execution`` now. On the loop thread."""
        runtime = self._model.runtime
        before = enter(runtime)
        outer = execution_of_context.set(execution)
        runtime.executions.append(execution)
        requests = list(execution.requests)
        outcome = self._batches.run(execution, requests)
        runtime.executions.remove(execution)
        execution_of_context.reset(outer)
        enter(before)
        self._report(execution, requests, outcome)

    def drop(self, sequence_id: int | str) -> None:
        """Tell the model that a sequence is over."""
        before = enter(self._model.runtime)
        self._model.drop(sequence_id)
        enter(before)

    def end(self, timeout_s: float | None) -> None:  # noqa: ARG002 (nothing can be stuck)
        """Let go of the model."""
        before = enter(self._model.runtime)
        self._model.release()
        enter(before)
