"""The page `docs/orchestration.md`: fills its gaps with the tables, pictures and facts of a run.

A gap is all between ``<!-- results: NAME -->`` and ``<!-- end: NAME -->``; what was not measured leaves its gap as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.orchestration.report import Report
from benchmarks.orchestration.results import Results
from benchmarks.peers import HERE

PAGE = HERE.parent / "docs" / "orchestration.md"
CAPTIONS = {
    "payload": "Mean latency by payload",
    "steps": "Mean latency by length of the chain",
    "overhead": "Overhead by way and payload",
    "cascades": "The cascades, inside the server and behind a gateway",
}


def write_page(
    results: Results, reports: Sequence[Report], pictures: Sequence[Path], page: Path = PAGE
) -> None:
    """Fill the gaps of ``page``.

    Raises:
        ValueError: the page has no gap of a name.
    """
    texts = {"facts": facts(results)}
    texts |= {report.name: report.markdown() for report in reports if report.rows}
    for picture in pictures:
        link = os.path.relpath(picture, page.parent)
        texts[f"{picture.stem}-plot"] = f"![{CAPTIONS[picture.stem]}]({link})"
    content = page.read_text(encoding="utf-8")
    for name, text in texts.items():
        content = filled(content, name, text)
    page.write_text(content, encoding="utf-8")


def filled(content: str, name: str, text: str) -> str:
    """Return the page with what is in the gap ``name`` replaced."""
    gap = re.compile(
        rf"(<!-- results: {re.escape(name)} -->\n).*?(<!-- end: {re.escape(name)} -->)", re.DOTALL
    )
    if not gap.search(content):
        raise ValueError(f"the page has no gap for '{name}'")
    return gap.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", content)


def facts(results: Results) -> str:
    """Return where and when, as a sentence or two."""
    known = results.facts
    libraries = ", ".join(f"{name} {version}" for name, version in known["libraries"].items())
    return (
        f"Measured on {known['date']}: {known['cores']} cores ({known['processor']}, {known['system']}), "
        f"Python {known['python']}, Bireme {known['bireme']}, Triton {known['triton']}; {libraries}. "
        f"Medians of {known['rounds']} interleaved rounds of {known['seconds']} s each."
    )
