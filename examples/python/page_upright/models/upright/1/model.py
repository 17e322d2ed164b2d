"""Say how a scanned page is turned, and turn it back: preprocess (Python), page_orientation (ONNX), then the rest here."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

BACK = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
"""Pillow turns counter-clockwise, pages are turned clockwise."""


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        picture = pb_utils.get_input_tensor_by_name(request, "PICTURE")
        decoded = self.call("preprocess", [picture], "PIXELS")
        if decoded.has_error():
            return decoded  # its text and its code go to the client as they are
        pixels = pb_utils.get_output_tensor_by_name(decoded, "PIXELS")
        # Another name for the same numbers: nothing is copied.
        found = self.call("page_orientation", [pb_utils.Tensor("x", pixels.as_numpy())], "fetch_name_0")
        if found.has_error():
            return found
        scores = pb_utils.get_output_tensor_by_name(found, "fetch_name_0").as_numpy()[0]
        degrees = 90 * int(scores.argmax())

        outputs = [
            pb_utils.Tensor("TURNED_BY", np.array([degrees], np.int32)),
            pb_utils.Tensor("SCORE", np.array([scores.max()], np.float32)),
        ]
        if "UPRIGHT" in request.requested_output_names():  # work that only some clients want
            upright = turned_back(picture.as_numpy()[0], degrees)
            outputs.append(pb_utils.Tensor("UPRIGHT", np.array([upright], np.object_)))
        return pb_utils.InferenceResponse(outputs)

    def call(self, model, inputs, output):
        """Ask another model of this server and wait for its answer."""
        request = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=[output])
        return request.exec()


def turned_back(content: bytes, degrees: int) -> bytes:
    """Return the picture file turned back by ``degrees``."""
    if degrees == 0:
        return content
    picture = Image.open(io.BytesIO(content)).transpose(BACK[degrees])
    target = io.BytesIO()
    picture.save(target, "PNG")
    return target.getvalue()
