"""The pytorch backend: TorchScript, ``torch.export`` and AOTInductor files, and eager classes in a ``model.py``.

What needs no torch (names, settings, file kinds) is importable without it.
"""
