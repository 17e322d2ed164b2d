"""Turn a text into sounds."""

from pathlib import Path

import triton_python_backend_utils as pb_utils

from .phonemes import SPEED, Phonemes


class TritonPythonModel:
    def initialize(self, args):
        self.phonemes = Phonemes(Path(pb_utils.get_model_dir()) / "vocabulary.json")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "REPLY").as_numpy()[0].decode()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("IDS", self.phonemes.ids(text)), pb_utils.Tensor("SPEED", SPEED)]
        )
