"""InferenceResponse: the answer to a request, or what another model answered."""

# ruff: noqa: SLF001 - `from_response` is a second constructor, and the tensors' insides are what is handed on

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from bireme import types
from bireme.backends.errors import make_error
from bireme.backends.python.pb_utils.errors import TritonError, TritonModelException, error_from_code
from bireme.backends.python.pb_utils.logger import Logger
from bireme.backends.python.pb_utils.parameters import check_parameters, parameters_json
from bireme.backends.python.pb_utils.tensor import Tensor, wrap_tensor

_make_response = types.InferenceResponse


class InferenceResponse:
    """Output tensors or an error, and parameters. With an error, the tensors are ignored.

    Raises:
        TypeError: an output is no `Tensor`, or ``error`` no `TritonError`.
        TritonModelException: an output is None, or ``parameters`` are not str to bool, int or str.
    """

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, bool | int | str] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                raise _not_a_tensor(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(
                f"InferenceResponse: error must be a TritonError, found {type(error).__name__}: {error!r}"
            )
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters: dict[str, types.Parameter] | None = (
            None if parameters is None else check_parameters(parameters)
        )

    @classmethod
    def from_response(cls, response: types.InferenceResponse) -> InferenceResponse:
        """Return what another model answered, as models see it."""
        made = cls.__new__(cls)
        made._output_tensors = [wrap_tensor(tensor) for tensor in response.outputs]
        error = response.error
        made._error = None if error is None else error_from_code(error.code, error.message)
        made._parameters = response.parameters
        return made

    def to_response(self, request: types.InferenceRequest, *, final: bool) -> types.InferenceResponse:
        """Return this as the answer to ``request``, without outputs that it did not ask for."""
        error = self._error
        if error is not None:
            return _make_response(
                request.model_name,
                request.model_version,
                request.id,
                error=make_error(error.code().name, error.message()),
                final=final,
            )
        outputs = [tensor._tensor for tensor in self._output_tensors]
        wanted = request.outputs
        if wanted is not None:
            kept = [output for output in outputs if output.name in wanted]
            if len(kept) < len(outputs) and len(kept) < len(wanted):
                _warn_of_names(request.model_name, outputs, wanted)
            outputs = kept
        return _make_response(
            request.model_name,
            request.model_version,
            request.id,
            outputs,
            parameters=self._parameters,
            final=final,
        )

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors; the list is this response's own."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Whether this is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON text."""
        return parameters_json(self._parameters)

    def __repr__(self) -> str:
        return f"InferenceResponse({self._error or self._output_tensors!r})"


_warned: Final[set[str]] = set()
"""Models with an output of a wrong name that the log knows of."""


def _warn_of_names(model_name: str, outputs: Sequence[types.Tensor], wanted: Collection[str]) -> None:
    """Tell, once, of a response that lacks an output while another one is dropped: most likely its name is wrong."""
    if model_name in _warned:
        return
    _warned.add(model_name)
    names = [output.name for output in outputs]
    missing = [name for name in wanted if name not in names]
    dropped = [name for name in names if name not in wanted]
    Logger.log_warn(
        f"model '{model_name}': a response lacks output(s) {missing}, which were asked for, and has output(s) {dropped}, "
        f"which were not, and which are dropped. Are the names those of the config?"
    )


def _not_a_tensor(found: Any) -> Exception:
    if found is None:
        return TritonModelException("Output tensor for inference response should not be empty.")
    return TypeError(
        f"InferenceResponse: output_tensors must hold Tensor objects, found {type(found).__name__}"
    )
