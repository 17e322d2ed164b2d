"""What the source of a compiled package tells of its inputs."""

from __future__ import annotations

from bireme.backends.pytorch.aoti_source import read_source

SOURCE = """
    int32_t arg1_1_expected_dtype = aoti_torch_dtype_bfloat16();
    if (arg1_1_expected_dtype != arg1_1_dtype) {
        std::stringstream ss;
        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << arg1_1_expected_dtype << "(at::kBFloat16), "
           << "but got: " << arg1_1_dtype << "\\n";
    if (arg1_1_size[0] > 64) {
        ss << "input_handles[0]: dim value is too large at 0, "
           << "expected to be <= 64, " << "but got: "
    if (4 != arg1_1_size[1]) {
        ss << "input_handles[0]: unmatched dim value at 1, "
           << "expected: 4, " << "but got: " << arg1_1_size[1]
    if (1 != arg1_1_stride[2]) {
        ss << "input_handles[0]: unmatched stride value at 2, "
           << "expected: 1, " << "but got: " << arg1_1_stride[2]
        ss << "input_handles[1]: unmatched dtype, "
           << "expected: " << arg2_1_expected_dtype << "(at::kComplexFloat), "
"""


def test_types_dims_and_the_largest_batch():
    facts = read_source(SOURCE, 2)

    assert [(each.datatype, each.shape) for each in facts.inputs] == [("BF16", (-1, 4, -1)), (None, ())]
    assert facts.inputs[1].native_type == "at::kComplexFloat"
    assert facts.max_rows == 64


def test_a_source_that_does_not_tell_of_all_inputs_tells_nothing():
    assert read_source(SOURCE, 3) == ((), None)
    assert read_source("", 1) == ((), None)
