"""Ask the served assistant, with the official client: one request, and the answer as text and as sound.

    python examples/voice/client.py [--grpc localhost:8001] QUESTION.wav [ANSWER.wav]

QUESTION.wav: 16 kHz, 16-bit or float samples. `arecord -f S16_LE -r 16000 -d 4 question.wav` records one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton_aio
from build import SPEECH, step_code
from gateway import Answer, tensor
from sound import write_wav

HEARD_PER_S, SPOKEN_PER_S = 16_000, 24_000
"""Samples of questions and of answers."""


async def ask(
    client: triton_aio.InferenceServerClient, audio: np.ndarray, *, is_traced: bool = False
) -> tuple[Answer, dict[str, Any]]:
    """Return what the model ``assistant`` makes of a recording, FP32[N], and the trace of the request if it is wanted."""
    parameters = {"bireme_trace": True} if is_traced else None
    result = await client.infer("assistant", [tensor("AUDIO", audio)], parameters=parameters)

    def text(name: str) -> str | None:
        array = result.as_numpy(name)
        return None if array is None else array[0].decode()

    similarity = result.as_numpy("SIMILARITY")
    answer = Answer(
        result.as_numpy("SPEECH"),
        text("HEARD"),
        text("INTENT"),
        None if similarity is None else float(similarity[0]),
        text("REPLY"),
        result.as_numpy("REPLY_AUDIO"),
    )
    trace = result.get_response().parameters["bireme_trace"].string_param if is_traced else "{}"
    return answer, json.loads(trace)


async def main() -> None:
    """Ask, and print what comes back."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--grpc", default="localhost:8001")
    parser.add_argument("question", type=Path)
    parser.add_argument("answer", nargs="?", type=Path)
    args = parser.parse_args()

    read_wav = step_code("transcribe/1/recording.py", SPEECH).read_wav
    async with triton_aio.InferenceServerClient(args.grpc) as client:
        answer, _ = await ask(client, read_wav(args.question.read_bytes(), HEARD_PER_S))
    if answer.heard is None:
        print("nobody speaks")
        return
    print(
        f"heard   {answer.heard}\nmeant   {answer.intent} ({answer.similarity:.2f})\nreply   {answer.reply}"
    )
    if args.answer:
        write_wav(args.answer, answer.reply_audio, SPOKEN_PER_S)


if __name__ == "__main__":
    asyncio.run(main())
