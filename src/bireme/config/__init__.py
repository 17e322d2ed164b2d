"""Model configuration: ``config.pbtxt`` or JSON in, a validated, frozen `ModelConfig` out.

The way of a config: `parse_text` or `parse_json`, `complete_backend`, `normalise`, `validate`; then the backend's
`apply_autocomplete`, `normalise_instance_groups`, and `validate` again with ``require_io``.
"""

from bireme.config.autocomplete import apply_autocomplete
from bireme.config.backend_rules import complete_backend
from bireme.config.conditions import Condition, conditions, defaults
from bireme.config.gpus import NO_GPUS, UsableGpus
from bireme.config.instance_groups import normalise_instance_groups
from bireme.config.json_reader import parse_json
from bireme.config.json_writer import to_json
from bireme.config.labels import read_labels
from bireme.config.model_config import ModelConfig
from bireme.config.normalise import normalise
from bireme.config.places import Places
from bireme.config.proto import from_proto, to_proto
from bireme.config.text_reader import parse_text
from bireme.config.text_writer import to_text
from bireme.config.validate import find_faults, find_member_faults, validate

__all__ = [
    "NO_GPUS",
    "Condition",
    "ModelConfig",
    "Places",
    "UsableGpus",
    "apply_autocomplete",
    "complete_backend",
    "conditions",
    "defaults",
    "find_faults",
    "find_member_faults",
    "from_proto",
    "normalise",
    "normalise_instance_groups",
    "parse_json",
    "parse_text",
    "read_labels",
    "to_json",
    "to_proto",
    "to_text",
    "validate",
]
