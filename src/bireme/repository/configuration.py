"""From a model directory to the normalised config that a load starts with, before any backend has seen the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bireme.backends.registry import usable_gpus
from bireme.config import (
    ModelConfig,
    Places,
    complete_backend,
    find_faults,
    normalise,
    normalise_instance_groups,
    parse_json,
    parse_text,
)
from bireme.config.model_config import ModelInstanceGroup
from bireme.repository.layout import config_path, misplaced_files
from bireme.types import InvalidArgument


@dataclass(frozen=True, slots=True)
class ConfigRules:
    """The server's settings that decide how every model's config is read."""

    config_name: str = ""
    """``--model-config-name``"""
    auto_complete: bool = True
    """False (``--disable-auto-complete-config``): a config file is mandatory and complete by itself."""
    num_gpus: int = 0
    """Of this machine, see `bireme.ipc.gpus.num_gpus`."""


class ParsedConfig(NamedTuple):
    """A config as written."""

    config: ModelConfig
    places: Places | None
    """Where its fields stand if it comes from a file."""


def read_config(
    name: str, model_dir: Path, version_dir: Path | None, rules: ConfigRules, override: str | None = None
) -> ModelConfig:
    """Return the config of model ``name``: as `parse_config`, then `complete_config`. Raises as they do."""
    return complete_config(
        parse_config(name, model_dir, rules, override), name, model_dir, version_dir, rules
    )


def complete_config(
    parsed: ParsedConfig, name: str, model_dir: Path, version_dir: Path | None, rules: ConfigRules
) -> ModelConfig:
    """Return the config of model ``name``: backend found, defaults filled in, rules checked.

    ``version_dir`` is where the backend's model file is looked for when the config does not name one.

    Raises:
        InvalidArgument: names the file or the override, the field, what was found and what is expected.
    """
    config, places = parsed
    try:
        config = normalise(find_backend(config, name, model_dir, version_dir))
        if not config.name:
            config = replace(config, name=name)
        gpus = usable_gpus(config.backend, rules.num_gpus)
        faults = find_faults(config, name=name, require_io=not rules.auto_complete, gpus=gpus)
        if not faults:
            return normalise_instance_groups(config, gpus)
    except InvalidArgument as error:
        if places is None or not places.knows(error.message):
            raise
        faults = [error.message]
    raise InvalidArgument("; ".join((places.prefix(fault) if places else "") + fault for fault in faults))


def cpu_fallback(parsed: ModelConfig, config: ModelConfig, rules: ConfigRules) -> str:
    """Return why instances of KIND_AUTO run on the CPU; empty: none does. ``parsed`` is as written, ``config`` complete."""
    gpus = usable_gpus(config.backend, rules.num_gpus)
    for written, made in zip(
        parsed.instance_group or (ModelInstanceGroup(),), config.instance_group, strict=False
    ):
        if written.kind == "KIND_AUTO" and made.kind == "KIND_CPU":
            return gpus.why_none if not gpus.num else f"not all of gpus {list(written.gpus)} are there"
    return ""


def find_backend(config: ModelConfig, name: str, model_dir: Path, version_dir: Path | None) -> ModelConfig:
    """As `complete_backend`, and hint at files that lie in the wrong directory.

    Raises:
        InvalidArgument: nothing says which backend it is.
    """
    try:
        return complete_backend(config, name, version_dir)
    except InvalidArgument as error:
        if version_dir is not None:
            raise
        raise InvalidArgument(error.message + misplaced_files(model_dir)) from None


def parse_config(name: str, model_dir: Path, rules: ConfigRules, override: str | None = None) -> ParsedConfig:
    """Return the config of model ``name`` as written, an empty one where there is none and none is needed.

    ``override`` is a whole ModelConfig as JSON that takes the place of the file.

    Raises:
        InvalidArgument: names the file or the override, the field, what was found and what is expected.
    """
    if override is not None:
        try:
            return ParsedConfig(parse_json(override, "config override"), None)
        except InvalidArgument as error:
            raise InvalidArgument(f"Invalid config override: {error.message}") from error
    path = config_path(model_dir, rules.config_name)
    try:
        text = path.read_text("utf-8")
        return ParsedConfig(parse_text(text, path), Places(path, text))
    except FileNotFoundError:
        if rules.auto_complete:
            return ParsedConfig(ModelConfig(), None)
        raise InvalidArgument(
            f"model '{name}' has no config file: '{path}' is mandatory while auto-completion is disabled"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: the config file is not UTF-8 text: {error}") from error
    except OSError as error:
        raise InvalidArgument(f"cannot read the config of model '{name}': {error}") from error
