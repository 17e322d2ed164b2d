"""Keys: equal for the same question, different for any other one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.engine.response_cache import key as key_module
from bireme.engine.response_cache.key import make_key, read_question
from bireme.types import InferenceRequest, Tensor, tensor as tensors


def request(inputs: dict[str, Any] | None = None, **settings: Any) -> InferenceRequest:
    arrays = {"X": np.arange(4, dtype=np.float32)} if inputs is None else inputs
    found = {
        name: value if isinstance(value, Tensor) else Tensor.from_numpy(name, value)
        for name, value in arrays.items()
    }
    return InferenceRequest("m", found, print, **settings)


def key(made: InferenceRequest, token: bytes = b"t") -> bytes | None:
    question = read_question(made, token, ["A", "B", "C"])
    return None if question is None else make_key(question)


BASE = key(request())


def test_a_key_is_32_bytes():
    assert BASE is not None
    assert len(BASE) == 32


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"id": "another"},
        {"priority": 3, "timeout_us": 1000},
        {"parameters": {}},
        {"outputs": ["C", "A", "B"]},
        {"parameters": {"triton_enable_empty_final_response": True, "bireme_deadline_us": 5}},
        {"inputs": {"X": np.arange(8, dtype=np.float32)[:4]}},
        {"inputs": {"X": np.repeat(np.arange(4, dtype=np.float32), 2)[::2]}},
    ],
)
def test_what_no_answer_depends_on_is_not_in_the_key(settings):
    assert key(request(**settings)) == BASE


@pytest.mark.parametrize(
    "other",
    [
        request({"X": np.array([0, 1, 2, 4], np.float32)}),
        request({"X": np.arange(4, dtype=np.float32).reshape(2, 2)}),
        request({"X": np.arange(4, dtype=np.float32).view(np.int32)}),
        request({"Y": np.arange(4, dtype=np.float32)}),
        request({"X": np.arange(2, dtype=np.float32), "Y": np.arange(2, 4).astype(np.float32)}),
        request({}),
        request(outputs=["A"]),
        request(outputs=["A", "B"]),
        request(parameters={"top_k": 1}),
        request(parameters={"top_k": True}),
        request(parameters={"top_k": 1.0}),
        request(parameters={"top_k": "1"}),
        request(parameters={"top": 1}),
        request(sequence_id=5),
        request(sequence_id=5, sequence_start=True),
        request(sequence_id="5"),
    ],
    ids=str,
)
def test_what_an_answer_may_depend_on_is_in_the_key(other):
    assert key(other) != BASE
    assert key(other) == key(other)


def test_all_those_keys_differ_from_one_another():
    questions = [
        request(parameters={"top_k": value}) for value in (1, True, 1.0, "1", 2, -1, 0, False, "", "True")
    ]

    assert len({key(question) for question in questions}) == len(questions)


def test_another_load_has_other_keys():
    assert key(request(), b"u") != BASE


def test_parameters_and_inputs_have_no_order():
    ab = {"A": np.ones(1, np.float32), "B": np.zeros(1, np.float32)}
    ba = dict(reversed(ab.items()))

    assert key(request(ab)) == key(request(ba))
    assert key(request(parameters={"a": 1, "b": "x"})) == key(request(parameters={"b": "x", "a": 1}))


def test_texts_count_in_whatever_form_they_come():
    texts = np.array([b"a", b"bc"], np.object_)
    encoded = Tensor("X", "BYTES", (2,), None, tensors.encode_bytes(texts.tolist()))
    split = np.array([b"ab", b"c"], np.object_)

    assert key(request({"X": texts})) == key(request({"X": encoded}))
    assert key(request({"X": texts})) != key(request({"X": split}))


@pytest.mark.parametrize("value", [2**70, "\ud800"])
def test_a_parameter_that_has_no_bytes_has_no_key(value):
    assert key(request(parameters={"x": value})) is None


pairs = st.dictionaries(
    st.sampled_from(["A", "B", "AB"]),
    st.lists(st.integers(0, 3), max_size=4).map(lambda values: np.array(values, np.uint8)),
    max_size=3,
)


@given(pairs, pairs, st.sampled_from([None, ["Y"]]), st.sampled_from([None, ["Y"]]))
def test_two_keys_are_equal_exactly_if_the_questions_are(first, second, outputs, other_outputs):
    def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
        return a.keys() == b.keys() and all(a[name].tolist() == b[name].tolist() for name in a)

    keys_match = key(request(first, outputs=outputs)) == key(request(second, outputs=other_outputs))

    assert keys_match == (same(first, second) and outputs == other_outputs)


@pytest.mark.parametrize("has_blake3", [False, True])
def test_large_inputs_count_to_the_last_byte(has_blake3, monkeypatch):
    if has_blake3:
        pytest.importorskip("blake3")
    else:
        monkeypatch.setattr(key_module, "_blake3", None)
    large = np.zeros((300, 100), np.float32)
    last = large.copy()
    last[-1, -1] = 1
    small = np.arange(3, dtype=np.float16)
    questions = [
        {"X": large},
        {"X": last},
        {"X": large.reshape(100, 300)},
        {"X": large.view(np.int32)},
        {"X": large, "Y": small},
        {"X": large, "Y": small + 1},
        {"X": large, "Y": np.zeros(0, np.float32)},
        {"X": np.array([b"x" * 40_000], np.object_)},
    ]
    keys = [key(request(question)) for question in questions]

    assert len(set(keys)) == len(questions)
    assert key(request({"X": np.repeat(large, 2, axis=1)[:, ::2]})) == keys[0]
