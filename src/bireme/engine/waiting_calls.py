"""Finds calls between models (BLS) that would wait for one another for ever.

An execution holds its instance while its code waits for other models. If those need an instance that is held by an
execution which waits, in the end, for the same thing, nobody ever goes on: a model with one instance that calls itself, or
two models that call each other. Such a call is refused before it waits.

Looked at only when the called model has no free instance; the graph is as large as the calls that wait.
"""

from __future__ import annotations

from typing import Protocol

from bireme.types import Execution, InferenceRequest


class CalledModel(Protocol):
    """A model as this sees it."""

    @property
    def can_start(self) -> bool:
        """Whether an instance is free, or will be whatever the calls do."""

    @property
    def executions(self) -> list[Execution]:
        """What its instances are held by."""


def would_wait_forever(model: CalledModel, caller: Execution) -> bool:
    """Tell whether a new request of ``caller`` to ``model`` could never begin, as all instances wait for it."""
    return not _can_start(model, caller, set())


def _can_start(model: CalledModel, caller: Execution, seen: set[CalledModel]) -> bool:
    """Tell whether one of the model's instances can become free without an answer to the new request of ``caller``."""
    if model.can_start:
        return True
    if model in seen:  # it would have to become free before itself
        return False
    seen.add(model)
    can_start = any(_can_end(execution, caller, seen) for execution in model.executions)
    seen.discard(model)
    return can_start


def _can_end(execution: Execution, caller: Execution, seen: set[CalledModel]) -> bool:
    if execution is caller:
        return False
    # In one step: threads that call directly change it meanwhile.
    return all(_can_be_answered(call, caller, seen) for call in tuple(execution.calls or ()))


def _can_be_answered(call: InferenceRequest, caller: Execution, seen: set[CalledModel]) -> bool:
    running = call.execution
    if running is not None and running.holder is not None:
        return _can_end(running, caller, seen)
    model: CalledModel | None = call.owner
    # Answered already, or a decoupled model goes on by itself.
    return model is None or running is not None or _can_start(model, caller, seen)


def give_up_calls(execution: Execution) -> None:
    """Take back what the code of ``execution`` has asked other models for, if nobody waits for any of its requests."""
    # Without any it has ended: calls that it has left behind may be for requests of its batch that are still open.
    if not execution.requests or not all(request.cancelled for request in execution.requests):
        return
    for call in tuple(execution.calls or ()):
        if call.owner is not None:
            call.owner.cancel(call)
            continue
        # A direct call: its thread is in it, where the model can see the flag.
        call.cancelled = True
        if call.instance is not None:
            call.instance.cancel(call)
        if call.execution is not None:
            give_up_calls(call.execution)
