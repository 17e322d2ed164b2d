"""Gather: the tensors of a batch's requests become the arrays of one execution."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.config.model_config import BatchInput, ModelConfig, ModelInput, ModelTensorReshape
from bireme.engine.batch import BatchPlan, GatherBuffers
from bireme.types import Array, InferenceRequest, Tensor, datatypes


def plan(*inputs: ModelInput, max_batch_size: int = 8, batch_input: tuple[BatchInput, ...] = ()) -> BatchPlan:
    return BatchPlan(
        ModelConfig(name="m", max_batch_size=max_batch_size, input=inputs, batch_input=batch_input)
    )


def request(arrays: Mapping[str, Array], datatype: str | None = None) -> InferenceRequest:
    tensors = {name: Tensor.from_numpy(name, array, datatype) for name, array in arrays.items()}
    made = InferenceRequest("m", tensors, lambda _request, _response: None)
    first = next(iter(arrays.values()))
    made.batch_size = first.shape[0] if first.ndim else 1
    return made


def gather(made: BatchPlan, requests: list[InferenceRequest], buffers: GatherBuffers | None = None):
    return made.gather(requests, sum(r.batch_size for r in requests), buffers or GatherBuffers())


X = ModelInput("X", "TYPE_FP32", dims=(3,))


def test_a_batch_of_one_passes_the_requests_own_arrays():
    x = np.ones((1, 3), np.float32)
    z = np.ones((1, 5), np.int64)

    inputs = gather(plan(X, ModelInput("Z", "TYPE_INT64", dims=(5,))), [request({"X": x, "Z": z})])

    assert list(inputs) == ["X", "Z"]
    assert inputs["X"] is x
    assert inputs["Z"] is z


@pytest.mark.parametrize("datatype", list(datatypes.NUMPY_DTYPES))
def test_a_larger_batch_joins_the_rows_in_order(datatype):
    dtype = datatypes.NUMPY_DTYPES[datatype]
    if datatype == "BYTES":
        values = np.array([[b"a", b""], [b"\xff\0", b"d"], [b"e", b"f"]], dtype=object)
    else:
        values = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    parts = [values[:1], values[1:]]

    made = plan(ModelInput("X", datatypes.to_config_name(datatype), dims=(2,)))
    joined = gather(made, [request({"X": part}, datatype) for part in parts])["X"]

    assert joined.dtype == dtype
    assert joined.flags.c_contiguous
    assert joined.tolist() == values.tolist()


def test_a_buffer_is_used_again_when_nothing_refers_to_it():
    made = plan(X)
    buffers = GatherBuffers()
    requests = [request({"X": np.full((1, 3), i, np.float32)}) for i in range(4)]

    addresses = {gather(made, requests, buffers)["X"].ctypes.data for _ in range(5)}

    assert len(addresses) == 1


def test_a_result_that_is_a_view_of_the_gathered_input_keeps_its_values():
    """An identity model returns its input; the next batch must not overwrite what a slow client still reads."""
    made = plan(X)
    buffers = GatherBuffers()
    held = gather(made, [request({"X": np.full((1, 3), i, np.float32)}) for i in range(2)], buffers)["X"][1:]

    again = gather(made, [request({"X": np.full((1, 3), 9, np.float32)}) for _ in range(2)], buffers)["X"]

    assert held.tolist() == [[1, 1, 1]]
    assert not np.shares_memory(held, again)


def test_a_buffer_grows_and_serves_smaller_batches_too():
    made = plan(X)
    buffers = GatherBuffers()
    small, large = ([request({"X": np.ones((1, 3), np.float32)}) for _ in range(count)] for count in (2, 7))

    gather(made, small, buffers)
    assert gather(made, large, buffers)["X"].shape == (7, 3)
    grown = buffers.nbytes
    assert gather(made, small, buffers)["X"].shape == (2, 3)

    assert buffers.nbytes == grown >= 7 * 3 * 4
    assert "X" in repr(buffers)


def test_requests_of_several_rows_and_of_none_are_joined():
    made = plan(ModelInput("X", "TYPE_FP32", dims=(-1,)))
    parts = [np.ones((2, 0), np.float32), np.ones((3, 0), np.float32)]

    assert gather(made, [request({"X": part}) for part in parts])["X"].shape == (5, 0)


def test_an_optional_input_that_no_request_gives_is_absent():
    made = plan(X, ModelInput("Z", "TYPE_FP32", dims=(1,), optional=True))

    assert list(gather(made, [request({"X": np.ones((1, 3), np.float32)}) for _ in range(2)])) == ["X"]


def test_a_reshaped_input_has_the_backends_shape():
    made = plan(ModelInput("X", "TYPE_FP32", dims=(6,), reshape=ModelTensorReshape((2, 3))))
    x = np.arange(6, dtype=np.float32).reshape(1, 6)

    single = gather(made, [request({"X": x})])["X"]
    double = gather(made, [request({"X": x}), request({"X": x})])["X"]

    assert single.shape == (1, 2, 3)
    assert np.shares_memory(single, x)
    assert double.shape == (2, 2, 3)


def test_a_reshaped_input_of_a_model_that_does_not_batch():
    made = plan(ModelInput("X", "TYPE_FP32", dims=(4,), reshape=ModelTensorReshape((2, 2))), max_batch_size=0)

    assert gather(made, [request({"X": np.ones(4, np.float32)})])["X"].shape == (2, 2)


RAGGED = ModelInput("X", "TYPE_FP32", dims=(-1,), allow_ragged_batch=True)


def ragged_requests(*lengths: int) -> list[InferenceRequest]:
    return [request({"X": np.full((1, length), length, np.float32)}) for length in lengths]


@pytest.mark.parametrize("lengths", [(3,), (3, 4, 5)])
def test_a_ragged_input_is_one_row_of_all_elements(lengths):
    joined = gather(plan(RAGGED), ragged_requests(*lengths))["X"]

    assert joined.tolist() == [length for length in lengths for _ in range(length)]


def test_a_ragged_input_of_strings():
    made = plan(ModelInput("X", "TYPE_STRING", dims=(-1,), allow_ragged_batch=True))
    parts = [np.array([[b"a"]], dtype=object), np.array([[b"b", b"c"]], dtype=object)]

    assert gather(made, [request({"X": part}) for part in parts])["X"].tolist() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 4, 5]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 7, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 7, 12]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0, 0]),
        ("BATCH_ITEM_SHAPE", [[3], [4], [5]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 4, 5]),
    ],
)
@pytest.mark.parametrize("data_type", ["TYPE_INT32", "TYPE_FP32"])
def test_batch_inputs_describe_the_batch(kind, expected, data_type):
    entry = BatchInput(kind, ("N", "M"), data_type, ("X",))

    inputs = gather(plan(RAGGED, batch_input=(entry,)), ragged_requests(3, 4, 5))

    assert inputs["N"].tolist() == expected
    assert inputs["M"] is inputs["N"]
    assert inputs["N"].dtype == (np.int32 if data_type == "TYPE_INT32" else np.float32)


def test_item_shapes_repeat_for_every_row_and_leave_the_batch_dimension_out():
    entry = BatchInput("BATCH_ITEM_SHAPE", ("S",), "TYPE_INT32", ("X",))
    made = plan(ModelInput("X", "TYPE_FP32", dims=(-1, -1), allow_ragged_batch=True), batch_input=(entry,))
    parts = [np.ones((2, 1, 3), np.float32), np.ones((1, 4, 2), np.float32)]

    inputs = gather(made, [request({"X": part}) for part in parts])

    assert inputs["S"].tolist() == [[1, 3], [1, 3], [4, 2]]
    assert inputs["X"].shape == (14,)


def test_a_batch_input_is_made_for_a_batch_of_one_as_well():
    entry = BatchInput("BATCH_ELEMENT_COUNT", ("N",), "TYPE_INT32", ("X",))

    assert gather(plan(X, batch_input=(entry,)), [request({"X": np.ones((1, 3), np.float32)})])[
        "N"
    ].tolist() == [3]


@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    width=st.integers(0, 3),
    rounds=st.integers(1, 4),
    keep=st.booleans(),
)
def test_every_row_of_every_batch_arrives(rows, width, rounds, keep):
    made = plan(ModelInput("X", "TYPE_FP32", dims=(-1,)), max_batch_size=100)
    buffers = GatherBuffers()
    held = []
    for number in range(rounds):
        parts = [np.full((count, width), number * 100 + i, np.float32) for i, count in enumerate(rows)]
        joined = gather(made, [request({"X": part}) for part in parts], buffers)["X"]
        assert np.array_equal(joined, np.concatenate(parts))
        if keep:
            held.append((joined, np.concatenate(parts)))

    for joined, expected in held:
        assert np.array_equal(joined, expected)
