"""The tensorrt backend: serialised engines on NVIDIA GPUs, one engine per GPU, one stream and its contexts per instance."""

from bireme.backends.tensorrt.backend import TensorRtBackend

__all__ = ["TensorRtBackend"]
