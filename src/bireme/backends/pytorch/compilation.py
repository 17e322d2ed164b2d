"""``torch.compile`` by parameter: what it needs is looked for at load, not at the first request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bireme.backends.pytorch.runtime import quiet, torch
from bireme.backends.pytorch.settings import COMPILE_OPTIONS
from bireme.backends.signature import quoted
from bireme.config.faults import near_name
from bireme.types import InvalidArgument, Unsupported

Compile = Callable[[Any], Callable[..., Any]]
"""Takes a module and returns its compiled ``forward()``, which is compiled at its first run."""

_DEFAULT_BACKEND: Final = "inductor"
_NO_COMPILER: Final = (
    'install one (Debian: g++), or choose a backend that needs none, such as {"backend": "aot_eager"}, or export the '
    "model and compile it ahead of time"
)


def make_compile(model: str, options: Mapping[str, Any] | None) -> Compile | None:
    """Return what compiles the modules of a model with the arguments ``options``; None: they are not compiled.

    Raises:
        InvalidArgument: torch knows no such backend.
        Unsupported: there is no C++ compiler, which the default backend needs.
    """
    if options is None:
        return None
    backend = options.get("backend", _DEFAULT_BACKEND)
    _check_backend(model, backend)
    if backend == _DEFAULT_BACKEND:
        _check_compiler(model)

    def compile_module(module: Any) -> Callable[..., Any]:
        try:
            compiled: Callable[..., Any] = torch.compile(module, **options)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgument(f"model '{model}': parameter {COMPILE_OPTIONS}: {error}") from error
        return compiled

    return compile_module


def _check_backend(model: str, backend: object) -> None:
    with quiet():
        known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        near = near_name(str(backend), known)
        hint = f"; did you mean '{near}'?" if near else ""
        raise InvalidArgument(
            f"model '{model}': parameter {COMPILE_OPTIONS}: torch.compile has no backend '{backend}', it has "
            f"{quoted(known)}{hint}"
        )


def _check_compiler(model: str) -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        with quiet():
            get_cpp_compiler()
    except InvalidCxxCompiler:
        raise Unsupported(
            f"model '{model}': torch.compile with the backend '{_DEFAULT_BACKEND}' needs a C++ compiler, and there is none on "
            f"this machine; {_NO_COMPILER}"
        ) from None
