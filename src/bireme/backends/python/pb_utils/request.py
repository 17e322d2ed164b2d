"""InferenceRequest: what a model is asked, and what it asks of other models (BLS)."""

# ruff: noqa: SLF001 - `incoming` is a second constructor, and the tensors' insides are what is handed on

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bireme import types
from bireme.backends.python import runtime as runtimes
from bireme.backends.python.pb_utils.datatypes import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
)
from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.backends.python.pb_utils.parameters import check_parameters, parameters_json
from bireme.backends.python.pb_utils.request_arguments import (
    REQUIRED,
    UINT64_END,
    InferenceTrace,
    PreferredMemory,
    check_extras,
    convert_arguments,
    unique_names,
    wrong_inputs,
)
from bireme.backends.python.pb_utils.response import InferenceResponse
from bireme.backends.python.pb_utils.response_iterator import ResponseIterator
from bireme.backends.python.pb_utils.response_sender import InferenceResponseSender
from bireme.backends.python.pb_utils.tensor import Tensor, wrap_tensor

_OUTSIDE_EXECUTE: Final = "BLS is only supported during the 'execute' function."


def _refusal(error: RuntimeError) -> str:
    """Return why other models cannot be called; how Triton says it, unless it is a rule of our own."""
    return str(error) if isinstance(error, runtimes.CallsRefused) else _OUTSIDE_EXECUTE


_make_request = types.InferenceRequest


@dataclass(frozen=True, slots=True)
class Served:
    """What all requests to one model instance have in common."""

    runtime: runtimes.Runtime
    output_names: Sequence[str]
    """Names of the outputs in the model's config."""
    is_decoupled: bool


