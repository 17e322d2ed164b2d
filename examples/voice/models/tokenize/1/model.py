"""Cut a sentence into pieces of words."""

from pathlib import Path

import triton_python_backend_utils as pb_utils

from .pieces import load, pieces_of

NAMES = {"input_ids": "IDS", "attention_mask": "MASK", "token_type_ids": "TYPES"}


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = load(Path(pb_utils.get_model_dir()) / "tokenizer.json")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        heard = pb_utils.get_input_tensor_by_name(request, "HEARD").as_numpy()[0].decode()
        pieces = pieces_of(heard, self.tokenizer)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(NAMES[name], array) for name, array in pieces.items()]
        )
