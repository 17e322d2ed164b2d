"""A process that turns JSON tensors into binary ones: ``python -m bireme.ipc.json_worker FD``.

It reads jobs from a SEQPACKET socket, one after the other, and answers each. It ends when the socket does, so it never
outlives the server. It imports what decoding needs and nothing else.

A job is a JSON array ``[size, json_length, max_input_size, max_json_depth, model_name, inputs]`` with the descriptor of a
segment that holds the body (``json_length`` null: all of it is JSON). With ``inputs``, the model's, it is the body of a
generate call. The answer is ``[size, json_length]`` with a segment that holds the rewritten body, or
``[error code, message]``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Final

import orjson

from bireme.ipc.segment import Segment
from bireme.types import BiremeError, Internal
from bireme.wire.http import Limits
from bireme.wire.http.generate import rewrite_generate
from bireme.wire.http.rewrite import rewrite_as_binary

MAX_MESSAGE: Final = 64 << 10
"""Bytes of a message; longer texts are cut."""

_NICENESS = 5
"""On busy cores the server's loop comes first: it has others to answer."""


def serve(channel: socket.socket) -> None:
    """Answer jobs until the other side is gone."""
    while True:
        message, fds, _, _ = socket.recv_fds(channel, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        answer, result = _answer(message, fds[0])
        try:
            socket.send_fds(channel, [answer], [result.fd] if result else [])
        except OSError:  # nobody waits for it any more
            return


def _answer(message: bytes, fd: int) -> tuple[bytes, Segment | None]:
    """Do one job; return the answer, and the segment that goes with it."""
    try:
        size, json_length, max_input_size, max_json_depth, model_name, inputs = orjson.loads(message)
        limits = Limits(max_input_size, max_json_depth)
        body = memoryview(Segment.attach(fd, size))
        if inputs is None:
            rewritten, json_length = rewrite_as_binary(body, json_length, limits, model_name=model_name)
        else:
            rewritten, json_length = rewrite_generate(body, inputs, limits, model_name=model_name)
        result = Segment.allocate(len(rewritten))
        result.fill(rewritten)
        return orjson.dumps([len(rewritten), json_length]), result
    except BiremeError as error:
        return _error(error.code, error.message), None
    except MemoryError:
        return _error("UNAVAILABLE", "not enough memory to parse the request's JSON"), None
    except Exception as error:  # noqa: BLE001 (a fault of one body must not cost the others their worker)
        return _error(
            Internal.code, f"failed to convert the request's JSON: {type(error).__name__}: {error}"
        ), None


def _error(code: str, message: str) -> bytes:
    text = message.encode("utf-8", "replace")[: MAX_MESSAGE // 4].decode("utf-8", "replace")
    return orjson.dumps([code, text])


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    os.nice(_NICENESS)
    # Ctrl-C and a stopping supervisor signal the whole group; the server decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        serve(channel)


if __name__ == "__main__":
    main()
    # Skips the interpreter's own tidying up, of which nobody has anything.
    os._exit(0)
