"""Whether a backend can use GPUs here, and what it says of an instance on one that it cannot use."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from bireme.backends.interface import Placement
from bireme.types import Unsupported


class GpuBuild(NamedTuple):
    """How to tell, without importing it, whether the framework that is installed was built for GPUs."""

    package: str = ""
    """The framework's top-level package; empty: every build of it can use GPUs."""
    file: str = ""
    """A pattern of files in the package that only builds for GPUs have."""
    install: str = ""
    """What to install for GPUs, as the end of a message."""

    def why_not(self) -> str:
        """Return why the framework can use no GPU; empty: it can, or it is not installed, which is an error of its own."""
        if not self.package:
            return ""
        spec = find_spec(self.package)
        folders = (spec.submodule_search_locations or []) if spec is not None else []
        if not folders or any(any(Path(folder).glob(self.file)) for folder in folders):
            return ""
        return f"the {self.package} installed here was built for CPUs alone (for GPUs: {self.install})"


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
