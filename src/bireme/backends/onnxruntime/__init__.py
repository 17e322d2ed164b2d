"""The onnxruntime backend: ONNX and ORT files on the CPU, one session per model version, shared by its instances."""

from bireme.backends.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
