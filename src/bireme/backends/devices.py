"""What backends say where an instance is to be placed on a device that they cannot use."""

from __future__ import annotations

from bireme.backends.interface import Placement
from bireme.types import Unsupported


def refuse_gpu(
    placement: Placement, model: str, backend: str, reason: str = "it runs models on the CPU"
) -> None:
    """Let only instances pass that are not placed on a GPU. ``reason`` says why ``backend`` can use none.

    KIND_MODEL passes: where such an instance runs is the backend's choice.

    Raises:
        Unsupported: it is to be placed on a GPU.
    """
    if placement.kind == "KIND_GPU":
        raise Unsupported(
            f"instance '{placement.name}' of model '{model}': KIND_GPU is not supported by the {backend} backend here: "
            f"{reason}; use KIND_CPU or KIND_AUTO"
        )
