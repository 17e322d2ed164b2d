"""What `bireme repo check` looks at: every rule of every model, without serving anything.

For each model: the config file, the rules that a config must obey, label files, version directories, and then the model
file itself, opened by its backend and warmed up as the server would. Ensembles come last, compared with the models that they
consist of. What is wrong never stops the look at the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from bireme.backends.interface import Backend, LoadedModel, ModelContext
from bireme.backends.registry import find_backend_directory, get_backend, usable_gpus
from bireme.cli.check_ensembles import CheckedModel, check_ensembles
from bireme.config import (
    ModelConfig,
    Places,
    apply_autocomplete,
    find_faults,
    normalise,
    normalise_instance_groups,
    parse_text,
    read_labels,
)
from bireme.config.backend_rules import ENSEMBLE_PLATFORM
from bireme.engine.load_plan import LoadOverride, features_without_effect, plan_load
from bireme.engine.loading import load_version
from bireme.engine.options import ServerOptions
from bireme.ipc.gpus import num_gpus
from bireme.repository import (
    Catalogue,
    ConfigRules,
    ModelDirectory,
    find_backend,
    misnamed_config,
    name_of,
    no_versions,
    select_versions,
)
from bireme.repository.agents import AgentChain, AgentRegistry
from bireme.repository.layout import CONFIG_FILE, config_path, list_versions
from bireme.types import BiremeError, InvalidArgument


@dataclass(slots=True)
class ModelReport:
    """What was found out about one model."""

    name: str
    location: str
    backend: str = ""
    versions: tuple[int, ...] = ()
    """Those that the server would load."""
    faults: list[str] = field(default_factory=list)
    """Why the model would not load, each with its place."""
    notes: list[str] = field(default_factory=list)
    """What is odd, and ignored."""

    @property
    def is_good(self) -> bool:
        """Whether the server would load the model."""
        return not self.faults

    def add(self, fault: str) -> None:
        """Take a fault, once."""
        if fault not in self.faults:
            self.faults.append(fault)

    def call_by_origin(self, directory: ModelDirectory) -> None:
        """Name files as the repository calls them, and not by the copy that was looked at."""
        self.location = directory.origin
        self.faults = list(map(directory.call_by_origin, self.faults))
        self.notes = list(map(directory.call_by_origin, self.notes))


def check_repositories(options: ServerOptions, *, opens_models: bool = True) -> Iterator[ModelReport]:
    """Yield a report on each model of the repositories, by name, ensembles last; without ``opens_models`` only files are read.

    Raises:
        InvalidArgument: a repository is no directory, or cannot be listed.
        Unsupported: the library for object stores is not installed.
    """
    catalogue = Catalogue.open(
        options.model_repository, has_namespaces=options.model_namespacing, cache=options.store_cache
    ).listed(whole=True)
    checks: dict[str, _ModelCheck] = {}
    for name, storages in catalogue.list_names().items():
        if len(storages) > 1:
            where = " and ".join(storage.location for storage in storages)
            yield ModelReport(
                name,
                where,
                faults=[f"model '{name}' is in {where}: a name must be unique over all repositories"],
            )
            continue
        try:
            directory = storages[0].check_out(name_of(name))
        except OSError as error:
            yield ModelReport(name, storages[0].location, faults=[f"cannot be read: {error}"])
            continue
        with closing(directory):
            check = _ModelCheck(name, directory, catalogue, options, opens_models=opens_models)
            report = check.run()
            report.call_by_origin(directory)
        checks[name] = check
        if not check.is_ensemble:
            yield report
    if any(check.is_ensemble for check in checks.values()):
        models = {name: check.outcome() for name, check in checks.items()}
        check_ensembles(models, opens_models=opens_models)
        yield from (check.report for check in checks.values() if check.is_ensemble)


class _ModelCheck:
    """The look at one model; the report fills up on the way."""

    def __init__(
        self,
        key: str,
        directory: ModelDirectory,
        catalogue: Catalogue,
        options: ServerOptions,
        *,
        opens_models: bool,
    ) -> None:
        self._key = key
        self._name = name_of(key)
        self._files = directory
        self._dir = directory.path
        self._catalogue = catalogue
        self._options = options
        self._opens_models = opens_models
        self._auto_complete = not options.disable_auto_complete_config
        self._report = self.report = ModelReport(self._name, str(self._dir))
        self._agents: AgentChain | None = None
        self._config: ModelConfig | None = None
        self._finals: dict[int, ModelConfig] = {}
        self._places: Places | None = None

    @property
    def is_ensemble(self) -> bool:
        """Whether it is an ensemble, as far as its config can be read."""
        return self._config is not None and self._config.ensemble_scheduling is not None

    def outcome(self) -> CheckedModel:
        """Return what ensembles need to know."""
        if not self._report.is_good:
            return CheckedModel(None, self._report.versions, self._add)
        return CheckedModel(self._config, self._report.versions, self._add, self._finals)

    def run(self) -> ModelReport:
        """Look at everything; return the report."""
        found = list_versions(self._dir)
        for odd in found.odd:
            self._report.notes.append(
                f"{self._dir / odd}: ignored, a version directory is a positive integer without leading zero"
            )
        misnamed = misnamed_config(self._dir)
        if misnamed:
            self._report.notes.append(
                f"{self._dir / misnamed}: ignored; a config file is called {CONFIG_FILE}"
            )
        config = self._read_config(min(map(str, found.versions), default=None))
        if config is None:
            return self._report
        self._config = config
        available = found.versions
        if self.is_ensemble and not available:
            available = (1,)  # as the server has it
        self._report.backend = ENSEMBLE_PLATFORM if self.is_ensemble else config.backend
        self._report.versions = tuple(select_versions(config.version_policy, available))
        self._report.notes.extend(features_without_effect(config))
        try:
            self._files.complete(self._report.versions if self._opens_models else ())
        except OSError as error:
            self._report.add(f"cannot fetch its files: {error}")
            return self._report
        self._check_labels(config)
        self._check_plan(config, available)
        for version in self._report.versions if not self.is_ensemble else ():
            if self._opens_models and config.backend:
                self._check_version(config, version)
            elif not self._opens_models:
                self._finals[version] = config
        if self._agents is not None:
            self._agents.end()
        return self._report

    def _read_config(self, first_version: str | None) -> ModelConfig | None:
        """Return the config with defaults, as far as it can be had."""
        path = config_path(self._dir, self._options.model_config_name)
        config = ModelConfig()
        if path.is_file():
            try:
                text = path.read_text("utf-8")
                config = parse_text(text, path)
            except UnicodeDecodeError as error:
                self._report.add(f"{path}: the config file is not UTF-8 text: {error}")
                return None
            except InvalidArgument as error:
                for fault in re.split(rf"; (?={re.escape(str(path))}:\d)", error.message):
                    self._report.add(fault)
                return None
            self._places = Places(path, text)
        elif not self._auto_complete:
            self._report.add(f"{path}: the config file is mandatory while auto-completion is disabled")
        try:
            version_dir = self._dir / first_version if first_version else None
            config = normalise(find_backend(config, self._name, self._dir, version_dir))
        except BiremeError as error:
            self._add(error.message)
            return None
        self._add_faults(config, require_io=not self._auto_complete)
        return config if config.name else replace(config, name=self._name)

    def _check_labels(self, config: ModelConfig) -> None:
        for output in config.output:
            if output.label_filename:
                try:
                    read_labels(self._dir, output.label_filename)
                except BiremeError as error:
                    self._add(error.message)

    def _check_plan(self, config: ModelConfig, available: Iterable[int]) -> None:
        """Ask what a load would do; a config without faults may still ask for what is not supported."""
        if self._report.faults:
            if not self._report.versions:
                self._add(no_versions(self._name, config.version_policy, self._dir, available))
            return
        rules = ConfigRules(self._options.model_config_name, self._auto_complete, num_gpus())
        agents = AgentRegistry(self._options.repoagent_directory)
        try:
            plan = plan_load(
                self._key,
                LoadOverride(),
                catalogue=self._catalogue,
                rules=rules,
                loaded=None,
                agents=agents,
                fetches=False,  # they are there already, as far as they are wanted
            )
        except BiremeError as error:
            self._add(error.message)
            return
        if plan is not None and self._catalogue.has_namespaces:
            self._config = plan.source.config  # its steps are keys
        if plan is not None and plan.source.agents is not None:
            self._agents = plan.source.agents
            self._dir = plan.source.directory.path
            self._report.versions = plan.versions

    def _check_version(self, config: ModelConfig, version: int) -> None:
        version_dir = self._dir / str(version)
        try:
            directory = self._options.backend_directory
            backend = get_backend(config.backend, directory)
            ctx = ModelContext(
                self._name,
                version,
                self._dir,
                version_dir,
                normalise_instance_groups(config, usable_gpus(config.backend, num_gpus())),
                self._options.settings_of(config.backend),
                find_backend_directory(config.backend, directory),
            )
            if self._report.is_good:
                prepared = load_version(ctx, backend, auto_complete=self._auto_complete)
                self._finals[version] = prepared.config
                prepared.close()
            else:
                self._check_file(ctx, backend)
        except BiremeError as error:
            self._add(error.message, version_dir)

    def _check_file(self, ctx: ModelContext, backend: Backend) -> None:
        """Compare the model file with a config that has faults: there may be more of them."""
        loaded: LoadedModel
        with closing(backend.load(ctx)) as loaded:
            config = ctx.config
            if self._auto_complete:
                config = apply_autocomplete(config, loaded.complete_config(config))
            self._add_faults(config, require_io=True)
            loaded.check_config(config)

    def _add_faults(self, config: ModelConfig, *, require_io: bool) -> None:
        gpus = usable_gpus(config.backend, num_gpus())
        for fault in find_faults(config, name=self._name, require_io=require_io, gpus=gpus):
            self._add(fault)

    def _add(self, fault: str, version_dir: Path | None = None) -> None:
        """Take a fault with its place: a line of the config, else the version's or the model's directory."""
        if self._places is not None and fault.startswith(f"{self._places.path}:"):
            self._report.add(fault)
        elif self._places is not None and (version_dir is None or self._places.knows(fault)):
            self._report.add(self._places.prefix(fault) + fault)
        else:
            self._report.add(f"{version_dir or self._dir}: {fault}")
