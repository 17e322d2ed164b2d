"""What the Python models share: how they call other models, take requests and answer. build.py puts a copy beside each."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

from . import ocr_steps


class CallFailed(Exception):
    """A model that was called answered with an error, the argument."""


class OcrModel:
    """A model of which each request is answered on its own, while others wait for models that they called."""

    def initialize(self, args):
        self.alphabet = ocr_steps.read_alphabet()

    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer_or_fail, requests))

    async def answer_or_fail(self, request):
        try:
            return await self.answer(request)
        except ocr_steps.BadPicture as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            )
        except CallFailed as failed:
            return pb_utils.InferenceResponse(error=failed.args[0])


def array_of(request, name):
    """Return an input of the request, or None if it is left out."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def picture_of(request):
    """Return the picture, UINT8[height, width, 3], that a client sent as a file or as an array.

    Raises:
        BadPicture: there is none.
    """
    content, pixels = array_of(request, "PICTURE"), array_of(request, "PIXELS")
    if (content is None) == (pixels is None):
        raise ocr_steps.BadPicture("give either PICTURE or PIXELS")
    return ocr_steps.decode(content.ravel()[0]) if pixels is None else ocr_steps.checked(pixels)


def caller(request):
    """Return what calls models on behalf of the request, as ocr_steps.Call."""

    async def call(model, array):
        output = ocr_steps.OUTPUTS[model]
        made = pb_utils.InferenceRequest(
            model_name=model,
            inputs=[pb_utils.Tensor("x", array)],
            requested_output_names=[output],
            trace=request.trace(),
        )
        response = await made.async_exec()
        if response.has_error():
            raise CallFailed(response.error())
        return pb_utils.get_output_tensor_by_name(response, output).as_numpy()

    return call


def response_of(found):
    """Return the response that says what was found, an ocr_steps.Found."""
    texts = np.array([text.encode() for text in found.texts], np.object_)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("BOXES", found.boxes),
            pb_utils.Tensor("TEXT", texts),
            pb_utils.Tensor("SCORES", np.array(found.scores, np.float32)),
        ]
    )
