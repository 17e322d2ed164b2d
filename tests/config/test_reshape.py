"""Reshape: the client's view of a tensor and the backend's, without copying."""

import numpy as np
import pytest

from bireme.config.reshape import Reshape


@pytest.mark.parametrize(
    ("source", "target", "num_leading", "shape", "expected"),
    [
        pytest.param((1,), (), 1, (4, 1), (4,), id="to a scalar per item"),
        pytest.param((), (1,), 1, (4,), (4, 1), id="from a scalar per item"),
        pytest.param((6,), (2, 3), 0, (6,), (2, 3), id="no batch dimension"),
        pytest.param((6,), (2, 3), 1, (5, 6), (5, 2, 3), id="batch dimension stays"),
        pytest.param((-1,), (1, -1), 1, (5, 7), (5, 1, 7), id="variable dimension"),
        pytest.param((2, -1, 6, -1), (-1, 3, 2, 2, -1), 0, (2, 9, 6, 5), (9, 3, 2, 2, 5), id="in order"),
        pytest.param((-1,), (-1, 1), 1, (3, 0), (3, 0, 1), id="nothing in it"),
    ],
)
def test_a_reshape_fills_variable_dimensions_in_order(source, target, num_leading, shape, expected):
    array = np.zeros(shape, np.float32)

    result = Reshape(source, target).apply(array, num_leading)

    assert result.shape == expected
    assert np.shares_memory(result, array) == bool(array.size)


def test_a_reshape_refuses_another_number_of_elements():
    with pytest.raises(ValueError, match="reshape"):
        Reshape((2, 3), (6,)).apply(np.zeros((2, 4)), 0)


def test_a_reshape_says_what_it_does():
    assert repr(Reshape((6,), (2, 3))) == "Reshape([6] -> [2, 3])"
