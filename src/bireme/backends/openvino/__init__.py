"""The openvino backend: IR, ONNX and other model files on OpenVINO, compiled once per version, shared by its instances."""

from bireme.backends.openvino.backend import OpenVinoBackend

__all__ = ["OpenVinoBackend"]
