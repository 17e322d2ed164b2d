"""From a model directory to the normalised config that a load starts with, before any backend has seen the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

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


def read_config(
    name: str, model_dir: Path, version_dir: Path | None, rules: ConfigRules, override: str | None = None
) -> ModelConfig:
    """Return the config of model ``name``: parsed, backend found, defaults filled in, rules checked.

    ``version_dir`` is where the backend's model file is looked for when the config does not name one. ``override`` is
    a whole ModelConfig as JSON that takes the place of the file.

    Raises:
        InvalidArgument: names the file or the override, the field, what was found and what is expected.
    """
    config, places = _parse(name, model_dir, rules, override)
    try:
        config = normalise(find_backend(config, name, model_dir, version_dir))
        if not config.name:
            config = replace(config, name=name)
        faults = find_faults(config, name=name, require_io=not rules.auto_complete)
        if not faults:
            return normalise_instance_groups(config, num_gpus=rules.num_gpus)
    except InvalidArgument as error:
        if places is None or not places.knows(error.message):
            raise
        faults = [error.message]
    raise InvalidArgument("; ".join((places.prefix(fault) if places else "") + fault for fault in faults))


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


def _parse(
    name: str, model_dir: Path, rules: ConfigRules, override: str | None
) -> tuple[ModelConfig, Places | None]:
    """Return the config, and where its fields stand if it comes from a file."""
    if override is not None:
        try:
            return parse_json(override, "config override"), None
        except InvalidArgument as error:
            raise InvalidArgument(f"Invalid config override: {error.message}") from error
    path = config_path(model_dir, rules.config_name)
    try:
        text = path.read_text("utf-8")
        return parse_text(text, path), Places(path, text)
    except FileNotFoundError:
        if rules.auto_complete:
            return ModelConfig(), None
        raise InvalidArgument(
            f"model '{name}' has no config file: '{path}' is mandatory while auto-completion is disabled"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: the config file is not UTF-8 text: {error}") from error
    except OSError as error:
        raise InvalidArgument(f"cannot read the config of model '{name}': {error}") from error
