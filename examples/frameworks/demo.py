"""One network by every framework, and three kinds of tree models, in one go: build, serve, ask, compare, stop.

    python examples/frameworks/demo.py [--size tiny]

`make demo-frameworks` runs this. Every model is asked by the official client for the same pictures; the answers must agree. What
the server writes is in ``out/server.log``. The exit status is 0 when all of it worked.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import build
import network
import numpy as np
import tritonclient.http as triton_http
from rich.table import Table
from tritonclient.utils import triton_to_np_dtype

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
import serving
from telling import console, step

serving.START_TIMEOUT_S = 300.0  # eight frameworks, one of which compiles what it runs
HERE = Path(__file__).resolve().parent
LOG = HERE / "out" / "server.log"
TOLERANCE = 1e-3
"""Of the largest value."""
NUM_RUNS = 5


class Answer(NamedTuple):
    """What a model said to the pictures."""

    backend: str
    logits: np.ndarray
    picture_ms: float
    """Of the fastest run, for each picture of it."""


def ask(server: triton_http.InferenceServerClient, model: str, rows: np.ndarray, num_runs: int) -> Answer:
    """Send ``rows`` as one request, several times."""
    config = server.get_model_config(model)
    (declared,) = config["input"]
    datatype = declared["data_type"].removeprefix("TYPE_")
    tensor = triton_http.InferInput(declared["name"], list(rows.shape), datatype)
    tensor.set_data_from_numpy(rows.astype(triton_to_np_dtype(datatype)))
    took_s = []
    for _ in range(num_runs):
        start = time.perf_counter()
        result = server.infer(model, [tensor])
        took_s.append(time.perf_counter() - start)
    return Answer(
        config["backend"], result.as_numpy(config["output"][0]["name"]), 1e3 * min(took_s) / len(rows)
    )


def apart(answer: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(answer - expected).max() / np.abs(expected).max())


def compare(server: triton_http.InferenceServerClient, size: network.Size) -> bool:
    """Ask every network for the same pictures and print what came; whether all agree with the first."""
    rows = network.pictures(size, 2)
    table = Table("model", "backend", "ms a picture", "apart from the first", header_style="bold")
    agree, first = True, None
    for model in served(server, "resnet_"):
        answer = ask(server, model, rows, NUM_RUNS)
        first = first if first is not None else answer.logits
        difference = apart(answer.logits, first)
        agree &= difference < TOLERANCE
        table.add_row(model, answer.backend, f"{answer.picture_ms:.1f}", f"{difference:.0e}")
    console.print(table)
    return agree


def flowers(server: triton_http.InferenceServerClient) -> None:
    """Ask the tree models what three flowers are."""
    measures = np.array([[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.5], [6.3, 3.3, 6.0, 2.5]], np.float32)
    for model in served(server, "flowers_"):
        answer = ask(server, model, measures, 1)
        console.print(f"  {model:18} backend {answer.backend:9} kinds {kinds(answer.logits)}")


def kinds(answer: np.ndarray) -> list[int]:
    """Return the class of each row: the answer is either that, or what speaks for each class."""
    has_scores = answer.ndim == 2 and answer.shape[1] > 1
    return (answer.argmax(1) if has_scores else answer.reshape(-1).astype(int)).tolist()


def served(server: triton_http.InferenceServerClient, prefix: str) -> list[str]:
    """Return the models that serve, in the order in which they are built."""
    ready = {each["name"] for each in server.get_model_repository_index() if each.get("state") == "READY"}
    return [name for name in build.ALL if name.startswith(prefix) and name in ready]


def main() -> None:
    """Run all steps.

    Raises:
        SystemExit: the answers differ.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=build.SIZES, default="resnet50")
    args = parser.parse_args()
    models = build.MODELS / args.size

    step(1, "Models: one network in the format of every framework, and trees for rows of numbers")
    if not build.build(lambda line: console.print(f"  {line}"), size=args.size):
        console.print("  everything is there already")

    step(2, "Server: no model but the TorchScript one has a config.pbtxt")
    console.print(f"  $ bireme serve --model-repository {os.path.relpath(models)}")
    start = time.monotonic()
    with serving.served(models, LOG) as addresses:
        console.print(f"  ready after {time.monotonic() - start:.1f} s; its log is {os.path.relpath(LOG)}")
        server = triton_http.InferenceServerClient(addresses.http, network_timeout=120.0)
        step(3, "The same two pictures to each")
        agree = compare(server, build.SIZES[args.size])
        console.print(f"  all agree within {TOLERANCE:g}: {'yes' if agree else 'NO'}")

        step(4, "Three flowers to the trees")
        flowers(server)
        server.close()

        step(5, "Stop: SIGTERM, in-flight requests finish, exit status 0")
    console.print("  done\n")
    if not agree:
        raise SystemExit("error: the frameworks do not agree")


if __name__ == "__main__":
    main()
