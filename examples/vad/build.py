"""Put the model file and the recordings in place: both come out of pip packages (requirements-models.txt).

    python examples/vad/build.py [--quiet]

Silero's graph wants more than a frame. Around it, a few nodes are added, so that clients need not care:

- The 64 samples before the frame: what is cut off the last input becomes a state, ``context``.
- The sample rate, a scalar: a constant.
- The state, whose batch axis is the second: turned over on both sides, so that sequences can be batched.

What is there and up to date stays: a second run does nothing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
from packages import package_file, run_build

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
MODEL = MODELS / "voice_activity/1/model.onnx"
RECORDINGS = HERE / "recordings"

SAMPLES_PER_S, FRAME, CONTEXT = 16_000, 512, 64
"""The rate, and the samples of a frame and of what the model wants to hear before it."""
NAMES = ("beckett.wav", "clone-test.wav")


def streaming(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return Silero's model for a stream of frames: FP32[n, 512] in, FP32[n, 1] out, and two states.

    The names ``input``, ``state``, ``sr``, ``output`` and ``stateN`` are those of the file; inside they stay as they are.
    """
    nodes = [
        helper.make_node("Concat", ["context", "frame"], ["input"], axis=1),
        helper.make_node("Transpose", ["memory"], ["state"], perm=[1, 0, 2]),
        *model.graph.node,
        helper.make_node("Identity", ["output"], ["speech"]),
        helper.make_node("Slice", ["input", "context_from", "context_to", "samples"], ["context_next"]),
        helper.make_node("Transpose", ["stateN"], ["memory_next"], perm=[1, 0, 2]),
    ]
    constants = {"sr": np.array(SAMPLES_PER_S), "samples": np.array([1])}
    constants |= {"context_from": np.array([FRAME]), "context_to": np.array([FRAME + CONTEXT])}
    dims = {"frame": [FRAME], "context": [CONTEXT], "memory": [2, 128]}
    outputs = {"speech": [1], "context_next": [CONTEXT], "memory_next": [2, 128]}

    def described(shapes: dict[str, list[int]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape])
            for name, shape in shapes.items()
        ]

    graph = helper.make_graph(
        nodes,
        "streaming_vad",
        described(dims),
        described(outputs),
        [
            *model.graph.initializer,
            *(numpy_helper.from_array(array.astype(np.int64), name) for name, array in constants.items()),
        ],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def write_model(source: Path, target: Path) -> None:
    """Write the model for a stream of frames."""
    onnx.save(streaming(onnx.load(source)), target)


def make(target: Path, source: Path, write: Callable[[Path, Path], object]) -> bool:
    """Have ``target`` written unless it is up to date; an interrupted run leaves no half a file."""
    if target.exists() and target.stat().st_mtime >= max(
        source.stat().st_mtime, Path(__file__).stat().st_mtime
    ):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}")
    write(source, unfinished)
    unfinished.rename(target)
    return True


def build(report: Callable[[str], object]) -> int:
    """Make what is missing or out of date; tell ``report`` of every file made. Returns how many there were."""
    files = [(MODEL, "silero_vad", "data/silero_vad.onnx", write_model)]
    files += [(RECORDINGS / name, "moonshine_voice", f"assets/{name}", shutil.copyfile) for name in NAMES]
    num_made = 0
    for target, package, path, write in files:
        if make(target, package_file(package, path), write):
            num_made += 1
            report(f"{target.relative_to(HERE)!s:34} {target.stat().st_size / 1e6:5.1f} MB  from {package}")
    return num_made


if __name__ == "__main__":
    run_build(build, MODELS)
