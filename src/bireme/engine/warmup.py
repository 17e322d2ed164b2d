"""Warm-up: runs a model's samples on its fresh instances, so that the first real request does not pay for it.

It bypasses validation and the scheduler, and it shows up in the model's statistics, as in Triton.

Source: Triton ``TritonModelInstance::GenerateWarmupData`` and ``WarmUp``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from bireme.backends.interface import Host, Instance, RequestInstance
from bireme.config import ModelConfig
from bireme.config.model_config import ModelWarmup
from bireme.engine.batch import BatchPlan, GatherBuffers
from bireme.engine.warmup_data import make_warmup_tensor
from bireme.telemetry.log import get_logger
from bireme.types import (
    Array,
    BiremeError,
    Execution,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Tensor,
)

log = get_logger(__name__)


def run_warmup(
    config: ModelConfig,
    model_dir: Path,
    plan: BatchPlan,
    instances: Sequence[Instance | RequestInstance],
    host: Host | None = None,
) -> list[Execution]:
    """Run every sample of ``config.model_warmup`` on every instance; stop at the first that fails.

    ``instances`` are the ones that will serve (passive ones are not warmed). Those that take whole requests run on the loop
    of ``host``, without one on this thread. Blocking: for a loading thread. Returns
    what was executed, for the model's statistics; a sample of ``batch_size`` b is one execution of b requests.

    Raises:
        InvalidArgument: "failed to run warmup sample '<name>': …", whatever the cause.
    """
    executions: list[Execution] = []
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            log.debug("model '%s': skipping warmup sample '%s' of batch size 0", config.name, sample.name)
            continue
        try:
            items = _make_items(config, model_dir, sample)
            executions.extend(
                _execute(config.name, plan, instance, items, host)
                for instance in instances
                for _ in range(max(sample.count, 1))
            )
        except Exception as error:
            reason = error.message if isinstance(error, BiremeError) else str(error) or repr(error)
            raise InvalidArgument(f"failed to run warmup sample '{sample.name}': {reason}") from error
    return executions


def _make_items(config: ModelConfig, model_dir: Path, sample: ModelWarmup) -> list[dict[str, Tensor]]:
    """Return the inputs of each of the sample's single-item requests."""
    if sample.batch_size > max(config.max_batch_size, 1):
        raise InvalidArgument(
            f"batch_size is {sample.batch_size}, but the model's max_batch_size is {config.max_batch_size}"
        )
    required = [tensor.name for tensor in config.input if not tensor.optional]
    missing = [name for name in required if name not in sample.inputs]
    if missing:
        raise InvalidArgument(
            f"it has no data for input {_quoted(missing)}; it gives {_quoted(sample.inputs)}"
        )
    leading = (1,) if config.max_batch_size > 0 else ()
    return [
        {
            name: make_warmup_tensor(name, spec, model_dir, leading, item=item)
            for name, spec in sample.inputs.items()
        }
        for item in range(sample.batch_size)
    ]


def _execute(
    model_name: str,
    plan: BatchPlan,
    instance: Instance | RequestInstance,
    items: list[dict[str, Tensor]],
    host: Host | None,
) -> Execution:
    """Run one execution over fresh requests, and check its results as those of real ones are checked."""
    start_ns = time.monotonic_ns()
    requests = [InferenceRequest(model_name, tensors, _ignore) for tensors in items]
    execution = Execution(requests, len(requests), "single")
    for request in requests:
        request.start_ns = request.queue_ns = start_ns
        request.execution = execution
    execution.compute_start_ns = time.monotonic_ns()
    if isinstance(instance, RequestInstance):
        sink = _Answers(len(requests))
        begin = partial(_begin, instance, sink, execution)
        if host is None:
            begin()
        else:
            host.loop.call_soon_threadsafe(begin)
        sink.wait()
    else:
        buffers = GatherBuffers()
        arrays = plan.gather(requests, len(requests), buffers)
        if plan.states is not None:
            states: dict[str, Array] = {}
            plan.states.add_inputs(states, [None] * len(requests), buffers)
            arrays = states | arrays  # the sample may give some itself
        execution.compute_input_end_ns = time.monotonic_ns()
        outputs = instance.execute(arrays)
        execution.compute_output_start_ns = time.monotonic_ns()
        for result in plan.scatter(outputs, requests):
            if isinstance(result, BiremeError):
                raise result
        execution.compute_end_ns = time.monotonic_ns()
    return execution


def _begin(instance: RequestInstance, sink: _Answers, execution: Execution) -> None:
    for request in execution.requests:
        request.owner = sink
        request.instance = instance
    instance.start(sink)
    instance.execute_requests(execution)


def _ignore(_request: InferenceRequest, _response: InferenceResponse) -> None:
    """Nobody waits for the response of a warm-up."""


class _Answers:
    """The sink of an instance that is warmed up: waits until it is done and its requests are answered."""

    def __init__(self, num_requests: int) -> None:
        self._num_missing = num_requests + 1
        self._error: BiremeError | None = None
        self._change = threading.Condition()

    @property
    def has_waiting(self) -> bool:
        return False

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        if response.error is not None or response.final:
            self._note(response.error, num_done=request.owner is self and response.final)
        if response.final:
            request.owner = None

    def finish(self, execution: Execution, error: BiremeError | None = None) -> None:
        num_open = sum(request.owner is self for request in execution.requests) if error is not None else 0
        self._note(error, num_done=1 + num_open)

    def run_again(self, _request: InferenceRequest) -> bool:
        return False

    def change(self) -> None:
        """Whatever ran has been answered with an error before."""

    def _note(self, error: BiremeError | None, *, num_done: int) -> None:
        with self._change:
            self._error = self._error or error
            self._num_missing -= num_done
            self._change.notify()

    def wait(self) -> None:
        with self._change:
            self._change.wait_for(lambda: self._num_missing <= 0)
        if self._error is not None:
            raise self._error


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
