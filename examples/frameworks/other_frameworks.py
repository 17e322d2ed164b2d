"""The network computed by TensorFlow and by JAX: the few operations that `network.compute` needs, and how each saves its file.

A framework is imported by the function that needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from network import Block, Conv, Size, Weights, compute


class TensorFlowOperations:
    """Channels last inside, which is all that TensorFlow computes on CPUs."""

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf

    def conv(self, x: Any, conv: Conv) -> Any:
        pad = [conv.padding, conv.padding]
        y = self._tf.nn.conv2d(x, conv.weight, conv.stride, [[0, 0], pad, pad, [0, 0]])
        return self._tf.nn.bias_add(y, conv.bias)

    def relu(self, x: Any) -> Any:
        return self._tf.nn.relu(x)

    def max_pool(self, x: Any) -> Any:
        # No value is below 0 behind a relu, so that 0 may stand for "nothing there".
        return self._tf.nn.max_pool2d(self._tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")

    def head(self, x: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
        return self._tf.reduce_mean(x, (1, 2)) @ weight + bias


def save_tensorflow(weights: Weights, size: Size, folder: Path) -> None:
    """Write a SavedModel: ``x`` FP32[n, 3, side, side] → ``logits``."""
    import tensorflow as tf

    operations = TensorFlowOperations()

    class Network(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[Any] = []
            self._weights = Weights(
                self._conv(weights.stem),
                tuple(map(self._block, weights.blocks)),
                self._keep(weights.head),
                self._keep(weights.head_bias),
            )

        def _keep(self, values: np.ndarray) -> Any:
            """Return a variable: as constants of the graph, weights would be in memory several times."""
            self.kept.append(tf.Variable(values, trainable=False))
            return self.kept[-1]

        def _conv(self, conv: Conv) -> Conv:
            kernel = self._keep(conv.weight.transpose(2, 3, 1, 0))  # height, width, in, out
            return conv._replace(weight=kernel, bias=self._keep(conv.bias))

        def _block(self, block: Block) -> Block:
            shortcut = None if block.shortcut is None else self._conv(block.shortcut)
            return Block(tuple(map(self._conv, block.convs)), shortcut)

        @tf.function(input_signature=[tf.TensorSpec((None, 3, size.side, size.side), tf.float32, "x")])
        def __call__(self, x: Any) -> dict[str, Any]:
            return {"logits": compute(operations, self._weights, tf.transpose(x, (0, 2, 3, 1)))}

    network = Network()
    tf.saved_model.save(network, str(folder), signatures={"serving_default": network.__call__})


class JaxOperations:
    """Channels first, as in torch."""

    def __init__(self) -> None:
        import jax

        self._jax = jax

    def conv(self, x: Any, conv: Conv) -> Any:
        pad = (conv.padding, conv.padding)
        y = self._jax.lax.conv_general_dilated(
            x, conv.weight, (conv.stride, conv.stride), (pad, pad), dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        return y + conv.bias[:, None, None]

    def relu(self, x: Any) -> Any:
        return self._jax.nn.relu(x)

    def max_pool(self, x: Any) -> Any:
        pad = ((0, 0), (0, 0), (1, 1), (1, 1))
        return self._jax.lax.reduce_window(x, -np.inf, self._jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pad)

    def head(self, x: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
        return x.mean((2, 3)) @ weight + bias


def save_jax(weights: Weights, size: Size, path: Path) -> None:
    """Write a JAX export with any batch size: ``x`` FP32[n, 3, side, side] → ``logits``."""
    import jax
    from jax import export

    def network(x: Any) -> dict[str, Any]:
        return {"logits": compute(operations, weights, x)}

    operations = JaxOperations()
    (batch,) = export.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((batch, 3, size.side, size.side), np.float32)
    exported = export.export(jax.jit(network), platforms=("cpu",))(spec)
    path.write_bytes(exported.serialize())
