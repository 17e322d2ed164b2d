"""Which Python interpreter runs a model: the server's own, or that of an environment with packages of the model's.

===========================================  ===================================================================
``parameters`` key ``EXECUTION_ENV_PATH``    a packed environment (an archive made by conda-pack or venv-pack), or the
                                             directory of a conda environment or of a venv
``pb_exec_env_<runtime>.tar.gz``             the same, beside the ``model.py`` of a backend that is a directory
``requirements.txt`` in the model directory  built into a venv when the model is loaded
===========================================  ===================================================================

The first of them that is there counts. Everything here blocks; it belongs to loading threads.

Source: Triton ``python_be.cc``, ``pb_env.cc``, ``stub_launcher.cc``; ``requirements.txt`` is ours.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bireme.backends.interface import ModelContext
from bireme.backends.python.environment_cache import EnvironmentCache
from bireme.backends.python.interpreter import Interpreter, ask, fallback_directories, import_directory
from bireme.backends.python.packed_environment import unpack
from bireme.backends.python.requirements import build_environment, fingerprint
from bireme.ipc.worker_process import PATH_VARIABLE
from bireme.types import InvalidArgument

log = logging.getLogger("bireme.backends.python")

PARAMETER: Final = "EXECUTION_ENV_PATH"
REQUIREMENTS_FILE: Final = "requirements.txt"

_MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_STUB: Final = "triton_python_backend_stub"
_OLDEST: Final = (3, 11)


@dataclass(frozen=True, slots=True)
class Environment:
    """The interpreter of a model's processes."""

    executable: str
    env: dict[str, str] = field(default_factory=dict)
    """Variables that differ from the server's own."""
    description: str = ""
    """For the log."""


def prepare(ctx: ModelContext) -> Environment:
    """Return the environment of a model, made first if need be: that may take minutes and is told in the log.

    A made one is kept on disk for the next load, see `EnvironmentCache`.

    Raises:
        InvalidArgument: the environment does not exist, cannot be made, or lacks what a worker needs; names the parameter
            or file, the path, what was found and what is expected.
    """
    if (ctx.model_dir / _STUB).exists():
        log.warning(
            "model '%s': '%s' is not used: it is a program of Triton's own; give the model an environment by the "
            "parameter %s or a %s",
            ctx.name, ctx.model_dir / _STUB, PARAMETER, REQUIREMENTS_FILE,
        )  # fmt: skip
    requirements = _find_requirements(ctx)
    path, origin = _find_environment(ctx)
    if path is not None:
        if requirements is not None:
            log.warning("model '%s': %s counts, so '%s' is ignored", ctx.name, origin, requirements)
        environment = _use(ctx, origin, path)
    elif requirements is not None:
        environment = _build(ctx, requirements)
    else:
        return Environment(sys.executable, {}, f"the server's own Python {platform.python_version()}")
    log.info("model '%s' runs in %s", ctx.name, environment.description)
    return environment


def warn_unused(ctx: ModelContext) -> None:
    """Say in the log that a model that runs in the server's own process has an environment which is not used."""
    path, origin = _find_environment(ctx)
    found = origin if path is not None else _find_requirements(ctx)
    if found:
        log.warning(
            "model '%s' runs in the server's process, with the server's packages: %s is ignored",
            ctx.name,
            found,
        )


def _find_requirements(ctx: ModelContext) -> Path | None:
    folders = (ctx.model_dir, ctx.backend_dir)
    files = [folder / REQUIREMENTS_FILE for folder in folders if folder is not None]
    return next((file for file in files if file.is_file()), None)


def _find_environment(ctx: ModelContext) -> tuple[Path | None, str]:
    """Return where the model's environment is, and what says so."""
    text = ctx.config.parameter(PARAMETER, "").strip()
    if text:
        return _expand(ctx, text), f"{PARAMETER} '{text}'"
    if ctx.backend_dir is not None:
        packed = ctx.backend_dir / f"pb_exec_env_{ctx.config.runtime or 'model.py'}.tar.gz"
        if packed.is_file():
            return packed, f"the backend's '{packed.name}'"
    return None, ""


