"""Between the messages of a worker's channel and the requests, responses and tensors of `bireme.types`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bireme.backends.errors import make_error
from bireme.ipc.messages import ErrorData, RequestData, ResponseData, TensorData
from bireme.types import BiremeError, InferenceRequest, InferenceResponse, Tensor

_START: Final = 1
_END: Final = 2


class Adopt(Protocol):
    """`bireme.ipc.ledger.Ledger.adopt`."""

    def __call__(self, data: TensorData, *, writable: bool = True) -> Tensor:
        """Return the tensor that the other side lends."""


Export = Callable[[Tensor], TensorData]
"""`bireme.ipc.ledger.Ledger.export`."""


def to_request(
    data: RequestData, adopt: Adopt, model_name: str, model_version: int, all_outputs: Sequence[str] | None
) -> InferenceRequest:
    """Return a request that the worker's own model is to run; its ``context`` is its number.

    ``all_outputs`` are the names that are meant when the request names none.
    """
    writable = not data.is_shared
    outputs = data.outputs
    request = InferenceRequest(
        model_name,
        {tensor.name: adopt(tensor, writable=writable) for tensor in data.inputs},
        _drop,
        model_version=model_version,
        id=data.id,
        outputs=all_outputs if outputs is None else outputs,
        parameters=data.parameters,
        priority=data.priority,
        timeout_us=data.timeout_us,
        sequence_id=data.sequence_id,
        sequence_start=bool(data.flags & _START),
        sequence_end=bool(data.flags & _END),
        context=data.number,
    )
    request.trace_context = data.trace_context
    request.cancelled = data.is_cancelled
    return request


def from_request(request: InferenceRequest, call: int, export: Export) -> RequestData:
    """Return the message for a request to another model, which is ``call``."""
    outputs = request.outputs
    return RequestData(
        call,
        request.id,
        [export(tensor) for tensor in request.inputs.values()],
        None if outputs is None else list(outputs),
        request.parameters,
        request.sequence_id,
        (_START if request.sequence_start else 0) | (_END if request.sequence_end else 0),
        request.timeout_us,
        request.priority,
        request.trace_context,
        False,
        False,
        request.model_name,
        request.model_version,
    )


def to_response(data: ResponseData, adopt: Adopt) -> InferenceResponse:
    """Return another model's response."""
    error = data.error
    return InferenceResponse(
        data.model_name,
        data.model_version,
        data.id,
        [adopt(tensor) for tensor in data.outputs],
        parameters=data.parameters,
        error=None if error is None else make_error(error.code, error.message),
        final=data.is_final,
        flag_only=data.is_flag_only,
    )


def from_response(response: InferenceResponse, export: Export) -> ResponseData:
    """Return the message for a response of the worker's model."""
    if response.error is not None:
        return ResponseData([], from_error(response.error), response.parameters, response.final)
    outputs = [export(tensor) for tensor in response.outputs]
    return ResponseData(outputs, None, response.parameters, response.final, response.flag_only)


def from_error(error: BiremeError) -> ErrorData:
    """Return the message for an error."""
    return ErrorData(error.code, encodable(error.message))


def encodable(text: str) -> str:
    """Return ``text``, with what no message can hold (half surrogates, of file names that are no UTF-8) as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _drop(_request: InferenceRequest, _response: InferenceResponse) -> None:
    """Answers of a worker's requests go over the channel, not through the request."""
