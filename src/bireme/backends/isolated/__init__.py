"""Models of any backend that takes tensors, in a process of their own: ``parameters`` key ``isolation``, value ``process``.

A crash of the framework then costs that model's requests and a restart, and nothing else. The process holds the weights
once, whatever the number of instances; tensors travel by reference.
"""

from bireme.backends.isolated.backend import IsolatedBackend, wants_process

__all__ = ["IsolatedBackend", "wants_process"]
