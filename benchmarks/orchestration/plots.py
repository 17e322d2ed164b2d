"""Pictures of a run, for the page: latency by payload, by length of the chain, overhead, and the cascades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
from benchmarks.orchestration.report import SERVERS, chain_ways, ms
from benchmarks.orchestration.results import LABELS, SIZES, WAYS, Results, Row
from benchmarks.peers import HERE
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

FOLDER = HERE.parent / "docs" / "orchestration"
ORANGE, BLUE, PINK, GREEN = "#D55E00", "#0072B2", "#CC79A7", "#009E73"
"""Of the palette of Okabe and Ito, which the colour-blind can tell apart; the markers tell the ways apart as well."""
LOOKS = {
    "gateway_http": (ORANGE, "--", "v"),
    "gateway_grpc": (ORANGE, "-", "^"),
    "bls": (BLUE, "-", "s"),
    "hybrid": (PINK, "-", "D"),
    "ensemble": (GREEN, "-", "o"),
    "bls_thread": (BLUE, ":", "s"),
    "ensemble_thread": (GREEN, ":", "o"),
    "ensemble_inline": (GREEN, "-.", "P"),
}
"""By way: colour, line, marker. Dotted is in threads, dash-dotted on the server's loop."""
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 110,
}


def draw(results: Results, folder: Path = FOLDER) -> list[Path]:
    """Draw what there are figures for, into ``folder``; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    paths = []
    with mpl.rc_context(STYLE):
        for name, figure in _figures(results):
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], metadata={"Software": None})
            with Image.open(paths[-1]) as picture:
                picture.convert("RGB").quantize(64).save(paths[-1], optimize=True)  # a third of the bytes
            plt.close(figure)
    return paths


def _figures(results: Results) -> Iterator[tuple[str, Figure]]:
    servers = [server for server in SERVERS if any(row.server == server for row in results.chains())]
    if len(results.values("nbytes")) > 1:
        yield "payload", by_payload(results, servers)
    if len(results.values("steps")) > 1:
        yield "steps", by_steps(results, servers)
    if results.values("nbytes"):
        yield "overhead", overheads(results, servers)
    if any(row.cascade for row in results.rows):
        yield "cascades", cascades(results)


def _plain(value: float, _: object = None) -> str:
    return f"{value:,.10g}"


def _lines(axes: Axes, way: str, xs: Sequence[float], rows: Sequence[Row]) -> None:
    colour, line, marker = LOOKS[way]
    ys = [row.median("mean_us") / 1e3 for row in rows]
    axes.plot(xs, ys, color=colour, ls=line, marker=marker, ms=4.5, lw=1.5, label=WAYS[way].label)


def _legend(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, handlelength=2.6)


def by_payload(results: Results, servers: Sequence[str]) -> Figure:
    """Mean latency of the shortest chain by payload: a panel for each server, logarithmic."""
    steps = min(results.values("steps"))
    figure, panels = plt.subplots(
        1, len(servers), figsize=(9.5, 4.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, server in zip(panels[0], servers, strict=True):
        for way in chain_ways(results):
            rows = [results.find(way, server, steps, nbytes) for nbytes in results.values("nbytes")]
            found = [row for row in rows if row]
            if found:
                _lines(axes, way, [row.nbytes for row in found], found)
        axes.set(title=server, xlabel="payload", xscale="log", yscale="log")
        axes.set_xticks(results.values("nbytes"), [LABELS[nbytes] for nbytes in results.values("nbytes")])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    panels[0][0].set_ylabel("mean latency, ms (logarithmic)")
    figure.suptitle(f"Chain of {steps} models that add 1, 1 client, by payload")
    _legend(figure, panels[0][0])
    return figure


def by_steps(results: Results, servers: Sequence[str]) -> Figure:
    """Mean latency by the chain's length: a row of panels for each server, a column for each payload, linear."""
    sizes = [nbytes for nbytes in results.values("nbytes") if nbytes != SIZES["25 MB"]]
    figure, panels = plt.subplots(
        len(servers),
        len(sizes),
        figsize=(3.3 * len(sizes), 2.9 * len(servers) + 0.7),
        squeeze=False,
        layout="constrained",
        sharey="col",
        sharex=True,
    )
    for line, server in zip(panels, servers, strict=True):
        for axes, nbytes in zip(line, sizes, strict=True):
            for way in chain_ways(results):
                rows = [results.find(way, server, steps, nbytes) for steps in results.values("steps")]
                found = [row for row in rows if row]
                if found:
                    _lines(axes, way, [row.steps for row in found], found)
            axes.set_title(f"{server}, {LABELS[nbytes]}")
            axes.set_xticks(results.values("steps"))
            axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        line[0].set_ylabel("mean latency, ms")
    for axes in panels[-1]:
        axes.set_xlabel("models in the chain")
        axes.set_ylim(bottom=0)  # last: it ends the scaling, which both servers share
    figure.suptitle("By length of the chain, 1 client")
    _legend(figure, panels[0][0])
    return figure


