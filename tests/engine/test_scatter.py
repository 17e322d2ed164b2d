"""Scatter: the arrays of one execution become each request's tensors, or the reason why not."""

import ml_dtypes
import numpy as np
import pytest

from bireme.config.model_config import BatchOutput, ModelConfig, ModelInput, ModelOutput, ModelTensorReshape
from bireme.engine.batch import BatchPlan
from bireme.types import Array, BackendFailed, InferenceRequest, Tensor, datatypes


def config(
    *outputs: ModelOutput,
    max_batch_size: int = 8,
    batch_output: tuple[BatchOutput, ...] = (),
    inputs: tuple[ModelInput, ...] = (ModelInput("X", "TYPE_FP32", dims=(-1,)),),
) -> ModelConfig:
    return ModelConfig(
        name="m", max_batch_size=max_batch_size, input=inputs, output=outputs, batch_output=batch_output
    )


def request(num_rows: int = 1, outputs: list[str] | None = None, x: Array | None = None) -> InferenceRequest:
    inputs = {} if x is None else {"X": Tensor.from_numpy("X", x)}
    made = InferenceRequest("m", inputs, lambda _request, _response: None, outputs=outputs)
    made.batch_size = num_rows
    return made


def scatter(made: ModelConfig, outputs: dict[str, Array], *requests: InferenceRequest):
    return BatchPlan(made).scatter(outputs, list(requests))


def tensors(result) -> dict[str, Tensor]:
    assert isinstance(result, list), result
    return {tensor.name: tensor for tensor in result}


def fault(result) -> str:
    assert isinstance(result, BackendFailed), result
    return result.message


Y = ModelOutput("Y", "TYPE_FP32", dims=(2,))
Z = ModelOutput("Z", "TYPE_INT64", dims=(1,))


@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_a_batch_of_one_gets_the_models_own_arrays(max_batch_size):
    y, z = np.ones((1, 2), np.float32), np.ones((1, 1), np.int64)

    (result,) = scatter(config(Y, Z, max_batch_size=max_batch_size), {"Z": z, "Y": y}, request())

    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in result] == [
        ("Y", "FP32", (1, 2)),
        ("Z", "INT64", (1, 1)),
    ]
    assert result[0].to_numpy() is y
    assert result[1].to_numpy() is z


def test_a_larger_batch_gets_views_of_its_rows():
    y = np.arange(12, dtype=np.float32).reshape(6, 2)
    z = np.arange(6).reshape(6, 1)

    results = scatter(config(Y, Z), {"Y": y, "Z": z}, request(1), request(3), request(2))

    rows = [tensors(result)["Y"].to_numpy() for result in results]
    assert [part.tolist() for part in rows] == [y[:1].tolist(), y[1:4].tolist(), y[4:].tolist()]
    assert all(np.shares_memory(part, y) for part in rows)
    assert [tensors(result)["Z"].shape for result in results] == [(1, 1), (3, 1), (2, 1)]


@pytest.mark.parametrize("num_requests", [1, 2])
def test_each_request_gets_what_it_asked_for_in_the_configs_order(num_requests):
    outputs = {"Y": np.ones((num_requests, 2), np.float32), "Z": np.ones((num_requests, 1), np.int64)}
    wanted = [["Z", "Y"], ["Z"]][:num_requests]

    results = scatter(config(Y, Z), outputs, *(request(outputs=names) for names in wanted))

    expected = [["Y", "Z"], ["Z"]][:num_requests]
    assert [[tensor.name for tensor in result] for result in results] == expected


