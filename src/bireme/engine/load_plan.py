"""What a load call has to do: which files, which config, which versions to load, which to leave as they are.

Blocking (it reads directories and files): for a loading thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bireme.config import ModelConfig
from bireme.engine.dependencies import Dependency, dependencies_of
from bireme.engine.model_state import LoadSource
from bireme.engine.step_namespaces import with_keys
from bireme.repository import (
    Catalogue,
    ChangedMeanwhile,
    ConfigRules,
    Fingerprint,
    ModelDirectory,
    ParsedConfig,
    complete_config,
    config_path,
    cpu_fallback,
    missing_versions,
    name_of,
    no_versions,
    parse_config,
    select_versions,
    version_of_path,
    write_override,
)
from bireme.repository.agents import AgentChain, AgentRegistry
from bireme.types import BiremeError, Internal, InvalidArgument, NotFound, Unavailable

log = logging.getLogger("bireme.engine")


_TRIES = 3
"""Looks at a model whose files change in an object store while they are fetched."""


class NotInRepository(Internal):
    """The model is in no repository, in several, or its directory cannot be read."""

    def __init__(self, name: str, why: str) -> None:
        self.why = why
        super().__init__(f"failed to load '{name}', failed to poll from model repository: {why}")


class NotSettled(Unavailable):
    """The model's files are others than the look that a load comes from has seen: somebody writes them."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the files of model '{name}' are changing: it is loaded when they have settled")


@dataclass(frozen=True, slots=True)
class LoadOverride:
    """What a load call brings along instead of the repository's files."""

    config: str | None = None
    """A whole ModelConfig as JSON; it replaces the config file."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files by path in the model directory; with any, nothing of the repository is looked at."""

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The work of one load."""

    name: str
    """The model's key (`bireme.repository.model_key`)."""
    source: LoadSource
    versions: tuple[int, ...]
    """Those that will serve when the load has succeeded, ascending."""
    kept: frozenset[int]
    """Those of them that already serve and that nothing has changed for."""

    @property
    def to_load(self) -> tuple[int, ...]:
        """The versions that must be loaded."""
        return tuple(version for version in self.versions if version not in self.kept)

    @property
    def model_name(self) -> str:
        """The name without its namespace."""
        return name_of(self.name)

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """The composing models, if it is an ensemble."""
        return dependencies_of(self.source.config)


def plan_load(
    name: str,
    override: LoadOverride,
    *,
    catalogue: Catalogue,
    rules: ConfigRules,
    loaded: LoadSource | None,
    ready: Iterable[int] = (),
    retry: bool = False,
    agents: AgentRegistry | None = None,
    expected: Fingerprint | None = None,
    fetches: bool = True,
) -> LoadPlan | None:
    """Return what loading ``name`` means now, None if nothing has changed since ``loaded`` was.

    ``ready`` are the versions of ``loaded`` that serve; ``retry`` says that the last load failed, so that unchanged
    files are no reason to do nothing. ``agents`` are those that a config may name, if any beside the built-in ones.
    ``expected`` is what the files have to look like, for as long as the config is read; None: as they like. With
    ``fetches`` the files of the versions are brought from a remote repository; without, the plan can only be read.

    A version is kept when it serves, none of its files nor any file outside the version directories has changed, and
    the config says the same apart from the version policy. (Triton also changes instance groups in place; here that
    is an ordinary hot swap.) Of an ensemble nothing is kept: to make it anew costs nothing. Nor is anything of a model with
    repository agents, as its files may be others than the repository's.

    Raises:
        NotInRepository: the model is in no repository, in several, or its directory cannot be read.
        NotSettled: the files are others than was expected, or have become so meanwhile.
        InvalidArgument: the config or the override is wrong.
        Unsupported: the config asks for something that this server does not do.
    """
    look = _Look(
        catalogue.listed(), rules, loaded, frozenset(ready), agents or AgentRegistry(), expected, fetches
    )
    for num_tries in range(1, _TRIES + 1):
        try:
            return _plan_once(name, override, look, retry=retry)
        except ChangedMeanwhile as error:
            if num_tries == _TRIES:
                raise Unavailable(f"its files change while they are fetched: {error}") from error
            log.info("looking at '%s' again: %s", name, error)
        except OSError as error:
            raise Unavailable(f"cannot fetch its files: {error}") from error
    raise AssertionError


@dataclass(frozen=True, slots=True)
class _Look:
    """What a plan is made from, beside the model's files."""

    catalogue: Catalogue
    rules: ConfigRules
    loaded: LoadSource | None
    ready: frozenset[int]
    agents: AgentRegistry
    expected: Fingerprint | None
    fetches: bool

    def check(self, name: str, fingerprint: Fingerprint | None) -> None:
        """Raise `NotSettled` if the model does not look as expected."""
        if self.expected is not None and fingerprint is not None and fingerprint != self.expected:
            raise NotSettled(name)

    def check_again(self, name: str) -> None:
        """Raise `NotSettled` if one of the files that the config comes from has changed since `check`.

        New ones, and versions, are let be: a model that completes its config may write what it likes.
        """
        if self.expected is None:
            return
        now = _take_fingerprint(name, self.catalogue)
        before = self.expected.files
        if any(now.files.get(path) != before[path] for path in before if version_of_path(path) is None):
            raise NotSettled(name)


