"""Draw lines of text, the later ones worse and worse to read, and ask who could read them.

python examples/python/cascade/client.py [--http localhost:8000] [PICTURE...]
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from PIL import Image, ImageDraw, ImageFilter, ImageFont

LINES = (
    ("TOTAL: 129.50 EUR", 0, 0),
    ("Invoice No. 4711", 0, 0),
    ("Hello World 2026", 60, 0),
    ("Hello World 2026", 90, 1),
)
"""What to draw: text, noise, blur."""


def draw(text: str, noise: float, blur: float) -> bytes:
    """Return a picture file with one line of text."""
    font = ImageFont.load_default(size=32)
    _, _, right, bottom = font.getbbox(text)
    picture = Image.new("RGB", (int(right) + 20, int(bottom) + 12), "white")
    ImageDraw.Draw(picture).text((10, 6), text, fill="black", font=font)
    picture = picture.filter(ImageFilter.GaussianBlur(blur))
    grain = np.random.default_rng(0).normal(0, noise, (picture.height, picture.width, 1))
    values = (np.asarray(picture, np.float32) + grain).clip(0, 255).astype(np.uint8)
    target = io.BytesIO()
    Image.fromarray(values).save(target, "PNG")
    return target.getvalue()


def ask(client: triton.InferenceServerClient, content: bytes) -> tuple[str, float, str]:
    """Return the text, the confidence, and the model that read it."""
    tensor = triton.InferInput("PICTURE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content], np.object_))
    result = client.infer("read_line", [tensor])
    (text,), (score,), (reader,) = map(result.as_numpy, ("TEXT", "SCORE", "READER"))
    return text.decode(), float(score), reader.decode()


def main(argv: list[str] | None = None) -> None:
    """Ask about each line; then how often each model ran."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", default="localhost:8000")
    parser.add_argument("pictures", nargs="*", type=Path)
    args = parser.parse_args(argv)

    contents = {path.name: path.read_bytes() for path in args.pictures}
    contents = contents or {f"{text}, noise {noise}": draw(text, noise, blur) for text, noise, blur in LINES}
    with triton.InferenceServerClient(args.http) as client:
        for name, content in contents.items():
            start = time.perf_counter()
            text, score, reader = ask(client, content)
            took_ms = 1e3 * (time.perf_counter() - start)
            print(f"{name:28} {text!r:22} {score:.3f}  {reader:10} {took_ms:5.1f} ms")
        for model in ("read_light", "read_heavy"):
            (statistics,) = client.get_inference_statistics(model)["model_stats"]
            print(f"{model} has run {statistics['inference_count']} times")


if __name__ == "__main__":
    main()