@pytest.mark.parametrize("num_requests", [1, 2])
def test_a_fault_of_one_output_fails_only_those_who_want_it(num_requests):
    outputs = {"Y": np.ones((num_requests, 2), np.float32)}
    wanted = [["Y"], None][:num_requests]

    results = scatter(config(Y, Z), outputs, *(request(outputs=names) for names in wanted))

    assert list(tensors(results[0])) == ["Y"]
    for result in results[1:]:
        assert fault(result) == "model 'm', output 'Z' is missing from the result; the model returned 'Y'"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            np.ones((1, 2)),
            "the config's data_type is TYPE_FP32, but the model returned float64 (TYPE_FP64)",
            id="another data type",
        ),
        pytest.param(
            np.ones((1, 2), np.complex64), "TYPE_FP32, but the model returned complex64", id="no data type"
        ),
        pytest.param(
            np.array([[b"a", b"b"]], object),
            "TYPE_FP32, but the model returned object (TYPE_STRING)",
            id="strings",
        ),
        pytest.param(
            np.ones((2, 2), np.float32),
            "expected 1 rows, one per batch item, in the first dimension; found shape [2, 2]",
            id="another number of rows",
        ),
        pytest.param(np.array(1, np.float32), "expected 1 rows", id="no dimension at all"),
        pytest.param([[1.0, 2.0]], "expected a numpy array, found list", id="no array"),
        pytest.param(None, "is missing from the result; the model returned 'Y'", id="none"),
    ],
)
def test_what_a_backend_must_not_return_is_named(found, expected):
    (result,) = scatter(config(Y), {"Y": found}, request())

    assert fault(result).startswith("model 'm', output 'Y'")
    assert expected in fault(result)


def test_an_empty_result_is_named():
    (result,) = scatter(config(Y), {}, request())

    assert "the model returned nothing" in fault(result)


@pytest.mark.parametrize("datatype", list(datatypes.NUMPY_DTYPES))
@pytest.mark.parametrize("num_requests", [1, 2])
def test_every_data_type_is_passed_on(datatype, num_requests):
    dtype = datatypes.NUMPY_DTYPES[datatype]
    values = [[b"a"], [b""]] if datatype == "BYTES" else [[1], [0]]
    array = np.array(values[:num_requests], dtype=object).astype(dtype)
    output = ModelOutput("Y", datatypes.to_config_name(datatype), dims=(1,))

    results = scatter(config(output), {"Y": array}, *(request() for _ in range(num_requests)))

    for row, result in zip(array.tolist(), results, strict=True):
        assert tensors(result)["Y"].datatype == datatype
        assert tensors(result)["Y"].to_numpy().tolist() == [row]


@pytest.mark.parametrize(
    "array",
    [
        np.array(["é", "b"], dtype=object),
        np.array(["é".encode(), b"b"], dtype=object),
        np.array(["é", "b"]),
        np.array(["é".encode(), b"b"]),
    ],
    ids=["str objects", "bytes objects", "U", "S"],
)
@pytest.mark.parametrize("max_batch_size", [0, 2])
def test_texts_become_utf8_bytes(array, max_batch_size):
    output = ModelOutput("Y", "TYPE_STRING", dims=(2,))
    outputs = {"Y": array.reshape(1, 2) if max_batch_size else array}

    (result,) = scatter(config(output, max_batch_size=max_batch_size), outputs, request())

    assert tensors(result)["Y"].to_numpy().ravel().tolist() == ["é".encode(), b"b"]
    assert bytes(tensors(result)["Y"].to_buffer()) == b"\2\0\0\0\xc3\xa9\1\0\0\0b"


def test_numbers_are_no_strings():
    (result,) = scatter(config(ModelOutput("Y", "TYPE_STRING", dims=(2,))), {"Y": np.ones((1, 2))}, request())

    assert "TYPE_STRING, but the model returned float64 (TYPE_FP64)" in fault(result)


def test_bfloat16_arrays_are_taken_as_their_bits():
    array = np.array([[1.5, -2]], dtype=ml_dtypes.bfloat16)

    (result,) = scatter(config(ModelOutput("Y", "TYPE_BF16", dims=(2,))), {"Y": array}, request())

    assert tensors(result)["Y"].to_numpy().tolist() == [[0x3FC0, 0xC000]]


def test_int64_has_two_equal_numpy_types():
    """onnxruntime returns ``long long``, the table holds ``long``; on Linux they are the same."""
    array = np.ones((1, 1), dtype=np.longlong)

    (result,) = scatter(config(Z), {"Z": array}, request())

    assert tensors(result)["Z"].to_numpy() is array


