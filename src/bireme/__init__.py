"""Bireme: an inference server in pure Python that speaks Triton's protocols."""

__version__ = "0.1.0"
