"""`Message`: the base of the classes in `model_config`. A subclass is a frozen dataclass whose methods are inherited.

``@dataclass(frozen=True)`` compiles six methods for each class: for the 45 messages of a ModelConfig that takes 25 ms
of every start. Compiling ``__init__`` alone takes 6 ms.
"""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, dataclass, field
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Message:
    """Instances compare, hash and print by their fields, and don't change once they are made."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        # ``__init__`` sets each field once.
        if name in self.__dict__ or name not in self.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field '{name}' of {type(self).__name__}")
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field '{name}' of {type(self).__name__}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.items()))

    def __repr__(self) -> str:
        """Show the fields that are set; an absent one has its default."""
        default = type(self)()
        shown = [
            f"{name}={value!r}" for name, value in self.__dict__.items() if value != default.__dict__[name]
        ]
        return f"{type(self).__name__}({', '.join(shown)})"
