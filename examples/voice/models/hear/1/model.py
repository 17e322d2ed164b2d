"""Speech to text: the encoder once, then the decoder for each token.

decoder.py (the loop), calls.py (BLS) and words.py are those of examples/python/speech; build.py copies them.
``execute`` is async: while one recording waits for its next token, others go on in the same process.
"""

import asyncio
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from .calls import Failed, call
from .decoder import tokens_of
from .spoken import spoken_part
from .words import Vocabulary, whole_text


class TritonPythonModel:
    def initialize(self, args):
        self.vocabulary = Vocabulary(Path(pb_utils.get_model_dir()) / "tokenizer.bin")

    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        audio, speech = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("AUDIO", "SPEECH")
        )
        try:
            heard = await whole_text(tokens_of(spoken_part(audio, speech), call), self.vocabulary)
        except Failed as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor("HEARD", np.array([heard.encode()], np.object_))])
