"""The graph of dependencies: order, cycles, and that it never forgets or invents an edge."""

import pytest
from hypothesis import given, strategies as st

from bireme.config import parse_text
from bireme.engine.dependencies import Dependency, DependencyGraph, dependencies_of

NAMES = st.sampled_from("abcdef")
EDGES = st.dictionaries(NAMES, st.lists(NAMES, max_size=4), max_size=6)


def graph_of(edges):
    graph = DependencyGraph()
    for name, members in edges.items():
        graph.assign(name, members)
    return graph


def test_an_ensemble_depends_on_the_models_of_its_steps_once_each():
    config = parse_text(
        """
        ensemble_scheduling { step [
          { model_name: "b" model_version: -1 }, { model_name: "a" model_version: 3 },
          { model_name: "b" model_version: -1 }, { model_name: "b" model_version: 2 }
        ] }
        """,
        "config.pbtxt",
    )
    assert dependencies_of(config) == (Dependency("b"), Dependency("a", 3), Dependency("b", 2))
    assert list(map(str, dependencies_of(config))) == ["'b'", "'a' version 3", "'b' version 2"]


def test_other_models_depend_on_nothing():
    assert dependencies_of(parse_text('backend: "python"', "config.pbtxt")) == ()


def test_what_is_assigned_takes_the_place_of_what_was_before():
    graph = graph_of({"e": ["a", "b", "a"]})
    assert graph.members_of("e") == ("a", "b")
    graph.assign("e", ["b", "c"])
    assert graph.members_of("e") == ("b", "c")
    assert [graph.users_of(name) for name in "abc"] == [[], ["e"], ["e"]]
    graph.assign("e", [])
    assert graph.users_of("b") == []


@pytest.mark.parametrize(
    ("edges", "name", "levels"),
    [
        ({}, "a", []),
        ({"e": ["a"], "d": ["a"]}, "a", [["d", "e"]]),
        ({"e": ["a"], "f": ["e", "a"]}, "a", [["e"], ["f"]]),
        ({"b": ["a"], "c": ["a"], "d": ["b", "c"]}, "a", [["b", "c"], ["d"]]),
        ({"b": ["a"], "c": ["b"], "d": ["a", "c"]}, "a", [["b"], ["c"], ["d"]]),
        ({"b": ["a", "c"], "c": ["b"], "d": ["c"], "e": ["a"]}, "a", [["e"], ["b", "c", "d"]]),
        ({"a": ["b"], "b": ["a"]}, "a", [["b"]]),
    ],
)
def test_levels_put_members_before_their_users(edges, name, levels):
    assert list(graph_of(edges).levels_above(name)) == levels


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"a": ["b"], "b": ["c"]}, None),
        ({"a": ["a"]}, ["a", "a"]),
        ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"a": ["b", "d"], "b": ["c"], "c": ["a"], "d": ["a"]}, ["a", "d", "a"]),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, None),
    ],
    ids=["chain", "itself", "two", "the shortest", "not its own"],
)
def test_a_cycle_is_found_by_each_of_its_names(edges, cycle):
    graph = graph_of(edges)
    assert graph.find_cycle("a", graph.members_of("a")) == cycle


def test_what_is_about_to_be_assigned_can_be_asked_for_a_cycle():
    graph = graph_of({"b": ["a"], "a": ["c"]})
    assert graph.find_cycle("a", ["b"]) == ["a", "b", "a"]
    assert graph.find_cycle("a", ["d"]) is None


@given(EDGES, st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=3)), max_size=5))
def test_both_directions_of_the_graph_agree(edges, changes):
    graph = graph_of(edges)
    for name, members in changes:
        graph.assign(name, members)
    final = {**edges, **dict(changes)}
    for name in "abcdef":
        assert graph.members_of(name) == tuple(dict.fromkeys(final.get(name, ())))
        assert graph.users_of(name) == sorted(user for user, members in final.items() if name in members)


@given(EDGES, NAMES)
def test_levels_hold_everybody_above_once_and_in_order(edges, name):
    graph = graph_of(edges)
    levels = list(graph.levels_above(name))
    flat = [user for level in levels for user in level]
    assert len(flat) == len(set(flat))
    assert name not in flat
    above = {name}
    while more := {user for user, members in edges.items() if above.intersection(members)} - above:
        above |= more
    assert set(flat) == above - {name}
    for index, level in enumerate(levels):
        later = {user for following in levels[index:] for user in following}
        if index < len(levels) - 1:
            assert all(later.isdisjoint(graph.members_of(user)) for user in level)
