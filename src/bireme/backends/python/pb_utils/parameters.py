"""Parameters of requests and responses: dictionaries that models give, JSON text that they get."""

from __future__ import annotations

import json
from typing import Any

from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.types import Parameter

_INT64_END = 1 << 63


def check_parameters(parameters: Any) -> dict[str, Parameter] | None:
    """Return a copy of what a model gave as ``parameters``; None when there are none.

    Raises:
        TritonModelException: it is no dict of str to bool, int or str, or an int does not fit into 64 bits.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    checked: dict[str, Parameter] = {}
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if isinstance(value, str):
            checked[str.__str__(name)] = str.__str__(value)  # plain ones: subclasses do not travel
        elif not isinstance(value, int):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
        elif not -_INT64_END <= value < _INT64_END:
            raise TritonModelException(f"Parameter '{name}' is {value}, which does not fit into 64 bits")
        else:
            checked[str.__str__(name)] = value if isinstance(value, bool) else int(value)
    return checked or None


def parameters_json(parameters: dict[str, Parameter] | None, *, came_from_server: bool = False) -> str:
    """Return ``parameters`` as JSON text, laid out as in Triton: there a writer of its own makes it of what came."""
    if not parameters:
        return "{}"
    if came_from_server:
        return json.dumps(parameters, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(parameters)
