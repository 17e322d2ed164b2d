import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "X")
            ra = pb_utils.InferenceRequest(
                model_name="plus_one_a", inputs=[x], requested_output_names=["Y"]
            ).exec()
            y = pb_utils.Tensor("X", pb_utils.get_output_tensor_by_name(ra, "Y").as_numpy())
            rb = pb_utils.InferenceRequest(
                model_name="plus_one_b", inputs=[y], requested_output_names=["Y"]
            ).exec()
            out.append(pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(rb, "Y")]))
        return out
