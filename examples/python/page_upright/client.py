"""Send a page turned four ways to the pipeline, with the official client, and save what comes back.

python examples/python/page_upright/client.py [--http localhost:8000] [PICTURE]
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from PIL import Image

PICTURES = Path(__file__).resolve().parent / "pictures"


def ask(client: triton.InferenceServerClient, content: bytes) -> tuple[int, float, bytes]:
    """Return by how many degrees the page is turned, how sure that is, and the page upright."""
    tensor = triton.InferInput("PICTURE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content], np.object_))
    result = client.infer("upright", [tensor])
    (degrees,), (score,), (upright,) = map(result.as_numpy, ("TURNED_BY", "SCORE", "UPRIGHT"))
    return int(degrees), float(score), upright


def turned(picture: Image.Image, degrees: int) -> bytes:
    """Return the picture turned clockwise, as a PNG file."""
    target = io.BytesIO()
    picture.rotate(-degrees, expand=True).save(target, "PNG")
    return target.getvalue()


def main(argv: list[str] | None = None) -> None:
    """Ask four times, then send something that is no picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", default="localhost:8000")
    parser.add_argument("picture", nargs="?", type=Path, default=PICTURES / "page.png")
    args = parser.parse_args(argv)

    picture = Image.open(args.picture)
    with triton.InferenceServerClient(args.http) as client:
        for given in (0, 90, 180, 270):
            content = turned(picture, given)
            start = time.perf_counter()
            degrees, score, upright = ask(client, content)
            took_ms = 1e3 * (time.perf_counter() - start)
            size = Image.open(io.BytesIO(upright)).size
            print(
                f"turned by {given:3}: the server says {degrees:3} ({score:.2f}), sends {size[0]}×{size[1]} back, {took_ms:.0f} ms"
            )
            (PICTURES / f"upright_{given}.png").write_bytes(upright)
        try:
            ask(client, b"no picture")
        except triton.InferenceServerException as error:
            print(f"a mistake: {error.message()}")


if __name__ == "__main__":
    main()
