"""Model configuration: ``config.pbtxt`` or JSON in, a validated, frozen `ModelConfig` out."""

from bireme.config.model_config import ModelConfig

__all__ = ["ModelConfig"]
