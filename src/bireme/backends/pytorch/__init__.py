"""The pytorch backend: TorchScript, ``torch.export`` and AOTInductor files, and eager classes in a ``model.py``."""

from bireme.backends.pytorch.backend import PyTorchBackend

__all__ = ["PyTorchBackend"]
