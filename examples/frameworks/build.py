"""Make one network in the format of every framework, and small models for rows of numbers, in the repository beside this file.

    python examples/frameworks/build.py [--quiet] [--size tiny] [--to FOLDER] [--only onnx,pt2]

The network has random weights, the same in every format. Each framework works in a process of its own: two of them in one don't
always get on. One that is not installed is left out, and said to be. What is there already stays.

Only TorchScript needs a config.pbtxt; the other files tell the server what it has to know.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import logging
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from network import RESNET50, RESNET50_112, TINY, Size, random_weights

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
SIZES = {"resnet50": RESNET50, "resnet50_112": RESNET50_112, "tiny": TINY}

TORCHSCRIPT_CONFIG = """\
# TorchScript tells neither types nor shapes, so this says them; the input is called as forward()'s argument is.
platform: "pytorch_libtorch"
max_batch_size: 8
input {{ name: "x" data_type: TYPE_FP32 dims: [ 3, {side}, {side} ] }}
output {{ name: "logits" data_type: TYPE_FP32 dims: [ {num_classes} ] }}
dynamic_batching {{ }}
"""


class Model(NamedTuple):
    """A model of the example."""

    name: str
    filename: str
    packages: tuple[str, ...]
    """What has to be there to make it."""
    write: Callable[[Path, Size], object]
    """Called in a process of its own."""
    config: str = ""
    """Where the file needs one."""


def write_onnx(target: Path, size: Size) -> None:
    """By torch's exporter, weights in the same file."""
    import resnet
    import torch

    dims = {"x": {0: torch.export.Dim("batch")}}
    torch.onnx.export(
        resnet.make(size),
        (torch.zeros(2, 3, size.side, size.side),),
        target,
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=dims,
        external_data=False,
        verbose=False,
    )


def write_torchscript(target: Path, size: Size) -> None:
    """Traced, with the weights as constants."""
    import resnet
    import torch

    traced = torch.jit.trace(resnet.make(size), torch.zeros(2, 3, size.side, size.side))
    torch.jit.save(torch.jit.freeze(traced), target)


def write_pt2(target: Path, size: Size) -> None:
    """By torch.export, for up to 64 pictures at a time."""
    import resnet
    import torch

    dims = {"x": {0: torch.export.Dim("batch", max=64)}}
    example = torch.zeros(2, 3, size.side, size.side)
    torch.export.save(torch.export.export(resnet.make(size), (example,), dynamic_shapes=dims), target)


def write_savedmodel(target: Path, size: Size) -> None:
    """The same weights, computed by TensorFlow's own operations."""
    import other_frameworks

    other_frameworks.save_tensorflow(random_weights(size), size, target)


def write_jax(target: Path, size: Size) -> None:
    """The same weights, computed by JAX."""
    import other_frameworks

    other_frameworks.save_jax(random_weights(size), size, target)


def write_openvino(target: Path, size: Size) -> None:
    """Out of the ONNX file, without rounding the weights to half precision, which is the default."""
    import openvino

    source = target.parents[2] / "resnet_onnx/1/model.onnx"
    if not source.is_file():
        write_onnx(source := target.with_name("unfinished.onnx"), size)
    model = openvino.Core().read_model(source)
    xml = target.with_name("unfinished.xml")
    openvino.save_model(model, xml, compress_to_fp16=False)
    xml.with_suffix(".bin").rename(target.with_suffix(".bin").with_name("model.bin"))
    xml.rename(target)
    target.with_name("unfinished.onnx").unlink(missing_ok=True)


def flowers() -> tuple[object, object]:
    """Return measures of 150 flowers, FP32[150, 4], and which of three kinds each is."""
    import numpy as np
    from sklearn.datasets import load_iris

    found = load_iris()
    return found.data.astype(np.float32), found.target


def write_sklearn(target: Path, _size: Size) -> None:
    """A pipeline, as people have them: scaling, then a forest."""
    import joblib
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), RandomForestClassifier(20, random_state=0))
    joblib.dump(pipeline.fit(*flowers()), target)