def _expand(ctx: ModelContext, text: str) -> Path:
    where = f"model '{ctx.name}': {PARAMETER} '{text}'"
    if "://" in text:
        raise InvalidArgument(f"{where}: object stores are not supported; expected a path on this machine")
    path = Path(text.replace(_MODEL_DIRECTORY, str(ctx.model_dir)))
    if not path.is_absolute():
        raise InvalidArgument(
            f"{where}: expected an absolute path, or one that begins with {_MODEL_DIRECTORY}, which stands for "
            f"'{ctx.model_dir}'"
        )
    if not path.exists():
        raise InvalidArgument(
            f"{where}: '{path}' does not exist; expected a packed environment or a directory"
        )
    return path.resolve()


def _use(ctx: ModelContext, origin: str, path: Path) -> Environment:
    """Use a directory as it is, or what an archive holds."""
    where = f"model '{ctx.name}': {origin}"
    prefix = path
    if not path.is_dir():
        status = path.stat()
        key = f"{path} {status.st_mtime_ns} {status.st_size}"
        prefix = EnvironmentCache.of_user().get(
            key, str(path), lambda prefix: unpack(path, prefix, where=where), where=where
        )
    for needed in ("activate", "python"):
        if not (prefix / "bin" / needed).exists():
            raise InvalidArgument(
                f"{where}: '{path}' has no bin/{needed}; expected a conda environment (packed by conda-pack, if it is "
                f"an archive) or a venv"
            )
    interpreter = ask(prefix, where=where)
    _check(interpreter, where=where)
    env = interpreter.env
    own = _import_directory(where)
    _add_to_path(env, "PYTHONPATH", own)
    env[PATH_VARIABLE] = os.pathsep.join(fallback_directories()) if interpreter.is_like_own else own
    return Environment(
        str(prefix / "bin" / "python"), env, f"Python {interpreter.version_text} of the environment '{path}'"
    )


def _check(interpreter: Interpreter, *, where: str) -> None:
    """Check that a worker can run on it."""
    version = interpreter.version_text
    if interpreter.version < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise InvalidArgument(f"{where}: the environment has Python {version}; expected {oldest} or newer")
    if interpreter.missing and not interpreter.is_like_own:
        packages = " ".join(interpreter.missing)
        raise InvalidArgument(
            f"{where}: the environment has Python {version} and lacks {' and '.join(interpreter.missing)}; those of the "
            f"server are for Python {platform.python_version()}, so add them to the environment: pip install {packages}"
        )


def _build(ctx: ModelContext, requirements: Path) -> Environment:
    """Build a venv of ``requirements``, or take the one that was built before."""
    where = f"model '{ctx.name}': '{requirements}'"
    cache = EnvironmentCache.of_user()
    prefix = cache.get(
        fingerprint(requirements, where=where),
        str(requirements),
        lambda prefix: build_environment(requirements, prefix, where=where),
        where=where,
    )
    env = {"VIRTUAL_ENV": str(prefix)}
    _add_to_path(env, "PATH", str(prefix / "bin"))
    _add_to_path(env, "PYTHONPATH", _import_directory(where))
    return Environment(
        str(prefix / "bin" / "python"),
        env,
        f"Python {platform.python_version()} with the packages of '{requirements}'",
    )


def _import_directory(where: str) -> str:
    cache = EnvironmentCache.of_user()
    try:
        return import_directory(cache.root)
    except OSError as error:
        raise cache.unwritable(error, where) from error


def _add_to_path(env: dict[str, str], name: str, directory: str) -> None:
    inherited = env.get(name, os.environ.get(name, ""))
    env[name] = os.pathsep.join(filter(None, (directory, inherited)))
