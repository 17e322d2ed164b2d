"""Names of the tensors of ``.pt2`` files."""

from __future__ import annotations

import json

import pytest

from bireme.backends.pytorch.call_spec import argument_names, result_names
from bireme.types import InvalidArgument

LEAF = {"type": None, "context": None, "children_spec": []}


def sequence(*children, kind="builtins.tuple"):
    return {"type": kind, "context": "null", "children_spec": list(children)}


def mapping(**children):
    return {
        "type": "builtins.dict",
        "context": json.dumps(list(children)),
        "children_spec": list(children.values()),
    }


def text(node):
    return json.dumps([1, node])


def test_arguments_are_called_by_their_way_and_by_position():
    node = sequence(sequence(LEAF, mapping(a=LEAF, b=sequence(LEAF, LEAF))), mapping(k=LEAF))

    assert argument_names(text(node)) == (
        ("ARGS[0]", "INPUT__0"),
        ("ARGS[1][a]", "INPUT__1"),
        ("ARGS[1][b][0]", "INPUT__2"),
        ("ARGS[1][b][1]", "INPUT__3"),
        ("KWARGS[k]", "INPUT__4"),
    )


@pytest.mark.parametrize(
    ("node", "names"),
    [
        (LEAF, (("OUTPUT__0", "RESULT"),)),
        (sequence(LEAF, kind="builtins.list"), (("OUTPUT__0", "RESULT[0]"),)),
        (
            mapping(z=LEAF, pair=sequence(LEAF, LEAF)),
            (
                ("z", "OUTPUT__0", "RESULT[z]"),
                ("OUTPUT__1", "RESULT[pair][0]"),
                ("OUTPUT__2", "RESULT[pair][1]"),
            ),
        ),
        ({**mapping(z=LEAF), "context": ["z"]}, (("z", "OUTPUT__0", "RESULT[z]"),)),
        (
            {"type": "some.Class", "context": "no JSON", "children_spec": [LEAF]},
            (("OUTPUT__0", "RESULT[0]"),),
        ),
    ],
)
def test_results_are_called_by_key_and_by_position(node, names):
    assert names == result_names(text(node))


@pytest.mark.parametrize("broken", ["", "{}", "[1]", "[1, 2]"])
def test_what_is_no_specification_is_refused(broken):
    with pytest.raises(InvalidArgument, match="call specification"):
        result_names(broken)
