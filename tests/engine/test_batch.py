"""BatchPlan: one way through gather, model and scatter, with the copies that it may cost and no others."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.config.model_config import ModelConfig, ModelInput, ModelOutput
from bireme.engine.batch import BatchPlan, GatherBuffers
from bireme.engine.gather import gather_plain
from bireme.types import InferenceRequest, Tensor


def plan(max_batch_size: int = 64) -> BatchPlan:
    return BatchPlan(
        ModelConfig(
            name="m",
            max_batch_size=max_batch_size,
            input=(ModelInput("X", "TYPE_FP32", dims=(-1,)),),
            output=(ModelOutput("Y", "TYPE_FP32", dims=(-1,)),),
        )
    )


def request(array: np.ndarray) -> InferenceRequest:
    made = InferenceRequest("m", {"X": Tensor.from_numpy("X", array)}, lambda _request, _response: None)
    made.batch_size = array.shape[0]
    return made


def run(made: BatchPlan, requests: list[InferenceRequest], buffers: GatherBuffers, model) -> list[np.ndarray]:
    inputs = made.gather(requests, sum(r.batch_size for r in requests), buffers)
    results = made.scatter({"Y": model(inputs["X"])}, requests)
    return [result[0].to_numpy() for result in results]


def test_a_plain_model_gets_the_fast_gather():
    assert plan().gather is gather_plain


@pytest.mark.parametrize("num_requests", [1, 2])
def test_copies_from_request_to_response(num_requests):
    """One request: none, from the wire's buffer to the response. Two: the gather's one, and none on the way back."""
    wire = [bytes(np.full((1, 4), i, np.float32)) for i in range(num_requests)]
    requests = [request(np.frombuffer(data, np.float32).reshape(1, 4)) for data in wire]
    seen = []

    answers = run(plan(), requests, GatherBuffers(), lambda x: seen.append(x) or x)

    sources = [np.frombuffer(data, np.uint8).ctypes.data for data in wire]
    assert [answer.ctypes.data for answer in answers] == [
        seen[0].ctypes.data + 16 * i for i in range(num_requests)
    ]
    assert (seen[0].ctypes.data == sources[0]) == (num_requests == 1)
    assert [answer.tolist() for answer in answers] == [[[i] * 4] for i in range(num_requests)]


@given(
    batches=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5), min_size=1, max_size=5),
    width=st.integers(0, 3),
)
def test_an_identity_model_gives_every_request_its_own_values_for_good(batches, width):
    made = plan()
    buffers = GatherBuffers()
    answers = []
    for rows in batches:
        arrays = [
            np.random.default_rng(len(answers) + i).random((n, width), np.float32) for i, n in enumerate(rows)
        ]
        results = run(made, [request(array) for array in arrays], buffers, lambda x: x)
        answers.extend(zip(arrays, results, strict=True))

    for sent, received in answers:
        assert np.array_equal(sent, received)
