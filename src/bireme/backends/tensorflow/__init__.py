"""The tensorflow backend: SavedModels and frozen graphs on the CPU, one session per model version, shared by its instances."""

from bireme.backends.tensorflow.backend import TensorFlowBackend

__all__ = ["TensorFlowBackend"]
