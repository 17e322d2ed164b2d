"""OpenGraph: a session over a graph whose variables are there, for both kinds of files.

A session runs what TensorFlow 1 and TensorFlow 2 saved, has threads of its own, and takes and gives arrays without copies.
Loading by `tf.saved_model.load` instead would make functions that run on the threads of the process's one eager context, and
for which each input is copied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import explain_failure, find_named_file
from bireme.backends.signature import quoted
from bireme.backends.tensorflow.runtime import describe_error, tf, v1
from bireme.backends.tensorflow.settings import BackendSettings, ModelSettings
from bireme.config.faults import near_name
from bireme.types import InvalidArgument, NotFound


class OpenGraph(NamedTuple):
    """A graph and the session that runs it; any number of threads may."""

    session: Any
    graph: Any

    def close(self) -> None:
        """Give the weights back, as soon as nothing runs any more."""
        self.session.close()


@contextmanager
def opening(
    ctx: ModelContext, settings: ModelSettings, backend_settings: BackendSettings
) -> Iterator[OpenGraph]:
    """Provide an empty graph with its session, to be filled; it is closed if that fails.

    Raises:
        InvalidArgument: a library of operators cannot be loaded.
    """
    _load_operators(ctx)
    graph = tf.Graph()
    opened = OpenGraph(v1.Session(graph=graph, config=_session_config(settings, backend_settings)), graph)
    try:
        with graph.as_default():
            yield opened
            _run_init_ops(ctx, opened, settings.init_ops_file)
    except BaseException:
        opened.close()
        raise


def _session_config(settings: ModelSettings, backend_settings: BackendSettings) -> Any:
    config = v1.ConfigProto(
        intra_op_parallelism_threads=settings.num_intra_threads,
        inter_op_parallelism_threads=settings.num_inter_threads,
        use_per_session_threads=settings.has_own_threads,
        allow_soft_placement=backend_settings.allows_soft_placement,
    )
    config.device_count["GPU"] = 0
    if settings.xla_level > 0:
        # XLA leaves the CPU alone unless this is set before the process's first session.
        os.environ.setdefault("TF_XLA_FLAGS", "--tf_xla_cpu_global_jit")
    optimizer = config.graph_options.optimizer_options
    levels = {-1: optimizer.OFF, 0: optimizer.DEFAULT, 1: optimizer.ON_1, 2: optimizer.ON_2}
    optimizer.global_jit_level = levels[settings.xla_level]
    return config


def _load_operators(ctx: ModelContext) -> None:
    operations = ctx.config.model_operations
    for filename in operations.op_library_filename if operations is not None else ():
        path = find_named_file(ctx, filename) or Path(filename)
        try:
            tf.load_op_library(str(path))
        except Exception as error:
            raise InvalidArgument(
                f"model '{ctx.name}': model_operations: operator library '{filename}' cannot be loaded: "
                f"{explain_failure(path, describe_error(error))}"
            ) from error


def _run_init_ops(ctx: ModelContext, opened: OpenGraph, filename: str) -> None:
    if not filename:
        return
    label = f"model '{ctx.name}': TF_INIT_OPS_FILE '{filename}'"
    names = _read_init_ops(ctx, filename, label)
    operations: Mapping[str, Any] = {operation.name: operation for operation in opened.graph.get_operations()}
    for name in names:
        if name not in operations:
            near = near_name(name, operations)
            suggestion = f"; did you mean '{near}'?" if near else ""
            raise InvalidArgument(f"{label}: the graph has no operation '{name}'{suggestion}")
    try:
        opened.session.run([operations[name] for name in names])
    except tf.errors.OpError as error:
        raise InvalidArgument(f"{label}: {quoted(names)} failed: {describe_error(error)}") from error


def _read_init_ops(ctx: ModelContext, filename: str, label: str) -> list[str]:
    """Return the names of operations in the file.

    Source: Triton ``tensorflow.cc`` (CreateModel).
    """
    path = find_named_file(ctx, filename)
    if path is None:
        raise NotFound(f"{label}: there is no such file in '{ctx.version_dir}' or '{ctx.model_dir}'")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidArgument(f"{label}: '{path}' is no JSON: {explain_failure(path, str(error))}") from error
    names = content.get("init_ops") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f"{label}: '{path}' must hold {{\"init_ops\": [names of operations]}}, found {content!s:.80}"
        )
    return names
