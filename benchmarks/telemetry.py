"""What counting, exposing and logging cost, in microseconds.

    python -m benchmarks.telemetry

No sockets and no models: the calls that the engine and the front end make for one request, and one look at the metrics
page. The last column is the share of the fastest whole request we serve (about 90 µs over HTTP).
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path

sys.path.pop(0)  # benchmarks/http.py must not stand in for the standard library's http

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from rich.console import Console
from rich.table import Table

from bireme.config import ModelConfig
from bireme.scheduling.interface import CloseReason
from bireme.telemetry import AccessLog, MetricsOptions, ModelStatistics, ServerMetrics, log
from bireme.types import Execution, InferenceRequest

FASTEST_REQUEST_US = 90
ROUNDS = 5


def microseconds(call: Callable[[], object], number: int = 20_000) -> float:
    """Return the time of one ``call``: the best of some rounds, since noise only ever adds."""
    return min(timeit.repeat(call, number=number, repeat=ROUNDS)) / number * 1e6


def finished(num_requests: int) -> Execution:
    requests = [InferenceRequest("m", {}, lambda *_: None, id="r-1") for _ in range(num_requests)]
    execution = Execution(requests, num_requests, CloseReason.FULL)
    start_ns = 1_000_000_000
    execution.compute_start_ns = start_ns + 21_000
    execution.compute_input_end_ns = start_ns + 24_000
    execution.compute_output_start_ns = start_ns + 74_000
    execution.compute_end_ns = start_ns + 83_000
    for request in requests:
        request.start_ns = request.queue_ns = start_ns
        request.execution = execution
    return execution


def life(statistics: ModelStatistics, num_requests: int) -> Callable[[], None]:
    """Return everything that is counted for a batch, from acceptance to the answers."""
    execution = finished(num_requests)
    end_ns = execution.compute_end_ns

    def count() -> None:
        for _ in execution.requests:
            statistics.accept()
        statistics.start(num_requests)
        statistics.finish_execution(execution)
        for request in execution.requests:
            statistics.succeed(request, end_ns)

    return count


def per_request() -> list[tuple[str, float]]:
    config = ModelConfig(max_batch_size=8)
    plain = ServerMetrics().new_statistics("m", 1, config)
    options = MetricsOptions(histogram_latencies=True, summary_latencies=True)
    full = ServerMetrics(options).new_statistics("m", 1, config)
    peer = Histogram("peer", "peer", registry=CollectorRegistry())
    return [
        ("statistics and 5 histograms, alone", microseconds(life(plain, 1))),
        ("statistics and 5 histograms, in a batch of 8", microseconds(life(plain, 8)) / 8),
        ("the same, first-response histogram and summaries on", microseconds(life(full, 1))),
        (
            "for comparison: one prometheus_client Histogram.observe",
            microseconds(lambda: peer.observe(0.001)),
        ),
    ]


def per_log_line(folder: Path) -> list[tuple[str, float]]:
    logger = log.get_logger("bireme.benchmark")
    log.configure(file=str(folder / "log"))
    request = finished(1).requests[0]

    def access(*, json: bool) -> Callable[[], None]:
        access_log = AccessLog(str(folder / f"access-{json}"), json=json)
        return lambda: access_log.record(
            "POST",
            "/v2/models/m/infer",
            200,
            client="127.0.0.1:54321",
            bytes_in=320,
            bytes_out=150,
            total_ns=90_000,
            request=request,
            model_version=1,
        )

    def disabled() -> None:
        if log.verbose_enabled:
            logger.debug("never")

    return [
        ("verbose message, off, behind the flag", microseconds(disabled)),
        ("verbose message, off, straight to logging", microseconds(lambda: logger.debug("never"))),
        ("log line, on", microseconds(lambda: logger.log(logging.INFO, "served %s", "m"))),
        ("access log line, text", microseconds(access(json=False))),
        ("access log line, JSON", microseconds(access(json=True))),
    ]


def per_scrape() -> list[tuple[str, float]]:
    rows = []
    for num_models in (1, 20):
        metrics = ServerMetrics()
        for index in range(num_models):
            statistics = metrics.new_statistics(f"model_{index}", 1, ModelConfig(max_batch_size=8))
            metrics.add_model(statistics)
            life(statistics, 1)()
        num_lines = metrics.expose().count(b"\n")
        rows.append(
            (f"metrics page, {num_models} models, {num_lines} lines", microseconds(metrics.expose, 100))
        )
    registry = CollectorRegistry()
    peer = Histogram("peer", "peer", ["model", "phase"], registry=registry)
    for model, phase in itertools.product(range(20), range(5)):
        peer.labels(str(model), str(phase)).observe(0.001)
    num_lines = generate_latest(registry).count(b"\n")
    title = f"for comparison: prometheus_client, {num_lines} lines"
    rows.append((title, microseconds(lambda: generate_latest(registry), 20)))
    return rows


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        sections = [
            ("Counted per request", per_request()),
            ("Per log line", per_log_line(Path(folder))),
            ("Per look at the metrics page", per_scrape()),
        ]
        log.settings.uninstall()
    for title, rows in sections:
        table = Table(title=title, title_justify="left", header_style="bold")
        table.add_column("what")
        table.add_column("µs", justify="right")
        table.add_column(f"of {FASTEST_REQUEST_US} µs", justify="right")
        for name, cost_us in rows:
            table.add_row(name, f"{cost_us:.2f}", f"{cost_us / FASTEST_REQUEST_US:.1%}")
        console.print(table)


if __name__ == "__main__":
    main()
