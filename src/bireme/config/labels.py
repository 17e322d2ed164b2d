"""Label files: line n names class n."""

from __future__ import annotations

import os
from pathlib import Path

from bireme.types.errors import Internal, Unsupported


def read_labels(model_dir: Path, filename: str) -> list[str]:
    """Return the lines of a label file in the model's directory.

    Raises:
        Unsupported: the path leads out of the model's directory.
        Internal: the file cannot be read.

    Source: Triton ``model.cc`` (Model::Init).
    """
    path = model_dir / filename
    root = os.path.realpath(model_dir)
    if os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise Unsupported(f"label file path '{path}' in model '{model_dir.name}' is outside model directory")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Internal(f"unable to read label file '{path}' of model '{model_dir.name}': {reason}") from error
    if lines[-1] == "":  # the last line ends with a newline; it doesn't begin another
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
