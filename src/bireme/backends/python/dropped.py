"""Telling a model that a sequence is over without its END: its optional ``drop_sequence(correlation_id)``.

Ours; Triton tells nobody. A model that keeps something for each sequence lets go of it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final

from bireme.backends.python.model_file import format_error

HOOK: Final = "drop_sequence"

LogError = Callable[[str], None]


def tell(model: Any, sequence_id: int | str, log_error: LogError) -> None:
    """Call the hook, on the thread that calls ``execute``. What it raises is logged: the sequence is over anyway."""
    try:
        result = getattr(model, HOOK)(sequence_id)
        if isawaitable(result):
            asyncio.run(_wait(result))
    except BaseException as error:  # noqa: BLE001 - SystemExit, too: it ends nothing but the hook
        log_error(_text(sequence_id, error))


async def tell_async(model: Any, sequence_id: int | str, log_error: LogError) -> None:
    """As `tell`, on the loop of an asynchronous model."""
    try:
        result = getattr(model, HOOK)(sequence_id)
        if isawaitable(result):
            await result
    except BaseException as error:  # noqa: BLE001 - as in `tell`
        log_error(_text(sequence_id, error))


async def _wait(result: Awaitable[Any]) -> None:
    await result


def _text(sequence_id: int | str, error: BaseException) -> str:
    return f"{HOOK}({sequence_id!r}) failed: {format_error(error)}"
