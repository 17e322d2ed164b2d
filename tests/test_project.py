"""The project's own promises: what the documents say is there, is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bireme
from bireme.cli.reference import write_reference

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=;! ]", requirement)[0]


def test_the_changelog_has_the_version_and_an_unreleased_section():
    changelog = (ROOT / "CHANGELOG.md").read_text()

    assert bireme.__version__ in changelog
    assert "## [Unreleased]" in changelog


def test_the_command_line_reference_is_current():
    """`make docs` rewrites it."""
    assert write_reference() == (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_that_a_page_names_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.MULTILINE))

    assert set() == named - targets


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())

    assert [] == [link for link in links if not (page.parent / link).exists()]


def test_every_page_of_the_guide_is_listed():
    guide = (ROOT / "docs" / "README.md").read_text()

    assert [] == [
        page.name
        for page in (ROOT / "docs").glob("*.md")
        if page.name != "README.md" and f"({page.name})" not in guide
    ]


def test_every_dependency_has_its_reason():
    page = (ROOT / "docs" / "dependencies.md").read_text()
    extras = (texts for extra, texts in PROJECT["optional-dependencies"].items() if extra != "dev")
    named = {name_of(text) for texts in (PROJECT["dependencies"], *extras) for text in texts} - {"bireme"}

    assert set() == {
        name for name in named if not re.search(rf"^\| ([^|]*, )?{name}[ ,]", page, re.MULTILINE)
    }


def test_every_extra_is_said_in_the_guide():
    guide = (ROOT / "docs" / "installing.md").read_text()

    assert set() == {extra for extra in PROJECT["optional-dependencies"] if f"`.[{extra}]`" not in guide}


def test_the_core_installs_without_any_framework():
    frameworks = {
        name_of(text)
        for extra in ("onnx", "pytorch", "tensorflow", "openvino", "sklearn", "xgboost", "lightgbm", "jax")
        for text in PROJECT["optional-dependencies"][extra]
    }

    assert set() == frameworks & {name_of(text) for text in PROJECT["dependencies"]}


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (
            "import bireme.cli.main",
            {"numpy", "rich", "uvloop", "google.protobuf", "prometheus_client", "orjson"},
        ),
        ("import bireme", {"numpy", "asyncio", "uvloop", "click"}),
        ("import bireme; bireme.Server", {"onnxruntime", "onnx", "click", "rich", "PIL"}),
    ],
)
def test_importing_loads_only_what_is_needed(code, heavy):
    """Help is instant and a start takes less than a second because of this."""
    loaded = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert set() == heavy & set(loaded)
