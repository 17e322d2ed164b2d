"""The cascades of the examples, of trained models: inside the server against behind a gateway, on Bireme."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.orchestration.chains import gateway
from benchmarks.orchestration.gateway import EXAMPLES
from benchmarks.orchestration.load import Client, Target, measure
from benchmarks.orchestration.results import Results, Row
from benchmarks.peers import HERE, bireme
from benchmarks.tables import console, interleaved

QUESTION = b"Please turn on the light in the kitchen."
PICTURE = "receipt.png"


@dataclass(frozen=True, slots=True)
class Cascade:
    """A cascade of an example: by way, the model to call."""

    folder: Path
    ways: dict[str, str]
    outputs: tuple[str, ...]
    text: str
    """The output that must be the same in all ways."""
    inputs: Callable[[int], dict[str, np.ndarray]]
    """What is asked; it gets the gateway's port."""


def picture(_: int) -> dict[str, np.ndarray]:
    content = (EXAMPLES / "ocr" / "pictures" / PICTURE).read_bytes()
    return {"PICTURE": np.array([content], np.object_)}


def question(gateway_port: int) -> dict[str, np.ndarray]:
    """Let the voice's own model speak it."""
    text = {"TEXT": np.array([QUESTION], np.object_)}
    with Client(Target(gateway_port, "question", text, ("AUDIO",), lambda _: True)) as client:
        client.call()
        return {"AUDIO": client.outputs()["AUDIO"].copy()}


CASCADES = {
    "ocr": Cascade(
        EXAMPLES / "ocr",
        {"hybrid": "ocr", "bls": "ocr_bls", "gateway_grpc": "ocr"},
        ("BOXES", "TEXT", "SCORES"),
        "TEXT",
        picture,
    ),
    "voice": Cascade(
        EXAMPLES / "voice",
        {"hybrid": "assistant", "gateway_grpc": "assistant"},
        ("SPEECH", "HEARD", "INTENT", "SIMILARITY", "REPLY", "REPLY_AUDIO"),
        "HEARD",
        question,
    ),
}


def is_trained(models: Path, name: str) -> bool:
    """Whether it is a trained model, which all ways call, and not code that stands between them."""
    config = models / name / "config.pbtxt"
    return config.exists() and "onnxruntime" in config.read_text()


def run_cascade(
    name: str, clients: Sequence[int], rounds: int, seconds: float, results: Results, path: Path
) -> None:
    """Measure all ways of a cascade; ``results`` are saved to ``path``."""
    cascade = CASCADES[name]
    models = cascade.folder / "models"
    subprocess.run([sys.executable, str(cascade.folder / "build.py"), "--quiet"], check=True, cwd=HERE.parent)
    with bireme(models) as peer, gateway(peer, "grpc", f"--offers={name}") as between:
        inputs = cascade.inputs(between.port)
        texts: list[list[bytes]] = []

        def check(outputs: dict[str, np.ndarray]) -> bool:
            texts.append(list(outputs[cascade.text]))
            return bool(texts[0]) and texts[-1] == texts[0]

        for num_clients in clients:
            runs = [
                partial(
                    measure,
                    Target(
                        between.port if way.startswith("gateway") else peer.port,
                        model,
                        inputs,
                        cascade.outputs,
                        check,
                    ),
                    peer.port,
                    computes=partial(is_trained, models),
                    clients=num_clients,
                    seconds=seconds,
                )
                for way, model in cascade.ways.items()
            ]
            found = interleaved(rounds, *runs)
            rows = [
                Row(way, "Bireme", 0, 0, num_clients, samples, name)
                for way, samples in zip(cascade.ways, found, strict=True)
            ]
            results.add(rows)
            results.save(path)
            said = ", ".join(f"{row.way} {row.median('mean_us') / 1e3:.1f}" for row in rows)
            console.print(
                f"[dim]{name}, {num_clients} client{'s' * (num_clients > 1)}:[/] {said} ms", highlight=False
            )
        results.facts[f"{name}_text"] = b" ".join(texts[0]).decode()
        results.save(path)
