"""A model's own Python file: importing it, finding its class, telling where its code failed.

Source: Triton's Python backend, ``pb_stub.cc`` (``ModelContext::StubSetup``) and pybind11's text of a Python error.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import bireme
from bireme.types import BiremeError, InvalidArgument, NotFound

CLASS_NAME: Final = "TritonPythonModel"
_OWN_CODE: Final = (str(Path(bireme.__file__).parent) + "/", "<frozen importlib")


def load_model_class(
    path: Path,
    *,
    model_dir: Path,
    version_dir: Path,
    backend_dir: Path | None = None,
    package: str | None = None,
) -> type[Any]:
    """Import the model file ``path`` and return its class.

    The three directories are appended to `sys.path`. The module is called ``<package>.<file's stem>`` and its package is
    the file's directory: ``from . import x`` finds files beside it. The package is named after that directory (the
    version) unless a name is given: a process that runs several models gives each one of its own. A package of that name
    from an earlier load is forgotten first. What the file raises is passed on.

    Raises:
        NotFound: there is no such file; lists what is there instead.
        InvalidArgument: it is no ``.py`` file, or has no class ``TritonPythonModel`` with an ``execute``.
    """
    if not path.is_file():
        raise NotFound(f"Python model file not found in '{path}'; {_describe_directory(path.parent)}")
    if path.suffix != ".py":
        raise InvalidArgument(f"Model name must end with '.py'. Model name is \"{path.name}\".")
    for place in (version_dir, model_dir, backend_dir):
        if place is not None and str(place) not in sys.path:
            sys.path.append(str(place))
    if package is None:
        folder = path.parent
        # A backend's directory may well be called as the framework that its file imports.
        package = folder.name if folder == version_dir else f"backend_{folder.name}"
    parent = _import_package(package, path.parent)
    module = _import_file(f"{package}.{path.stem}", path)
    setattr(parent, path.stem, module)
    found = getattr(module, CLASS_NAME, None)
    if not isinstance(found, type):
        raise InvalidArgument(f"model file '{path}' has no class {CLASS_NAME}; {_describe_classes(module)}")
    if not callable(getattr(found, "execute", None)):
        methods = [name for name, value in vars(found).items() if callable(value) and name[:2] != "__"]
        raise InvalidArgument(
            f"Python model {path} does not implement `execute` method. {CLASS_NAME} has {_list(methods)}"
        )
    return found


def format_error(error: BaseException) -> str:
    """Return ``Type: message`` and the model's own frames, innermost first; those of the server are left out.

    An error of `bireme.types` that no code of the model has part in is only its message.

    Source: pybind11's ``error_already_set::what``, by which Triton words every error of a model.
    """
    message = _message_of(error)
    notes = getattr(error, "__notes__", ())
    if notes:
        message += "".join([f"\n__notes__ (len={len(notes)}):", *(f"\n{note}" for note in notes)])
    frames: list[str] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_OWN_CODE):
            frames.append(f"  {code.co_filename}({traceback.tb_lineno}): {code.co_name}\n")
        traceback = traceback.tb_next
    if frames:
        return f"{type(error).__name__}: {message}\n\nAt:\n{''.join(reversed(frames))}"
    if isinstance(error, BiremeError):
        return error.message  # the server's own words, not the model's
    return f"{type(error).__name__}: {message}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except BaseException as failure:  # noqa: BLE001 - its text is the model's code, too: that must not end the process
        return f"<its text cannot be had: {type(failure).__name__}>"


def _import_package(name: str, directory: Path) -> ModuleType:
    """Return a new package of the files in ``directory``: with its ``__init__.py``, else an empty one."""
    # A list of its own: other models are imported on other threads meanwhile.
    for known in [known for known in list(sys.modules) if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]  # an earlier load of the model, whose files may have changed
    init = directory / "__init__.py"
    if init.is_file():
        return _import_file(name, init, [str(directory)])
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(directory)]
    sys.modules[name] = package = module_from_spec(spec)
    return package


def _import_file(name: str, path: Path, package_path: list[str] | None = None) -> ModuleType:
    spec = spec_from_file_location(name, path, submodule_search_locations=package_path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return sys.modules[name]


def _describe_directory(directory: Path) -> str:
    if not directory.is_dir():
        return f"there is no directory '{directory}'"
    return f"'{directory}' holds {_list(sorted(entry.name for entry in directory.iterdir()))}"


def _describe_classes(module: ModuleType) -> str:
    classes = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return f"its classes are {_list(classes)}" if classes else "it has no class at all"


def _list(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"
