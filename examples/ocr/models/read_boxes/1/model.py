"""Last step of the ensemble: finds the boxes in the detector's answer, and reads them by calls of `angle` and `reader`."""

from . import ocr_steps
from .ocr_models import OcrModel, array_of, caller, response_of


class TritonPythonModel(OcrModel):
    async def answer(self, request):
        picture, probability = array_of(request, "DECODED"), array_of(request, "PROBABILITY")
        return response_of(await ocr_steps.read_boxes(caller(request), picture, probability, self.alphabet))
