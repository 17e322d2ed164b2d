"""Which graph and which signature of a SavedModel is served. The messages are stand-ins."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from bireme.backends.tensorflow.selection import choose_graph, choose_signature
from bireme.types import InvalidArgument


def graphs(*tag_sets):
    return [SimpleNamespace(meta_info_def=SimpleNamespace(tags=list(tags))) for tags in tag_sets]


@pytest.mark.parametrize(
    ("tags", "index"), [((), 0), (("serve",), 0), (("gpu", "serve"), 1), (("train",), 2)]
)
def test_a_graph_is_found_by_exactly_its_tags(tags, index):
    found = graphs(["serve"], ["serve", "gpu"], ["train"])

    assert found[index] is choose_graph("m", found, tags)


def test_tags_that_there_are_not_are_answered_by_those_that_there_are():
    with pytest.raises(InvalidArgument) as refused:
        choose_graph("m", graphs(["train"], ["serve", "gpu"]), ())
    assert refused.value.message == (
        "model 'm': the SavedModel has no graph with tag 'serve'; it has 'train', 'gpu,serve': name one of them in the "
        "parameter TF_GRAPH_TAG"
    )


SIGNATURES = {"serving_default": 1, "embed": 2, "__saved_model_init_op": 3}


@pytest.mark.parametrize(("name", "expected"), [("", 1), ("serving_default", 1), ("embed", 2)])
def test_a_signature_is_found_by_its_name(name, expected):
    assert expected == choose_signature("m", SIGNATURES, name)


def test_an_only_signature_is_served_under_any_name(caplog):
    with caplog.at_level(logging.WARNING, "bireme"):
        assert 2 == choose_signature("m", {"predict": 2, "__saved_model_train_op": 3}, "")
    assert "no signature 'serving_default'; its only one, 'predict', is served" in caplog.text


@pytest.mark.parametrize(
    ("signatures", "name", "message"),
    [
        (
            SIGNATURES,
            "embd",
            "has no signature 'embd'; it has 'embed', 'serving_default': name one of them in",
        ),
        (SIGNATURES, "embd", "TF_SIGNATURE_DEF; did you mean 'embed'?"),
        ({"a": 1, "b": 2}, "", "has no signature 'serving_default'; it has 'a', 'b'"),
        ({"a": 1}, "serving_default", "has no signature 'serving_default'; it has 'a'"),
        ({"__saved_model_init_op": 1}, "", "has no signature, so nothing in it can be called from outside"),
    ],
)
def test_a_missing_signature_is_answered_by_those_that_there_are(signatures, name, message):
    with pytest.raises(InvalidArgument) as refused:
        choose_signature("m", signatures, name)
    assert message in refused.value.message
