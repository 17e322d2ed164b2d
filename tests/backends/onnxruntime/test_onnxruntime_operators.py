"""Conformance: cases that the ONNX project generates for its operators, run as a client would run them.

They bring strings, every width of integer, BF16, scalars, tensors without elements and shapes that depend on values.
"""

from functools import cache
from importlib import import_module

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node

from bireme.types import Tensor

# By module: importing one makes its cases in some milliseconds; making all 1884 would take ten seconds.
CASES = {
    "add": "add add_int8 add_int16 add_uint8 add_uint16 add_uint32 add_uint64 add_bcast",
    "ai_onnx_ml.label_encoder": "ai_onnx_ml_label_encoder_string_int ai_onnx_ml_label_encoder_tensor_mapping",
    "and_": "and2d and_bcast3v1d and_bcast4v4d",
    "bitshift": "bitshift_right_uint8 bitshift_left_uint16 bitshift_right_uint32 bitshift_left_uint64",
    "constantofshape": "constantofshape_float_ones constantofshape_int_shape_zero",
    "equal": "equal equal_uint64 equal_string equal_string_broadcast",
    "gather": "gather_0 gather_negative_indices",
    "identity": "identity",
    "if_": "if",
    "isnan": "isnan isnan_float16",
    "loop": "loop11",
    "mod": "mod_mixed_sign_float64 mod_mixed_sign_float16 mod_mixed_sign_int64 mod_mixed_sign_int8 mod_uint16",
    "nonmaxsuppression": "nonmaxsuppression_suppress_by_IOU nonmaxsuppression_two_batches",
    "nonzero": "nonzero_example",
    "not_": "not_2d",
    "rangeop": "range_float_type_positive_delta range_bfloat16_type_positive_delta range_int32_type_negative_delta",
    "regex_full_match": "regex_full_match_basic regex_full_match_empty",
    "reshape": "reshape_zero_dim reshape_reduced_dims reshape_allowzero_reordered",
    "shape": "shape shape_start_greater_than_end",
    "size": "size size_example",
    "string_concat": "string_concat string_concat_empty_string string_concat_utf8 string_concat_zero_dimensional",
    "string_split": "string_split_basic string_split_empty_tensor string_split_maxsplit",
    "stringnormalizer": "strnormalizer_nostopwords_nochangecase",
    "tfidfvectorizer": "tfidfvectorizer_tf_only_bigrams_skip0 tfidfvectorizer_tf_batch_uniandbigrams_skip5",
    "topk": "top_k top_k_smallest",
    "unique": "unique_sorted_with_axis unique_not_sorted_without_axis unique_bfloat16_sorted_without_axis",
    "where": "where_example where_long_example",
}


@cache
def cases_of(module: str) -> dict:
    import_module(f"onnx.backend.test.case.node.{module}")
    return {case.name.removeprefix("test_"): case for case in node._NodeTestCases}


def one_element_for_a_scalar(array) -> np.ndarray:
    array = np.asarray(array)
    return array if array.ndim else array.reshape(1)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in CASES.items() for name in names.split()]
)
def test_an_operator_computes_what_the_standard_says(open_model, module, name):
    case = cases_of(module)[name]

    def save(path):
        path.parent.mkdir(parents=True)
        onnx.save(case.model, path)
        return path

    model = open_model(save)

    for inputs, expected in case.data_sets:
        names = [tensor.name for tensor in case.model.graph.input]
        results = model.infer(
            {key: one_element_for_a_scalar(array) for key, array in zip(names, inputs, strict=True)}
        )
        for output, array in zip(case.model.graph.output, expected, strict=True):
            found = results[output.name]
            wanted = Tensor.from_numpy("", one_element_for_a_scalar(array), found.datatype)
            assert found.shape == wanted.shape
            if found.datatype in ("FP16", "FP32", "FP64"):
                np.testing.assert_allclose(found.to_numpy(), wanted.to_numpy(), rtol=1e-3, atol=1e-5)
            else:
                assert found.to_numpy().tolist() == wanted.to_numpy().tolist()
