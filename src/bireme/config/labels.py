"""Label files: line n names class n."""

from __future__ import annotations

from pathlib import Path

from bireme.config.faults import near_name
from bireme.types.errors import InvalidArgument, Unsupported


def read_labels(model_dir: Path, filename: str) -> list[str]:
    """Return the lines of a UTF-8 label file in the model's directory.

    Raises:
        Unsupported: the path leads out of the model's directory, be it by a symbolic link.
        InvalidArgument: the file cannot be read.

    Source: Triton ``model.cc`` (Model::Init), ``filesystem/api.cc`` (IsChildPathEscapingParentPath).
    """
    path = model_dir / filename
    label = f"label file '{filename}' of model '{model_dir.name}'"
    try:
        if not path.resolve().is_relative_to(model_dir.resolve()):
            raise Unsupported(
                f"label file path '{path}' in model '{model_dir.name}' is outside model directory '{model_dir}'"
            )
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        reason = f"{error.strerror}: '{path}'{_hint(model_dir, filename)}"
        raise InvalidArgument(f"unable to read {label}: {reason}") from error
    except ValueError as error:  # not UTF-8, or a path with a null character
        raise InvalidArgument(f"unable to read {label}: {error}") from error
    if lines[-1] == "":  # the last line ends with a newline; it doesn't begin another
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _hint(model_dir: Path, filename: str) -> str:
    try:
        near = near_name(filename, [path.name for path in model_dir.iterdir()])
    except OSError:
        return ""
    return f"; did you mean '{near}'?" if near else ""
