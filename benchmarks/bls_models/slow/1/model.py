"""Sleeps 50 ms, and tells how long that was."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer() for _ in requests]

    def answer(self):
        start = time.perf_counter()
        time.sleep(0.05)
        took_ms = 1e3 * (time.perf_counter() - start)
        return pb_utils.InferenceResponse([pb_utils.Tensor("MS", np.array([took_ms]))])
