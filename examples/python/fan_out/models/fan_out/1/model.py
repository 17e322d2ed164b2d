"""Ask the slow model once for each of DELAYS_MS, all at the same time, and add up what it answers."""

import asyncio
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        delays = pb_utils.get_input_tensor_by_name(request, "DELAYS_MS").as_numpy()
        start = time.perf_counter()
        answers = await asyncio.gather(*(ask(x, delay) for delay in delays))
        took_ms = 1e3 * (time.perf_counter() - start)
        failed = next((answer for answer in answers if answer.has_error()), None)
        if failed is not None:
            return failed
        results = [pb_utils.get_output_tensor_by_name(answer, "Y").as_numpy() for answer in answers]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUM", np.sum(results, axis=0, dtype=np.float32)),
                pb_utils.Tensor("TOOK_MS", np.array([took_ms], np.float32)),
            ]
        )


async def ask(x, delay_ms):
    """Return what the slow model answers; all callers send the same tensor, which is in shared memory once."""
    delay = pb_utils.Tensor("DELAY_MS", np.array([delay_ms], np.int32))
    request = pb_utils.InferenceRequest(model_name="slow", inputs=[x, delay], requested_output_names=["Y"])
    return await request.async_exec()
