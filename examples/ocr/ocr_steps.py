"""What stands before, between and after the models: pictures to tensors, tensors to boxes, lines and text.

numpy and Pillow only. The models in ``models/`` (build.py puts a copy beside each ``model.py``) and the gateway use the
same functions, so all of them find the same text.

Pictures are UINT8[height, width, 3], RGB. Boxes are FP32[4, 2]: x and y of the corners, clockwise, from the upper left one
of the text. Lines are pictures that are LINE_HEIGHT high.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

OUTPUTS = {
    "text_detector": "fetch_name_0",
    "angle": "save_infer_model/scale_0.tmp_1",
    "reader": "fetch_name_0",
}
"""The models that are called, each with its output; the input of all of them is ``x``."""

MAX_SIDE = 1280
"""Longer sides are shrunk to this before text is looked for: a photo of 12 megapixels would take half a minute."""
CELL = 32
"""The detector wants sides that are multiples of this."""
IS_TEXT = 0.3
"""Probability from which a pixel is text."""
MIN_SCORE = 0.5
"""Mean probability from which a region is text."""
MIN_SIDE = 3
"""Regions that are thinner, in pixels, are no text."""
GROWTH = 1.6
"""The detector marks the core of a line; area × this / perimeter is what is missing at each side."""
ANGLES = np.radians(np.arange(-45, 45, 0.5))
"""The tilts that are tried for a box."""

LINE_HEIGHT = 48
ANGLE_WIDTH = 192
IS_TURNED = 0.75
"""Mean probability of 180° from which a picture stands on its head."""
MIN_READER_WIDTH = 320
READER_STEP = 160
"""The reader takes lines of any width. Widths of 320, 480, 640, … let lines of several pictures share a batch."""
MIN_READ_SCORE = 0.5
"""Mean probability of the letters below which a line is no text."""
ANGLE_LINES = 16
"""Lines in a call of ``angle``: its ``max_batch_size``."""
READER_LINES = 4
"""Lines in a call of ``reader``: half its ``max_batch_size``. Calls of one picture run side by side, a core each; where more
wait than there are cores, the server puts them together again."""


class BadPicture(ValueError):
    """The picture cannot be used, for the reason that the text names."""


# --- the picture ---------------------------------------------------------------------------------------------------


def decode(content: bytes) -> np.ndarray:
    """Return the picture in a file of any format that Pillow reads.

    Raises:
        BadPicture: it reads none of it.
    """
    try:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadPicture(
            f"PICTURE: these {len(content)} bytes are no picture file that can be read"
        ) from error


def checked(picture: np.ndarray) -> np.ndarray:
    """Return the picture.

    Raises:
        BadPicture: the array is none.
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise BadPicture(f"PIXELS has shape {list(picture.shape)}; expected [height, width, 3]")
    return picture


def detector_input(picture: np.ndarray) -> np.ndarray:
    """Return FP32[1, 3, H, W]: the picture with sides that are multiples of CELL."""
    scale = min(1.0, MAX_SIDE / max(picture.shape[:2]))
    height, width = (max(round(side * scale / CELL), 1) * CELL for side in picture.shape[:2])
    return normalised(np.asarray(Image.fromarray(picture).resize((width, height))))[np.newaxis]


def normalised(picture: np.ndarray) -> np.ndarray:
    """Return FP32[3, H, W]: blue, green, red, from -1 to 1."""
    values = np.empty((3, *picture.shape[:2]), np.float32)
    np.multiply(picture.transpose(2, 0, 1)[::-1], np.float32(1 / 127.5), out=values)
    values -= 1
    return values


# --- boxes ---------------------------------------------------------------------------------------------------------


