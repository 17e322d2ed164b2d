"""Speech to text, streamed word by word: the encoder once, then the decoder for each token until the text ends.

``execute`` is async: while one recording waits for its next token, others go on in the same process.
"""

import asyncio
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from .calls import Failed, call
from .decoder import tokens_of
from .recording import BadRecording, read_wav
from .words import Vocabulary, in_words, whole_text

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SAMPLES_PER_S = 16_000
MAX_LENGTH_S = 60


class TritonPythonModel:
    def initialize(self, args):
        self.vocabulary = Vocabulary(Path(pb_utils.get_model_dir()) / "tokenizer.bin")

    async def execute(self, requests):
        await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        """Send responses until the text or the client has ended; whatever happens, the last one is final."""
        sender = request.get_response_sender()
        code, text = pb_utils.TritonError.INTERNAL, ""
        try:
            await self.transcribe(request, sender)
        except BadRecording as error:
            code, text = pb_utils.TritonError.INVALID_ARG, str(error)
        except Failed as error:
            text = str(error)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise  # into the log
        finally:
            error = pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code)) if text else None
            sender.send(error, flags=FINAL)

    async def transcribe(self, request, sender):
        tokens = tokens_of(recording_of(request), call)
        if json.loads(request.parameters()).get("stream", True):
            async for word in in_words(tokens, self.vocabulary):
                if request.is_cancelled():
                    return
                sender.send(response(word))
        else:
            sender.send(response(await whole_text(tokens, self.vocabulary)))


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([text.encode()], np.object_))])


def recording_of(request):
    """Return the samples, FP32[1, N]."""
    audio = pb_utils.get_input_tensor_by_name(request, "AUDIO")
    wav = pb_utils.get_input_tensor_by_name(request, "WAV")
    if (audio is None) == (wav is None):
        raise BadRecording("give either WAV or AUDIO")
    samples = audio.as_numpy() if wav is None else read_wav(wav.as_numpy()[0], SAMPLES_PER_S)
    if not SAMPLES_PER_S // 10 <= samples.size <= MAX_LENGTH_S * SAMPLES_PER_S:
        length_s = samples.size / SAMPLES_PER_S
        raise BadRecording(f"the recording is {length_s:.2f} s long; expected 0.1 to {MAX_LENGTH_S} s")
    return samples.reshape(1, -1)
