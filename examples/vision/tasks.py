"""What stands before and after each model: pictures to tensors, tensors to boxes and text. numpy and Pillow only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels of the picture, and how sure the model is."""

    left: float
    top: float
    right: float
    bottom: float
    score: float

    def overlap(self, other: Box) -> float:
        """Return the area in common, relative to the area of both together."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        common = max(width, 0.0) * max(height, 0.0)
        return common / (self.area + other.area - common)

    @property
    def area(self) -> float:
        """Return the area in square pixels."""
        return (self.right - self.left) * (self.bottom - self.top)


# --- page_orientation: FP32[batch, 3, 224, 224] → four classes -----------------------------------------------------


def orientation_input(picture: Image.Image) -> np.ndarray:
    """Short side to 256, the middle 224 x 224, normalised as for ImageNet."""
    scale = 256 / min(picture.size)
    resized = picture.resize((round(picture.width * scale), round(picture.height * scale)))
    left, top = (resized.width - 224) // 2, (resized.height - 224) // 2
    values = _channels_first(resized.crop((left, top, left + 224, top + 224))) / 255
    mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
    deviation = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
    return ((values - mean) / deviation)[np.newaxis]


# --- face_detector: FP32[batch, 3, H, W] → heat, size and offset of every 4 x 4 cell -------------------------------


def face_input(picture: Image.Image) -> np.ndarray:
    """RGB 0–255, sides cut to multiples of 32."""
    return _channels_first(picture.crop((0, 0, picture.width // 32 * 32, picture.height // 32 * 32)))[
        np.newaxis
    ]


def faces(heat: np.ndarray, size: np.ndarray, offset: np.ndarray, threshold: float = 0.5) -> list[Box]:
    """Decode CenterFace's maps of one picture, best face first."""
    candidates = []
    for row, column in zip(*np.nonzero(heat[0] > threshold), strict=True):
        height, width = np.exp(size[:, row, column]) * 4
        middle_y = (row + offset[0, row, column] + 0.5) * 4
        middle_x = (column + offset[1, row, column] + 0.5) * 4
        candidates.append(
            Box(
                left=middle_x - width / 2,
                top=middle_y - height / 2,
                right=middle_x + width / 2,
                bottom=middle_y + height / 2,
                score=float(heat[0, row, column]),
            )
        )
    found: list[Box] = []
    for box in sorted(candidates, key=lambda box: -box.score):
        if all(box.overlap(better) < 0.3 for better in found):
            found.append(box)
    return found


# --- text_detector: FP32[batch, 3, H, W] → probability of text, per pixel ------------------------------------------


def text_input(picture: Image.Image) -> np.ndarray:
    """BGR, -1 … 1, sides to the nearest multiple of 32."""
    size = (max(round(picture.width / 32), 1) * 32, max(round(picture.height / 32), 1) * 32)
    return _signed(picture.resize(size))[np.newaxis]


def text_boxes(probability: np.ndarray, picture: Image.Image) -> list[Box]:
    """Return the boxes of text lines, top to bottom. Upright text only: a box has the picture's own axes."""
    boxes = []
    scale_x = picture.width / probability.shape[1]
    scale_y = picture.height / probability.shape[0]
    is_text = probability > 0.3
    for rows, columns in _regions(is_text):
        # Of the marked pixels alone: a line that is bent or slanted fills little of its box.
        marked = is_text[rows, columns]
        score = float(probability[rows, columns][marked].mean())
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if score < 0.5 or min(height, width) < 3:
            continue
        # The model marks the core of a line; grow it back to the whole letters.
        margin = np.count_nonzero(marked) * 1.8 / (2 * (height + width))
        boxes.append(
            Box(
                left=max((columns.start - margin) * scale_x, 0),
                top=max((rows.start - margin) * scale_y, 0),
                right=min((columns.stop + margin) * scale_x, picture.width),
                bottom=min((rows.stop + margin) * scale_y, picture.height),
                score=score,
            )
        )
    return sorted(boxes, key=lambda box: box.top)


def _regions(mask: np.ndarray) -> list[tuple[slice, slice]]:
    """Return the bounding rows and columns of each connected region of ``mask``."""
    regions: list[list[int]] = []  # top, bottom, left, right; both ends included
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(line, prepend=False, append=False))
        for left, right in zip(edges[::2], edges[1::2] - 1, strict=True):
            merged = [row, row, int(left), int(right)]
            apart = []
            for region in regions:
                touches = region[1] >= row - 1 and region[2] <= right + 1 and region[3] >= left - 1
                if touches:
                    merged = [
                        min(merged[0], region[0]),
                        row,
                        min(merged[2], region[2]),
                        max(merged[3], region[3]),
                    ]
                else:
                    apart.append(region)
            regions = [*apart, merged]
    return [(slice(top, bottom + 1), slice(left, right + 1)) for top, bottom, left, right in regions]


# --- text_reader: FP32[batch, 3, 48, W] → letter probabilities FP32[batch, W/8, letters] ---------------------------


def reader_input(picture: Image.Image, boxes: list[Box]) -> np.ndarray:
    """Return the lines as one batch: 48 pixels high, padded at the right to the widest (320 at least)."""
    lines = []
    for box in boxes:
        crop = picture.crop((round(box.left), round(box.top), round(box.right), round(box.bottom)))
        lines.append(_signed(crop.resize((max(round(crop.width * 48 / crop.height), 1), 48))))
    widest = max([320, *(line.shape[2] for line in lines)])
    batch = np.zeros((len(lines), 3, 48, widest), np.float32)
    for row, line in zip(batch, lines, strict=True):
        row[:, :, : line.shape[2]] = line
    return batch


def read_lines(probability: np.ndarray) -> list[tuple[str, float]]:
    """Return each line's text and the mean probability of its letters: the best letter per step, repeats dropped."""
    letters = (HERE / "models/text_reader/alphabet.txt").read_text(encoding="utf-8").split("\n")[:-1]
    alphabet = ["", *letters, " "]  # class 0 is "no letter"
    found = []
    for steps in probability:
        classes = steps.argmax(axis=1)
        is_letter = (classes != 0) & (classes != np.roll(classes, 1))
        scores = steps.max(axis=1)[is_letter]
        text = "".join(alphabet[index] for index in classes[is_letter])
        found.append((text, float(scores.mean()) if scores.size else 0.0))
    return found


# --- file_type: INT32[batch, 2048] → 214 classes -------------------------------------------------------------------


def file_type_input(content: bytes) -> np.ndarray:
    """Return the first and the last 1024 bytes, white space at the ends left out, filled up with 256."""
    values = np.full((1, 2048), 256, np.int32)
    first = np.frombuffer(content[:4096].lstrip()[:1024], np.uint8)
    last = np.frombuffer(content[-4096:].rstrip()[-1024:], np.uint8)
    values[0, : first.size] = first
    values[0, 2048 - last.size :] = last
    return values


def _channels_first(picture: Image.Image) -> np.ndarray:
    """RGB 0–255 as FP32[3, H, W]."""
    return np.ascontiguousarray(np.asarray(picture.convert("RGB"), np.float32).transpose(2, 0, 1))


def _signed(picture: Image.Image) -> np.ndarray:
    """BGR -1 … 1 as FP32[3, H, W]."""
    return _channels_first(picture)[::-1] / 127.5 - 1
