"""VersionLoader: loads one version of a model with the right backend. For loading threads; whatever fails is a result."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from bireme.backends.interface import Backend, Host, ModelContext
from bireme.backends.isolated import IsolatedBackend, wants_process
from bireme.backends.registry import find_backend_directory, get_backend, runs_isolated
from bireme.config import ModelConfig
from bireme.config.backend_rules import ENSEMBLE_PLATFORM
from bireme.engine.load_plan import LoadPlan
from bireme.engine.loading import PreparedModel, load_version
from bireme.engine.options import ServerOptions
from bireme.types import BiremeError, Internal

log = logging.getLogger("bireme.engine")

_NEVER_ISOLATED = ("python", ENSEMBLE_PLATFORM)


class VersionLoader:
    """The backends of one server and the settings that loads share. Any thread may call it."""

    def __init__(self, options: ServerOptions, backends: Mapping[str, Backend], host: Host) -> None:
        """``backends`` by name come before those that are installed."""
        self._options = options
        self._host = host
        self._given = frozenset(backends)
        self._backends = dict(backends)
        self._lock = threading.Lock()

    def load(self, plan: LoadPlan, version: int) -> PreparedModel | BiremeError:
        """Load and warm ``version``, again if it fails and the options say so; return it or why it failed."""
        num_tries = self._options.model_load_retry_count + 1
        while True:
            outcome = self._try(plan, version)
            num_tries -= 1
            if num_tries == 0 or not isinstance(outcome, BiremeError):
                return outcome
            log.warning("failed to load '%s' version %d, trying again: %s", plan.name, version, outcome)

    def _try(self, plan: LoadPlan, version: int) -> PreparedModel | BiremeError:
        config = plan.source.config
        backend_name = _backend_name(config)
        model_dir = plan.source.directory.path
        context = ModelContext(
            name=plan.model_name,
            version=version,
            model_dir=model_dir,
            version_dir=model_dir / str(version),
            config=config,
            backend_config=self._options.settings_of(backend_name),
            backend_dir=self._directory_of(backend_name),
            host=self._host,
        )
        auto_complete = not self._options.disable_auto_complete_config
        try:
            return load_version(context, self._backend_of(context), auto_complete=auto_complete)
        except BiremeError as error:
            # The frames of its traceback hold what was loaded so far.
            error.__cause__ = error.__context__ = None
            error.args = (plan.source.directory.call_by_origin(error.message),)
            return error.with_traceback(None)
        except BaseException as error:  # a model's own code may even call exit()
            log.exception("failed to load '%s' version %d", plan.name, version)
            return Internal(f"{type(error).__name__}: {error}")

    def _backend_of(self, context: ModelContext) -> Backend:
        name = _backend_name(context.config)
        # Python models have processes of their own anyway, and an ensemble only asks others.
        is_isolated = wants_process(context.config, default=name not in self._given and runs_isolated(name))
        if is_isolated and name not in _NEVER_ISOLATED and context.backend_dir is None:
            return IsolatedBackend(name)
        return self._backend(name)

    def _backend(self, name: str) -> Backend:
        """Return the server's one object for a backend, made when the first model names it."""
        with self._lock:
            if name not in self._backends:
                self._backends[name] = get_backend(name, self._options.backend_directory)
            return self._backends[name]

    def _directory_of(self, name: str) -> Path | None:
        """Return where the backend is, if it is a directory with a ``model.py``."""
        if name in self._given:
            return None
        return find_backend_directory(name, self._options.backend_directory)


def _backend_name(config: ModelConfig) -> str:
    """Return the backend's name; an ensemble's config has none."""
    return ENSEMBLE_PLATFORM if config.platform == ENSEMBLE_PLATFORM else config.backend
