"""Y = X * X, after DELAY_MS. ``execute`` is async: while one request waits, the same process runs the next ones."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        delay_ms = int(pb_utils.get_input_tensor_by_name(request, "DELAY_MS").as_numpy()[0])
        await asyncio.sleep(delay_ms / 1e3)
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * x)])
