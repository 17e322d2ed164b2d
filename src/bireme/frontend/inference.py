"""What both protocols do with an inference that would hold up the loop: which is one, and the way around it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from bireme.engine.model import Model
from bireme.engine.server import Server
from bireme.engine.validation import MAX_INLINE_BYTES, needs_bytes_check
from bireme.types import Buffer, InferenceRequest
from bireme.wire.encoded import Encoded

if TYPE_CHECKING:
    from bireme.frontend.work import Work

INLINE_INFLATE_SIZE: Final = 1 << 10
"""Compressed bytes that are inflated on the loop: a thousandfold growth is still only a millisecond's work."""
INLINE_DEFLATE_SIZE: Final = 8 << 10
"""Plain bytes that are compressed on the loop, 0.1 ms; a thread costs about as much."""


def has_large_bytes(server: Server, request: InferenceRequest, message: Buffer) -> bool:
    """Whether ``request`` has BYTES to be decoded beside the loop. Without regions, only a large message holds such."""
    return bool(len(message) > MAX_INLINE_BYTES or server.shared_memory) and needs_bytes_check(request)


async def check_bytes(work: Work, server: Server, request: InferenceRequest) -> Model:
    """Have the BYTES inputs decoded beside the loop; return the model, which may have been reloaded meanwhile.

    Raises:
        BiremeError: they do not suit the model, or it is gone.
    """
    validator = server.model(request.model_name, request.model_version).validator
    await work.in_thread(validator.check_bytes, request)
    return server.model(request.model_name, request.model_version)


async def complete(work: Work, encoded: Encoded) -> None:
    """Complete a response that takes its time: step by step, with the loop's other work in between.

    Raises:
        InvalidArgument: an output cannot be sent as the request asked.
    """
    if encoded.is_heavy:
        while not await work.in_thread(encoded.advance):
            pass
    while not encoded.advance():  # noqa: ASYNC110 (the work itself is what is waited for)
        await asyncio.sleep(0)
