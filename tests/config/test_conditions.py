"""Conditions of ensemble steps: what they mean, and what is refused."""

import numpy as np
import pytest

from bireme.config import ModelConfig, conditions, defaults
from bireme.config.conditions import parse_condition
from bireme.config.model_config import ModelParameter
from bireme.types import InvalidArgument


def values(**tensors):
    return {name: None if value is None else np.array(value) for name, value in tensors.items()}


@pytest.mark.parametrize(
    ("text", "tensors", "holds"),
    [
        ("score > 0.5", {"score": [0.7]}, True),
        ("score > 0.5", {"score": [[0.5]]}, False),
        ("score >= 0.5", {"score": [0.5]}, True),
        ("score < -1", {"score": [-2.0]}, True),
        ("score <= 3", {"score": [4]}, False),
        ("label == 2", {"label": [2]}, True),
        ("label != 2", {"label": [2]}, False),
        ("0.5 < score", {"score": [0.7]}, True),
        ("low < high", {"low": [1], "high": [2]}, True),
        ("speech", {"speech": [True]}, True),
        ("not speech", {"speech": [True]}, False),
        ("a > 0 and b > 0", {"a": [1], "b": [0]}, False),
        ("a > 0 or b > 0", {"a": [1], "b": [0]}, True),
        ("any(scores > 0.5)", {"scores": [0.1, 0.9]}, True),
        ("all(scores > 0.5)", {"scores": [0.1, 0.9]}, False),
        ("max(scores) > 0.5", {"scores": [0.1, 0.9]}, True),
        ("min(scores) > 0.5", {"scores": [0.1, 0.9]}, False),
        ("size(boxes) > 0", {"boxes": np.zeros((0, 4))}, False),
        ("present(boxes)", {"boxes": None}, False),
        ("present(boxes)", {"boxes": [1]}, True),
        ("present(boxes) and boxes > 1", {"boxes": None}, False),
        ("boxes > 1", {"boxes": None}, False),
        ("boxes > 1 or size(other) == 1", {"boxes": None, "other": [1]}, True),
        ("flag", {"flag": None}, False),
        ("flag == True", {"flag": [True]}, True),
    ],
)
def test_condition(text, tensors, holds):
    assert parse_condition(text).holds(values(**tensors)) is holds


def test_text_is_compared_with_the_bytes_of_a_tensor():
    condition = parse_condition("lang == 'grüezi'")

    assert condition.holds({"lang": np.array(["grüezi".encode()], dtype=object)})
    assert not condition.holds({"lang": np.array([b"hello"], dtype=object)})


def test_tensor_whose_name_is_no_word():
    condition = parse_condition('tensor("scores:0") > 0.5 and other > 1')

    assert condition.tensors == ("scores:0", "other")
    assert condition.holds({"scores:0": np.array([1.0]), "other": np.array([2])})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no condition: ''"),
        ("score >", "is no condition: 'score >': invalid syntax"),
        ("score = 1", "; write '=='"),
        ("score > 1 && found", "; write 'and'"),
        ("found || score != 1", "; write 'or'"),
        ("!found", "; write 'not'"),
        ("1 > 0", "looks at no tensor"),
        ("score", None),
        ("score > 0 > 1", "cannot be chained"),
        ("score in other", "something else than"),
        ("score + 1 > 2", "'score \\+ 1' is neither a tensor"),
        ("__import__('os').system('x')", "neither a tensor"),
        ("score.real > 1", "neither a tensor"),
        ("(lambda: 1)()", "neither a tensor"),
        ("max(a, b) > 1", "max\\(\\) takes one argument"),
        ("any(scores)", None),
        ("mean(scores) > 1", "neither a tensor"),
        ("tensor(3) > 1", "neither a tensor"),
        ("not", "is no condition"),
        ("(" * 300 + "a" + ")" * 300, "is no condition"),
        ("-" * 700 + "1 < a", "is no condition"),
        ("a > " + "9" * 400, "too large"),
        ("a == '\\ud800'", "is no condition"),
        (" and ".join(["a"] * 9000), "has 53995 characters"),
    ],
)
def test_what_is_understood(text, why):
    if why is None:
        parse_condition(text)
        return
    with pytest.raises(InvalidArgument, match=why) as error:
        parse_condition(text)
    assert len(error.value.message) < 800


def test_large_numbers_are_compared_with_every_type():
    for large in ("9" * 30, "-" + "9" * 30):
        condition = parse_condition(f"x > {large}")
        for datatype in (np.bool_, np.int8, np.uint64, np.int64, np.float32, np.float64):
            assert condition.holds({"x": np.ones(1, datatype)}) is large.startswith("-")


@pytest.mark.parametrize(
    ("text", "value", "why"),
    [
        ("score > 0.5", np.zeros(3), "needs one value, and has 3: use any"),
        ("speech", np.zeros((2, 1), bool), "needs one value, and has 2"),
        ("min(score) > 1", np.zeros(0), "cannot be evaluated"),
        ("score > 1", np.array([b"x"], dtype=object), "cannot be evaluated"),
    ],
)
def test_tensor_that_the_condition_is_not_made_for(text, value, why):
    condition = parse_condition(text)
    with pytest.raises(InvalidArgument, match=why):
        condition.holds(dict.fromkeys(condition.tensors, value))


def test_parameters_of_an_ensemble():
    parameters = {
        "when:text": ModelParameter(string_value="score > 0.5"),
        "default:text": ModelParameter(string_value='["none"]'),
        "other": ModelParameter(string_value="?"),
    }
    config = ModelConfig("pipeline", parameters=parameters)

    assert list(conditions(config)) == ["text"]
    assert defaults(config) == {"text": ["none"]}


def test_parameter_that_is_wrong_is_named():
    config = ModelConfig("pipeline", parameters={"when:text": ModelParameter(string_value="score >")})
    with pytest.raises(InvalidArgument, match="parameter 'when:text' of ensemble 'pipeline' is no condition"):
        conditions(config)

    config = ModelConfig("pipeline", parameters={"default:text": ModelParameter(string_value="[")})
    with pytest.raises(
        InvalidArgument, match="parameter 'default:text' of ensemble 'pipeline' is no JSON value"
    ):
        defaults(config)
