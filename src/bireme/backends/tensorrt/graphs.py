"""CUDA graphs: for batches of certain shapes, all of the engine's work as one recording that one call begins.

A graph is recorded for exact shapes and addresses, by running the engine once in the ordinary way and then again while the stream
records. When a buffer has moved since, it is recorded anew. Which shapes: those of ``graph_spec``; without any, each profile's best
shapes with the batch sizes 1, 2, 3, 4, 6, 8, 12, 16 and the largest, or those that the batcher prefers.

Source: Triton ``instance_state.cc`` (InitializeGraphSpecs, ValidateGraphSpec, BuildCudaGraph).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bireme.backends.tensorrt.context import Context
from bireme.backends.tensorrt.cuda import Graph, Stream
from bireme.backends.tensorrt.profiles import Dims, Profile
from bireme.backends.tensorrt.runtime import log
from bireme.backends.tensorrt.signature import IoTensor
from bireme.config import ModelConfig
from bireme.config.model_config import GraphSpec
from bireme.types import BackendFailed, InvalidArgument

Key = tuple[int, tuple[tuple[str, Dims], ...]]
"""Which context, and the shapes of all inputs, in the engine's order."""

_BATCH_SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16)


def graph_shapes(
    config: ModelConfig, specs: Sequence[GraphSpec], inputs: Sequence[IoTensor], profiles: Sequence[Profile]
) -> Iterator[dict[str, Dims]]:
    """Yield the shapes of all inputs, for each graph to record that one of ``profiles`` holds.

    Raises:
        InvalidArgument: a graph_spec does not fit the model.
    """
    for spec in specs:
        shapes = _spec_shapes(config, spec, inputs)
        if any(not profile.misfit(shapes, {}) for profile in profiles):
            yield shapes
        else:
            log.warning("model '%s': no profile holds the shapes %s of a graph_spec", config.name, shapes)
    if specs:
        return
    for profile in profiles:
        for batch_size in _default_batch_sizes(config):
            shapes = {}
            for tensor in inputs:
                best = profile.shapes[tensor.name].best
                shapes[tensor.name] = (batch_size, *best[1:]) if batch_size else best
            if not profile.misfit(shapes, {}):
                yield shapes


def _default_batch_sizes(config: ModelConfig) -> list[int]:
    limit = config.max_batch_size
    if not limit:
        return [0]
    oldest = config.sequence_batching.oldest if config.sequence_batching is not None else None
    batcher = config.dynamic_batching or oldest
    # Where none is preferred, the largest one is filled in.
    preferred = set(batcher.preferred_batch_size) - {limit} if batcher is not None else set()
    return sorted(size for size in {1, limit, *(preferred or _BATCH_SIZES)} if size <= limit)


def _spec_shapes(config: ModelConfig, spec: GraphSpec, inputs: Sequence[IoTensor]) -> dict[str, Dims]:
    limit = config.max_batch_size
    if not (1 <= spec.batch_size <= limit if limit else spec.batch_size == 0):
        expected = f"1 to {limit}" if limit else "0, as max_batch_size is 0"
        raise InvalidArgument(
            f"model '{config.name}': graph_spec.batch_size is {spec.batch_size}; expected {expected}"
        )
    shapes = {}
    for tensor in inputs:
        given = spec.input.get(tensor.name)
        if given is None:
            raise InvalidArgument(
                f"model '{config.name}': a graph_spec gives no shape for input '{tensor.name}'"
            )
        dims = tuple(int(dim) for dim in given.dim)
        shapes[tensor.name] = (spec.batch_size, *dims) if limit else dims
    return shapes


class _Recording(NamedTuple):
    addresses: tuple[int, ...]
    graph: Graph


class GraphCache:
    """The graphs of one instance."""

    def __init__(self) -> None:
        self._wanted: set[Key] = set()
        self._recordings: dict[Key, _Recording] = {}

    def want(self, key: Key) -> None:
        """Record a graph the next time that such a batch runs."""
        self._wanted.add(key)

    def begin(self, context: Context, stream: Stream, key: Key, addresses: tuple[int, ...]) -> None:
        """Begin the engine's work: by its graph, if there is one for ``key`` and tensors at ``addresses``.

        Raises:
            BackendFailed: TensorRT or CUDA says why not.
        """
        if key not in self._wanted:
            context.begin(stream)
            return
        recording = self._recordings.get(key)
        if recording is not None and recording.addresses == addresses:
            stream.launch(recording.graph)
            return
        context.begin(stream)  # TensorRT prepares itself for these shapes, which must not be recorded
        stream.synchronize()
        if recording is not None:
            del self._recordings[key]
            recording.graph.close()
        try:
            self._recordings[key] = _Recording(addresses, _record(context, stream))
        except BackendFailed as error:
            log.warning("a CUDA graph could not be recorded, so such batches run without: %s", error.message)
            self._wanted.discard(key)

    def close(self) -> None:
        """Destroy the graphs; none runs any more."""
        for recording in self._recordings.values():
            recording.graph.close()
        self._recordings.clear()
        self._wanted.clear()


def _record(context: Context, stream: Stream) -> Graph:
    stream.begin_capture()
    try:
        context.begin(stream)
    except BaseException:
        stream.abandon_capture()
        raise
    return stream.end_capture()


def why_no_graphs(tensors: Sequence[IoTensor]) -> str:
    """Return why an engine's work cannot be recorded; empty: nothing is known to be in the way."""
    shapes = [tensor.name for tensor in tensors if tensor.is_shape]
    return f"it has shape tensors ('{shapes[0]}')" if shapes else ""
