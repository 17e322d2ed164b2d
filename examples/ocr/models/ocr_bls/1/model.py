"""The whole cascade in one script, which calls `text_detector`, `angle` and `reader`."""

from . import ocr_steps
from .ocr_models import OcrModel, caller, picture_of, response_of


class TritonPythonModel(OcrModel):
    async def answer(self, request):
        return response_of(await ocr_steps.read_picture(caller(request), picture_of(request), self.alphabet))
