"""Answer N with N responses, from within execute; the last one carries the final mark. N = 0 is answered with none."""

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "N").as_numpy()
            sender = request.get_response_sender()
            count = int(number[0])
            for sent in range(1, count + 1):
                response = pb_utils.InferenceResponse([pb_utils.Tensor("N", number)])
                sender.send(response, flags=FINAL if sent == count else 0)
            if count < 1:
                sender.send(flags=FINAL)
