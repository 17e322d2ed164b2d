"""The same cascade from outside: a program that calls each model over the network, as gateways in front of a server do.

It runs the code of the Python models itself, and asks the server for the trained ones. The answer is that of the model
``assistant``; what differs is how often, and with how much, the network is crossed.
"""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from build import MODELS, step_code

DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64", np.dtype(np.bool_): "BOOL"}


class Answer(NamedTuple):
    """What an assistant makes of a recording. Where nobody speaks there is only ``speech``."""

    speech: np.ndarray
    """FP32[T]: how likely it is that somebody speaks, for each 32 ms."""
    heard: str | None = None
    intent: str | None = None
    similarity: float | None = None
    reply: str | None = None
    reply_audio: np.ndarray | None = None
    """FP32[N], 24 kHz."""


class Caller:
    """Asks models, and counts what that takes."""

    def __init__(self, client: triton_aio.InferenceServerClient) -> None:
        self.client = client
        self.num_calls = 0
        self.nbytes = 0

    async def __call__(
        self, model: str, inputs: dict[str, np.ndarray], outputs: list[str]
    ) -> dict[str, np.ndarray]:
        """Return the arrays of the outputs that are named, by name."""
        result = await self.client.infer(
            model,
            [tensor(name, array) for name, array in inputs.items()],
            outputs=[triton.InferRequestedOutput(name) for name in outputs],
        )
        arrays = {name: result.as_numpy(name) for name in outputs}
        self.num_calls += 1
        self.nbytes += sum(array.nbytes for array in (*inputs.values(), *arrays.values()))
        return arrays


def tensor(name: str, array: np.ndarray) -> triton.InferInput:
    """Return the array as the client wants it."""
    return triton.InferInput(name, array.shape, DATATYPES[array.dtype]).set_data_from_numpy(array)


class Steps:
    """The code of the Python models, and the files that it needs."""

    def __init__(self) -> None:
        self.frames = step_code("frames/1/frames.py")
        self.spoken_part = step_code("hear/1/spoken.py").spoken_part
        self.tokens_of = step_code("hear/1/decoder.py").tokens_of
        self.words = step_code("hear/1/words.py")
        self.vocabulary = self.words.Vocabulary(MODELS / "hear/1/tokenizer.bin")
        self.pieces = step_code("tokenize/1/pieces.py")
        self.tokenizer = self.pieces.load(MODELS / "tokenize/1/tokenizer.json")
        self.meaning = step_code("understand/1/meaning.py")
        self.examples = self.meaning.load(MODELS / "understand/1/examples.npz")
        self.reply_to = step_code("understand/1/replies.py").reply_to
        self.phonemes = step_code("phonemes/1/phonemes.py")
        self.sounds = self.phonemes.Phonemes(MODELS / "phonemes/1/vocabulary.json")
        self.vocoder = step_code("vocoder/1/vocoder.py")


@functools.cache
def steps() -> Steps:
    """Return the code, loaded once."""
    return Steps()


async def answer(client: triton_aio.InferenceServerClient, audio: np.ndarray) -> Answer:
    """Return what the assistant makes of a recording, FP32[N] at 16 kHz."""
    return await answer_by(Caller(client), audio)


async def answer_by(call: Any, audio: np.ndarray) -> Answer:
    """Run the cascade; ``call`` asks a model."""
    code = steps()
    frames, state = code.frames.frames_of(audio), code.frames.STATE
    found = await call("voice_activity", {"input": frames, "h": state, "c": state}, ["speech_probs"])
    speech = found["speech_probs"]
    if not (speech > 0.5).any():
        return Answer(speech)
    heard = await code.words.whole_text(
        code.tokens_of(code.spoken_part(audio, speech), call), code.vocabulary
    )
    found = await call("sentence", code.pieces.pieces_of(heard, code.tokenizer), ["last_hidden_state"])
    intent, similarity = code.meaning.nearest(found["last_hidden_state"], code.examples)
    reply = code.reply_to(intent, heard, datetime.now().astimezone())
    return Answer(speech, heard, intent, similarity, reply, await say(call, reply))


async def say(call: Any, text: str) -> np.ndarray:
    """Return the text as sound, FP32[N] at 24 kHz."""
    code = steps()
    ids, speed = code.sounds.ids(text), code.phonemes.SPEED
    parts = await call("speak", {"ids": ids, "speed": speed}, list(code.vocoder.PARTS))
    return code.vocoder.sound_of(parts)
