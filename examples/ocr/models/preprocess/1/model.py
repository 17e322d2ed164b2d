"""First step of the ensemble: a picture, as a file or as an array, becomes what the detector takes."""

import triton_python_backend_utils as pb_utils

from . import ocr_steps
from .ocr_models import OcrModel, picture_of


class TritonPythonModel(OcrModel):
    async def answer(self, request):
        picture = picture_of(request)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("DETECTOR_INPUT", ocr_steps.detector_input(picture)),
                pb_utils.Tensor("DECODED", picture),  # an array that came as PIXELS is handed on, not copied
            ]
        )
