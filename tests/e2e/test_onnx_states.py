"""Implicit state of ONNX models, in the server's process and in one of their own."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from onnx import helper

from bireme import Server
from onnx_models import save_graph, tensor_info

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
sequence_batching {{
  oldest {{ max_candidate_sequences: 8 }}
  state {{ input_name: "sum" output_name: "sum_next" data_type: TYPE_FP32 dims: [ {} ] }}
}}
"""
ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }'


def save_sum(path, size):
    """Write a model that adds its input to a state and says what the first element of that was."""
    nodes = [
        helper.make_node("Add", ["x", "sum"], ["sum_next"]),
        helper.make_node("Slice", ["sum", "zero", "one", "one"], ["before"]),
    ]
    inputs = [tensor_info("x", "FP32", (1,), batch=True), tensor_info("sum", "FP32", (size,), batch=True)]
    outputs = [
        tensor_info("before", "FP32", (1,), batch=True),
        tensor_info("sum_next", "FP32", (size,), batch=True),
    ]
    numbers = [helper.make_tensor(name, 7, (1,), [value]) for name, value in (("zero", 0), ("one", 1))]
    return save_graph(path, nodes, inputs, outputs, numbers)


async def count_up(server, sequence, num_requests):
    """Send the sequence's number time and again; return what the sums were before."""
    found = []
    for index in range(num_requests):
        result = await server.ainfer(
            "sum",
            {"x": np.full((1, 1), sequence, np.float32)},
            sequence_id=sequence,
            sequence_start=index == 0,
            sequence_end=index == num_requests - 1,
        )
        assert ["before"] == list(result)
        found.append(result["before"].item())
    return found


@pytest.mark.parametrize("size", [2, 50_000])
@pytest.mark.parametrize(
    "extra", ["", pytest.param(ISOLATED, marks=pytest.mark.slow)], ids=["inside", "isolated"]
)
@pytest.mark.parametrize("num_sequences", [1, 6])
def test_each_sequence_counts_for_itself(tmp_path, size, extra, num_sequences):
    """Neither inputs nor outputs are in the config; sequences begin, end, and wait for slots."""
    save_sum(tmp_path / "sum/1/model.onnx", size)
    (tmp_path / "sum/config.pbtxt").write_text(CONFIG.format(size) + extra)

    async def main():
        async with Server(tmp_path) as server:
            return await asyncio.gather(*(count_up(server, each, 5) for each in range(1, num_sequences + 1)))

    assert [[each * step for step in range(5)] for each in range(1, num_sequences + 1)] == asyncio.run(main())


def save_growing(path):
    """Write a model that appends its input to a state and says what is the sum of it."""
    nodes = [
        helper.make_node("Concat", ["sum", "x"], ["sum_next"], axis=1),
        helper.make_node("ReduceSum", ["sum_next", "one"], ["before"]),
    ]
    inputs = [tensor_info("x", "FP32", (1,), batch=True), tensor_info("sum", "FP32", (-1,), batch=True)]
    outputs = [
        tensor_info("before", "FP32", (1,), batch=True),
        tensor_info("sum_next", "FP32", (-1,), batch=True),
    ]
    return save_graph(path, nodes, inputs, outputs, [helper.make_tensor("one", 7, (1,), [1])])


def test_states_that_grow_at_different_times_do_not_get_in_each_others_way(tmp_path):
    save_growing(tmp_path / "sum/1/model.onnx")
    (tmp_path / "sum/config.pbtxt").write_text(CONFIG.format(-1))

    async def later(server, sequence):
        await asyncio.sleep(sequence * 0.001)
        return await count_up(server, sequence, 10)

    async def main():
        async with Server(tmp_path) as server:
            return await asyncio.gather(*(later(server, each) for each in range(1, 13)))

    expected = [[each * step for step in range(1, 11)] for each in range(1, 13)]
    assert expected == asyncio.run(main())