class InferenceRequest:
    """A request: to this model (`incoming`), or made by it for another one.

    ``inputs``, ``requested_output_names`` (empty: all) and ``model_name`` must be given, the others need not;
    ``timeout`` is in microseconds.
    Measured: 1.6 µs for one with an input.

    Raises:
        TypeError, ValueError: an argument is missing, has the wrong type or is out of range.
        TritonModelException: so is a correlation id, an input, an output name or a parameter.
    """

    __slots__ = ("_flags", "_inputs", "_is_fresh", "_request", "_sender", "_served", "release_flags")

    _inputs: list[Tensor] | None

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = REQUIRED,
        requested_output_names: Sequence[str] = REQUIRED,
        model_name: str = REQUIRED,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, bool | int | str] | None = None,
    ) -> None:
        if (
            type(request_id) is not str
            or type(correlation_id) is not int
            or type(inputs) is not list
            or type(requested_output_names) is not list
            or type(model_name) is not str
            or type(model_version) is not int
            or type(flags) is not int
            or type(timeout) is not int
            or timeout < 0
            or not 0 <= correlation_id < UINT64_END
        ):
            (
                request_id,
                correlation_id,
                inputs,
                requested_output_names,
                model_name,
                model_version,
                flags,
                timeout,
            ) = convert_arguments(
                request_id,
                correlation_id,
                inputs,
                requested_output_names,
                model_name,
                model_version,
                flags,
                timeout,
            )
        try:
            tensors = {tensor._tensor.name: tensor._tensor for tensor in inputs}
        except AttributeError:
            raise wrong_inputs(inputs, request_id, model_name) from None
        if len(tensors) != len(inputs):
            raise wrong_inputs(inputs, request_id, model_name)
        request = _make_request(
            model_name,
            tensors,
            _no_respond,
            model_version=model_version,
            id=request_id,
            timeout_us=timeout,
            sequence_id=correlation_id,
        )
        # What most requests do not have is set apart from what all have.
        if requested_output_names:
            request.outputs = unique_names(requested_output_names, request_id, model_name)
        if flags:
            request.sequence_start = bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
            request.sequence_end = bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        if preferred_memory is not None or trace is not None:
            check_extras(preferred_memory, trace)
            request.trace_context = None if trace is None else trace._context
        if parameters is not None:
            request.parameters = check_parameters(parameters)
        self._request = request
        self._inputs = inputs[:]
        self._flags = flags
        self._is_fresh = True
        self._sender: InferenceResponseSender | None = None
        self._served: Served | None = None
        self.release_flags = TRITONSERVER_REQUEST_RELEASE_ALL

    @classmethod
    def incoming(cls, request: types.InferenceRequest, served: Served) -> InferenceRequest:
        """Return a request to the model of ``served``, as that sees it. Measured: 0.2 µs, decoupled 0.6."""
        made = cls.__new__(cls)
        made._request = request
        made._inputs = None
        made._flags = (TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if request.sequence_start else 0) | (
            TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if request.sequence_end else 0
        )
        made._is_fresh = False
        made._served = served
        made.release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        # A decoupled model answers in no other way: when request and sender are dropped, the request is given up.
        made._sender = (
            InferenceResponseSender(request, served.runtime, is_decoupled=True)
            if served.is_decoupled
            else None
        )
        return made

    def inputs(self) -> list[Tensor]:
        """Return the inputs, those included that the server adds for sequences."""
        inputs = self._inputs
        if inputs is None:
            inputs = self._inputs = [wrap_tensor(tensor) for tensor in self._request.inputs.values()]
        return inputs

    def request_id(self) -> str:
        """Return the id that the client gave."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence; 0: the request belongs to none."""
        return self._request.sequence_id

    def flags(self) -> int:
        """Return the sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Replace the sequence flags, for when this request is sent to another model."""
        if not isinstance(flags, int):
            raise TypeError(f"set_flags: flags must be an int, found {type(flags).__name__}")
        self._flags = flags
        self._is_fresh = False

    def timeout(self) -> int:
        """Return the timeout in microseconds; 0: none."""
        return self._request.timeout_us

    def parameters(self) -> str:
        """Return the parameters as JSON text."""
        return parameters_json(self._request.parameters, came_from_server=self._served is not None)

    def requested_output_names(self) -> set[str]:
        """Return the names of the outputs to be answered with: all of the model's when the client named none."""
        names = self._request.outputs
        if names is None:
            return set() if self._served is None else set(self._served.output_names)
        return set(names)

    def trace(self) -> InferenceTrace:
        """Return the trace."""
        return InferenceTrace(self._request.trace_context)

    def is_cancelled(self) -> bool:
        """Whether the caller has taken this request back."""
        return self._served is not None and self._served.runtime.is_cancelled(self._request)

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of this request after ``execute``: with ``RELEASE_RESCHEDULE`` it is run again later.

        Raises:
            TritonModelException: the flags are neither ``RELEASE_ALL`` nor ``RELEASE_RESCHEDULE``.
        """
        if flags not in {TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE}:
            raise TritonModelException(
                f"Unable to set release flags {flags!r}, expected TRITONSERVER_REQUEST_RELEASE_ALL or "
                f"TRITONSERVER_REQUEST_RELEASE_RESCHEDULE."
            )
        self.release_flags = flags

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of this request's responses, always the same.

        Raises:
            TritonModelException: the model has made the request itself.
        """
        sender = self._sender
        if sender is None:
            served = self._served
            if served is None:
                raise TritonModelException(
                    "Unable to send response. Response sender has no reference to the decoupled state of the model."
                )
            sender = self._sender = InferenceResponseSender(
                self._request, served.runtime, is_decoupled=served.is_decoupled
            )
        return sender

    @property
    def sender(self) -> InferenceResponseSender | None:
        """The sender, if there is one already."""
        return self._sender

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:  # noqa: FBT001, FBT002 (Triton's)
        """Run the other model; return its response, or with ``decoupled`` an iterator over its responses.

        Errors of the other model, and failures to ask it, are responses too.

        Raises:
            TritonModelException: the model is not executing.
        """
        try:
            if decoupled:
                return ResponseIterator(runtimes.current().stream(self._to_send()))
            return InferenceResponse.from_response(runtimes.current().infer(self._to_send()))
        except RuntimeError as error:
            raise TritonModelException(_refusal(error)) from error

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:  # noqa: FBT001, FBT002 (Triton's)
        """As `exec`; return a future of the running loop for it. The request is on its way when this returns.

        With ``decoupled``, the iterator is there with the first response, as in Triton: a plain ``for`` over the responses of
        a callee that sends just one then never holds up the loop.

        Raises:
            RuntimeError: no loop is running.
            TritonModelException: the model is not executing.
        """
        loop = asyncio.get_running_loop()
        try:
            if decoupled:
                stream = runtimes.current().stream(self._to_send())
                return loop.create_task(ResponseIterator(stream).wait_first())
            answer = asyncio.ensure_future(runtimes.current().infer_async(self._to_send()))
        except RuntimeError as error:
            raise TritonModelException(_refusal(error)) from error
        result: asyncio.Future[Any] = loop.create_future()
        answer.add_done_callback(partial(_hand_on, result))
        result.add_done_callback(partial(_take_back, answer))
        return result

    def _to_send(self) -> types.InferenceRequest:
        """Return a request that nobody else holds: one that was sent is the engine's, and may still be running."""
        request = self._request
        if self._is_fresh:
            self._is_fresh = False
            return request
        copy = _make_request(
            request.model_name,
            {tensor._tensor.name: tensor._tensor for tensor in self.inputs()},
            _no_respond,
            model_version=request.model_version,
            id=request.id,
            outputs=request.outputs,
            parameters=request.parameters,
            timeout_us=request.timeout_us,
            sequence_id=request.sequence_id,
            sequence_start=bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            sequence_end=bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        )
        copy.trace_context = request.trace_context
        return copy

    def __repr__(self) -> str:
        return repr(self._request)


def _no_respond(request: types.InferenceRequest, response: types.InferenceResponse) -> None:
    """Stand in for the caller's own way to take responses, which whoever sends the request puts here."""
    raise AssertionError(f"nobody takes {response!r} of {request!r}")


def _hand_on(result: asyncio.Future[Any], answer: asyncio.Future[types.InferenceResponse]) -> None:
    error = None if answer.cancelled() else answer.exception()  # has it count as seen, too
    if result.done():
        return
    if answer.cancelled():
        result.cancel()
    elif error is None:
        result.set_result(InferenceResponse.from_response(answer.result()))
    elif isinstance(error, RuntimeError):
        refusal = TritonModelException(_refusal(error))
        refusal.__cause__ = error
        result.set_exception(refusal)
    else:
        result.set_exception(error)


def _take_back(answer: asyncio.Future[types.InferenceResponse], result: asyncio.Future[Any]) -> None:
    if result.cancelled():
        answer.cancel()
