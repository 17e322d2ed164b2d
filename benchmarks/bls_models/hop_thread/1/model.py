"""Passes its input on to another model, COUNT times, and tells how long each call took."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.callee = json.loads(args["model_config"])["parameters"]["callee"]["string_value"]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
        took_us = np.empty(count)
        for index in range(count):
            start = time.perf_counter_ns()
            call = pb_utils.InferenceRequest(model_name=self.callee, inputs=[x], requested_output_names=["Y"])
            response = call.exec()
            array = pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
            took_us[index] = (time.perf_counter_ns() - start) / 1e3
            if array.size != x.as_numpy().size:
                raise ValueError("not what was sent")
        return pb_utils.InferenceResponse([pb_utils.Tensor("US", took_us)])
