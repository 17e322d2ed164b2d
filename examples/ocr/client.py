"""Ask a running server what pictures say, and draw the boxes and the text into copies of them, in ``out/``.

    python examples/ocr/client.py [--http localhost:8000] [--model ocr] [PICTURE...]

``ocr`` is the ensemble, ``ocr_bls`` the script. Without pictures it sends those of build.py.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
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
MIN_WIDTH = 800
"""Smaller pictures are enlarged, by a whole number, to draw into them."""


def ask(client: triton.InferenceServerClient, model: str, content: bytes, **options: object) -> Found:
    """Return what the picture in a file says."""
    return found_in(client.infer(model, [tensor_of(content)], **options))


def ask_all(client: triton.InferenceServerClient, model: str, contents: list[bytes]) -> list[Found]:
    """Ask about several pictures at once, one request each; the client needs as many connections."""
    pending = [client.async_infer(model, [tensor_of(content)]) for content in contents]
    return [found_in(each.get_result()) for each in pending]


def tensor_of(content: bytes) -> triton.InferInput:
    """Return the input that a picture in a file is."""
    tensor = triton.InferInput("PICTURE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content], np.object_))
    return tensor


def found_in(result: triton.InferResult) -> Found:
    """Return what a response says."""
    texts = [text.decode() for text in result.as_numpy("TEXT")]
    return Found(result.as_numpy("BOXES"), texts, result.as_numpy("SCORES").tolist())


def ask_gateway(url: str, content: bytes) -> Found:
    """Return what the gateway says of it."""
    with urllib.request.urlopen(f"http://{url}/ocr", content) as answer:
        found = json.load(answer)
    boxes = np.array(found["BOXES"], np.float32).reshape(-1, 4, 2)
    return Found(boxes, found["TEXT"], found["SCORES"])


def draw(picture: Image.Image, found: Found) -> Image.Image:
    """Return the picture with its boxes and, beside it, each text where its box is and turned as it is."""
    scale = max(1, MIN_WIDTH // picture.width)
    size = (picture.width * scale, picture.height * scale)
    drawn, read = picture.convert("RGB").resize(size), Image.new("RGB", size, "white")
    for box, text in zip(found.boxes * scale, found.texts, strict=True):
        corners = [tuple(corner) for corner in box.tolist()]
        ImageDraw.Draw(drawn).polygon(corners, outline=COLOUR, width=2)
        ImageDraw.Draw(drawn).circle(corners[0], 4, fill=COLOUR)  # where the text begins
        write(read, box, text)
    both = Image.new("RGB", (2 * drawn.width + 8, drawn.height), COLOUR)
    both.paste(drawn, (0, 0))
    both.paste(read, (drawn.width + 8, 0))
    return both


def write(picture: Image.Image, box: np.ndarray, text: str) -> None:
    """Write a text into its box."""
    along, down = box[1] - box[0], box[3] - box[0]
    width, height = max(round(np.hypot(*along)), 1), max(round(np.hypot(*down)), 1)
    font = ImageFont.load_default(size=64)
    label = Image.new("L", (max(round(font.getlength(text)), 1), 96))  # 16 above and below the letters
    ImageDraw.Draw(label).text((0, 68), text, fill=255, font=font, anchor="ls")
    label = label.resize((width, height))
    # From a pixel of the picture to one of the label.
    x, y = along / max(width, 1), down / max(height, 1)
    matrix = [float(value) for value in (*x, -x @ box[0], *y, -y @ box[0])]
    mask = label.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
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
