"""What a run found, as a JSON file that tables, plots and the page are made from."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.orchestration.load import Sample

import bireme

DEFAULT = Path(__file__).parent / "results.json"
KIB = 1024
SIZES = {"1 KB": KIB, "512 KB": 512 * KIB, "6 MB": 6 * KIB**2, "25 MB": 1080 * 1920 * 3 * 4}
"""In bytes; the last is a picture of 1080 × 1920 × 3 FP32."""
LABELS = {nbytes: label for label, nbytes in SIZES.items()}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to chain models."""

    label: str
    model: str
    """Which is called; ``{steps}`` is the chain's length."""
    servers: tuple[str, ...] = ("Bireme", "Triton")
    gateway: str = ""
    """The protocol behind the gateway, if it is one."""


WAYS = {
    "alone": Way("one model alone", "step_1"),
    "alone_thread": Way("one model alone, in a thread", "thread_step_1", ("Bireme",)),
    "alone_inline": Way("one model alone, inline", "inline_step_1", ("Bireme",)),
    "gateway_http": Way("gateway, HTTP", "gateway_{steps}", gateway="http"),
    "gateway_grpc": Way("gateway, gRPC", "gateway_{steps}", gateway="grpc"),
    "bls": Way("BLS", "bls_{steps}"),
    "hybrid": Way("hybrid", "hybrid_{steps}"),
    "ensemble": Way("ensemble", "ensemble_{steps}"),
    "bls_thread": Way("BLS, in threads", "thread_bls_{steps}", ("Bireme",)),
    "ensemble_thread": Way("ensemble, in threads", "thread_ensemble_{steps}", ("Bireme",)),
    "ensemble_inline": Way("ensemble, inline", "inline_ensemble_{steps}", ("Bireme",)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One way at one server with one load; or one way of a cascade."""

    way: str
    server: str
    steps: int
    nbytes: int
    clients: int
    rounds: list[Sample]
    cascade: str = ""

    def median(self, name: str) -> float:
        """Return the median of a field over the rounds."""
        return statistics.median(self.each(name))

    def each(self, name: str) -> list[float]:
        """Return a field of every round."""
        return [getattr(sample, name) for sample in self.rounds]

    @property
    def overhead_us(self) -> float:
        """End to end less the models' own compute, in µs: the median of the rounds."""
        return statistics.median(sample.mean_us - sample.compute_us for sample in self.rounds)


@dataclass(slots=True)
class Results:
    """A whole run."""

    facts: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def find(
        self, way: str, server: str, steps: int, nbytes: int, clients: int = 1, cascade: str = ""
    ) -> Row | None:
        """Return the row of these, if it was measured."""
        key = (way, server, steps, nbytes, clients, cascade)
        for row in self.rows:
            if key == (row.way, row.server, row.steps, row.nbytes, row.clients, row.cascade):
                return row
        return None

    def chains(self) -> Iterator[Row]:
        """Yield the rows of the chains."""
        return (row for row in self.rows if not row.cascade)

    def values(self, name: str) -> list[Any]:
        """Return what occurs in a field of the chains' rows, sorted; one model alone is no chain."""
        return sorted({getattr(row, name) for row in self.chains() if row.steps > 1})

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, in place of earlier ones of the same key."""
        for row in rows:
            found = self.find(row.way, row.server, row.steps, row.nbytes, row.clients, row.cascade)
            if found is not None:
                self.rows.remove(found)
            self.rows.append(row)

    def save(self, path: Path) -> None:
        """Write one line for each row, so that two runs can be compared line by line."""
        lines = ",\n  ".join(json.dumps(_rounded(asdict(row))) for row in self.rows)
        path.write_text(f'{{"facts": {json.dumps(self.facts, indent=2)},\n"rows": [\n  {lines}\n]}}\n')

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote."""
        content = json.loads(path.read_text())
        rows = [
            Row(**row | {"rounds": [Sample(**each) for each in row["rounds"]]}) for row in content["rows"]
        ]
        return cls(content["facts"], rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 2) if isinstance(value, float) else value


def facts_of_now(rounds: int, seconds: float) -> dict[str, Any]:
    """Return where, when and with what a run is made."""
    libraries = ("numpy", "uvloop", "onnxruntime", "tritonclient", "grpcio", "aiohttp")
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "bireme": bireme.__version__,
        "triton": "2.51",
        "libraries": {name: importlib.metadata.version(name) for name in libraries},
        "rounds": rounds,
        "seconds": seconds,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
