"""Results: finds the outputs of the config in what ``forward()`` returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.backends.pytorch.naming import OutputBinding
from bireme.backends.pytorch.runtime import torch
from bireme.backends.pytorch.tensors import OutputReader, take
from bireme.backends.signature import quoted
from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.types import Array, BackendFailed
from bireme.types.datatypes import from_config_name


class Results:
    """The outputs of one model."""

    def __init__(self, config: ModelConfig, bindings: tuple[OutputBinding, ...]) -> None:
        """``config`` lists all that instances return, implicit state included."""
        outputs = {tensor.name: tensor for tensor in config.output}
        self._bindings = bindings
        self._readers = {
            binding.name: OutputReader(
                binding.name,
                from_config_name(outputs[binding.name].data_type),
                len(outputs[binding.name].dims) if config.max_batch_size == 0 else 0,
            )
            for binding in bindings
        }
        only = bindings[0] if len(bindings) == 1 else None
        self._only = only.name if only is not None and only.position == 0 and only.key is None else None

    def take(self, returned: Any) -> dict[str, Any]:
        """Return what each output is, by name; the caller lets go of ``returned`` itself.

        Raises:
            BackendFailed: it has no such output.
        """
        if self._only is not None and isinstance(returned, torch.Tensor):
            return {self._only: take(returned)}
        if isinstance(returned, dict):
            return {binding.name: take(_by_key(returned, binding)) for binding in self._bindings}
        values = returned if _is_sequence(returned) else (returned,)
        return {binding.name: take(_by_position(values, binding)) for binding in self._bindings}

    def read(self, values: dict[str, Any], targets: Mapping[str, memoryview]) -> dict[str, Array]:
        """Return the arrays, which the caller owns; those that fit are views of their ``targets``. Empties ``values``."""
        readers = self._readers
        arrays: dict[str, Array] = {}
        for name in list(values):
            value = values.pop(name)
            arrays[name] = readers[name](value, targets.get(name))
        return arrays


def _is_sequence(returned: Any) -> bool:
    """Whether it is several outputs; a list of strings is one."""
    return isinstance(returned, (tuple, list)) and not (
        returned and all(isinstance(each, str) for each in returned)
    )


def _by_key(returned: Mapping[Any, Any], binding: OutputBinding) -> Any:
    if binding.name in returned:
        return returned[binding.name]
    if 0 <= binding.position < len(returned) and "__" in binding.name:
        return list(returned.values())[binding.position]
    near = near_name(binding.name, [str(key) for key in returned])
    hint = f"; did you mean '{near}'?" if near else ""
    raise BackendFailed(
        f"output '{binding.name}' of the config is not in the dictionary that forward() returned, which has "
        f"{quoted(str(key) for key in returned)}{hint}"
    )


def _by_position(values: Any, binding: OutputBinding) -> Any:
    fields = getattr(values, "_fields", ())
    if binding.by_order and binding.name in fields:
        return getattr(values, binding.name)
    if 0 <= binding.position < len(values):
        return values[binding.position]
    count = len(values)
    raise BackendFailed(
        f"output '{binding.name}' of the config refers to output {binding.position}, counted from 0, which doesn't exist: "
        f"forward() returned {count} output{'s' * (count != 1)}"
    )
