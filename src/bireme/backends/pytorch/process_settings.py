"""What torch knows once for a whole process: the models of one share it, so the first that says something has its way.

In a process of its own (``parameters`` key ``isolation``, value ``process``) a model has all of it for itself.

Threads within an operator are not among them: with OpenMP, torch's usual way, they belong to the thread that calls, so each
instance has its number, whoever else is there.

Source: Triton ``pytorch_backend`` ``src/pt/model_state.cc`` (ParseParameters), where these are set before each run, or once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from bireme.backends.pytorch.runtime import log, torch
from bireme.backends.pytorch.settings import ProcessSettings


class ProcessState:
    """The settings of this process that models have chosen so far."""

    def __init__(self, setters: Mapping[str, Callable[[Any], object]]) -> None:
        """``setters``: what sets each field of `ProcessSettings`."""
        self._setters = setters
        self._chosen: dict[str, tuple[Any, str]] = {}
        self._lock = threading.Lock()

    def apply(self, model: str, settings: ProcessSettings) -> None:
        """Set what ``model`` asks for, unless another model has asked for something else before."""
        with self._lock:
            for entry in fields(settings):
                value = getattr(settings, entry.name)
                if value is not None:
                    self._set(model, entry.name, value)

    def _set(self, model: str, name: str, value: Any) -> None:
        chosen = self._chosen.get(name)
        if chosen is not None:
            if chosen[0] != value:
                log.warning(
                    "model '%s': %s is %s already, as model '%s' has it, and there is one for all models of a process; %s is "
                    "ignored (parameter isolation with value process gives the model a process of its own)",
                    model,
                    name,
                    chosen[0],
                    chosen[1],
                    value,
                )
            return
        try:
            self._setters[name](value)
        except RuntimeError as error:  # threads that run cannot be changed any more
            log.warning("model '%s': %s cannot be set to %s: %s", model, name, value, error)
            return
        self._chosen[name] = (value, model)


def _set_cudnn(value: bool) -> None:  # noqa: FBT001 - it is the value
    torch.backends.cudnn.enabled = value


process_state: Final = ProcessState(
    {
        "num_inter_op_threads": torch.set_num_interop_threads,
        "jit_executor": torch._C._jit_set_profiling_executor,  # noqa: SLF001 - nothing public sets it
        "jit_profiling": torch._C._jit_set_profiling_mode,  # noqa: SLF001 - as above
        "tensor_fuser": torch._C._jit_set_texpr_fuser_enabled,  # noqa: SLF001 - as above
        "cudnn": _set_cudnn,
    }
)
"""That of this process."""


@functools.cache
def has_threads_of_its_own() -> bool:
    """Whether each thread that calls torch has its own number of threads within operators."""
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()
