"""Conditional steps of ensembles: expressions over the ensemble's tensors, written in its ``parameters``.

    parameters { key: "when:text"    value { string_value: "score > 0.5 and lang == 'en'" } }
    parameters { key: "default:text" value { string_value: "[0.0]" } }

The step that writes the ensemble tensor ``text`` runs only when the expression holds; otherwise ``text`` is absent, or has
the default (JSON). Parameters are free text to Triton, so the file stays valid there.

The expression is a small part of Python's own grammar: comparisons of tensors with constants or with each other, ``and``,
``or``, ``not``, and the functions below. Nothing else is accepted, and nothing is ever evaluated by the interpreter.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bireme.config.model_config import ModelConfig
from bireme.types import Array, InvalidArgument

WHEN: Final = "when:"
DEFAULT: Final = "default:"

_MOST_CHARACTERS: Final = 10_000
"""Of a condition. It is looked at for every request."""
_MOST_SHOWN: Final = 300
"""Characters of a condition in a message."""

Values = Mapping[str, Array | None]
"""Ensemble tensors by name; None: absent."""
_Evaluate = Callable[[Values], Any]

_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FOREIGN: Final = {"&&": "and", r"\|\|": "or", "!(?!=)": "not", "(?<![=<>!])=(?!=)": "=="}
"""By pattern, what operators of other languages are called here."""
_REDUCTIONS: Final[dict[str, Callable[[Array], Any]]] = {
    "any": np.any,
    "all": np.all,
    "min": np.min,
    "max": np.max,
    "size": np.size,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """When a step runs."""

    text: str
    tensors: tuple[str, ...]
    """The ensemble tensors that it looks at, each once."""
    _evaluate: _Evaluate

    def holds(self, values: Values) -> bool:
        """Tell whether the step runs. A comparison with an absent tensor does not hold.

        Raises:
            InvalidArgument: the tensors are not what the condition is made for.
        """
        try:
            return _single(self._evaluate(values), self.text)
        except (
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as error:  # numpy's own words, as a rule
            raise InvalidArgument(
                f"the condition '{_shortened(self.text)}' cannot be evaluated: {error}"
            ) from None


def conditions(config: ModelConfig) -> dict[str, Condition]:
    """Return the conditions of an ensemble, by the tensor whose step they belong to.

    Raises:
        InvalidArgument: names the parameter, what stands there and what is allowed.
    """
    return {
        tensor: parse_condition(text, where=f"parameter '{WHEN}{tensor}' of ensemble '{config.name}'")
        for tensor, text in _parameters(config, WHEN)
    }


def defaults(config: ModelConfig) -> dict[str, Any]:
    """Return what tensors of an ensemble are when their step is skipped: JSON values.

    Raises:
        InvalidArgument: names the parameter that is no JSON.
    """
    found = {}
    for tensor, text in _parameters(config, DEFAULT):
        try:
            found[tensor] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"parameter '{DEFAULT}{tensor}' of ensemble '{config.name}' is no JSON value: {error}; "
                'expected a list or a scalar, such as [0.0] or "none"'
            ) from None
    return found


def _parameters(config: ModelConfig, prefix: str) -> list[tuple[str, str]]:
    return [
        (key.removeprefix(prefix), value.string_value)
        for key, value in config.parameters.items()
        if key.startswith(prefix)
    ]


def parse_condition(text: str, *, where: str = "condition") -> Condition:
    """Return the condition that ``text`` is.

    Raises:
        InvalidArgument: says what cannot be understood, and where it stands (``where``).
    """
    parser = _Parser(text, where)
    if len(text) > _MOST_CHARACTERS:
        raise parser.fault(f"it has {len(text)} characters, which is more than {_MOST_CHARACTERS}")
    try:
        evaluate = parser.truth(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise parser.fault(what + _hint(text)) from None
    if not parser.tensors:
        raise parser.fault("it looks at no tensor")
    return Condition(text, tuple(parser.tensors), evaluate)


class _Parser:
    """Turns the parts of one expression into functions of the tensors' values."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self.tensors: dict[str, None] = {}

    def truth(self, node: ast.expr) -> _Evaluate:
        """Return what yields one truth value or an array of them."""
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(part) for part in node.values]
            decide = all if isinstance(node.op, ast.And) else any
            return lambda values: decide(_single(part(values), self.text) for part in parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            negated = self.truth(node.operand)
            return lambda values: not _single(negated(values), self.text)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Call) and _name(node.func) in {"any", "all"}:
            reduce = _REDUCTIONS[_name(node.func)]
            inner = self.truth(self._argument(node))
            return lambda values: reduce(inner(values))
        if isinstance(node, ast.Call) and _name(node.func) == "present":
            tensor = self._tensor(self._argument(node))
            return lambda values: values[tensor] is not None
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            constant = node.value
            return lambda _: constant
        tensor = self._tensor(node)
        return lambda values: False if (value := values[tensor]) is None else value

    def _comparison(self, node: ast.Compare) -> _Evaluate:
        if len(node.ops) != 1:
            raise self.fault("comparisons cannot be chained: write 'a < b and b < c'")
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is None:
            raise self.fault("it compares by something else than < <= > >= == !=")
        left, right = self._operand(node.left), self._operand(node.comparators[0])

        def evaluate(values: Values) -> Any:
            first, second = left(values), right(values)
            return False if first is None or second is None else compare(first, second)

        return evaluate

    def _operand(self, node: ast.expr) -> _Evaluate:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str):
            constant = node.value.encode() if isinstance(node.value, str) else self._number(node.value)
            return lambda _: constant
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_number(node.operand):
            negative = -self._number(node.operand.value)  # type: ignore[attr-defined]
            return lambda _: negative
        if isinstance(node, ast.Call) and _name(node.func) in {"min", "max", "size"}:
            reduce = _REDUCTIONS[_name(node.func)]
            reduced = self._tensor(self._argument(node))
            return lambda values: None if (value := values[reduced]) is None else reduce(value)
        tensor = self._tensor(node)
        return lambda values: values[tensor]

    def _number(self, value: float) -> float:
        """Return ``value`` as numpy compares it with a tensor of any type: it has no integers of more than 64 bits."""
        try:
            return float(value) if abs(value) >= 1 << 64 else value
        except OverflowError:
            raise self.fault("a number in it is too large") from None

    def _tensor(self, node: ast.expr) -> str:
        """Return the name of the tensor that ``node`` means: a plain name, or ``tensor("a name:0")``."""
        name = _name(node)
        if isinstance(node, ast.Call) and _name(node.func) == "tensor":
            argument = self._argument(node)
            name = (
                argument.value
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                else ""
            )
        if not name:
            raise self.fault(
                f"'{ast.unparse(node)}' is neither a tensor nor one of any(), all(), min(), max(), size(), "
                'present(), tensor("name")'
            )
        self.tensors[name] = None
        return name

    def _argument(self, node: ast.Call) -> ast.expr:
        if len(node.args) != 1 or node.keywords:
            raise self.fault(f"{_name(node.func)}() takes one argument")
        return node.args[0]

    def fault(self, what: str) -> InvalidArgument:
        """Return the error for an expression that is not understood."""
        return InvalidArgument(f"{self.where} is no condition: '{_shortened(self.text)}': {_shortened(what)}")


def _hint(text: str) -> str:
    """Return what to write for an operator of other languages, to follow a message; empty if there is none in ``text``."""
    for pattern, ours in _FOREIGN.items():
        if re.search(pattern, text):
            return f"; write '{ours}'"
    return ""


def _shortened(text: str) -> str:
    """Return ``text`` as messages show it."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _single(value: Any, text: str) -> bool:
    """Return the one truth value that ``value`` holds."""
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise InvalidArgument(
                f"the condition '{_shortened(text)}' needs one value, and has {value.size}: use any(…) or all(…)"
            )
        return bool(value.item())
    return bool(value)
