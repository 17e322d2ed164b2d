"""Ask a running server about pictures, with the official Triton client, and print the answers.

    python examples/vision/client.py [--url localhost:8000] [--metrics localhost:8002] [PICTURE...]

Without pictures it sends the three of build.py. Annotated copies are written to ``pictures/``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tasks
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PICTURES = HERE / "pictures"
PROJECT = HERE.parents[1]
SAMPLES = ("astronaut.png", "page.png", "sample.png")
PATTERNS = (
    "[!.]*",
    "examples/vision/pictures/*.png",
    "examples/vision/models/*/*.pbtxt",
    "docs/*",
    "src/**/*.py",
)
"""Files of this project that are sent in the burst, in this order."""
BURST_SIZE = 64
NUM_TRIES = 3
MAX_LINES = 8
"""The text reader's max_batch_size."""

console = Console(highlight=False)
if not console.is_terminal:
    console.width = 100  # a log file wraps nothing


class Server:
    """The server, one method per model. Each returns its findings and how long the answer took, in milliseconds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = triton.InferenceServerClient(url)

    def orientation(self, picture: Image.Image) -> tuple[str, float, float]:
        """Return how the page is turned, the probability, and the time. The server looks the class's name up."""
        output = triton.InferRequestedOutput("fetch_name_0", class_count=1)
        answer, took_ms = self._ask("page_orientation", {"x": tasks.orientation_input(picture)}, [output])
        value, _, label = answer["fetch_name_0"].ravel()[0].decode().split(":")
        return label, float(value), took_ms

    def file_type(self, content: bytes) -> tuple[str, float, float]:
        """Return what kind of file the bytes are, the probability, and the time."""
        output = triton.InferRequestedOutput("target_label", class_count=1)
        answer, took_ms = self._ask("file_type", {"bytes": tasks.file_type_input(content)}, [output])
        value, _, label = answer["target_label"].ravel()[0].decode().split(":")
        return label, float(value), took_ms

    def faces(self, picture: Image.Image) -> tuple[list[tasks.Box], float]:
        """Return the faces, best first, and the time."""
        outputs = [triton.InferRequestedOutput(name) for name in ("537", "538", "539")]
        answer, took_ms = self._ask("face_detector", {"input.1": tasks.face_input(picture)}, outputs)
        return tasks.faces(*(answer[name][0] for name in ("537", "538", "539"))), took_ms

    def text(self, picture: Image.Image) -> tuple[list[tuple[tasks.Box, str, float]], float, float]:
        """Find the lines of text, then read them; return boxes, texts and scores, and the time of either step."""
        answer, detect_ms = self._ask("text_detector", {"x": tasks.text_input(picture)})
        boxes = tasks.text_boxes(answer["sigmoid_0.tmp_0"][0, 0], picture)
        lines: list[tuple[str, float]] = []
        read_ms = 0.0
        for start in range(0, len(boxes), MAX_LINES):
            batch = tasks.reader_input(picture, boxes[start : start + MAX_LINES])
            answer, took_ms = self._ask("text_reader", {"x": batch})
            lines += tasks.read_lines(answer["softmax_11.tmp_0"])
            read_ms += took_ms
        return [(box, *line) for box, line in zip(boxes, lines, strict=True)], detect_ms, read_ms

    def batch_sizes(self, model: str) -> Counter[int]:
        """Return how many batches of each size the model has run."""
        (statistics,) = self.client.get_inference_statistics(model)["model_stats"]
        return Counter(
            {
                batch["batch_size"]: batch["compute_infer"]["count"]
                for batch in statistics.get("batch_stats", [])
            }
        )

    def _ask(
        self,
        model: str,
        arrays: dict[str, np.ndarray],
        outputs: list[triton.InferRequestedOutput] | None = None,
    ) -> tuple[dict[str, np.ndarray], float]:
        inputs = [_input(name, array) for name, array in arrays.items()]
        took_ms = math.inf
        for _ in range(NUM_TRIES):
            start = time.perf_counter()
            result = self.client.infer(model, inputs, outputs=outputs)
            took_ms = min(took_ms, (time.perf_counter() - start) * 1e3)
        return {
            output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]
        }, took_ms


async def ask_file_types(url: str, contents: list[bytes]) -> tuple[Counter[str], float]:
    """Ask about many files at once, one request each; return how many there are of each kind, and the seconds."""
    output = triton.InferRequestedOutput("target_label", class_count=1)
    inputs = [_input("bytes", tasks.file_type_input(content)) for content in contents]
    async with triton_aio.InferenceServerClient(url, conn_limit=len(contents)) as client:
        await client.is_server_ready()
        start = time.perf_counter()
        answers = await asyncio.gather(
            *(client.infer("file_type", [each], outputs=[output]) for each in inputs)
        )
        took_s = time.perf_counter() - start
    labels = (answer.as_numpy("target_label").ravel()[0].decode().split(":")[2] for answer in answers)
    return Counter(labels), took_s


