"""Finds a backend by name: built in, from another package, or a directory of its own.

Other packages declare theirs under the entry point group ``bireme.backends``. A directory is
``<backend directory>/<name>`` with a ``model.py`` in it, which the python backend runs.

A backend's module is imported when the first model names it, so a server pays only for the frameworks it uses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from bireme.backends.devices import GpuBuild
from bireme.backends.interface import Backend
from bireme.config import UsableGpus
from bireme.config.backend_rules import ENSEMBLE_PLATFORM
from bireme.types import InvalidArgument, Unsupported

ENTRY_POINT_GROUP: Final = "bireme.backends"
"""Each entry point is called ``<backend name>`` and names a class or function that takes nothing and returns a `Backend`."""


class _BuiltIn(NamedTuple):
    module: str
    factory: str
    package: str
    """The framework's top-level package, which may not be installed."""
    distribution: str = ""
    """What to install for it; empty: it is called as the package is."""
    runs_isolated: bool = False
    """Whether its models run in processes of their own where their configs don't say."""
    gpus: GpuBuild | None = None
    """Which builds of the framework can use GPUs; None: none of NVIDIA's, which are those that the server knows."""
    runs_on: str = "the CPU alone"
    """What is told of the backend where ``gpus`` is None."""


_BUILT_IN: Final = MappingProxyType(
    {
        ENSEMBLE_PLATFORM: _BuiltIn("bireme.backends.ensemble.backend", "EnsembleBackend", "numpy"),
        "onnxruntime": _BuiltIn(
            "bireme.backends.onnxruntime",
            "OnnxRuntimeBackend",
            "onnxruntime",
            gpus=GpuBuild("onnxruntime", "capi/*providers_cuda*", "pip install onnxruntime-gpu"),
        ),
        "openvino": _BuiltIn(
            "bireme.backends.openvino.backend",
            "OpenVinoBackend",
            "openvino",
            runs_on="the CPU, or on Intel's devices by the parameter TARGET_DEVICE",
        ),
        "pytorch": _BuiltIn(
            "bireme.backends.pytorch.backend",
            "PyTorchBackend",
            "torch",
            gpus=GpuBuild(
                "torch", "lib/*torch_cuda*", "a build for CUDA, by the command that pytorch.org gives"
            ),
        ),
        "python": _BuiltIn("bireme.backends.python.backend", "PythonBackend", "msgspec", gpus=GpuBuild()),
        "tensorflow": _BuiltIn(
            "bireme.backends.tensorflow.backend",
            "TensorFlowBackend",
            "tensorflow",
            "tensorflow-cpu",
            runs_isolated=True,
        ),
        "sklearn": _BuiltIn("bireme.backends.sklearn.backend", "SklearnBackend", "sklearn", "scikit-learn"),
        "jax": _BuiltIn("bireme.backends.jax.backend", "JaxBackend", "jax"),
        "tensorrt": _BuiltIn(
            "bireme.backends.tensorrt",
            "TensorRtBackend",
            "tensorrt",
            "tensorrt cuda-bindings",
            gpus=GpuBuild(),
        ),
        "xgboost": _BuiltIn("bireme.backends.trees.xgboost", "XGBoostBackend", "xgboost"),
        "lightgbm": _BuiltIn("bireme.backends.trees.lightgbm", "LightGbmBackend", "lightgbm"),
        "fil": _BuiltIn("bireme.backends.trees.fil", "FilBackend", "numpy"),
    }
)

_NOT_YET: Final = (
    "dali",
    "vllm",
    "tensorrtllm",
)
"""Triton's other backends: known names that this version does not run."""


def get_backend(name: str, backend_directory: str = "") -> Backend:
    """Make the backend called ``name``.

    ``backend_directory`` holds backends that are a directory with a ``model.py``. They come last, as Triton, too, takes a
    compiled backend before a ``model.py``; but before the names of backends that this server does not run.

    Raises:
        Unsupported: it is known but not supported yet, or its framework is not installed (the message says how to).
        InvalidArgument: nothing of that name exists; lists what does.
    """
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return _make_built_in(name, built_in)
    plugin = _plugins().get(name)
    if plugin is not None:
        return _make_plugin(name, plugin)
    if find_backend_directory(name, backend_directory) is not None:
        return _make_built_in("python", _BUILT_IN["python"])
    known = available_backends(backend_directory)
    existing = ", ".join(f"'{other}'" for other in known)
    if name in _NOT_YET:
        raise Unsupported(f"backend '{name}' is not supported yet; this server runs {existing}")
    near = difflib.get_close_matches(name, known, n=1)
    suggestion = f"; did you mean '{near[0]}'?" if near else ""
    raise InvalidArgument(f"unknown backend '{name}'; this server runs {existing}{suggestion}")


def find_backend_directory(name: str, backend_directory: str) -> Path | None:
    """Return the directory of a backend that is a ``model.py``; None: it is built in, installed or unknown.

    Source: Triton ``backend_model.cc`` (GetBackendRuntimeLibraryName).
    """
    if name in _BUILT_IN or name not in _directories(backend_directory) or name in _plugins():
        return None
    return Path(backend_directory).absolute() / name


def runs_isolated(name: str) -> bool:
    """Whether models of the backend run in processes of their own, unless a config says otherwise."""
    built_in = _BUILT_IN.get(name)
    return built_in is not None and built_in.runs_isolated


def usable_gpus(name: str, num_gpus: int) -> UsableGpus:
    """Return the GPUs that models of the backend can use on a machine with so many. Imports no framework.

    A backend of another package or in a directory is given all, as with Triton: it knows the kind of each instance.
    """
    built_in = _BUILT_IN.get(name)
    if built_in is not None and built_in.gpus is None:
        return UsableGpus(why_none=f"the {name} backend runs models on {built_in.runs_on}")
    build = built_in.gpus if built_in is not None else None
    reason = build.why_not() if num_gpus and build is not None else ""
    return UsableGpus(why_none=reason) if reason else UsableGpus(num_gpus)


def available_backends(backend_directory: str = "") -> list[str]:
    """Return the backends that a config may name, sorted; a built-in one may still miss its framework."""
    return sorted({*_BUILT_IN, *_plugins(), *_directories(backend_directory)} - {ENSEMBLE_PLATFORM})


def _directories(backend_directory: str) -> set[str]:
    """Return the names of the directories with a ``model.py``; none where the directory itself is missing."""
    root = Path(backend_directory)
    if not backend_directory or not root.is_dir():
        return set()
    return {path.parent.name for path in root.glob("*/model.py") if path.is_file()}


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _make_built_in(name: str, built_in: _BuiltIn) -> Backend:
    try:
        module = import_module(built_in.module)
    except ImportError as error:
        # What the framework brings along may be missed first, as joblib is without scikit-learn.
        if isinstance(error, ModuleNotFoundError) and (
            error.name == built_in.package or find_spec(built_in.package) is None
        ):
            raise Unsupported(
                f"backend '{name}' needs the package '{built_in.package}', which is not installed; "
                f"install it with: pip install {built_in.distribution or built_in.package}"
            ) from None
        raise Unsupported(
            f"backend '{name}' cannot be used: importing '{built_in.package}' failed: {error}"
        ) from error
    factory: Callable[[], Backend] = getattr(module, built_in.factory)
    return factory()


def _make_plugin(name: str, plugin: EntryPoint) -> Backend:
    try:
        backend: Backend = plugin.load()()
    except Exception as error:
        raise Unsupported(
            f"backend '{name}' (entry point '{plugin.value}') cannot be used: {type(error).__name__}: {error}"
        ) from error
    return backend