def find_boxes(probability: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the boxes, FP32[N, 4, 2], in reading order, in pixels of the picture of that height and width.

    ``probability`` is FP32[H, W], the detector's answer.
    """
    scale = np.array([width / probability.shape[1], height / probability.shape[0]], np.float32)
    found = [
        rectangle(points) * scale
        for points, score in regions(probability)
        if score >= MIN_SCORE and np.ptp(points, axis=0).min() >= MIN_SIDE - 1
    ]
    boxes = np.clip(np.array(found, np.float32).reshape(-1, 4, 2), 0, [width, height]).astype(np.float32)
    return boxes[reading_order(boxes)]


def regions(probability: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """Return the connected regions of text: the ends of their rows, FP32[n, 2] as x and y, and the mean probability."""
    grown = np.zeros((probability.shape[0], probability.shape[1] + 1), bool)  # a gap after each row
    is_text = probability > IS_TEXT
    grown[:, :-1] = is_text
    grown[1:, :-1] |= is_text[:-1]
    grown[:, 1:-1] |= grown[:, :-2]
    stride = grown.shape[1]
    edges = np.flatnonzero(np.diff(grown.ravel(), prepend=False))
    starts, ends = edges[::2], edges[1::2]
    if not starts.size:
        return []
    labels = connected(starts, ends, stride)
    order = np.argsort(labels, kind="stable")
    splits = np.flatnonzero(np.diff(labels[order])) + 1
    sums = np.concatenate(([0.0], np.cumsum(np.pad(probability, ((0, 0), (0, 1))).ravel(), dtype=np.float64)))
    found = []
    for runs in np.split(order, splits):
        first, last = starts[runs], ends[runs]
        y = first // stride
        x = np.concatenate((first % stride, (last - 1) % stride))
        score = (sums[last] - sums[first]).sum() / (last - first).sum()
        found.append((np.stack((x, np.concatenate((y, y))), axis=1).astype(np.float32), float(score)))
    return found


def connected(starts: np.ndarray, ends: np.ndarray, stride: int) -> np.ndarray:
    """Return a label for each run of pixels: the same for those that touch, at a corner too, directly or by others.

    Runs are given by the position of their start and end in an array whose rows are ``stride`` long.
    """
    first = np.searchsorted(ends, starts + stride)
    num_below = np.maximum(np.searchsorted(starts, ends + stride, side="right") - first, 0)
    upper = np.repeat(np.arange(starts.size), num_below)
    lower = np.arange(upper.size) + np.repeat(first - np.cumsum(num_below) + num_below, num_below)
    labels = np.arange(starts.size)
    while True:
        least = np.minimum(labels[upper], labels[lower])
        if np.array_equal(labels[upper], labels[lower]):
            return labels
        np.minimum.at(labels, labels[upper], least)
        np.minimum.at(labels, labels[lower], least)
        labels = labels[labels]


def rectangle(points: np.ndarray) -> np.ndarray:
    """Return the box of least area around the points, grown to the whole letters."""
    along = np.stack((np.cos(ANGLES), np.sin(ANGLES)))
    across = np.stack((-np.sin(ANGLES), np.cos(ANGLES)))
    reach = np.stack([points @ along, points @ across])  # [2, points, angles]
    low, high = reach.min(axis=1), reach.max(axis=1)
    area = np.prod(high - low, axis=0)
    fitting = np.flatnonzero(area <= area.min() * 1.02)
    best = fitting[np.abs(ANGLES[fitting]).argmin()]  # steps at the edge of a region are no tilt
    (left, top), (right, bottom) = low[:, best], high[:, best]
    margin = (right - left) * (bottom - top) * GROWTH / max(2 * (right - left + bottom - top), 1)
    left, top, right, bottom = left - margin, top - margin, right + margin, bottom + margin
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    if bottom - top >= 1.5 * (right - left):
        corners = np.roll(corners, 1, axis=0)  # a line that runs upwards, or downwards: `upright` will see
    return corners @ np.stack((along[:, best], across[:, best]))


def reading_order(boxes: np.ndarray) -> np.ndarray:
    """Return the order from row to row and, within a row, from word to word; the longest line says which way that is."""
    if not len(boxes):
        return np.zeros(0, int)
    sides = boxes[:, 1] - boxes[:, 0]
    lengths = np.linalg.norm(sides, axis=1)
    x, y = sides[lengths.argmax()] / lengths.max()
    along, down = np.array([[x, y], [-y, x]]) @ boxes.mean(axis=1).T
    heights = np.linalg.norm(boxes[:, 3] - boxes[:, 0], axis=1)
    rows = np.zeros(len(boxes), int)
    row, row_down = 0, -np.inf
    for number in np.argsort(down, kind="stable"):
        if down[number] > row_down + heights[number] / 2:
            row, row_down = row + 1, down[number]
        rows[number] = row
    return np.lexsort((along, rows))


# --- lines ---------------------------------------------------------------------------------------------------------


def crop_lines(picture: np.ndarray, boxes: np.ndarray) -> list[np.ndarray]:
    """Cut the boxes out, each turned upright and LINE_HEIGHT high."""
    image = Image.fromarray(picture)
    return [crop_line(image, box) for box in boxes]


def crop_line(image: Image.Image, box: np.ndarray) -> np.ndarray:
    """Cut one box out."""
    width = max(round(float(np.linalg.norm(box[1] - box[0]))), 1)
    height = max(round(float(np.linalg.norm(box[3] - box[0]))), 1)
    corners = box[[0, 3, 2, 1]].ravel().tolist()
    crop = image.transform((width, height), Image.Transform.QUAD, corners, Image.Resampling.BICUBIC)
    return np.asarray(crop.resize((max(round(crop.width * LINE_HEIGHT / crop.height), 1), LINE_HEIGHT)))


def angle_input(lines: list[np.ndarray]) -> np.ndarray:
    """Return FP32[N, 3, 48, 192]: how longer lines begin, as letters that are squeezed are hard to tell."""
    batch = np.zeros((len(lines), 3, LINE_HEIGHT, ANGLE_WIDTH), np.float32)
    for row, line in zip(batch, lines, strict=True):
        start = line[:, :ANGLE_WIDTH]
        row[:, :, : start.shape[1]] = normalised(start)
    return batch


def upright(
    boxes: np.ndarray, lines: list[np.ndarray], angles: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Turn boxes and lines by 180° if the picture stands on its head.

    ``angles`` is FP32[N, 2], the answers of ``angle``. All lines vote: of small ones it gets every fifth wrong.
    """
    if angles[:, 1].mean() <= IS_TURNED:
        return boxes, lines
    return boxes[::-1, [2, 3, 0, 1]], [line[::-1, ::-1] for line in reversed(lines)]


def reader_groups(lines: list[np.ndarray]) -> list[tuple[list[int], np.ndarray]]:
    """Return batches for the reader, FP32[n, 3, 48, width], each with the numbers of its lines."""
    by_width: dict[int, list[int]] = {}
    for number, line in enumerate(lines):
        width = max(MIN_READER_WIDTH, -(-line.shape[1] // READER_STEP) * READER_STEP)
        by_width.setdefault(width, []).append(number)
    groups = []
    for width, numbers in by_width.items():
        for chosen in parts(numbers, READER_LINES):
            batch = np.zeros((len(chosen), 3, LINE_HEIGHT, width), np.float32)
            for row, number in zip(batch, chosen, strict=True):
                row[:, :, : lines[number].shape[1]] = normalised(lines[number])
            groups.append((chosen, batch))
    return groups


def parts(items: list, size: int) -> list[list]:
    """Cut a list into parts of at most that size."""
    return [items[start : start + size] for start in range(0, len(items), size)]


# --- letters -------------------------------------------------------------------------------------------------------


def read_alphabet() -> list[str]:
    """Return the letter of each class, from the file beside this one: 0 is "no letter", the last one a blank."""
    letters = Path(__file__).with_name("alphabet.txt").read_text(encoding="utf-8").split("\n")[:-1]
    return ["", *letters, " "]


def decode_letters(probability: np.ndarray, alphabet: list[str]) -> list[tuple[str, float]]:
    """Return text and mean probability of each line: the best letter of each step, repeats dropped.

    ``probability`` is FP32[N, steps, letters], the reader's answer.
    """
    best = probability.argmax(axis=2)
    scores = np.take_along_axis(probability, best[..., np.newaxis], axis=2)[..., 0]
    is_letter = (best != 0) & (best != np.pad(best, ((0, 0), (1, 0)))[:, :-1])
    return [
        (
            "".join(alphabet[letter] for letter in line[kept]).strip(),
            float(score[kept].mean()) if kept.any() else 0.0,
        )
        for line, score, kept in zip(best, scores, is_letter, strict=True)
    ]


# --- the cascade ---------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a picture says. N lines, in reading order."""

    boxes: np.ndarray
    """FP32[N, 4, 2]"""
    texts: list[str]
    scores: list[float]


Call = Callable[[str, np.ndarray], Awaitable[np.ndarray]]
"""Gives an array to a model of OUTPUTS, and returns the array that it answers with."""


async def read_picture(call: Call, picture: np.ndarray, alphabet: list[str]) -> Found:
    """Find the lines of a picture and read them."""
    probability = await call("text_detector", detector_input(picture))
    return await read_boxes(call, picture, probability, alphabet)


async def read_boxes(call: Call, picture: np.ndarray, probability: np.ndarray, alphabet: list[str]) -> Found:
    """Read the lines that the detector's answer, FP32[1, 1, H, W], marks. Calls that may run together do."""
    boxes = find_boxes(probability[0, 0], *picture.shape[:2])
    if not len(boxes):
        return Found(boxes, [], [])
    lines = crop_lines(picture, boxes)
    angles = await asyncio.gather(*(call("angle", angle_input(part)) for part in parts(lines, ANGLE_LINES)))
    boxes, lines = upright(boxes, lines, np.concatenate(angles))
    groups = reader_groups(lines)
    answers = await asyncio.gather(*(call("reader", batch) for _, batch in groups))
    read: dict[int, tuple[str, float]] = {}
    for (numbers, _), answer in zip(groups, answers, strict=True):
        read.update(zip(numbers, decode_letters(answer, alphabet), strict=True))
    kept = [number for number in range(len(lines)) if read[number][1] >= MIN_READ_SCORE]
    return Found(boxes[kept], [read[number][0] for number in kept], [read[number][1] for number in kept])
