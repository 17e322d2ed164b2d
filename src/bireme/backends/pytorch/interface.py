"""Interface: what ``forward()`` takes and gives back, as far as a file says so. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TENSOR: Final = "Tensor"
TEXTS: Final = "List[str]"
SCALARS: Final = frozenset({"int", "float", "bool", "number"})
"""Types of arguments that take one value, not a tensor."""
ANY: Final = "Any"
"""Type of an argument that is declared without one."""
DICTIONARY: Final = "Dict[str, Tensor]"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of ``forward()``; of an exported program, one tensor of its flattened arguments."""

    names: tuple[str, ...]
    """What a config may call it, the usual name first. Any name that ends in ``__<position>`` means it, too."""
    type: str = TENSOR
    """As TorchScript writes it, without ``Optional``."""
    is_required: bool = True
    default: object = None
    """Its value when it is left out."""
    keyword: str = ""
    """Given by this keyword; empty: by position."""

    def __str__(self) -> str:
        text = f"{self.names[0]}: {self.type}"
        return text if self.is_required else f"{text} = {self.default}"


@dataclass(frozen=True, slots=True)
class Interface:
    """What ``forward()`` takes and gives back."""

    arguments: tuple[Argument, ...]
    outputs: tuple[tuple[str, ...], ...] | None = None
    """Names of each output, the usual one first, which may be none; None: only a run tells how many there are."""
    output_types: tuple[str, ...] = ()
    """Of those that are known, as TorchScript writes them."""
    by_key: bool = False
    """Whether the outputs are a dictionary, whose keys only a run tells."""
    takes_dictionary: bool = False
    """Whether the one argument is a dictionary of all inputs."""
    takes_any: bool = False
    """Whether there may be more positional arguments (``*args``)."""
    is_strict: bool = False
    """Whether names have to be known; else they may be any, in the order of the arguments."""

    @property
    def num_positional(self) -> int:
        """How many arguments are given by position."""
        return sum(not argument.keyword for argument in self.arguments)

    def describe(self) -> str:
        """Return the declaration, for messages."""
        return f"forward({', '.join(map(str, self.arguments))}{', *args' if self.takes_any else ''})"
