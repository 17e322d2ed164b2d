"""Which backend runs a model: from the config, or else from the files that lie in its version directory.

One table holds the backends that have platforms and files of their own; any other backend is taken at its word.

Source: Triton ``model_config_utils.cc`` (AutoCompleteBackendFields, GetBackendType).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bireme.config.faults import near_name
from bireme.config.model_config import ModelConfig
from bireme.types.errors import InvalidArgument

ENSEMBLE_PLATFORM: Final = "ensemble"


@dataclass(frozen=True, slots=True)
class BackendRule:
    """A model file, and the backend and platform that it stands for."""

    backend: str
    platform: str
    filename: str
    may_be_file: bool = True
    may_be_directory: bool = False


RULES: Final = (
    BackendRule("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    BackendRule(
        "tensorflow", "tensorflow_savedmodel", "model.savedmodel", may_be_file=False, may_be_directory=True
    ),
    BackendRule("tensorrt", "tensorrt_plan", "model.plan"),
    BackendRule("onnxruntime", "onnxruntime_onnx", "model.onnx", may_be_directory=True),
    BackendRule("onnxruntime", "onnxruntime_onnx", "model.ort"),
    BackendRule("openvino", "", "model.xml", may_be_directory=True),
    BackendRule("pytorch", "pytorch_libtorch", "model.pt"),
    BackendRule("pytorch", "torch_aoti", "model.pt2"),
    BackendRule("python", "", "model.py", may_be_directory=True),
    BackendRule("pytorch", "pytorch_libtorch", "model.py"),
    BackendRule("jax", "", "model.jax"),
    BackendRule("sklearn", "", "model.joblib"),
    BackendRule("sklearn", "", "model.pkl"),
    BackendRule("sklearn", "", "model.skops"),
    BackendRule("xgboost", "", "model.ubj"),
    BackendRule("xgboost", "", "model.json"),
    BackendRule("xgboost", "", "model.bst"),
    BackendRule("lightgbm", "", "model.txt"),
    BackendRule("fil", "", "xgboost.ubj"),
    BackendRule("fil", "", "xgboost.json"),
    BackendRule("fil", "", "xgboost.model"),
    BackendRule("fil", "", "model.txt"),
    BackendRule("fil", "", "checkpoint.tl"),
)
"""In the order in which they are tried."""
PLATFORMS: Final = (*(rule.platform for rule in RULES if rule.platform), ENSEMBLE_PLATFORM)

_PLATFORM_ALIASES: Final = {"libtorch": "pytorch_libtorch"}
# Triton gives these a platform only if a file or the config says which.
_WITHOUT_DEFAULT_PLATFORM: Final = frozenset({"tensorflow"})


def complete_backend(config: ModelConfig, name: str, version_dir: Path | None) -> ModelConfig:
    """Return ``config`` with name, backend, platform and default file name filled in as far as they follow.

    ``name`` is the model directory's; ``version_dir`` its lexicographically first sub-directory, None if there is
    none. Files count only where the config says nothing.

    Raises:
        InvalidArgument: nothing says which backend it is.
    """
    if not config.name:
        config = replace(config, name=name)
    says_nothing = not (config.backend or config.platform or config.default_model_filename)
    rule = _rule_of_backend(config, version_dir) if config.backend else _rule_of_file(config, version_dir)
    if rule is not None:
        return replace(
            config,
            backend=config.backend or rule.backend,
            platform=config.platform or rule.platform,
            default_model_filename=config.default_model_filename or rule.filename,
        )
    if not says_nothing:
        return config
    _, dot, backend = name.partition(".")
    if not dot or config.ensemble_scheduling is not None:
        raise InvalidArgument(_no_backend(config, name, version_dir))
    return replace(config, backend=backend, default_model_filename=f"model.{backend}")


def filenames_of(backend: str) -> tuple[str, ...]:
    """Return what the backend's model files are called, in the order in which they are looked for."""
    return tuple(rule.filename for rule in RULES if rule.backend == backend)


def platforms_of(backend: str) -> tuple[str, ...]:
    """Return the platforms that go with a backend that has platforms of its own; empty: any platform goes."""
    return tuple(dict.fromkeys(rule.platform for rule in RULES if rule.backend == backend and rule.platform))


def canonical_platform(platform: str) -> str:
    """Return the platform's main name."""
    return _PLATFORM_ALIASES.get(platform, platform)


def _rule_of_backend(config: ModelConfig, version_dir: Path | None) -> BackendRule | None:
    """Return the rule of a named backend: by runtime, by platform, by file name, by file, or its first."""
    rules = [rule for rule in RULES if rule.backend == config.backend]
    for rule in rules:
        if rule.filename == config.runtime:
            return rule
    platform = canonical_platform(config.platform)
    if platform:
        rules = [rule for rule in rules if rule.platform == platform] or rules
        return rules[0] if rules else None
    for rule in rules:
        named = config.default_model_filename == rule.filename
        if named or (not config.default_model_filename and _is_present(rule, version_dir)):
            return rule
    return rules[0] if rules and config.backend not in _WITHOUT_DEFAULT_PLATFORM else None


def _rule_of_file(config: ModelConfig, version_dir: Path | None) -> BackendRule | None:
    """Return the first rule whose platform or file name the config gives; if it gives neither, whose file exists."""
    platform = canonical_platform(config.platform)
    if platform or config.default_model_filename:
        for rule in RULES:
            if (platform and platform == rule.platform) or config.default_model_filename == rule.filename:
                return rule
        return None
    return next((rule for rule in RULES if _is_present(rule, version_dir)), None)


def _is_present(rule: BackendRule, version_dir: Path | None) -> bool:
    if version_dir is None:
        return False
    path = version_dir / rule.filename
    return rule.may_be_directory if path.is_dir() else rule.may_be_file and path.exists()


def _no_backend(config: ModelConfig, name: str, version_dir: Path | None) -> str:
    message = f"Invalid model name: Could not determine backend for model '{name}' with no backend in model configuration. "
    if config.ensemble_scheduling is not None:
        return (
            f"{message}It has 'ensemble_scheduling': an ensemble must say platform: \"{ENSEMBLE_PLATFORM}\"."
        )
    message += "Expected model name of the form 'model.<backend_name>'"
    if version_dir is None:
        return f"{message}, or a version directory such as '{name}/1' with a model file in it"
    known = list(dict.fromkeys(rule.filename for rule in RULES))
    found = sorted(path.name for path in version_dir.iterdir()) if version_dir.is_dir() else []
    message += f", or one of these in '{version_dir.name}': {', '.join(known)}. Found: {', '.join(found) or 'nothing'}"
    if misplaced := next((file for file in found if file in known), ""):
        path = version_dir / misplaced
        if not path.exists():
            return f"{message}; '{misplaced}' is a link that leads nowhere"
        wanted, there = ("a folder", "a file") if path.is_file() else ("a file", "a folder")
        return f"{message}; '{misplaced}' must be {wanted}, but is {there}"
    near = next(((file, meant) for file in found if (meant := near_name(file, known))), None)
    return message + (f"; did you mean '{near[1]}' instead of '{near[0]}'?" if near else ".")
