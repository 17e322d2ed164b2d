"""The onnxruntime backend: ONNX and ORT files, one session for each device, shared by the instances there."""

from bireme.backends.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
