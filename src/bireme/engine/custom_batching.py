"""Custom batching: a model's ``batchstrategy.py``, whose functions say which requests go into a batch together.

    def batcher_initialize(config):               # optional: once, at load; config as JSON
        return int(config["parameters"]["MAX_VOLUME"]["string_value"])

    def batch_initialize(batcher):                # optional: for each batch
        return {"left": batcher}

    def batch_include_request(request, batch):    # required
        batch["left"] -= request.inputs["X"].nbytes
        return batch["left"] >= 0

    def batch_finalize(batch):                    # optional
        ...

Source: Triton ``tritonbackend.h`` (TRITONBACKEND_ModelBatchIncludeRequest and its neighbours, in a library
``batchstrategy.so``) and ``backend_model.cc`` for where it is searched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from bireme.config import ModelConfig, to_json
from bireme.scheduling.batch_strategy import BatchStrategy
from bireme.types import InferenceRequest, InvalidArgument, NotFound, Unsupported

log = logging.getLogger("bireme.engine")

PARAMETER: Final = "TRITON_BATCH_STRATEGY_PATH"
STEM: Final = "batchstrategy"


def find_strategy(
    config: ModelConfig, *, version_dir: Path, model_dir: Path, backend_dir: Path | None
) -> BatchStrategy | None:
    """Return the batching strategy of a model with dynamic batching; None: it has none, as most.

    Runs the file's own code: for a loading thread.

    Raises:
        InvalidArgument: the file is outside the model's directory, or its code cannot be used.
        NotFound: the config names a file that is not there.
        Unsupported: it is a C library.
    """
    if config.dynamic_batching is None:
        return None
    path = _find_file(config, version_dir, model_dir, backend_dir)
    if path is None:
        return None
    if path.suffix != ".py":
        raise Unsupported(
            f"model '{config.name}': batching strategy '{path}' is a C library, and strategies are written in Python here: put "
            f"a {STEM}.py with a function batch_include_request(request, batch) in its place"
        )
    try:
        return _FileStrategy(config, _import(path))
    except Exception as error:
        raise InvalidArgument(
            f"model '{config.name}': batching strategy '{path}' cannot be used: {type(error).__name__}: {error}"
        ) from error


def _find_file(
    config: ModelConfig, version_dir: Path, model_dir: Path, backend_dir: Path | None
) -> Path | None:
    named = config.parameter(PARAMETER)
    if not named:
        places = [place for place in (version_dir, model_dir, backend_dir) if place is not None]
        found = (place / f"{STEM}{suffix}" for place in places for suffix in (".py", ".so"))
        return next((path for path in found if path.is_file()), None)
    path = model_dir / named  # an absolute one stays as it is
    if not path.resolve().is_relative_to(model_dir.resolve()):
        raise InvalidArgument(
            f"model '{config.name}': Batching library path escapes model repository: {PARAMETER} is '{named}'"
        )
    if not path.is_file():
        raise NotFound(
            f"model '{config.name}': Batching library path not found: {PARAMETER} is '{named}', "
            f"looked in '{model_dir}'"
        )
    return path


def _import(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"bireme_{STEM}", path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _FileStrategy:
    """The functions of one file, as `BatchStrategy`. What they raise ends the batch, and is logged once."""

    def __init__(self, config: ModelConfig, module: ModuleType) -> None:
        self._name = config.name
        self._include: Callable[[InferenceRequest, Any], object] | None = getattr(
            module, "batch_include_request", None
        )
        if self._include is None:
            raise TypeError("it has no function batch_include_request(request, batch)")
        self._begin: Callable[[Any], Any] | None = getattr(module, "batch_initialize", None)
        self._end: Callable[[Any], object] | None = getattr(module, "batch_finalize", None)
        initialize: Callable[[dict[str, Any]], Any] | None = getattr(module, "batcher_initialize", None)
        self._batcher = initialize(to_json(config)) if initialize is not None else None
        self._has_failed = False

    def begin(self) -> Any:
        """See `BatchStrategy.begin`."""
        if self._begin is None:
            return None
        try:
            return self._begin(self._batcher)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the model's own code, on the loop's thread
            self._note_failure("batch_initialize", error)
            return None

    def includes(self, request: InferenceRequest, batch: Any) -> bool:
        """See `BatchStrategy.includes`."""
        assert self._include is not None
        try:
            return bool(self._include(request, batch))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            self._note_failure("batch_include_request", error)
            return False

    def end(self, batch: Any) -> None:
        """See `BatchStrategy.end`."""
        if self._end is None:
            return
        try:
            self._end(batch)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            self._note_failure("batch_finalize", error)

    def _note_failure(self, function: str, error: BaseException) -> None:
        if not self._has_failed:
            message = "model '%s': %s of its batching strategy failed"
            log.error(message, self._name, function, exc_info=error)
        self._has_failed = True
