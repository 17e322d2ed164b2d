"""Ask a running server what pictures say, and draw the boxes and the text into copies of them, in ``out/``.

    python examples/ocr/client.py [--http localhost:8000] [--model ocr] [PICTURE...]

``ocr`` is the ensemble, ``ocr_bls`` the script. Without pictures it sends those of build.py.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from ocr_steps import Found
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).resolve().parent
PICTURES = HERE / "pictures"
OUT = HERE / "out"
SAMPLES = ("sample.png", "receipt.png", "receipt_turned.png", "page.png", "motorcycle.png")
COLOUR = (0, 110, 200)


def ask(client: triton.InferenceServerClient, model: str, content: bytes, **options: object) -> Found:
    """Return what the picture in a file says."""
    tensor = triton.InferInput("PICTURE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content], np.object_))
    result = client.infer(model, [tensor], **options)
    texts = [text.decode() for text in result.as_numpy("TEXT")]
    return Found(result.as_numpy("BOXES"), texts, result.as_numpy("SCORES").tolist())


def draw(picture: Image.Image, found: Found) -> Image.Image:
    """Return the picture with its boxes, and beside it each text at the place of its box, turned as it is."""
    beside = Image.new("RGB", picture.size, "white")
    drawn = picture.convert("RGB")
    for box, text in zip(found.boxes, found.texts, strict=True):
        corners = [tuple(corner) for corner in box.tolist()]
        for target in (drawn, beside):
            ImageDraw.Draw(target).polygon(corners, outline=COLOUR, width=2)
        ImageDraw.Draw(drawn).circle(corners[0], 4, fill=COLOUR)  # where the text begins
        write(beside, box, text)
    both = Image.new("RGB", (2 * picture.width + 8, picture.height), COLOUR)
    both.paste(drawn, (0, 0))
    both.paste(beside, (picture.width + 8, 0))
    return both


def write(picture: Image.Image, box: np.ndarray, text: str) -> None:
    """Write a text into its box."""
    along, down = box[1] - box[0], box[3] - box[0]
    width, height = max(round(np.hypot(*along)), 1), max(round(np.hypot(*down)), 1)
    font = ImageFont.load_default(size=max(height * 0.7, 6))
    _, top, right, bottom = font.getbbox(text)
    label = Image.new("L", (max(round(right), 1) + 4, max(round(bottom + top), 1)))
    ImageDraw.Draw(label).text((2, 0), text, fill=255, font=font)
    label = label.resize((width, height))
    # From a pixel of the picture to one of the label.
    x, y = along / max(np.dot(along, along), 1) * width, down / max(np.dot(down, down), 1) * height
    matrix = (*x, -np.dot(x, box[0]), *y, -np.dot(y, box[0]))
    mask = label.transform(
        picture.size, Image.Transform.AFFINE, [float(value) for value in matrix], Image.Resampling.BILINEAR
    )
    picture.paste("black", (0, 0), mask)


def save(path: Path, found: Found) -> Path:
    """Draw into a copy of the picture; return where it is."""
    OUT.mkdir(exist_ok=True)
    target = OUT / f"{path.stem}.png"
    with Image.open(path) as picture:
        draw(picture, found).save(target)
    return target


def main(argv: list[str] | None = None) -> None:
    """Ask, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--http", default="localhost:8000", help="the server's HTTP address")
    parser.add_argument("--model", default="ocr", choices=("ocr", "ocr_bls"))
    parser.add_argument("picture", nargs="*", type=Path)
    options = parser.parse_args(argv)
    with triton.InferenceServerClient(options.http) as client:
        for path in options.picture or [PICTURES / name for name in SAMPLES]:
            start = time.perf_counter()
            found = ask(client, options.model, path.read_bytes())
            took_ms = 1e3 * (time.perf_counter() - start)
            print(f"\n{path.name}  {took_ms:.0f} ms  → {save(path, found)}")
            for text, score in zip(found.texts, found.scores, strict=True):
                print(f"  {score:.2f}  {text}")


if __name__ == "__main__":
    main()
