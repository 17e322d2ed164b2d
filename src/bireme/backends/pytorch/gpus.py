"""GPUs: where an instance runs, and how its tensors get there and back.

Written against torch's documented interface; it has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bireme.backends.devices import refuse_gpu
from bireme.backends.interface import Placement
from bireme.backends.pytorch.runtime import torch
from bireme.config import ModelConfig
from bireme.types import Unsupported


class Gpu:
    """One GPU, with a stream for one instance."""

    def __init__(self, index: int, *, cleans_cache: bool, cuda: Any = torch.cuda) -> None:
        """``cleans_cache``: give memory that nothing uses back to the driver after each run."""
        self.device = torch.device("cuda", index)
        self._cuda = cuda
        self._stream = cuda.Stream(device=self.device)
        self._cleans_cache = cleans_cache

    @contextmanager
    def run(self) -> Iterator[None]:
        """Have everything in this block happen on the instance's stream."""
        with self._cuda.device(self.device), self._cuda.stream(self._stream):
            yield
        if self._cleans_cache:
            self._cuda.empty_cache()

    def send(self, argument: Any) -> Any:
        """Return ``argument`` on the GPU, if it is a tensor. The copy is in the stream before what runs next."""
        return argument.to(self.device, non_blocking=True) if isinstance(argument, torch.Tensor) else argument


def find_gpu(placement: Placement, model: str, *, cleans_cache: bool, cuda: Any = torch.cuda) -> Gpu | None:
    """Return the GPU of an instance; None: it runs on the CPU.

    Raises:
        Unsupported: it is to be placed on a GPU that torch does not see.
    """
    if placement.kind != "KIND_GPU":
        return None
    if not cuda.is_available():
        refuse_gpu(placement, model, "pytorch", f"torch {torch.__version__} sees no GPU on this machine")
    count = cuda.device_count()
    if placement.device_id >= count:
        raise Unsupported(
            f"instance '{placement.name}' of model '{model}': GPU {placement.device_id} is not there; torch sees {count}"
        )
    return Gpu(placement.device_id, cleans_cache=cleans_cache, cuda=cuda)


def first_device(config: ModelConfig) -> Any:
    """Return the ``torch.device`` that the file is opened on: that of the first instance group; None: where it says."""
    group = config.instance_group[0] if config.instance_group else None
    if group is not None and group.kind == "KIND_MODEL":
        return None
    if group is not None and group.kind == "KIND_GPU" and group.gpus and torch.cuda.is_available():
        return torch.device("cuda", group.gpus[0])
    return torch.device("cpu")
