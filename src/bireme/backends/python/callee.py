"""What is asked of a model before another one calls it (BLS), however the caller runs.

Source: Triton ``infer_request.cc``, ``request_executor.cc`` (Infer).
"""

from __future__ import annotations

from bireme.backends.interface import Host
from bireme.telemetry import spans
from bireme.types import BiremeError, InferenceRequest, InvalidArgument


def check_callee(host: Host, request: InferenceRequest, *, takes_many: bool) -> None:
    """Check that the model that ``request`` is for is there, and decoupled only if the caller ``takes_many`` responses.

    On the loop thread, before the request is submitted.

    Raises:
        InvalidArgument: it is not, in Triton's words.
    """
    try:
        _check(host, request.model_name, request.model_version, takes_many=takes_many)
    except InvalidArgument as error:
        if request.parent is not None:
            spans.begin_call(request, request.parent)
            spans.refuse_call(request, error)
        raise


def _check(host: Host, name: str, version: int, *, takes_many: bool) -> None:
    try:
        is_decoupled = host.is_model_decoupled(name, version)
    except BiremeError as error:
        raise InvalidArgument(
            f"Failed for execute the inference request. Model '{name}' is not ready. {error.message}"
        ) from None
    if is_decoupled and not takes_many:
        raise InvalidArgument(
            f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
            f"decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
            f"calls for decoupled models.'"
        )