@pytest.mark.parametrize(
    ("output", "max_batch_size", "found", "expected"),
    [
        pytest.param(ModelOutput("Y", "TYPE_FP32", dims=(1,), reshape=ModelTensorReshape()), 8, (2,), (1, 1), id="scalar"),
        pytest.param(
            ModelOutput("Y", "TYPE_FP32", dims=(6,), reshape=ModelTensorReshape((2, 3))), 8, (2, 2, 3), (1, 6), id="fixed"
        ),
        pytest.param(
            ModelOutput("Y", "TYPE_FP32", dims=(-1, 2), reshape=ModelTensorReshape((2, -1))), 8, (2, 2, 5), (1, 5, 2), id="variable"
        ),
        pytest.param(
            ModelOutput("Y", "TYPE_FP32", dims=(6,), reshape=ModelTensorReshape((2, 3))), 0, (2, 3), (6,), id="no batching"
        ),
    ],
)  # fmt: skip
def test_reshaped_outputs_have_the_clients_shape(output, max_batch_size, found, expected):
    requests = [request() for _ in range(2 if max_batch_size else 1)]

    results = scatter(
        config(output, max_batch_size=max_batch_size), {"Y": np.ones(found, np.float32)}, *requests
    )

    assert [tensors(result)["Y"].shape for result in results] == [expected] * len(requests)


@pytest.mark.parametrize("found", [(1, 4), (1,)])
def test_a_reshaped_output_of_another_shape_is_named(found):
    output = ModelOutput("Y", "TYPE_FP32", dims=(6,), reshape=ModelTensorReshape((2, 3)))

    (result,) = scatter(config(output), {"Y": np.ones(found, np.float32)}, request())

    assert f"expected shape [1, 2, 3], as its 'reshape' in the config says; found {list(found)}" in fault(
        result
    )


SCATTERED = BatchOutput(("Y",), source_input=("X",))


@pytest.mark.parametrize("lengths", [(3,), (3, 1, 2)])
def test_a_batch_output_is_cut_like_its_source_input(lengths):
    requests = [request(x=np.ones((1, length), np.float32)) for length in lengths]
    output = ModelOutput("Y", "TYPE_FP32", dims=(-1,))

    results = scatter(
        config(output, batch_output=(SCATTERED,)), {"Y": np.arange(sum(lengths), dtype=np.float32)}, *requests
    )

    pieces = [tensors(result)["Y"].to_numpy() for result in results]
    assert [piece.shape for piece in pieces] == [(1, length) for length in lengths]
    assert np.concatenate(pieces, axis=1).tolist() == [list(range(sum(lengths)))]


def test_a_batch_output_takes_fixed_dimensions_from_the_config():
    output = ModelOutput("Y", "TYPE_FP32", dims=(-1, 2))
    requests = [request(x=np.ones((1, length), np.float32)) for length in (1, 2)]

    results = scatter(config(output, batch_output=(SCATTERED,)), {"Y": np.ones(6, np.float32)}, *requests)

    assert [tensors(result)["Y"].shape for result in results] == [(1, 1, 2), (1, 2, 2)]


def test_a_batch_output_follows_a_reshaped_source():
    source = ModelInput("X", "TYPE_FP32", dims=(-1,), reshape=ModelTensorReshape((1, -1)))
    output = ModelOutput("Y", "TYPE_FP32", dims=(1, -1))

    (result,) = scatter(
        config(output, batch_output=(SCATTERED,), inputs=(source,)),
        {"Y": np.ones(3, np.float32)},
        request(x=np.ones((1, 3), np.float32)),
    )

    assert tensors(result)["Y"].shape == (1, 1, 3)


def test_a_batch_output_of_another_size_is_named():
    output = ModelOutput("Y", "TYPE_FP32", dims=(-1,))

    (result,) = scatter(
        config(output, batch_output=(SCATTERED,)),
        {"Y": np.ones(4, np.float32)},
        request(x=np.ones((1, 3), np.float32)),
    )

    assert "expected 3 elements, as the shapes of input 'X' say (batch_output); found shape [4]" in fault(
        result
    )


def test_a_batch_output_whose_source_has_too_few_dimensions_is_named():
    output = ModelOutput("Y", "TYPE_FP32", dims=(2, -1))

    (result,) = scatter(
        config(output, batch_output=(SCATTERED,)),
        {"Y": np.ones(4, np.float32)},
        request(x=np.ones((1, 3), np.float32)),
    )

    assert "[-1, 2, -1] has a variable dimension where input 'X' has none: found shape [1, 3]" in fault(
        result
    )
