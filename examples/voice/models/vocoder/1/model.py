"""Turn a spectrum into sound."""

import triton_python_backend_utils as pb_utils

from .vocoder import PARTS, sound_of


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    parts = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in PARTS}
    return pb_utils.InferenceResponse([pb_utils.Tensor("AUDIO", sound_of(parts))])
