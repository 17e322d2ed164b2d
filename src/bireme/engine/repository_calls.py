"""The in-process API's calls about repositories: what is in them, and what is loaded from them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from bireme.engine.load_plan import LoadOverride
from bireme.engine.on_demand import NOT_LOADED
from bireme.engine.options import ModelControlMode, ServerOptions
from bireme.types import Unavailable, Unsupported

if TYPE_CHECKING:
    from bireme.engine.lifecycle import Lifecycle
    from bireme.repository import Catalogue, Storage


_NOT_LOADED: Final = MappingProxyType({"state": "UNAVAILABLE", "reason": NOT_LOADED})


class RepositoryCalls(ABC):
    """A part of `bireme.engine.Server`. Loop thread only."""

    options: ServerOptions

    @abstractmethod
    def _running(self) -> Lifecycle:
        """Return the lifecycle of a server that has been started."""

    @abstractmethod
    def _require_ready(self) -> None:
        """Raise `Unavailable` unless the server is ready."""

    def repository_index(self, ready: bool = False) -> list[dict[str, str]]:  # noqa: FBT001, FBT002 - as in the C API
        """Return every model in the repositories and every model with a state; with ``ready`` only what serves.

        Lists each repository's directory: a short blocking call, unless a repository is in an object store
        (`fetch_index`).

        Raises:
            Unavailable: the server is starting or stopping.
        """
        self._require_ready()
        return self._index({} if ready else self._running().catalogue.list_names(), ready=ready)

    async def fetch_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """As `repository_index`; others are served while object stores are listed."""
        self._require_ready()
        catalogue = self._running().catalogue
        return self._index({} if ready else await asyncio.to_thread(catalogue.list_names), ready=ready)

    @property
    def has_remote_repositories(self) -> bool:
        """Whether a repository is in an object store, so that its index is better fetched. Raises as `repository_index`."""
        self._require_ready()
        return self._running().catalogue.has_remote

    def _index(self, names: Mapping[str, list[Storage]], *, ready: bool) -> list[dict[str, str]]:
        index = self._running().table.index(names, ready=ready)
        if self.options.model_control_mode != ModelControlMode.ONDEMAND:
            return index
        return [entry if "state" in entry else {**entry, **_NOT_LOADED} for entry in index]

    async def load_model(
        self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load or reload a model and return when it serves; what served before serves on until then.

        ``config`` is a whole ModelConfig as JSON in place of the config file; ``files`` (by path in the model's
        directory, such as ``1/model.onnx``) replace the directory.

        Raises:
            InvalidArgument: the name, the config or a file's path is wrong, or a version failed; says why.
            Internal: the model is in no repository, or in several.
            Unavailable: the control mode is not explicit, or the server is starting or stopping.
        """
        await self._controlled().load(name, LoadOverride(config, dict(files or {})))

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model and return when it takes no more requests; those in flight finish. An unknown one is no error.

        Ensembles with it go, too; with ``unload_dependents`` also what it consists of and was loaded for it alone.

        Raises:
            Unavailable: the control mode is not explicit, or the server is starting or stopping.
        """
        await self._controlled().unload(name, unload_dependents=unload_dependents)

    def register_repository(
        self, location: str | Path, mapping: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Add a repository; loads find its models from now on. ``mapping`` gives other names to directories of it.

        Raises:
            InvalidArgument: it is no directory.
            AlreadyExists: it is there already, or a name of the mapping is.
            Unsupported: the control mode is not explicit.
            Unavailable: the server is starting or stopping.
        """
        self._registrable("registration").register(str(location), mapping)

    def unregister_repository(self, location: str | Path) -> None:
        """Take a repository out; what was loaded from it keeps serving.

        Raises:
            InvalidArgument: no such repository is registered.
            Unsupported, Unavailable: as `register_repository`.
        """
        self._registrable("unregistration").unregister(str(location))

    def _controlled(self) -> Lifecycle:
        """Return the lifecycle if clients may change what is loaded."""
        self._require_ready()
        if not self._is_explicit():
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled; "
                f"this server runs with model_control_mode '{self.options.model_control_mode}'"
            )
        return self._running()

    def _registrable(self, action: str) -> Catalogue:
        """Return the catalogue if repositories may come and go."""
        self._require_ready()
        if not self._is_explicit():
            raise Unsupported(
                f"repository {action} is not allowed if model control mode is not EXPLICIT; "
                f"this server runs with model_control_mode '{self.options.model_control_mode}'"
            )
        return self._running().catalogue

    def _is_explicit(self) -> bool:
        return self.options.allows_loads
