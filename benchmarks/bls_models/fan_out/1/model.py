"""Asks eight slow models at once; tells what all took together, then each alone, in ms."""

import asyncio
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        start = time.perf_counter()
        responses = await asyncio.gather(*(self.ask(x) for _ in range(8)))
        total_ms = 1e3 * (time.perf_counter() - start)
        each = [float(pb_utils.get_output_tensor_by_name(r, "MS").as_numpy()[0]) for r in responses]
        return pb_utils.InferenceResponse([pb_utils.Tensor("MS", np.array([total_ms, *each]))])

    async def ask(self, x):
        call = pb_utils.InferenceRequest(model_name="slow", inputs=[x], requested_output_names=["MS"])
        return await call.async_exec()
