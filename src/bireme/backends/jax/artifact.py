"""Artifact: an exported function whose inputs and outputs have names.

==================================================  ================================================================
of the function                                     name of the tensor
==================================================  ================================================================
an argument that is a dict, an argument by keyword  its keys, joined by dots: ``pixels``, ``image.pixels``
any other argument, by its place                    ``INPUT__0``, ``INPUT__1``, … counted over all inputs
a result that is a dict                             its keys, as above
any other result                                    ``OUTPUT__0``, ``OUTPUT__1``, … counted over all outputs
==================================================  ================================================================

Exported functions do not keep the names of their arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bireme.backends.jax.runtime import export, jax
from bireme.backends.model_file import explain_failure
from bireme.backends.signature import Signature, TensorSpec
from bireme.types import InvalidArgument, Unsupported, datatypes


class Artifact:
    """An exported function, its signature, and how its tensors are ordered."""

    def __init__(self, exported: Any) -> None:
        self.exported = exported
        # JAX's caches keep the function for good, but need not keep its weights, which are in its code.
        weakref.finalize(self, object.__setattr__, exported, "mlir_module_serialized", b"")
        tree = jax.tree_util
        arguments = tree.tree_unflatten(exported.in_tree, range(exported.in_tree.num_leaves))
        results = tree.tree_unflatten(exported.out_tree, range(exported.out_tree.num_leaves))
        self.inputs = _specs(_names(arguments, "INPUT__"), exported.in_avals)
        self.outputs = _specs(_names(results, "OUTPUT__"), exported.out_avals)
        first = {
            str(aval.shape[0]) if aval.shape else "" for aval in (*exported.in_avals, *exported.out_avals)
        }
        self.can_batch = len(first) == 1
        """Whether the first dimension of every tensor is the same: a dynamic one is the batch's then."""

    @property
    def signature(self) -> Signature:
        """What the function takes and gives."""
        return Signature(
            {tensor.name: tensor for tensor in self.inputs}, {tensor.name: tensor for tensor in self.outputs}
        )


def open_artifact(model: str, path: Path) -> Artifact:
    """Return the exported function in the file at ``path``; ``model`` is for messages.

    Raises:
        InvalidArgument: it is no such file, or was exported for other devices.
        Unsupported: it needs several devices, or a package that is not installed.
    """
    try:
        exported = export.deserialize(bytearray(path.read_bytes()))
    except ImportError as error:  # jax does not bring it along
        raise Unsupported(
            f"model '{model}': JAX needs the package 'flatbuffers' for '{path}', which cannot be imported ({error}); install it "
            f"with: pip install flatbuffers"
        ) from error
    except Exception as error:
        reason = f"{' '.join(str(error).split())} (is it complete, and is it what jax.export.export(...)(...).serialize() gave?)"
        raise InvalidArgument(
            f"model '{model}': JAX {jax.__version__} cannot load '{path}': {explain_failure(path, reason)}"
        ) from error
    if "cpu" not in exported.platforms:
        raise InvalidArgument(
            f"model '{model}': '{path}' was exported for {', '.join(exported.platforms)} alone; expected cpu: export it with "
            f"platforms=['cpu', …]"
        )
    if exported.nr_devices != 1:
        raise Unsupported(
            f"model '{model}': '{path}' was exported for {exported.nr_devices} devices; expected 1"
        )
    return Artifact(exported)


def _names(tree: Any, prefix: str) -> list[str]:
    """Return a name for each leaf: its keys, if there are no numbers among them but in front."""
    names: list[str] = []
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        keys = [_key(key) for key in path]
        start = next((index for index, key in enumerate(keys) if not key.isdecimal()), len(keys))
        has_numbers = any(key.isdecimal() for key in keys[start:])
        names.append("" if has_numbers else ".".join(keys[start:]))
    return [
        name if name and names.count(name) == 1 else f"{prefix}{index}" for index, name in enumerate(names)
    ]


def _key(key: Any) -> str:
    """Return what a step down a tree is called: the key of a dict, the index in a list, the attribute of a class."""
    found = (getattr(key, attribute) for attribute in ("key", "idx", "name") if hasattr(key, attribute))
    return str(next(found, key))


def _specs(names: Sequence[str], avals: Sequence[Any]) -> list[TensorSpec]:
    return [
        TensorSpec(name, _datatype(aval.dtype), tuple(_dim(dim) for dim in aval.shape), str(aval.dtype))
        for name, aval in zip(names, avals, strict=True)
    ]


def _datatype(dtype: Any) -> str | None:
    """Return the protocol data type; None: it has none for 8-bit floats, complex numbers and random keys."""
    try:
        return datatypes.from_numpy(np.dtype(dtype))
    except (KeyError, TypeError):
        return None


def _dim(dim: Any) -> int:
    return dim if isinstance(dim, int) else -1
