"""Decode a picture, scale its short side to 256, cut the middle 224 x 224 out and normalise it as for ImageNet."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def pixels(picture: Image.Image) -> np.ndarray:
    """Return FP32[1, 3, 224, 224]."""
    scale = 256 / min(picture.size)
    resized = picture.resize((round(picture.width * scale), round(picture.height * scale)))
    left, top = (resized.width - 224) // 2, (resized.height - 224) // 2
    values = np.asarray(resized.crop((left, top, left + 224, top + 224)), np.float32) / 255
    return ((values - MEAN) / DEVIATION).transpose(2, 0, 1)[np.newaxis]


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        content = pb_utils.get_input_tensor_by_name(request, "PICTURE").as_numpy()[0]
        try:
            picture = Image.open(io.BytesIO(content)).convert("RGB")
        except (UnidentifiedImageError, OSError):
            text = f"PICTURE: these {len(content)} bytes are no picture file that can be read"
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
            )
        # Not contiguous after the transpose: the tensor takes care of that.
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels(picture))])
