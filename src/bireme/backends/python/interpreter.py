"""What the interpreter of another environment is, and how it gets at Bireme's own modules.

A worker needs Bireme (pure Python, so the server's own files serve any interpreter), numpy and msgspec. An interpreter of
the server's kind may take those two from the server's packages where its environment lacks them; they come last on its
path, so what the environment has goes before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import site
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import bireme
from bireme.types import InvalidArgument

log = logging.getLogger("bireme.backends.python")

NEEDED: Final = ("numpy", "msgspec")
"""What a worker imports beside Bireme."""

_TIMEOUT_S: Final = 120.0
_NUM_ERROR_LINES: Final = 15

# Runs on whatever interpreter it meets. Finding a package takes microseconds where importing numpy takes 0.1 s.
_PROBE: Final = f"""
import json, os, sys
from importlib.util import find_spec
print()
print(json.dumps({{
    "version": list(sys.version_info[:3]),
    "kind": [sys.implementation.cache_tag, getattr(sys, "abiflags", "")],
    "missing": [name for name in {NEEDED!r} if find_spec(name) is None],
    "env": dict(os.environ),
}}))
"""

# The arguments are taken off first: a sourced script would see them as its own.
_ACTIVATE: Final = """
_script="$1" _python="$2" _probe="$3"
set --
source "$_script" >&2
exec "$_python" -c "$_probe"
"""

_OF_THE_SHELL: Final = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PS1", "_OLD_VIRTUAL_PS1"})


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What an environment's interpreter said of itself."""

    version: tuple[int, ...]
    is_like_own: bool
    """It can use the server's compiled packages."""
    missing: tuple[str, ...]
    """Those of `NEEDED` that its environment lacks."""
    env: dict[str, str]
    """What the activation of its environment changes."""

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))


def ask(prefix: Path, *, where: str) -> Interpreter:
    """Activate the environment at ``prefix`` and ask its interpreter, ``bin/python``.

    ``bin/activate`` runs in bash, as a person would source it, so that what scripts in ``etc/conda/activate.d`` set
    counts. Without a bash only the variables that every environment has are set.

    Raises:
        InvalidArgument: the interpreter does not start; ``where`` begins the message.
    """
    python = prefix / "bin" / "python"
    bash = shutil.which("bash")
    before = dict(os.environ)
    if bash is None:
        log.warning("%s: there is no bash, so bin/activate is not run", where)
        env = _standard_variables(prefix)
        said = _run([str(python), "-c", _PROBE], before | env, where=where)
    else:
        command = [
            bash,
            "--noprofile",
            "--norc",
            "-c",
            _ACTIVATE,
            "bash",
            str(prefix / "bin" / "activate"),
            str(python),
        ]
        said = _run([*command, _PROBE], before, where=where)
        env = _difference(before, said["env"])
    return Interpreter(
        tuple(said["version"]),
        said["kind"] == [sys.implementation.cache_tag, sys.abiflags],
        tuple(said["missing"]),
        env,
    )


def fallback_directories() -> list[str]:
    """Return the directories from which the server takes its own packages."""
    found = [*site.getsitepackages(), *(str(Path(module.__path__[0]).parent) for module in (np, msgspec))]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [directory for directory in dict.fromkeys(found) if Path(directory).is_dir()]


def import_directory(root: Path) -> str:
    """Return a directory that holds Bireme and nothing else, made below ``root`` if there is none.

    Where Bireme is installed, all packages of the server lie beside it: on the path of another environment they would
    come before its own.

    Raises:
        OSError: it cannot be made.
    """
    package = Path(bireme.__file__).parent
    directory = root / f"bireme-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (directory / "bireme").is_dir():
        with suppress(FileExistsError):  # by another load
            (directory / "bireme").symlink_to(package)
    return str(directory)


def last_lines(text: str) -> str:
    """Return the end of a program's output, for a message."""
    return "\n".join(text.strip().splitlines()[-_NUM_ERROR_LINES:])


def _run(command: list[str], env: dict[str, str], *, where: str) -> dict[str, Any]:
    """Run the probe and return what it said."""
    try:
        done = subprocess.run(  # noqa: S603 (the environment is the model owner's, who runs code here anyway)
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidArgument(f"{where}: the environment's Python cannot be run: {error}") from error
    try:
        said: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        raise InvalidArgument(
            f"{where}: the environment's Python cannot be run: exit status {done.returncode}: {last_lines(done.stderr)}"
        ) from None
    return said


def _difference(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return the variables that are new or other in ``after``."""
    changed = {
        name: value
        for name, value in after.items()
        if before.get(name) != value and name not in _OF_THE_SHELL and not name.startswith("BASH_FUNC_")
    }
    if "PYTHONHOME" in before and "PYTHONHOME" not in after:
        changed["PYTHONHOME"] = ""  # as good as unset; activation removes it, as it means another interpreter
    return changed


def _standard_variables(prefix: Path) -> dict[str, str]:
    is_conda = (prefix / "conda-meta").is_dir()
    return {
        "CONDA_PREFIX" if is_conda else "VIRTUAL_ENV": str(prefix),
        "PATH": os.pathsep.join((str(prefix / "bin"), os.environ.get("PATH", os.defpath))),
        **({"PYTHONHOME": ""} if "PYTHONHOME" in os.environ else {}),
    }
