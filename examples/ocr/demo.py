"""The whole example in one go: build, serve, read pictures in three ways, show where the time goes, stop.

    python examples/ocr/demo.py

The exit status is 0 when every step worked, all ways found the same text, and the server stopped cleanly.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import build
import client
import tritonclient.http as triton
from ocr_steps import Found
from rich.console import Console
from rich.table import Table
from rich.text import Text

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
import serving

HERE = Path(__file__).resolve().parent
NUM_RUNS = 3
NUM_TRACES = 5
BURST = 8
MODELS = {"ensemble + BLS": "ocr", "BLS": "ocr_bls"}
TEXT_WIDTH = 59
UNBROKEN = "\0"
"""Stands for the blanks within a line while several lines are put into one text."""

console = Console(highlight=False)
if not console.is_terminal:
    console.width = 100  # a log file wraps nothing

Ask = Callable[[bytes], Found]


def step(number: int, text: str) -> None:
    """Announce a step."""
    console.print(f"\n[bold]{number}  {text}[/bold]")


@contextmanager
def served(logs: Path) -> Iterator[tuple[str, str]]:
    """Serve the models, and run the gateway beside the server, while the context lasts; yield where both listen for HTTP."""
    with serving.served(build.MODELS, logs / "server.log") as server:
        with socket.create_server(("127.0.0.1", 0)) as free:
            gateway = f"127.0.0.1:{free.getsockname()[1]}"
        command = [str(HERE / "gateway.py"), "--grpc", server.grpc, "--http", gateway]
        ready = partial(serving.answers, f"http://{gateway}/ready")
        with serving.running(command, logs / "gateway.log", ready):
            yield server.http, gateway


def show_pictures(ask: Ask) -> None:
    """Read each picture, and print and draw what it says."""
    table = new_table()
    table.add_column("picture", style="cyan", no_wrap=True)
    table.add_column("lines", justify="right")
    table.add_column("text", ratio=1)
    table.add_column("score", justify="right")
    for name in client.SAMPLES:
        path = client.PICTURES / name
        found = ask(path.read_bytes())
        client.save(path, found)
        table.add_row(
            name, str(len(found.texts)), joined(found.texts, TEXT_WIDTH), f"{min(found.scores):.2f}"
        )
    console.print(table)
    console.print(f"  drawn into {short(client.OUT)}/")


def joined(lines: list[str], width: int) -> Text:
    """Return the lines one after the other; none is broken."""
    unbroken = " · ".join(line.replace(" ", UNBROKEN) for line in lines)
    return Text(textwrap.fill(unbroken, width, break_on_hyphens=False).replace(UNBROKEN, " "))


def show_ways(ways: dict[str, Ask]) -> None:
    """Read each picture in each way, in turn, and print how long it took.

    Raises:
        SystemExit: the ways do not agree.
    """
    table = new_table(f"ms: best of {NUM_RUNS}")
    table.add_column("picture", style="cyan", no_wrap=True, ratio=1)
    table.add_column("same text?")
    for way in ways:
        table.add_column(way, justify="right")
    for name in client.SAMPLES:
        content = (client.PICTURES / name).read_bytes()
        texts: dict[str, list[str]] = {}
        took_ms = dict.fromkeys(ways, math.inf)
        for _ in range(NUM_RUNS):
            for way, ask in ways.items():
                start = time.perf_counter()
                texts[way] = ask(content).texts
                took_ms[way] = min(took_ms[way], 1e3 * (time.perf_counter() - start))
        first, *others = texts.values()
        if any(first != other for other in others):
            raise SystemExit(f"error: the ways do not agree on {name}: {texts}")
        table.add_row(name, "yes", *(f"{took:.0f}" for took in took_ms.values()))
    console.print(table)


def show_waterfall(url: str) -> None:
    """Show where the time of one request goes: what `bireme trace` prints."""
    path = short(client.PICTURES / "receipt.png")
    command = ["trace", "ocr", f"PICTURE=@{path}", "--runs", str(NUM_TRACES)]
    console.print(f"  $ bireme {' '.join(command)}\n", soft_wrap=True)
    console.file.flush()
    subprocess.run(
        [sys.executable, "-m", "bireme", *command, "--url", url],
        check=True,
        env=os.environ | {"COLUMNS": str(min(console.width, 120))},
    )


def show_burst(connection: triton.InferenceServerClient) -> None:
    """Send several pictures at once, and print in how many batches their lines were read."""
    content = (client.PICTURES / "sample.png").read_bytes()
    before = counts(connection)
    start = time.perf_counter()
    client.ask_all(connection, "ocr", [content] * BURST)
    took_ms = 1e3 * (time.perf_counter() - start)
    lines, batches = (after - earlier for after, earlier in zip(counts(connection), before, strict=True))
    console.print(
        f"  the reader read {lines} lines of {BURST} pictures in {batches} batches; "
        f"{took_ms:.0f} ms in all, {took_ms / BURST:.0f} ms for each"
    )


def counts(connection: triton.InferenceServerClient) -> tuple[int, int]:
    """Return how many lines the reader has read, and in how many batches."""
    (statistics,) = connection.get_inference_statistics("reader")["model_stats"]
    return statistics["inference_count"], statistics["execution_count"]


def new_table(caption: str = "") -> Table:
    """Return a table of the width that all have."""
    return Table(caption=caption or None, caption_justify="right", width=min(console.width, 100))


def short(path: Path) -> Path:
    """Return a path as one would type it."""
    return Path(os.path.relpath(path))


def main() -> None:
    """Run all steps."""
    step(1, "Model repository: PP-OCR and pictures out of pip packages")
    if not build.build(lambda line: console.print(f"  {line}")):
        console.print("  everything is there already")

    step(2, "Server, and a gateway beside it that calls the same models over gRPC")
    start = time.monotonic()
    with (
        served(client.OUT) as (http, gateway),
        triton.InferenceServerClient(http, concurrency=BURST) as connection,
    ):
        console.print(
            f"  ready after {time.monotonic() - start:.1f} s; their logs are in {short(client.OUT)}/"
        )
        ways: dict[str, Ask] = {
            way: lambda content, model=model: client.ask(connection, model, content)
            for way, model in MODELS.items()
        }
        ways["gateway"] = lambda content: client.ask_gateway(gateway, content)

        step(3, "What the pictures say: find lines, cut them out, turn them upright, read them")
        show_pictures(ways["ensemble + BLS"])

        step(4, "Three ways: `ocr`, an ensemble with a script; `ocr_bls`, one script; a gateway")
        console.print(f"  each picture {NUM_RUNS} times in each way, in turn")
        show_ways(ways)

        step(5, "Where the time goes")
        show_waterfall(http)

        step(6, f"{BURST} clients at once: lines of several pictures share batches")
        show_burst(connection)

        step(7, "Stop: SIGTERM, in-flight requests finish, exit status 0")
    console.print("  done\n")


if __name__ == "__main__":
    main()
