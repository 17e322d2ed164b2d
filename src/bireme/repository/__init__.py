"""Model repositories: storage, layout, versions, what has changed, and the config that a load starts with."""

from bireme.repository.catalogue import Catalogue, Snapshot
from bireme.repository.configuration import (
    ConfigRules,
    ParsedConfig,
    complete_config,
    cpu_fallback,
    find_backend,
    parse_config,
    read_config,
)
from bireme.repository.fingerprint import Fingerprint, take_fingerprint, version_of_path
from bireme.repository.layout import (
    check_model_name,
    config_path,
    misnamed_config,
    missing_versions,
    no_versions,
    select_versions,
)
from bireme.repository.model_key import make_key, name_of, namespace_of
from bireme.repository.override import write_override
from bireme.repository.polling import Changes, PollTracker
from bireme.repository.storage import (
    ChangedMeanwhile,
    LocalStorage,
    ModelDirectory,
    Storage,
    StoreCacheOptions,
)

__all__ = [
    "Catalogue",
    "ChangedMeanwhile",
    "Changes",
    "ConfigRules",
    "Fingerprint",
    "LocalStorage",
    "ModelDirectory",
    "ParsedConfig",
    "PollTracker",
    "Snapshot",
    "Storage",
    "StoreCacheOptions",
    "check_model_name",
    "complete_config",
    "config_path",
    "cpu_fallback",
    "find_backend",
    "make_key",
    "misnamed_config",
    "missing_versions",
    "name_of",
    "namespace_of",
    "no_versions",
    "parse_config",
    "read_config",
    "select_versions",
    "take_fingerprint",
    "version_of_path",
    "write_override",
]
