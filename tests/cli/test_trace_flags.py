"""The flags of tracing: the older ones are heard, and ``--trace-config`` is heard first."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.cli.flags import FLAGS
from bireme.cli.trace_flags import OLDER, trace_notes, trace_options
from bireme.telemetry.tracing import TraceMode, TraceOptions

NOTHING: dict[str, Any] = {"trace-config": (), **{name: FLAGS[name].default for name in OLDER}}
NOTHING["trace-level"] = ()


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({}, TraceOptions()),
        (
            {"trace-config": ("level=TIMESTAMPS", "triton,file=a", "rate=5")},
            TraceOptions(level=("TIMESTAMPS",), file="a", rate=5),
        ),
        (
            {"trace-level": ("TIMESTAMPS", "TENSORS"), "trace-file": "a", "trace-rate": 5, "trace-count": 0},
            TraceOptions(level=("TIMESTAMPS", "TENSORS"), file="a", rate=5, count=0),
        ),
        ({"trace-log-frequency": 3}, TraceOptions(log_frequency=3)),
        ({"trace-rate": 5, "trace-config": ("rate=7",)}, TraceOptions(rate=7)),
        ({"trace-level": ("OFF",), "trace-config": ("level=TENSORS",)}, TraceOptions(level=("TENSORS",))),
    ],
)
def test_flags_become_options(values, options):
    assert trace_options({**NOTHING, **values}) == options


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        ({"trace-config": ("level=TIMESTAMPS", "triton,file=a")}, []),
        (
            {"trace-rate": 5, "trace-config": ("rate=7",)},
            [
                "--trace-rate is deprecated; its newer name is --trace-config rate=VALUE",
                "--trace-config rate wins over --trace-rate",
            ],
        ),
        (
            {"trace-config": ("level=TIMESTAMPS",)},
            [
                "--trace-config level has no effect without --trace-config triton,file=PATH: nothing is traced",
            ],
        ),
        ({"trace-config": ("level=TIMESTAMPS", "mode=opentelemetry")}, []),
    ],
)
def test_what_the_user_should_know_is_noted(values, notes):
    values = {**NOTHING, **values}

    assert list(trace_notes(values, trace_options(values))) == notes


def test_the_mode_is_triton_s_unless_said_otherwise():
    assert trace_options(NOTHING).mode is TraceMode.TRITON
