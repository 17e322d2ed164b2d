"""What a model's ``is_ready`` may say. Source: Triton ``pb_stub.cc`` (ProcessUserModelReadinessRequest)."""

from __future__ import annotations

from typing import Any

from bireme.backends.python.conversions import encodable
from bireme.backends.python.model_file import format_error


def judge_readiness(answer: Any, error: BaseException | None = None) -> tuple[bool, str]:
    """Return whether the model is ready, and if not, why; ``error`` is what ``is_ready`` raised."""
    if error is not None:
        return False, encodable(format_error(error))
    if not isinstance(answer, bool):
        return False, f"is_ready() must return a boolean value, found {type(answer).__name__}"
    return answer, "" if answer else "is_ready() returned False"