def close_reasons(metrics_url: str, model: str) -> Counter[str]:
    """Return, from the metrics page, how many batches were closed for which reason."""
    with urllib.request.urlopen(f"http://{metrics_url}/metrics") as page:
        text = page.read().decode()
    samples = re.findall(r"^bireme_batch_close_total\{(.*)\} (\d+)$", text, re.MULTILINE)
    labelled = ((dict(re.findall(r'(\w+)="(.*?)"', labels)), int(value)) for labels, value in samples)
    return Counter({labels["reason"]: value for labels, value in labelled if labels["model"] == model})


def show_picture(server: Server, path: Path) -> None:
    """Ask all models about one picture and print a table of what they say."""
    content = path.read_bytes()
    picture = Image.open(path).convert("RGB")
    table = _table(f"{path.name}  {picture.width}×{picture.height}", f"ms: best of {NUM_TRIES} requests")
    table.add_column("model", style="cyan", no_wrap=True)
    table.add_column("answer", ratio=1)
    table.add_column("where", style="dim", no_wrap=True)
    table.add_column("score", justify="right")
    table.add_column("ms", justify="right")

    label, score, took_ms = server.file_type(content)
    table.add_row("file_type", label, "", f"{score:.2f}", f"{took_ms:.1f}")
    label, score, took_ms = server.orientation(picture)
    table.add_row("page_orientation", label, "", f"{score:.2f}", f"{took_ms:.1f}")

    drawing = ImageDraw.Draw(picture)
    faces, took_ms = server.faces(picture)
    table.add_row("face_detector", _count(len(faces), "face"), "", "", f"{took_ms:.1f}")
    for box in faces:
        table.add_row("", "", _corners(box), f"{box.score:.2f}", "")
        _outline(drawing, box, "red")
    lines, detect_ms, read_ms = server.text(Image.open(path).convert("RGB"))
    table.add_row("text_detector", _count(len(lines), "line"), "", "", f"{detect_ms:.1f}")
    for number, (box, text, score) in enumerate(lines[:8]):
        first = ("text_reader", f"{read_ms:.1f}") if number == 0 else ("", "")
        table.add_row(first[0], f"[bold]{text}[/bold]", _corners(box), f"{score:.2f}", first[1])
    if len(lines) > 8:
        table.add_row("", f"[dim]… and {len(lines) - 8} more[/dim]")
    for box, *_ in lines:
        _outline(drawing, box, "blue")
    console.print(table)
    if faces or lines:
        target = PICTURES / f"{path.stem}.answer.png"
        picture.save(target)
        console.print(f"  drawn into {_short(target)}\n")


def show_burst(server: Server, metrics_url: str) -> None:
    """Ask about many files of this project at once, and print how the server put the requests into batches."""
    model = "file_type"
    found = (path for pattern in PATTERNS for path in sorted(PROJECT.glob(pattern)) if path.is_file())
    contents = [path.read_bytes() for path in found][:BURST_SIZE]
    sizes_before, reasons_before = server.batch_sizes(model), close_reasons(metrics_url, model)
    kinds, took_s = asyncio.run(ask_file_types(server.url, contents))
    sizes = server.batch_sizes(model) - sizes_before
    reasons = close_reasons(metrics_url, model) - reasons_before

    table = _table(f"{len(contents)} requests at once to {model}, one file each: dynamic batching")
    table.add_column("files per batch", justify="right")
    table.add_column("batches", justify="right")
    table.add_column("", ratio=1, style="cyan")
    for size, count in sorted(sizes.items()):
        table.add_row(str(size), str(count), "█" * size + f" × {count}" * (count > 1))
    console.print(table)
    why = ", ".join(f"{reason} {count}×" for reason, count in reasons.most_common())
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    console.print(
        f"  {len(contents)} requests ran in {sum(sizes.values())} batches; a batch was closed because: {why}\n"
        f"  {took_s * 1e3:.0f} ms in all, {len(contents) / took_s:.0f} files/s; they are {what}\n",
        soft_wrap=not console.is_terminal,
    )


def main(arguments: Iterable[str] | None = None) -> None:
    """Ask, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8000", help="the server's HTTP address")
    parser.add_argument("--metrics", default="localhost:8002", help="the server's metrics address")
    parser.add_argument("picture", nargs="*", type=Path)
    options = parser.parse_args(None if arguments is None else list(arguments))
    server = Server(options.url)
    for path in options.picture or [PICTURES / name for name in SAMPLES]:
        show_picture(server, path)
    if not options.picture:
        show_burst(server, options.metrics)


def _table(title: str, caption: str = "") -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="right",
        width=min(console.width, 100),
    )


def _input(name: str, array: np.ndarray) -> triton.InferInput:
    model_input = triton.InferInput(name, list(array.shape), {"f": "FP32", "i": "INT32"}[array.dtype.kind])
    model_input.set_data_from_numpy(np.ascontiguousarray(array))
    return model_input


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' * (number != 1)}"


def _corners(box: tasks.Box) -> str:
    return f"({box.left:.0f},{box.top:.0f})–({box.right:.0f},{box.bottom:.0f})"


def _outline(drawing: ImageDraw.ImageDraw, box: tasks.Box, colour: str) -> None:
    drawing.rectangle((box.left, box.top, box.right, box.bottom), outline=colour, width=2)


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    main()
