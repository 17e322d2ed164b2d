"""The Prometheus text format 0.0.4: values, labels, families. Pure.

Written by hand, not with ``prometheus_client.generate_latest``, for three reasons: that one puts ``_total`` behind the
name of every counter, which would rename Triton's families; it prints integers as ``3.0``; and it costs 7 µs
a line against 0.5 µs here, on the thread that serves (`benchmarks/telemetry.py`).

Source: Prometheus "Exposition formats"; Triton's page for the order of labels (sorted) and the spelling of ``Nan``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isnan
from typing import Final

_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_FLOAT_VALUES: Final = re.compile(r"(?m)^(?!#)(.* )(\S*[.e]\S*)$")
_LARGEST_EXACT: Final = 2.0**53


def is_label_name(name: str) -> bool:
    """Tell whether Prometheus accepts ``name`` as the name of a label."""
    return _LABEL_NAME.fullmatch(name) is not None


def format_value(value: float) -> str:
    """Return ``value`` as the format writes it: integers without decimals."""
    if isinstance(value, int):
        return str(value)
    if isnan(value):
        return "Nan"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < _LARGEST_EXACT else repr(value)


def format_labels(labels: Mapping[str, str]) -> str:
    """Return ``a="x",b="y"``: sorted by name, values escaped, without the braces."""
    return ",".join(f'{name}="{labels[name].translate(_LABEL_ESCAPES)}"' for name in sorted(labels))


def header(name: str, kind: str, description: str) -> str:
    """Return the HELP and TYPE lines of a family (``description`` has no backslash and no line end)."""
    return f"# HELP {name} {description}\n# TYPE {name} {kind}"


def sample_suffixes(kind: str) -> tuple[str, ...]:
    """Return what may follow a family's name in the names of its samples."""
    return ("", "_bucket", "_count", "_sum") if kind in {"histogram", "summary"} else ("",)


def bucket_prefixes(name: str, labels: str, bounds: Iterable[float]) -> list[str]:
    """Return what precedes the values of a histogram series: per bound, +Inf, then its count and its sum.

    They never change while a model is loaded, so they are made once.
    """
    les = [*(format_value(bound) for bound in bounds), "+Inf"]
    comma = "," if labels else ""
    return [
        *(f'{name}_bucket{{{labels}{comma}le="{le}"}} ' for le in les),
        f"{name}_count{{{labels}}} ",
        f"{name}_sum{{{labels}}} ",
    ]


def histogram_lines(prefixes: Sequence[str], counts: Sequence[int], total: float) -> list[str]:
    """Return the lines of one histogram series; ``counts`` are per bucket, the last one above all bounds."""
    *buckets, count, sum_ = prefixes
    cumulative = list(accumulate(counts))
    lines = [prefix + str(value) for prefix, value in zip(buckets, cumulative, strict=True)]
    lines.append(count + str(cumulative[-1]))
    lines.append(sum_ + format_value(total))
    return lines


def without_decimals(page: str) -> str:
    """Return a page of ``prometheus_client`` with its values written as ours are: ``3.0`` becomes ``3``."""
    return _FLOAT_VALUES.sub(lambda found: found[1] + format_value(float(found[2])), page)
