"""Packages that AOTInductor compiled ahead of time: native code, which tells little of its tensors.

torch's own loader holds the GIL for as long as a package runs, and so would the loop and all other models. On the CPU the library
in the package is therefore called directly, by its C interface, which lets go of it: 11 µs a call instead of 6. A package that
needs the loader (weights beside the library, operators of its own), or a GPU, goes through it.

The library checks neither shapes nor data types of what it is given. So the config is compared with what the package's source tells
(`bireme.backends.pytorch.aoti_source`), and requests with the config.

Source: PyTorch ``torch/csrc/inductor/aoti_runtime/interface.h``; Triton ``pytorch_backend`` ``src/pt2/``.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from bireme.backends.pytorch.aoti_source import read_source
from bireme.backends.pytorch.call_spec import argument_names, result_names
from bireme.backends.pytorch.interface import Argument, Interface
from bireme.backends.pytorch.program import Forward
from bireme.backends.pytorch.runtime import log, quiet, torch
from bireme.backends.pytorch.shared_library import SharedLibrary
from bireme.backends.signature import Signature
from bireme.types import BackendFailed, InvalidArgument, Unsupported

_FOLDER: Final = "/data/aotinductor/"
_capsule_pointer: Final = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new_capsule: Final = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class CompiledPackage:
    """An open package. All instances share its weights."""

    may_run_inline = True

    def __init__(self, model: str, path: Path, device: Any, num_runners: int) -> None:
        """Load the package; ``num_runners`` threads may run it at one time.

        Raises:
            Unsupported: it was compiled for another kind of device.
            Exception: it cannot be read, or not be run on this machine.
        """
        self._model = model
        self._path = path
        self._num_runners = num_runners
        self._runners: dict[str, _Runner] = {}
        runner = self._runner(device)
        arguments = tuple(Argument((way, position)) for way, position in argument_names(runner.input_spec))
        self.interface = Interface(arguments, outputs=result_names(runner.output_spec), is_strict=True)
        inputs, self.max_rows = read_source(_read_source(path, _package_name(path)), len(arguments))
        if arguments and not inputs:
            log.warning(
                "model '%s': '%s' tells no types and shapes of its inputs, so the config is taken at its word; compiled code reads "
                "beyond tensors that are smaller than it expects",
                model,
                path,
            )
        names = [argument.names[0] for argument in arguments]
        self.signature: Signature | None = Signature(
            {name: replace(spec, name=name) for name, spec in zip(names, inputs, strict=False)}, {}
        )
        """Of inputs alone: nothing tells of outputs."""

    def place(self, device: Any, *, sharing: bool | None) -> Forward:  # noqa: ARG002 - compiled code has no state
        """Return ``forward()``; see `Program`."""
        run = self._runner(device).run

        def forward(*arguments: Any) -> Any:
            return run([argument.contiguous() for argument in arguments])

        return forward

    def close(self) -> None:
        """Let go of the weights."""
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()

    def _runner(self, device: Any) -> _Runner:
        key = str(device)
        if key not in self._runners:
            self._runners[key] = self._open(device)
        return self._runners[key]

    def _open(self, device: Any) -> _Runner:
        name = _package_name(self._path)
        with quiet():
            metadata = _loader_class().load_metadata_from_package(str(self._path), name)
        built_for = metadata.get("AOTI_DEVICE_KEY", "cpu")
        wanted = built_for if device is None else device.type
        if built_for != wanted:
            raise Unsupported(
                f"model '{self._model}': '{self._path}' was compiled for '{built_for}' and cannot run on '{wanted}'; compile "
                f"it for that, or change the kind of the instance group"
            )
        if built_for == "cpu" and _is_one_library(self._path, name):
            return _Library(self._path, name, self._num_runners)
        return _Loader(self._path, name, self._num_runners, device)


class _Runner(Protocol):
    """A package on one device."""

    input_spec: str
    output_spec: str

    def run(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Return the tensors that it makes of a flat list of tensors."""

    def close(self) -> None:
        """Give back what it holds. Nothing runs."""


