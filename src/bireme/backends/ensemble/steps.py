"""What a step asks its model, and what is said of its errors."""

from __future__ import annotations

import logging

from bireme.backends.ensemble.active_run import ActiveRun
from bireme.scheduling.ensemble_plan import EnsemblePlan, Step
from bireme.scheduling.ensemble_run import StepCall
from bireme.types import BiremeError, InferenceRequest, Internal, NotFound, Unavailable
from bireme.types.request import Respond

log = logging.getLogger("bireme.engine")


def step_request(run: ActiveRun, call: StepCall, respond: Respond) -> InferenceRequest:
    """Return the request that ``call`` is; it has all that the ensemble's own request says."""
    step = call.step
    asked = run.request
    request = InferenceRequest(
        step.model_name,
        call.inputs,
        respond,
        model_version=step.model_version,
        id=asked.id,
        outputs=step.output_names,
        parameters=asked.parameters,
        priority=asked.priority,
        timeout_us=asked.timeout_us,
        sequence_id=call.sequence.id,
        sequence_start=call.sequence.is_start,
        sequence_end=call.sequence.is_end,
        context=call,
    )
    request.parent = run.execution
    request.trace_context = asked.trace_context
    return request


def name_error(plan: EnsemblePlan, step: Step, error: BiremeError) -> BiremeError:
    """Return ``error`` with the step's name."""
    return type(error)(f"in ensemble '{plan.name}', {step.label}: {error.message}")


def name_fault(plan: EnsemblePlan, step: Step, fault: Exception) -> BiremeError:
    """Log what nobody foresaw while a step was called, and return the error to answer."""
    log.error("ensemble '%s': failed to call %s", plan.name, step.label, exc_info=fault)
    return name_error(plan, step, Internal(f"{type(fault).__name__}: {fault}"))


def name_refusal(plan: EnsemblePlan, step: Step, error: BiremeError) -> BiremeError:
    """Return why a step could not be asked, with its name. That its model is gone is not the client's mistake."""
    named = name_error(plan, step, error)
    return Unavailable(named.message) if isinstance(named, NotFound) else named
