"""For all tests: what takes long the first time is done before any of them, and none of them is about time."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

os.environ["CUDA_VISIBLE_DEVICES"] = (
    ""  # tests mean the same on a machine with GPUs; servers that they start inherit it
)

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


@pytest.fixture(scope="session", autouse=True)
def unicode_is_read() -> None:
    """In a fresh clone hypothesis first reads all of Unicode: whichever test came first would count as slow."""

    @settings(max_examples=1, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.text())
    def draw_once(_: str) -> None:
        pass

    draw_once()
