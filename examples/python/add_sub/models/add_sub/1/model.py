"""OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Called once, before the first request; ``args`` has the model's name, version and config."""
        pb_utils.Logger.log_info(f"{args['model_name']} version {args['model_version']} is here")

    def execute(self, requests):
        """Answer a batch: one response for each request, in the same order."""
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            if a.shape != b.shape:
                text = f"INPUT0 has shape {list(a.shape)} and INPUT1 {list(b.shape)}: they must be the same"
                error = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

    def finalize(self):
        """Called once, when the model is unloaded."""
        pb_utils.Logger.log_info("add_sub is gone")
