"""Unpacks an environment that conda-pack or venv-pack made."""

from __future__ import annotations

import logging
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from bireme.backends.python.interpreter import last_lines
from bireme.types import InvalidArgument, Unsupported

log = logging.getLogger("bireme.backends.python")

_UNPACK_TIMEOUT_S: Final = 600.0


def unpack(archive: Path, prefix: Path, *, where: str) -> None:
    """Unpack ``archive`` (tar, plain or packed by gzip, bzip2 or xz) to ``prefix`` and fit its paths to that place.

    Nothing is written outside of ``prefix``, and no link in it leads outside.

    Raises:
        InvalidArgument: the file is no such archive, is damaged, or has members or links that lead elsewhere.
        Unsupported: this version of Python cannot unpack safely.
        OSError: ``prefix`` cannot be written.
    """
    if not hasattr(tarfile, "data_filter"):
        raise Unsupported(f"{where}: unpacking an environment needs Python 3.11.4 or newer")
    log.info("%s: unpacking to '%s'", where, prefix)
    prefix.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(prefix, filter="data")
    except tarfile.FilterError as error:
        raise InvalidArgument(
            f"{where}: '{archive}' is not unpacked, as it would reach outside: {error}"
        ) from error
    except (tarfile.TarError, EOFError) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise InvalidArgument(
            f"{where}: '{archive}' cannot be unpacked: {reason}; expected a packed environment (.tar.gz) or a directory"
        ) from error
    _fit_paths(prefix, where)


def _fit_paths(prefix: Path, where: str) -> None:
    """Run ``conda-unpack``, which writes the environment's place into its scripts."""
    script = prefix / "bin" / "conda-unpack"
    if not script.exists():
        return
    try:
        done = subprocess.run(  # noqa: S603 (the environment is the model owner's, who runs code here anyway)
            [str(prefix / "bin" / "python"), str(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=_UNPACK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidArgument(f"{where}: conda-unpack cannot be run: {error}") from error
    if done.returncode:
        raise InvalidArgument(
            f"{where}: conda-unpack failed with exit status {done.returncode}: {last_lines(done.stdout)}"
        )
