"""Which model a step of an ensemble means, where each repository has its own names."""

import pytest

from bireme.config import parse_text
from bireme.engine.step_namespaces import with_keys, with_names
from bireme.repository import make_key, name_of, namespace_of
from bireme.types import InvalidArgument

KEYS = ["/a/x", "/a/own", "/b/x", "/b/only", "/c/x"]


def config(name, namespace=""):
    step = f'model_name: "{name}" model_namespace: "{namespace}"'
    return parse_text(f"ensemble_scheduling {{ step [{{ {step} }}] }}", "config.pbtxt")


def step_of(changed):
    (step,) = changed.ensemble_scheduling.step
    return step.model_name, step.model_namespace


@pytest.mark.parametrize(
    ("name", "namespace", "expected"),
    [
        ("x", "", "/a/x"),
        ("own", "", "/a/own"),
        ("only", "", "/b/only"),
        ("x", "/b", "/b/x"),
        ("x", "/b/", "/b/x"),
        # What is not there may still come.
        ("none", "", "/a/none"),
        ("own", "/b", "/b/own"),
    ],
)
def test_a_step_means_its_own_namespace_then_the_only_other(name, namespace, expected):
    key, shown = step_of(with_keys(config(name, namespace), "/a/ensemble", KEYS))

    assert key == expected
    assert shown == namespace_of(expected)


def test_a_step_that_several_others_have_is_a_fault():
    with pytest.raises(InvalidArgument, match="There are 3 identifiers of model 'x' in global map"):
        with_keys(config("x"), "/d/ensemble", KEYS)


def test_what_is_shown_has_names():
    changed = with_keys(config("only"), "/a/ensemble", KEYS)

    assert step_of(with_names(changed)) == ("only", "/b")


def test_other_models_have_no_steps():
    plain = parse_text('backend: "fake"', "config.pbtxt")

    assert with_keys(plain, "/a/m", KEYS) is plain
    assert with_names(plain) is plain


@pytest.mark.parametrize(("namespace", "name"), [("", "m"), ("/a", "m"), ("s3://bucket/path", "m")])
def test_a_key_is_taken_apart_as_it_was_made(namespace, name):
    key = make_key(namespace, name)

    assert (namespace_of(key), name_of(key)) == (namespace, name)
