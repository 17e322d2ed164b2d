"""The chains: every way at both servers, for each payload, length and number of clients, in interleaved rounds."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.orchestration import repository
from benchmarks.orchestration.load import Sample, Target, measure
from benchmarks.orchestration.results import SIZES, WAYS, Results, Row
from benchmarks.peers import Peer, bireme, free_ports, program, triton
from benchmarks.tables import console, interleaved

LARGE = SIZES["25 MB"]
"""From here on, one row is measured: the shortest chain, one client."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    ways: Sequence[str]
    servers: Sequence[str]
    steps: Sequence[int]
    nbytes: Sequence[int]
    clients: Sequence[int]
    rounds: int
    seconds: float

    def cells(self) -> Iterator[tuple[int, int, int]]:
        """Yield payload, clients and steps of what is measured side by side."""
        for nbytes in self.nbytes:
            for clients in self.clients:
                for steps in self.steps:
                    if nbytes < LARGE or (clients == min(self.clients) and steps <= min(self.steps)):
                        yield nbytes, clients, steps

    def ways_of(self, steps: int, server: str) -> list[tuple[str, int]]:
        """Return the ways to take at ``server``, each with its steps: one model alone goes beside the shortest chain."""
        return [
            (name, 1 if name.startswith("alone") else steps)
            for name in self.ways
            if server in WAYS[name].servers and (steps == min(self.steps) or not name.startswith("alone"))
        ]


@dataclass(frozen=True, slots=True)
class Site:
    """A running server with its gateways."""

    peer: Peer
    gateways: dict[str, Peer]

    def port_of(self, way: str) -> int:
        """Return where the way's clients connect to."""
        gateway = WAYS[way].gateway
        return self.gateways[gateway].port if gateway else self.peer.port


@contextlib.contextmanager
def sites(plan: Plan, folder: Path) -> Iterator[dict[str, Site]]:
    """Run the servers on the generated repositories, each with the gateways that the plan needs."""
    shared, local = repository.build(folder, plan.steps, plan.ways)
    protocols = sorted({WAYS[way].gateway for way in plan.ways if WAYS[way].gateway})
    with contextlib.ExitStack() as stack:
        peers = {}
        if "Bireme" in plan.servers:
            peers["Bireme"] = stack.enter_context(bireme(shared, f"--model-repository={local}"))
        if "Triton" in plan.servers:
            peers["Triton"] = stack.enter_context(triton(shared))
        yield {
            name: Site(
                peer,
                {protocol: stack.enter_context(gateway(peer, protocol)) for protocol in protocols},
            )
            for name, peer in peers.items()
        }


def gateway(peer: Peer, protocol: str, *flags: str) -> contextlib.AbstractContextManager[Peer]:
    """Run the gateway process in front of ``peer``."""
    (port,) = free_ports(1)
    server = f"127.0.0.1:{peer.grpc_port if protocol == 'grpc' else peer.port}"
    command = [sys.executable, "-m", "benchmarks.orchestration.gateway", "--protocol", protocol]
    command += ["--server", server, "--port", str(port), *flags]
    return program(f"gateway to {peer.name} over {protocol}", command, port)


def measure_chain(site: Site, way: str, steps: int, nbytes: int, clients: int, seconds: float) -> Sample:
    """Measure one way once."""
    x = np.arange(nbytes // 4, dtype=np.float32)
    target = Target(
        site.port_of(way),
        WAYS[way].model.format(steps=steps),
        {"X": x},
        ("Y",),
        check=lambda outputs: np.array_equal(outputs["Y"], x + np.float32(steps)),
    )
    sample = measure(target, site.peer.port, computes=repository.is_step, clients=clients, seconds=seconds)
    sample.models.clear()  # ten equal steps have nothing to tell apart
    return sample


def run_chains(plan: Plan, results: Results, path: Path) -> None:
    """Measure all of ``plan``; ``results`` are saved to ``path`` row by row."""
    with tempfile.TemporaryDirectory() as folder, sites(plan, Path(folder)) as running:
        for nbytes, clients, steps in plan.cells():
            runs = [
                (
                    way,
                    server,
                    length,
                    partial(measure_chain, site, way, length, nbytes, clients, plan.seconds),
                )
                for server, site in running.items()
                for way, length in plan.ways_of(steps, server)
            ]
            found = interleaved(plan.rounds, *(run for *_, run in runs))
            rows = [
                Row(way, server, length, nbytes, clients, rounds)
                for (way, server, length, _), rounds in zip(runs, found, strict=True)
            ]
            results.add(rows)
            results.save(path)
            console.print(
                f"[dim]{nbytes:>10,} B, {clients} client{'s' * (clients > 1)}, {steps} steps:[/] "
                + ", ".join(f"{row.server[0]} {row.way} {row.median('mean_us') / 1e3:.2f}" for row in rows)
                + " ms",
                highlight=False,
            )
