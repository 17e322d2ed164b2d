"""Find out what is wanted, and what to say."""

from datetime import datetime
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from .meaning import load, nearest
from .replies import reply_to


class TritonPythonModel:
    def initialize(self, args):
        self.examples = load(Path(pb_utils.get_model_dir()) / "examples.npz")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        heard = pb_utils.get_input_tensor_by_name(request, "HEARD").as_numpy()[0].decode()
        hidden = pb_utils.get_input_tensor_by_name(request, "HIDDEN").as_numpy()
        intent, similarity = nearest(hidden, self.examples)
        reply = reply_to(intent, heard, datetime.now().astimezone())
        return pb_utils.InferenceResponse(
            [
                text_tensor("INTENT", intent),
                pb_utils.Tensor("SIMILARITY", np.array([similarity], np.float32)),
                text_tensor("REPLY", reply),
            ]
        )


def text_tensor(name, text):
    return pb_utils.Tensor(name, np.array([text.encode()], np.object_))
