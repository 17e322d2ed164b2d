"""TensorRuns: executes batches on instances that take tensors: gather, run, scatter, each with its time."""

from __future__ import annotations

import logging
import threading
import time

from bireme.engine.batch import BatchPlan
from bireme.engine.instances import Results, TensorSlot
from bireme.types import BackendFailed, BiremeError, Execution, InferenceRequest, InvalidArgument, Tensor

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns
_cpu_ns = time.thread_time_ns


class TensorRuns:
    """Runs the batches of one model version; several threads may, each on a slot of its own."""

    __slots__ = ("_label", "_measures_cpu", "_plan")

    def __init__(self, label: str, plan: BatchPlan, *, measures_cpu: bool) -> None:
        """``label`` names the model in errors; with ``measures_cpu`` executions tell the CPU time of their run."""
        self._label = label
        self._plan = plan
        self._measures_cpu = measures_cpu

    def run(self, slot: TensorSlot, execution: Execution) -> Results:
        """Execute one batch; on the loop thread or on the slot's. Never raises.

        Where an input of one request is wrong, which only the instance can see, the others are run without it.
        """
        requests = execution.requests
        execution.compute_start_ns = _now_ns()
        try:
            inputs = self._plan.gather(requests, execution.batch_size, slot.buffers)
            states = self._plan.states
            if states is not None:
                sequences = execution.sequence_slots or [None] * len(requests)
                states.add_inputs(inputs, sequences, slot.buffers)
            execution.compute_input_end_ns = _now_ns()
            cpu_start_ns = _cpu_ns() if self._measures_cpu else 0
            targets = requests[0].targets
            if targets is None or slot.execute_into is None or len(requests) > 1:
                outputs = slot.tensors.execute(inputs)
            else:
                outputs = slot.execute_into(inputs, targets)
            execution.compute_output_start_ns = _now_ns()
            if self._measures_cpu:
                execution.cpu_ns = _cpu_ns() - cpu_start_ns
            results: Results = self._plan.scatter(outputs, requests)
            if states is not None:
                states.keep(outputs, inputs, requests, sequences, results)
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, ends the batch, not its thread
            if isinstance(error, InvalidArgument) and len(requests) > 1 and self._plan.states is None:
                results = [self._run_alone(slot, request) for request in requests]
            else:
                results = [self._failure(error)] * len(requests)
            failed_ns = _now_ns()
            execution.compute_input_end_ns = execution.compute_input_end_ns or failed_ns
            execution.compute_output_start_ns = execution.compute_output_start_ns or failed_ns
        execution.compute_end_ns = _now_ns()
        return results

    def _run_alone(self, slot: TensorSlot, request: InferenceRequest) -> list[Tensor] | BiremeError:
        """Run a request of a batch that the instance has refused before it changed anything."""
        try:
            inputs = self._plan.gather([request], request.batch_size, slot.buffers)
            (result,) = self._plan.scatter(slot.tensors.execute(inputs), [request])
        except BaseException as error:  # noqa: BLE001 - as in `run`
            return self._failure(error)
        return result

    def _failure(self, error: BaseException) -> BiremeError:
        if isinstance(error, BiremeError):
            return error.with_traceback(None)  # its frames hold the batch's arrays, and it in turn
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error
        log.error("%s failed", self._label, exc_info=error)
        text = str(error).strip()
        if not isinstance(error, Exception):  # whose text alone says little
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        return BackendFailed(f"{self._label} failed: {text}")
