"""Keys: what tells one model from all others.

Without namespaces a model's key is its name, since names are unique over all repositories. With them it is the
repository's location, a slash and the name. A name has no slash in it, so the name follows from any key.

Source: Triton ``model_lifecycle.h`` (``ModelIdentifier``).
"""

from __future__ import annotations


def make_key(namespace: str, name: str) -> str:
    """Return the key of model ``name`` of a namespace; "" is none."""
    return f"{namespace}/{name}" if namespace else name


def name_of(key: str) -> str:
    """Return the model's name."""
    return key.rpartition("/")[2]


def namespace_of(key: str) -> str:
    """Return the location of the model's repository; empty without namespaces."""
    return key.rpartition("/")[0]
