"""Cut a recording into frames."""

import triton_python_backend_utils as pb_utils

from .frames import STATE, BadRecording, frames_of


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    audio = pb_utils.get_input_tensor_by_name(request, "AUDIO").as_numpy()
    try:
        outputs = [pb_utils.Tensor("FRAMES", frames_of(audio)), pb_utils.Tensor("STATE", STATE)]
    except BadRecording as error:
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
        )
    return pb_utils.InferenceResponse(outputs)
