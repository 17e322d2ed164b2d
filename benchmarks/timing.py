"""How long one call takes, and what stands in for the rest of the server while that is measured."""

from __future__ import annotations

import asyncio
import sys
import timeit
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from bireme.types import InferenceRequest, InferenceResponse
from http_fakes import FakeServer, tensor


def best_us(act: Callable[[], object], rounds: int = 15) -> float:
    """Return the best mean time of ``act`` over some rounds, each of about 20 ms or one call."""
    timer = timeit.Timer(act)
    timer.timeit(3)  # the first calls fill caches
    number = max(1, int(0.02 / (timer.timeit(3) / 3)))
    return min(timer.repeat(rounds, number)) / number * 1e6


class NullTransport(asyncio.Transport):
    """Throws everything away."""

    def write(self, data):
        pass

    def writelines(self, list_of_data):
        pass

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


class CannedServer(FakeServer):
    """Answers with the same tensors, whatever it is asked."""

    def __init__(self, **outputs: np.ndarray) -> None:
        super().__init__()
        self.outputs = [tensor(name, array) for name, array in outputs.items()]

    def submit(self, request: InferenceRequest) -> None:
        request.respond(request, InferenceResponse("m", 1, request.id, self.outputs))
