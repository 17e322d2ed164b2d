"""What a config's rules have to know of the machine: the GPUs that a model's backend can use."""

from __future__ import annotations

from typing import Final, NamedTuple


class UsableGpus(NamedTuple):
    """The GPUs of this machine, as far as one backend can use them."""

    num: int = 0
    why_none: str = "no GPUs are available"
    """What is told where ``num`` is 0."""


NO_GPUS: Final = UsableGpus()
