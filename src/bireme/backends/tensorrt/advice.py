"""What to do about an engine that TensorRT does not take, by what it says of it. Pure.

Source: TensorRT's own messages, as users report them (NVIDIA/TensorRT, triton-inference-server/server).
"""

from __future__ import annotations

import re
from typing import Final

_COMPATIBLE: Final = "--backend-config=tensorrt,version-compatible=true"

_ADVICE: Final = (
    (
        re.compile(r"expecting library version (?P<has>[\d.]*\d) got (?P<file>[\d.]*\d)"),
        (
            f"the engine was built with TensorRT {{file}}, and {{has}} is installed: build it again with {{has}}, or build it to "
            f"be version-compatible and serve with {_COMPATIBLE}"
        ),
    ),
    (
        re.compile(r"expecting compute (?P<has>[\d.]*\d) got compute (?P<file>[\d.]*\d)"),
        (
            "the engine was built for GPUs of compute capability {file}, and this one has {has}: build it on such a GPU; "
            "cc_model_filenames lists engines for several kinds of GPUs"
        ),
    ),
    (
        re.compile(r"Current Version: \d+, Serialized Engine Version: \d+|expecting library version"),
        "the engine was built with another version of TensorRT than the installed one ({version}): build it again",
    ),
    (
        re.compile(r"host.?code", re.IGNORECASE),
        f"the engine is a version-compatible one: if you trust who made it, serve with {_COMPATIBLE}",
    ),
    (
        re.compile(r"(?:Cannot|Unable to|could not) find plugin:? *(?P<file>\w+)", re.IGNORECASE),
        (
            "the engine uses the plugin {file}, which no library has registered: name its library with "
            "--backend-config=tensorrt,plugins=PATH or in the config's model_operations"
        ),
    ),
)
"""What TensorRT says, and what to do then: the first that fits."""


def advise(reason: str, version: str) -> str:
    """Return TensorRT's reason, after what to do about it where that is known. ``version`` is the installed one."""
    for pattern, advice in _ADVICE:
        found = pattern.search(reason)
        if found is not None:
            return f"{advice.format(version=version, **found.groupdict())} (TensorRT says: {reason})"
    return reason
