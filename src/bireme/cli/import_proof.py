"""One inference, as proof that an imported model runs: tensors of the declared shapes, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from bireme.cli.import_config import shown
from bireme.cli.inputs import GivenInputs, ModelSpec
from bireme.config import ModelConfig, to_json
from bireme.config.model_config import ModelInput, WarmupInput
from bireme.engine import BlockingServer, InferResult
from bireme.engine.warmup_data import make_warmup_tensor
from bireme.types import BiremeError, InvalidArgument, Tensor, datatypes

_PICTURE_SIZES: Final = (224, 256, 320, 640, 64, 32)
"""Tried for the variable dimensions of what looks like pictures: most networks halve them five times."""
_OTHER_SIZES: Final = (16, 128, 1, 8, 512, 4096)
_CHANNELS: Final = frozenset({1, 3, 4})
_MIN_SIDE: Final = 16
_MAX_FULL_BATCH_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Proof:
    """What ran, and how long it took."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    took_ms: float
    num_rows: int = 1
    """Rows of the batch that ran besides; 1: none did."""
    batch_took_ms: float = 0.0

    @property
    def batch_gain(self) -> float:
        """How many times as many rows a second the batch gave."""
        return self.num_rows * self.took_ms / self.batch_took_ms


class BatchFailed(BiremeError):
    """One row runs, and as many as the config allows don't."""

    def __init__(self, message: str, max_rows: int) -> None:
        super().__init__(message)
        self.max_rows = max_rows
        """As many as do run; 1: no two do."""


def prove(
    server: BlockingServer,
    config: ModelConfig,
    shapes: Mapping[str, Sequence[int]],
    examples: Sequence[str],
) -> Proof:
    """Run the model once, and, if it batches, with several rows.

    ``shapes`` give inputs their dims, without the batch; ``examples`` their values, as of ``bireme infer``.

    Raises:
        InvalidArgument: no sample ran; says which were tried and what the model said.
        BatchFailed: as many rows as the config allows did not run.
    """
    tensors, result = _first_that_runs(server, config, shapes, examples)
    start = time.perf_counter()
    server.infer(config.name, tensors)
    took_s = time.perf_counter() - start
    proof = Proof(
        tuple(tensors.values()),
        tuple(result.tensor(name) for name in result),
        took_s * 1e3,
    )
    if config.max_batch_size < 2:
        return proof
    num_rows = config.max_batch_size if took_s * config.max_batch_size < _MAX_FULL_BATCH_S else 2
    try:
        batch_ms = _run_batch(server, config.name, tensors, num_rows)
    except BiremeError as error:
        raise BatchFailed(
            f"{num_rows} rows: {error.message}", _most_rows(server, config.name, tensors, num_rows)
        ) from error
    return Proof(proof.inputs, proof.outputs, proof.took_ms, num_rows, batch_ms)


def _run_batch(server: BlockingServer, model: str, tensors: Mapping[str, Tensor], num_rows: int) -> float:
    """Run so many rows twice; return how long the second took, in ms."""
    batch = {name: _repeated(tensor, num_rows) for name, tensor in tensors.items()}
    server.infer(model, batch)
    start = time.perf_counter()
    server.infer(model, batch)
    return (time.perf_counter() - start) * 1e3


def _most_rows(server: BlockingServer, model: str, tensors: Mapping[str, Tensor], too_many: int) -> int:
    """Return how many rows run, where ``too_many`` don't, by halving."""
    num_rows = too_many // 2
    while num_rows > 1:
        try:
            _run_batch(server, model, tensors, num_rows)
        except BiremeError:
            num_rows //= 2
        else:
            return num_rows
    return 1


def _first_that_runs(
    server: BlockingServer,
    config: ModelConfig,
    shapes: Mapping[str, Sequence[int]],
    examples: Sequence[str],
) -> tuple[dict[str, Tensor], InferResult]:
    given = _given(config, examples)
    unknown = set(shapes) - {tensor.name for tensor in config.input}
    if unknown:
        raise InvalidArgument(
            f"--shape {min(unknown)}: the model has no such input; it has {', '.join(each.name for each in config.input)}"
        )
    tried: list[str] = []
    last: BiremeError | None = None
    for tensors in _samples(config, shapes, given):
        try:
            return tensors, server.infer(config.name, tensors)
        except BiremeError as error:
            tried.append(" ".join(map(show, tensors.values())))
            last = error
    assert last is not None
    raise InvalidArgument(
        f"it loads, but doesn't run on random values. Give sizes by --shape NAME:DIMS, values by --example NAME=VALUE, or take it "
        f"as it is by --no-run. Tried {'; '.join(tried)}. It said to the last: {last.message}"
    ) from last


def _given(config: ModelConfig, examples: Sequence[str]) -> dict[str, Tensor]:
    given = GivenInputs(ModelSpec.from_config(to_json(config)))
    for word in examples:
        given.add(word)
    return {tensor.name: tensor for tensor in given.tensors()}


def _samples(
    config: ModelConfig, shapes: Mapping[str, Sequence[int]], given: Mapping[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Yield inputs to try: variable dimensions get one size after another, all at once."""
    inputs = [tensor for tensor in config.input if not tensor.optional or tensor.name in given]
    leading = (1,) if config.max_batch_size else ()
    previous: list[tuple[int, ...]] | None = None
    for attempt in count():
        dims = [_sized(tensor, shapes.get(tensor.name), attempt) for tensor in inputs]
        if dims == previous:
            return
        previous = dims
        yield {
            tensor.name: given.get(tensor.name)
            or make_warmup_tensor(
                tensor.name, WarmupInput(tensor.data_type, sizes, random_data=True), Path(), leading
            )
            for tensor, sizes in zip(inputs, dims, strict=True)
        }


def _sized(tensor: ModelInput, shape: Sequence[int] | None, attempt: int) -> tuple[int, ...]:
    """Return the dims of ``tensor`` with sizes for the variable ones."""
    dims = tuple(tensor.dims)
    if shape is not None:
        fits = len(shape) == len(dims) and all(
            want in (-1, size) for want, size in zip(dims, shape, strict=True)
        )
        if not fits or min(shape) < 0:
            wanted = shown(tensor.name, datatypes.from_config_name(tensor.data_type), dims)
            raise InvalidArgument(f"--shape {tensor.name}: {list(shape)} is no shape of {wanted}")
        return tuple(shape)
    sizes = _PICTURE_SIZES if _is_picture(dims) else _OTHER_SIZES
    size = sizes[min(attempt, len(sizes) - 1)]
    # A variable first dimension of a model that doesn't batch is a batch all the same, more often than not.
    return tuple(
        (1 if axis == 0 and len(dims) > 1 else size) if dim < 0 else dim for axis, dim in enumerate(dims)
    )


def _is_picture(dims: tuple[int, ...]) -> bool:
    """Whether the last three dims look like channels with height and width, on either side."""
    *_, first, middle, last = (0, 0, 0, *dims)
    return any(
        channels in _CHANNELS and all(side < 0 or side >= _MIN_SIDE for side in sides)
        for channels, sides in ((first, (middle, last)), (last, (first, middle)))
    )


def _repeated(tensor: Tensor, num_rows: int) -> Tensor:
    row = tensor.to_numpy()[:1]
    return Tensor.from_numpy(tensor.name, np.repeat(row, num_rows, axis=0), tensor.datatype)


def show(tensor: Tensor) -> str:
    """Return a tensor's name, type and shape."""
    return shown(tensor.name, tensor.datatype, tensor.shape)
