"""Arguments: makes the arguments of ``forward()`` of the inputs of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.backends.pytorch.interface import Interface
from bireme.backends.pytorch.naming import InputBinding
from bireme.backends.pytorch.tensors import ToArgument, make_reader
from bireme.types import Array


class Arguments:
    """The arguments of one model: positions, keywords and default values are worked out once."""

    def __init__(
        self, interface: Interface, bindings: tuple[InputBinding, ...], datatypes: Mapping[str, str]
    ) -> None:
        """``datatypes``: of each input, as the protocol calls it."""
        self._readers: dict[str, ToArgument] = {
            binding.name: make_reader(binding.name, datatypes[binding.name], binding.argument.type)
            for binding in bindings
        }
        self._takes_dictionary = interface.takes_dictionary
        self._keywords = {
            binding.name: binding.argument.keyword for binding in bindings if binding.argument.keyword
        }
        positional = sorted(
            (binding.position, binding.name) for binding in bindings if not binding.argument.keyword
        )
        self._plain = [(name, self._readers[name]) for _, name in positional]
        self._positions = {name: position for position, name in positional}
        self._defaults = [argument.default for argument in interface.arguments if not argument.keyword]
        is_dense = [position for position, _ in positional] == list(range(len(positional)))
        self._is_plain = is_dense and not self._keywords and not self._takes_dictionary

    def read(self, inputs: Mapping[str, Array]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional arguments and those by keyword. Tensors are on the memory of the arrays."""
        if self._is_plain and len(inputs) == len(self._plain):
            return [read(inputs[name]) for name, read in self._plain], {}
        if self._takes_dictionary:
            return [{name: self._readers[name](array) for name, array in inputs.items()}], {}
        return self._read_some(inputs)

    def _read_some(self, inputs: Mapping[str, Array]) -> tuple[list[Any], dict[str, Any]]:
        """Read what is there; arguments before the last of those have their default values."""
        given: dict[int, Any] = {}
        keywords: dict[str, Any] = {}
        for name, array in inputs.items():
            value = self._readers[name](array)
            if name in self._keywords:
                keywords[self._keywords[name]] = value
            else:
                given[self._positions[name]] = value
        defaults = self._defaults
        count = max(given, default=-1) + 1
        positional = [
            given[index] if index in given else defaults[index] if index < len(defaults) else None
            for index in range(count)
        ]
        return positional, keywords