def overheads(results: Results, servers: Sequence[str]) -> Figure:
    """What a chain takes beyond its models' own compute: a panel for each payload, bars for each way and server."""
    steps = min(results.values("steps"))
    sizes = results.values("nbytes")
    ways = chain_ways(results)[::-1]
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(2.9 * len(sizes) + 1.2, 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    height = 0.8 / len(servers)
    for axes, nbytes in zip(panels[0], sizes, strict=True):
        for place, server in enumerate(servers):
            for position, way in enumerate(ways):
                row = results.find(way, server, steps, nbytes)
                if row is None:
                    continue
                at = position + (0.5 * (len(servers) - 1) - place) * height
                value = max(row.overhead_us, 0) / 1e3
                # Triton's bars are hatched and pale: the same colour is the same way.
                pale = {"alpha": 0.45, "hatch": "////", "edgecolor": "white"} if server == "Triton" else {}
                axes.barh(at, value, height=0.92 * height, color=LOOKS[way][0], **pale)
                axes.annotate(
                    ms(value * 1e3), (value, at), (3, 0), textcoords="offset points", va="center", fontsize=7
                )
        axes.set(title=LABELS[nbytes], xlabel="ms")
        axes.set_yticks(range(len(ways)), [WAYS[way].label for way in ways])
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.grid(visible=False, axis="y")
    figure.suptitle(
        f"Overhead of a chain of {steps} models, 1 client: end to end less the models' own compute"
    )
    patches = [
        mpl.patches.Patch(
            facecolor="#777777",
            label=server,
            **({"alpha": 0.45, "hatch": "////", "edgecolor": "white"} if server == "Triton" else {}),
        )
        for server in servers
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(servers))
    return figure


def cascades(results: Results) -> Figure:
    """The cascades: mean latency of each way, a panel for each cascade and number of clients."""
    panels_of = sorted({(row.cascade, row.clients) for row in results.rows if row.cascade})
    figure, panels = plt.subplots(
        1, len(panels_of), figsize=(2.7 * len(panels_of) + 1.2, 2.6), squeeze=False, layout="constrained"
    )
    for axes, (cascade, clients) in zip(panels[0], panels_of, strict=True):
        rows = [row for row in results.rows if (row.cascade, row.clients) == (cascade, clients)][::-1]
        values = [row.median("mean_us") / 1e3 for row in rows]
        bars = axes.barh(
            [WAYS[row.way].label for row in rows],
            values,
            height=0.6,
            color=[LOOKS[row.way][0] for row in rows],
        )
        axes.bar_label(bars, [ms(1e3 * value) for value in values], padding=3, fontsize=8)
        title = {"ocr": "OCR", "voice": "voice assistant"}[cascade]
        axes.set(title=f"{title}, {clients} client{'s' * (clients > 1)}", xlabel="mean latency, ms")
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.grid(visible=False, axis="y")
    figure.suptitle("The cascades of the examples, inside the server and behind a gateway")
    return figure
