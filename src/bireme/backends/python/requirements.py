"""Builds a venv from a model's ``requirements.txt``.

The packages of the server lie below those of the venv: pip takes a requirement that one of them meets as met, and a
worker finds numpy, msgspec and Bireme there. So the versions of the server's packages are part of what an environment
is, beside the requirements themselves.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bireme.backends.python.interpreter import fallback_directories, last_lines
from bireme.types import InvalidArgument

log = logging.getLogger("bireme.backends.python")

_NUM_KEPT_LINES: Final = 200
_FILE_OPTIONS: Final = frozenset({"-r", "--requirement", "-c", "--constraint"})
_PLACE_OPTIONS: Final = frozenset(
    {"-f", "--find-links", "-e", "--editable", "-i", "--index-url", "--extra-index-url"}
)
_SHORT_OPTION: Final = re.compile(r"(-[rcfei])([^-].*)")
_NOT_HASHED: Final = re.compile(r"__pycache__|\.git|\.venv|build|.*\.egg-info")
"""Directories of a package that are no part of its source; building it in place writes some of them."""
_PROGRESS: Final = re.compile(
    r"(Collecting|Downloading|Building|Preparing|Installing|Successfully|WARNING|ERROR)\b"
)


def fingerprint(requirements: Path, *, where: str) -> str:
    """Return a text that is another one whenever the environment would be.

    It covers the text of the file and of those it includes, the content of local packages and of folders with packages,
    the interpreter, the platform and the server's packages.

    Raises:
        InvalidArgument: a file that is included cannot be read.
    """
    digest = hashlib.sha256()
    for part in (
        sys.version,
        sys.base_prefix,
        sysconfig.get_platform(),
        *_own_packages(),
    ):
        digest.update(f"{part}\n".encode())
    try:
        _add_requirements(digest, requirements, requirements.parent, set())
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or quotes that do not end
        raise InvalidArgument(f"{where}: cannot be read: {error}") from error
    return digest.hexdigest()


def build_environment(requirements: Path, prefix: Path, *, where: str) -> None:
    """Make a venv at ``prefix`` and install ``requirements`` with pip, whose progress goes to the log.

    Raises:
        InvalidArgument: pip cannot be run or fails: with the end of what it wrote.
        OSError: ``prefix`` cannot be written.
    """
    log.info("%s: building an environment in '%s'", where, prefix)
    has_pip = importlib.util.find_spec("pip") is not None
    _run(
        [sys.executable, "-m", "venv", *(["--without-pip"] if has_pip else []), str(prefix)],
        prefix.parent,
        where,
    )
    site_packages = prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # addsitedir, and not the directory alone: packages installed in editable mode are found by .pth files of their own.
    lines = [f"import site; site.addsitedir({directory!r})" for directory in fallback_directories()]
    (site_packages / "zz_bireme_server.pth").write_text("\n".join(lines) + "\n", "utf-8")
    python = str(prefix / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
    options = ["--no-input", "--disable-pip-version-check", "--no-color", "--progress-bar=off"]
    # The working directory is what local paths in the file count from, as pip has it.
    _run([*pip, "install", *options, "-r", str(requirements)], requirements.parent, where)


def _run(command: list[str], folder: Path, where: str) -> None:
    """Run a program and tell its progress."""
    env = {**os.environ, "PIP_USER": "0", "PYTHONUNBUFFERED": "1"}
    kept: deque[str] = deque(maxlen=_NUM_KEPT_LINES)
    with subprocess.Popen(  # noqa: S603 (the server's own interpreter)
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            kept.append(line)
            if _PROGRESS.match(line.lstrip()):
                log.info("%s: %s", where, line.strip())
    if process.returncode:
        raise InvalidArgument(
            f"{where}: the environment cannot be built: {command[2]} failed with exit status {process.returncode}:\n"
            f"{last_lines(''.join(kept))}"
        )


def _own_packages() -> Iterator[str]:
    """Yield the names and versions of the server's packages, as the names of their metadata say them."""
    for directory in fallback_directories():
        yield directory
        names = os.listdir(directory)  # noqa: PTH208 (names are all that is asked for)
        yield from sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))


def _add_requirements(digest: hashlib._Hash, file: Path, folder: Path, seen: set[Path]) -> None:
    """Add a requirements file and all that it names; ``folder``: what its local packages are named from."""
    if file.resolve() in seen:
        return
    seen.add(file.resolve())
    text = file.read_text("utf-8")
    digest.update(text.encode())
    for option, value in _local_names(text):
        # Source: pip "Requirements File Format": included files and find-links count from the file that names them.
        beside = file.parent / value
        if not value:
            continue
        path = beside if option in _FILE_OPTIONS or (option and beside.exists()) else folder / value
        if option in _FILE_OPTIONS:
            if "://" not in value:
                _add_requirements(digest, path, folder, seen)
        elif path.exists():
            _add_content(digest, path)
            if option in {"-e", "--editable"}:
                digest.update(f"{path.absolute()}\n".encode())


def _local_names(text: str) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of each line that names a file or may do so; a package has no option."""
    joined = re.sub(r"\\\n", "", text)
    for line in joined.splitlines():
        plain = _expand_variables(re.sub(r"(^|\s)#.*$", "", line)).strip()
        if not plain:
            continue
        if not plain.startswith("-"):
            _, _, url = plain.partition(" @ ")
            yield "", _without_scheme(re.split(r"[;\[]", url or plain)[0].strip())
            continue
        words = iter(shlex.split(plain))
        for word in words:
            short = _SHORT_OPTION.fullmatch(word)
            option, value = short.groups() if short else word.partition("=")[::2]
            if option in _FILE_OPTIONS | _PLACE_OPTIONS:
                yield option, _without_scheme(value or next(words, ""))


def _without_scheme(value: str) -> str:
    return value.removeprefix("file://").removeprefix("file:")


def _expand_variables(line: str) -> str:
    """Put values in the place of ``${NAME}``, which is the one form that pip knows."""
    return re.sub(r"\$\{([A-Z0-9_]+)\}", lambda found: os.environ.get(found[1], found[0]), line)


def _add_content(digest: hashlib._Hash, path: Path) -> None:
    """Add a file, or every file below a directory."""
    files = [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())
    for file in files:
        inner = file.relative_to(path)
        if not any(map(_NOT_HASHED.fullmatch, inner.parts)):
            digest.update(f"{inner}\n".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
