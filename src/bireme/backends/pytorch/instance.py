"""TorchInstance: one batch through ``forward()``.

Call overhead on top of ``forward()`` itself, one input and one output of a few numbers: see docs/frameworks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from bireme.backends.interface import ExecuteInto
from bireme.backends.pytorch.arguments import Arguments
from bireme.backends.pytorch.errors import explain
from bireme.backends.pytorch.gpus import Gpu
from bireme.backends.pytorch.program import Forward
from bireme.backends.pytorch.results import Results
from bireme.backends.pytorch.runtime import log, torch
from bireme.types import Array, BackendFailed, BiremeError

_get_num_threads: Final = torch.get_num_threads
_set_num_threads: Final = torch.set_num_threads
_no_targets: Final[Mapping[str, memoryview]] = {}


class Call(NamedTuple):
    """How an instance calls ``forward()``."""

    forward: Forward
    arguments: Arguments
    results: Results
    mode: Callable[[], AbstractContextManager[Any]]
    """Makes the context of a run: inference mode, or no gradients."""
    num_threads: int
    """Within operators; 0: as the process has it."""
    gpu: Gpu | None
    may_run_inline: bool


class TorchInstance:
    """Runs a module, which it may share with other instances."""

    __slots__ = ("_call", "_copies_inputs", "_is_first", "execute_into", "may_run_inline")

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call
        self.may_run_inline = call.may_run_inline
        """Native code that waits for nothing may run on the loop thread when it proves to be fast."""
        self.execute_into: ExecuteInto | None = self._run
        """An output goes from wherever it is to the caller's memory in one copy."""
        self._is_first = True
        self._copies_inputs = False

    def execute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run the module; see `bireme.backends.interface.Instance.execute`.

        Raises:
            BackendFailed: it raised something, or returned something else than the config says.
            InvalidArgument: an input holds what the module cannot be given.
        """
        return self._run(inputs, _no_targets)

    def close(self) -> None:
        """Let go of the module."""
        self._call = None
        self.execute_into = None

    def _run(self, inputs: dict[str, Array], targets: Mapping[str, memoryview]) -> dict[str, Array]:
        call = self._call
        if call is None:
            raise BackendFailed("the instance is closed")
        if call.num_threads and _get_num_threads() != call.num_threads:
            _set_num_threads(call.num_threads)
        positional, keywords = call.arguments.read(inputs)
        try:
            if call.gpu is not None:
                with call.gpu.run(), call.mode():
                    return self._run_on_gpu(call, call.gpu, positional, keywords, targets)
            if self._is_first or self._copies_inputs:
                positional, keywords = _copied(positional, keywords)
            with call.mode():
                results = call.results.take(call.forward(*positional, **keywords))
                outputs = call.results.read(results, targets)
        except BiremeError:
            raise
        except Exception as error:
            raise BackendFailed(f"PyTorch execute failure: {explain(error)}") from error
        for argument in positional:
            if getattr(argument, "_version", 0):
                self._writes_to_inputs()
        self._is_first = False
        return outputs

    def _run_on_gpu(
        self,
        call: Call,
        gpu: Gpu,
        positional: Sequence[Any],
        keywords: Mapping[str, Any],
        targets: Mapping[str, memoryview],
    ) -> dict[str, Array]:
        arguments = [gpu.send(argument) for argument in positional]
        named = {name: gpu.send(argument) for name, argument in keywords.items()}
        results = call.results.take(call.forward(*arguments, **named))
        return call.results.read(results, targets)

    def _writes_to_inputs(self) -> None:
        """The module writes to its inputs, which are borrowed: it gets copies from now on.

        The first run has copies anyway, so nothing but a model that writes once in a while ever writes to what is not its own.
        """
        if not self._copies_inputs:
            self._copies_inputs = True
            log.info("forward() writes to its inputs, so it is given copies of them")


def _copied(positional: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [_copy(value) for value in positional], {name: _copy(value) for name, value in keywords.items()}


def _copy(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.clone()
    if isinstance(argument, dict):
        return {name: _copy(value) for name, value in argument.items()}
    return argument


def make_mode(*, inference: bool, optimized: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context of a run.

    Inference mode is entered by torch's own C++ object: its Python wrapper costs 0.8 µs more.
    """
    if not optimized:
        return lambda: _Unoptimized(inference=inference)
    if inference:
        return lambda: torch._C._InferenceMode(True)  # noqa: SLF001 - see above
    no_grad: Callable[[], AbstractContextManager[Any]] = torch.no_grad
    return no_grad


class _Unoptimized:
    """Runs TorchScript as it is written; the switch belongs to the thread."""

    def __init__(self, *, inference: bool) -> None:
        self._mode: Any = torch._C._InferenceMode(True) if inference else torch.no_grad()  # noqa: SLF001 - as above
        self._before = True

    def __enter__(self) -> None:
        self._before = torch._C._get_graph_executor_optimize()  # noqa: SLF001 - nothing public asks
        torch._C._set_graph_executor_optimize(False)  # noqa: SLF001 - as above
        self._mode.__enter__()

    def __exit__(self, *what: object) -> None:
        self._mode.__exit__(*what)
        torch._C._set_graph_executor_optimize(self._before)  # noqa: SLF001 - as above
