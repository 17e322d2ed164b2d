"""Which of OpenVINO's devices there are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bireme.backends.signature import quoted
from bireme.types import Unsupported

CPU: Final = "CPU"

# Devices that only hand work on to others.
_VIRTUAL: Final = frozenset({"AUTO", "MULTI", "HETERO", "BATCH"})


def check_device(model: str, device: str, available: Iterable[str]) -> None:
    """Check that ``device`` exists, and all that a virtual one names.

    Raises:
        Unsupported: it does not; lists what does.
    """
    names = list(available)
    known = {*names, *(name.partition(".")[0] for name in names)}
    for wanted in _devices_in(device):
        if wanted not in known:
            raise Unsupported(
                f"model '{model}': parameter TARGET_DEVICE is '{device}', but OpenVINO finds no device '{wanted}' here; it "
                f"finds {quoted(names)}"
            )


def _devices_in(device: str) -> list[str]:
    """Return the devices that do the work: ``GPU`` and ``CPU`` in ``AUTO:GPU,CPU,-NPU``, ``GPU`` in ``BATCH:GPU(4)``."""
    first, _, rest = device.partition(":")
    listed = [name.strip().partition("(")[0] for name in rest.split(",") if name.strip()]
    own = [] if first in _VIRTUAL else [first]
    return own + [name for name in listed if not name.startswith("-")]
