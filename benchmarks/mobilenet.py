"""MobileNetV2 (224×224, width 1.0: 3.4 M weights, 300 M multiply-adds) with random weights, as an ONNX file.

The arithmetic of a real vision model without a download: speed does not depend on what the weights say. Batch
normalisation is folded into the convolutions, as every exporter does.

Source: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", table 2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output channels, repetitions and first stride of each stage."""


class _Network:
    """Nodes and weights of a graph that grows at its end."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, values: np.ndarray) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(self, x: str, channels: int, out: int, kernel: int, stride: int, groups: int = 1) -> str:
        fan_in = kernel * kernel * channels // groups
        shape = (out, channels // groups, kernel, kernel)
        weight = self.constant(self._random.standard_normal(shape) / np.sqrt(fan_in))
        pad = kernel // 2
        return self.add(
            "Conv",
            x,
            weight,
            self.constant(np.zeros(out)),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad, pad, pad, pad],
            group=groups,
        )

    def relu6(self, x: str) -> str:
        return self.add("Clip", x, self.constant(np.array(0.0)), self.constant(np.array(6.0)))

    def block(self, x: str, channels: int, out: int, expansion: int, stride: int) -> str:
        hidden = channels * expansion
        y = x if expansion == 1 else self.relu6(self.conv(x, channels, hidden, 1, 1))
        y = self.relu6(self.conv(y, hidden, hidden, 3, stride, groups=hidden))
        y = self.conv(y, hidden, out, 1, 1)
        return self.add("Add", x, y) if stride == 1 and channels == out else y


def save_mobilenet(path: Path) -> Path:
    """Write the network: ``x`` FP32[batch, 3, 224, 224] → ``logits`` FP32[batch, 1000]."""
    net = _Network()
    x, channels = net.relu6(net.conv("x", 3, 32, 3, 2)), 32
    for expansion, out, repetitions, first_stride in BLOCKS:
        for repetition in range(repetitions):
            x = net.block(x, channels, out, expansion, first_stride if repetition == 0 else 1)
            channels = out
    x = net.relu6(net.conv(x, channels, 1280, 1, 1))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    weight = net.constant(np.random.default_rng(1).standard_normal((1280, 1000)) / 36)
    net.nodes.append(helper.make_node("Gemm", [x, weight, net.constant(np.zeros(1000))], ["logits"]))
    graph = helper.make_graph(
        net.nodes,
        "mobilenet_v2",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1000])],
        net.weights,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