def write_xgboost(target: Path, _size: Size) -> None:
    """Boosted trees in XGBoost's JSON."""
    from xgboost import XGBClassifier

    unfinished = target.with_name("unfinished.json")  # it goes by the name
    XGBClassifier(n_estimators=20, max_depth=3, n_jobs=1).fit(*flowers()).save_model(unfinished)
    unfinished.rename(target)


def write_lightgbm(target: Path, _size: Size) -> None:
    """Boosted trees in LightGBM's text."""
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(n_estimators=20, num_leaves=7, n_jobs=1, verbose=-1).fit(*flowers())
    model.booster_.save_model(target)


NETWORKS = (
    Model("resnet_onnx", "model.onnx", ("torch", "onnx", "onnxscript"), write_onnx),
    Model("resnet_torchscript", "model.pt", ("torch",), write_torchscript, TORCHSCRIPT_CONFIG),
    Model("resnet_pt2", "model.pt2", ("torch",), write_pt2),
    Model("resnet_savedmodel", "model.savedmodel", ("tensorflow",), write_savedmodel),
    Model("resnet_openvino", "model.xml", ("torch", "onnx", "openvino"), write_openvino),
    Model("resnet_jax", "model.jax", ("jax",), write_jax),
)
TABLES = (
    Model("flowers_sklearn", "model.joblib", ("sklearn",), write_sklearn),
    Model("flowers_xgboost", "model.json", ("sklearn", "xgboost"), write_xgboost),
    Model("flowers_lightgbm", "model.txt", ("sklearn", "lightgbm"), write_lightgbm),
)
ALL = {model.name: model for model in (*NETWORKS, *TABLES)}


def build(
    report: Callable[[str], object],
    *,
    size: str = "resnet50",
    models: Path | None = None,
    only: tuple[str, ...] = (),
) -> int:
    """Make what is missing; tell ``report`` of every model made or left out. Returns how many were made.

    ``models``: where to; None: the folder of that size in `MODELS`. ``only`` takes the names of models, or what stands behind the ``_`` of them.

    Raises:
        SystemExit: one could not be made; its framework's words are in the text.
    """
    models = models or MODELS / size
    wanted = [
        model
        for model in (*NETWORKS, *TABLES)
        if not only or {model.name, model.name.partition("_")[2]} & set(only)
    ]

    def add(model: Model) -> int:
        target = models / model.name / "1" / model.filename
        if target.exists():
            return 0
        missing = [package for package in model.packages if importlib.util.find_spec(package) is None]
        if missing:
            report(f"{model.name:20} left out: {', '.join(missing)} is not installed")
            return 0
        _make(model, target, size)
        report(f"{model.name:20} {_megabytes(target.parent):6.1f} MB  {target.relative_to(models)}")
        return 1

    # Importing frameworks is most of the work. OpenVINO's file is made of the ONNX file, which must be there before it.
    first, second = (
        [model for model in wanted if (model.write is write_openvino) == is_last] for is_last in (False, True)
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum([*pool.map(add, first), *pool.map(add, second)])


def _make(model: Model, target: Path, size: str) -> None:
    """Write one model, in a process that does nothing else."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if model.config:
        text = model.config.format(side=SIZES[size].side, num_classes=SIZES[size].num_classes)
        (target.parents[1] / "config.pbtxt").write_text(text, "utf-8")
    command = [sys.executable, __file__, "--write", model.name, "--size", size, "--to", str(target)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(
            f"error: {model.name} could not be made:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
        )


def _write(name: str, target: Path, size: Size) -> None:
    """Be that process: an interrupted run leaves no half a model."""
    unfinished = target.with_name(f".{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        ALL[name].write(unfinished, size)
    unfinished.rename(target)


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--size", choices=SIZES, default="resnet50")
    parser.add_argument("--to", type=Path, help="the model repository; default: models/SIZE beside this file")
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--write", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        _write(args.write, args.to, SIZES[args.size])
        return
    only = tuple(filter(None, args.only.split(",")))
    report = len if args.quiet else print
    models = (args.to or MODELS / args.size).absolute()
    made = build(report, size=args.size, models=models, only=only)
    if not made and not args.quiet:
        print(f"everything is there: {models}")


if __name__ == "__main__":
    main()
