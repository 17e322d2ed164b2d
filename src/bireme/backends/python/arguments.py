"""What a model's ``initialize`` is told: the ``args`` dict.

Source: Triton ``stub_launcher.cc`` (ModelInstanceStubProcess).
"""

from __future__ import annotations

from pathlib import Path

import orjson

from bireme.backends.interface import Placement
from bireme.config import ModelConfig, to_json


def config_text(config: ModelConfig) -> str:
    """Return ``config`` as JSON, as a model's ``model_config`` has it: every scalar with its default."""
    return orjson.dumps(to_json(config)).decode()


def make_arguments(
    config: ModelConfig, version: int, model_dir: Path, placement: Placement
) -> dict[str, str]:
    """Return the ``args`` of the instance at ``placement``; all values are texts, as in Triton."""
    return {
        "model_config": config_text(config),
        "model_instance_kind": placement.kind.removeprefix("KIND_"),
        "model_instance_name": placement.name,
        "model_instance_device_id": str(placement.device_id),
        "model_repository": str(model_dir),
        "model_version": str(version),
        "model_name": config.name,
    }