class _Library:
    """The library of a package, called directly."""

    def __init__(self, path: Path, name: str, num_runners: int) -> None:
        self._container = ctypes.c_void_p()
        # The file may go once it is loaded: what the process has mapped stays.
        with tempfile.TemporaryDirectory(prefix="bireme_aoti_") as folder, quiet():
            self._library = SharedLibrary(_extract_library(path, name, Path(folder)))
            self._call(
                "CreateWithDevice", ctypes.byref(self._container), ctypes.c_size_t(num_runners), b"cpu", None
            )
        specs = ctypes.c_char_p(), ctypes.c_char_p()
        self._call("GetCallSpec", self._container, *map(ctypes.byref, specs))
        self.input_spec, self.output_spec = ((spec.value or b"").decode() for spec in specs)
        self._inputs = ctypes.c_void_p * self._count("GetNumInputs")
        self._outputs = ctypes.c_void_p * self._count("GetNumOutputs")
        self._run = self._library.functions.AOTInductorModelContainerRun
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._run.argtypes = [pointer, pointer, size, pointer, size, pointer, pointer]
        self._hand_over = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors  # noqa: SLF001 - for this purpose
        self._take_over = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs  # noqa: SLF001 - as above

    def run(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """See `_Runner`. The library becomes the owner of what it is handed, and we of what it returns."""
        handles = self._hand_over(list(arguments))
        inputs = self._inputs(*[_capsule_pointer(handle, None) for handle in handles])
        outputs = self._outputs()
        failed = self._run(self._container, inputs, len(inputs), outputs, len(outputs), None, None)
        if failed:
            given = ", ".join(f"{argument.dtype}{list(argument.shape)}" for argument in arguments)
            raise BackendFailed(
                f"PyTorch execute failure: the compiled model failed, or was compiled for other inputs than {given}; it wrote "
                f"the reason to stderr"
            )
        tensors: Sequence[Any] = self._take_over([_new_capsule(output, None, None) for output in outputs])
        return tensors

    def close(self) -> None:
        """See `_Runner`."""
        self._call("Delete", self._container)
        self._library.close()

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library.functions, f"AOTInductorModelContainer{name}")(*arguments):
            raise OSError(f"{name} of the compiled library failed; it wrote the reason to stderr")

    def _count(self, name: str) -> int:
        count = ctypes.c_size_t()
        self._call(name, self._container, ctypes.byref(count))
        return count.value


class _Loader:
    """torch's own loader. It holds the GIL."""

    def __init__(self, path: Path, name: str, num_runners: int, device: Any) -> None:
        from torch._inductor.package import load_package

        index = -1 if device is None or device.index is None else device.index
        with quiet():
            self._loader = load_package(str(path), name, num_runners=num_runners, device_index=index).loader
        self.input_spec, self.output_spec = self._loader.get_call_spec()

    def run(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """See `_Runner`."""
        tensors: Sequence[Any] = self._loader.run(list(arguments))
        return tensors

    def close(self) -> None:
        """See `_Runner`."""
        self._loader = None


def _loader_class() -> Any:
    return torch._C._aoti.AOTIModelPackageLoader  # noqa: SLF001 - what torch's Python interface wraps


def _package_name(path: Path) -> str:
    """Return the name of the first model in a package."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            _, found, rest = name.partition(_FOLDER)
            if found:
                return rest.partition("/")[0]
    raise InvalidArgument(f"'{path}' holds no compiled model")


def _entries(archive: zipfile.ZipFile, name: str) -> list[str]:
    return [entry for entry in archive.namelist() if f"{_FOLDER}{name}/" in entry]


def _is_one_library(path: Path, name: str) -> bool:
    """Whether the library is all there is: no weights and no calls of other operators beside it."""
    with zipfile.ZipFile(path) as archive:
        entries = _entries(archive, name)
        beside = [
            entry for entry in archive.namelist() if "/data/constants/" in entry or "/data/weights/" in entry
        ]
    libraries = [entry for entry in entries if entry.endswith(".so")]
    rest = [entry for entry in entries if not entry.endswith((".so", ".cpp", ".h", "_metadata.json"))]
    return len(libraries) == 1 and not rest and not any(_has_content(entry) for entry in beside)


def _read_source(path: Path, name: str) -> str:
    """Return the C++ source of the library; empty: it is not there."""
    with zipfile.ZipFile(path) as archive:
        sources = [entry for entry in _entries(archive, name) if entry.endswith("wrapper.cpp")]
        return "".join(archive.read(entry).decode(errors="replace") for entry in sources)


def _has_content(entry: str) -> bool:
    return not entry.endswith(("/", "_config.json"))


def _extract_library(path: Path, name: str, folder: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        (entry,) = [entry for entry in _entries(archive, name) if entry.endswith(".so")]
        target = folder / Path(entry).name
        with archive.open(entry) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return target
