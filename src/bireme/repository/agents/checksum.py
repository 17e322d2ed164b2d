"""The agent ``checksum``: a model loads only if its files are those that its config was written for.

    model_repository_agents { agents [{ name: "checksum"
      parameters { key: "MD5:1/model.onnx" value: "d726132f2183a28f3e1a6d4b2e6e7a8f" }
      parameters { key: "SHA256:labels.txt" value: "…" } }] }

Source: Triton's ``checksum_repository_agent``; SHA-256 is an extension.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from bireme.repository.agents.interface import RepositoryAgent
from bireme.types import InvalidArgument, Unsupported

_ALGORITHMS: Final = {"md5": ("MD5", "md5"), "sha256": ("SHA256", "sha256"), "sha-256": ("SHA256", "sha256")}


class ChecksumAgent(RepositoryAgent):
    """Compares files with the digests in the agent's parameters."""

    def load(self) -> None:
        """Look at every file.

        Raises:
            InvalidArgument: a file has another digest or cannot be read, or a key is not ALGORITHM:PATH.
            Unsupported: another algorithm.
        """
        for key, expected in self.model.parameters.items():
            algorithm, colon, path = key.partition(":")
            if not colon or not path:
                raise InvalidArgument(
                    f"failed to parse key: {key}: expected an algorithm and a file, as in 'MD5:1/model.onnx'"
                )
            if algorithm.lower() not in _ALGORITHMS:
                raise Unsupported(f"Unsupported checksum algorithm: {algorithm}; known are MD5 and SHA256")
            label, function = _ALGORITHMS[algorithm.lower()]
            digest = _digest(self.model.directory, path, function)
            if digest != expected.strip().lower():
                raise InvalidArgument(
                    f"Mismatched {label} hash for file {path}, expect: {expected}, got: {digest}"
                )


def _digest(directory: Path, path: str, function: str) -> str:
    if Path(path).is_absolute() or ".." in Path(path).parts:  # a client may have written the config
        raise InvalidArgument(f"file {path} is not within the model's directory")
    try:
        with (directory / path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(function, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise InvalidArgument(f"failed to open text file for read {path}: {error.strerror}") from error