def _plan_once(name: str, override: LoadOverride, look: _Look, *, retry: bool) -> LoadPlan | None:
    rules, loaded = look.rules, look.loaded
    directory, fingerprint = _locate(name, override, look.catalogue)
    look.check(name, fingerprint)
    if fingerprint is not None and loaded is not None and loaded.fingerprint == fingerprint and not retry:
        directory.close()
        return None
    try:
        parsed = parse_config(name_of(name), directory.path, rules, override.config)
        source = LoadSource(directory, parsed.config, None if override else fingerprint)
        if parsed.config.model_repository_agents is not None:
            directory.complete()  # which files they look at is theirs to say
            source, parsed = _let_agents_work(name, source, parsed, look.agents, rules, override)
        try:
            plan = _plan(name, source, parsed, look)
            look.check_again(name)
            return plan
        except BaseException:
            if source.agents is not None:
                source.agents.end()
            raise
    except BaseException as error:
        if isinstance(error, BiremeError):
            error.args = (directory.call_by_origin(error.message),)
        directory.close()
        raise


def _let_agents_work(
    name: str,
    source: LoadSource,
    parsed: ParsedConfig,
    registry: AgentRegistry,
    rules: ConfigRules,
    override: LoadOverride,
) -> tuple[LoadSource, ParsedConfig]:
    """Let the repository agents see LOAD; return what to load then.

    A config file that they leave in a new directory counts, but which agents there are is said by the first one. (Triton says so,
    and reads only the first.)
    """
    chain, directory = AgentChain.load(name_of(name), source.directory, parsed.config, registry)
    try:
        is_moved = directory is not source.directory
        if is_moved and override.config is None and config_path(directory.path, rules.config_name).is_file():
            given = parsed.config.model_repository_agents
            parsed = parse_config(name_of(name), directory.path, rules)
            parsed = parsed._replace(config=replace(parsed.config, model_repository_agents=given))
    except BaseException:
        chain.end()
        raise
    if is_moved:
        directory.is_renamed = source.directory.is_renamed
    return replace(source, directory=directory, agents=chain), parsed


def _plan(name: str, source: LoadSource, parsed: ParsedConfig, look: _Look) -> LoadPlan:
    catalogue = look.catalogue
    model_dir = source.directory.path
    try:
        available = catalogue.list_versions(model_dir).versions
    except OSError as error:
        raise NotInRepository(name, f"its directory cannot be read: {error}") from error
    if source.directory.is_renamed:
        parsed = parsed._replace(config=replace(parsed.config, name=""))
    first = min(map(str, available), default=None)
    config = complete_config(
        parsed, name_of(name), model_dir, model_dir / first if first else None, look.rules
    )
    fallback = cpu_fallback(parsed.config, config, look.rules)
    if fallback:
        log.info("model '%s': instances of KIND_AUTO run on the CPU, since %s", name, fallback)
    if catalogue.has_namespaces and config.ensemble_scheduling is not None:
        config = with_keys(config, name, catalogue.list_names())
    if config.ensemble_scheduling is not None and not available:
        available = (1,)  # version control systems drop empty directories
    versions = tuple(select_versions(config.version_policy, available))
    for version in missing_versions(config.version_policy, available):
        log.error(
            "version %d is specified for model '%s', but the version directory is not present", version, name
        )
    if not versions:
        raise InvalidArgument(no_versions(name_of(name), config.version_policy, model_dir, available))
    source = replace(source, config=config)
    kept = _unchanged(source, look.loaded).intersection(look.ready, versions)
    if source.agents is None and look.fetches:
        source.directory.complete(version for version in versions if version not in kept)
    return LoadPlan(name, source, versions, frozenset(kept))


def _locate(
    name: str, override: LoadOverride, catalogue: Catalogue
) -> tuple[ModelDirectory, Fingerprint | None]:
    """Return the model's directory, and its fingerprint if the load is to be compared with an earlier one."""
    if override.files:
        if override.config is None:
            raise InvalidArgument("Load parameter 'config' must be specified for model file override")
        return write_override(name, override.files), None
    try:
        storage = catalogue.find(name)
        # The fingerprint comes first: a file that changes while the model loads then counts as changed afterwards.
        fingerprint = None if override else storage.fingerprint(name_of(name))
        return storage.check_out(name_of(name)), fingerprint
    except (NotFound, Unavailable) as error:
        raise NotInRepository(name, error.message) from None
    except OSError as error:
        raise NotInRepository(name, f"its directory cannot be read: {error}") from error


def _take_fingerprint(name: str, catalogue: Catalogue) -> Fingerprint:
    try:
        return catalogue.find(name).fingerprint(name_of(name))
    except (NotFound, OSError) as error:
        raise NotSettled(name) from error


def features_without_effect(config: ModelConfig) -> list[str]:
    """Return, for a note each, what the config asks for that not every server does."""
    if config.response_cache is not None and config.response_cache.enable:
        return ["'response_cache' has an effect on a server with a cache alone (--cache-config)"]
    return []


def _unchanged(source: LoadSource, loaded: LoadSource | None) -> set[int]:
    """Return the versions that may stay as they are when ``source`` takes the place of ``loaded``."""
    if (
        loaded is None
        or source.config.ensemble_scheduling is not None
        or source.agents is not None
        or source.fingerprint is None
        or loaded.fingerprint is None
        or loaded.directory.origin != source.directory.origin
        or replace(loaded.config, version_policy=None) != replace(source.config, version_policy=None)
    ):
        return set()
    versions = {version_of_path(path) for path in source.fingerprint.files}
    # The configs were compared; their files' times do not matter.
    changed = {
        version_of_path(path)
        for path in loaded.fingerprint.changed_paths(source.fingerprint)
        if not _is_config(path)
    }
    if None in changed:
        return set()
    return {version for version in versions - changed if version is not None}


def _is_config(path: str) -> bool:
    return Path(path).suffix == ".pbtxt" and (path == "config.pbtxt" or path.startswith("configs/"))
