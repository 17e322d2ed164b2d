"""Read a line of text: with the light model, and again with the heavy one if the light one is not sure."""

import io
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

OUTPUTS = {"read_light": "softmax_11.tmp_0", "read_heavy": "fetch_name_0"}


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.threshold = float(parameters["threshold"]["string_value"])
        folder = Path(pb_utils.get_model_dir())
        self.alphabets = {model: alphabet(folder / f"{model}.txt") for model in OUTPUTS}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        content = pb_utils.get_input_tensor_by_name(request, "PICTURE").as_numpy()[0]
        try:
            line = pb_utils.Tensor("x", pixels(Image.open(io.BytesIO(content)).convert("RGB")))
            reader = "read_light"
            text, score = self.read(reader, line)
            if score < self.threshold:
                reader = "read_heavy"
                text, score = self.read(reader, line)  # the same tensor: it is sent once
        except UnidentifiedImageError:
            return failed("PICTURE is no picture file that can be read", pb_utils.TritonError.INVALID_ARG)
        except pb_utils.TritonModelException as error:
            return failed(str(error), pb_utils.TritonError.INTERNAL)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("TEXT", np.array([text.encode()], np.object_)),
                pb_utils.Tensor("SCORE", np.array([score], np.float32)),
                pb_utils.Tensor("READER", np.array([reader.encode()], np.object_)),
            ]
        )

    def read(self, model, line):
        """Return text and confidence."""
        request = pb_utils.InferenceRequest(
            model_name=model, inputs=[line], requested_output_names=[OUTPUTS[model]]
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        (steps,) = pb_utils.get_output_tensor_by_name(response, OUTPUTS[model]).as_numpy()
        return decoded(steps, self.alphabets[model])


def failed(text, code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


def alphabet(path: Path) -> list[str]:
    """Return the letter of each class: 0 is "no letter", the last one a blank."""
    return ["", *path.read_text(encoding="utf-8").split("\n")[:-1], " "]


def pixels(line: Image.Image) -> np.ndarray:
    """Return the line 48 pixels high, BGR, -1 … 1, as FP32[1, 3, 48, width], padded to 320 at least."""
    line = line.resize((max(round(line.width * 48 / line.height), 1), 48))
    values = np.asarray(line, np.float32)[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
    padded = np.zeros((1, 3, 48, max(320, line.width)), np.float32)
    padded[0, :, :, : line.width] = values
    return padded


def decoded(steps: np.ndarray, letters: list[str]) -> tuple[str, float]:
    """Return the best letter of each step, repeats dropped, and the mean probability of the letters."""
    classes = steps.argmax(axis=1)
    is_letter = (classes != 0) & (classes != np.roll(classes, 1))
    scores = steps.max(axis=1)[is_letter]
    text = "".join(letters[index] for index in classes[is_letter])
    return text.strip(), float(scores.mean()) if scores.size else 0.0
