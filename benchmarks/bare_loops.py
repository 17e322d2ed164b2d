"""Frameworks without a server: a process that loads a model file and runs it in a loop, as their own documentation does.

    python -m benchmarks.bare_loops FORMAT FILE SIDE NUM_THREADS

Reads lines "BATCH SECONDS" and answers each with the images per second of that loop. Inputs and outputs are numpy arrays, as they
are in the server. Threads are as many as the server's model has; all other settings are the framework's defaults, except that
OpenVINO computes in FP32, which is what the others do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]


def onnx(path: Path, num_threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def _torch_run(module: Any, num_threads: int) -> Run:
    import torch

    torch.set_num_threads(num_threads)

    @torch.inference_mode()
    def run(x: np.ndarray) -> np.ndarray:
        return module(torch.from_numpy(x)).numpy()

    return run


def torchscript(path: Path, num_threads: int) -> Run:
    import torch

    return _torch_run(torch.jit.load(path), num_threads)


def pt2(path: Path, num_threads: int) -> Run:
    import torch

    return _torch_run(torch.export.load(path).module(), num_threads)


def savedmodel(path: Path, num_threads: int) -> Run:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model = tf.saved_model.load(str(path))
    signature = model.signatures["serving_default"]

    def run(x: np.ndarray) -> np.ndarray:
        return signature(x=tf.constant(x))["logits"].numpy()

    run.model = model  # type: ignore[attr-defined]  # its variables die with it
    return run


def openvino(path: Path, num_threads: int) -> Run:
    import openvino as ov

    settings = {
        "INFERENCE_NUM_THREADS": num_threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = ov.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda x: request.infer({0: x}, share_inputs=True)[0]


def jax(path: Path, _num_threads: int) -> Run:
    # XLA's pool has a thread for each CPU that the process may use, which is what the server's has.
    import jax as framework
    from jax import export

    call = framework.jit(export.deserialize(bytearray(path.read_bytes())).call)
    return lambda x: np.asarray(call(x)["logits"])


def measure(run: Run, pictures: np.ndarray, seconds: float) -> float:
    """Return how many rows a second ``run`` takes, over at least three runs."""
    run(pictures)
    num_runs, start = 0, time.perf_counter()
    while num_runs < 3 or time.perf_counter() - start < seconds:
        run(pictures)
        num_runs += 1
    return num_runs * len(pictures) / (time.perf_counter() - start)


def main() -> None:
    name, path, side, num_threads = sys.argv[1:]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    run = globals()[name](Path(path), int(num_threads))
    source = np.random.default_rng(0)
    print("ready", flush=True)
    for line in sys.stdin:
        batch, seconds = line.split()
        pictures = source.standard_normal((int(batch), 3, int(side), int(side))).astype(np.float32)
        print(measure(run, pictures, float(seconds)), flush=True)


if __name__ == "__main__":
    main()
