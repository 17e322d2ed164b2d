"""A network of ResNet-50's shape in plain numbers: sizes, random weights, and the order of its operations. No framework is imported.

Speed does not depend on what the weights say, and neither does whether two frameworks agree. Normalisation is multiplied into the
convolutions, as every exporter does it.

Source: He et al., "Deep Residual Learning for Image Recognition", table 1; the stride is in the 3×3 convolution, as everybody has
it since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

EXPANSION = 4
"""A block's output has so many times the channels of its middle."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a network is."""

    side: int = 224
    """Height and width of a picture."""
    width: int = 64
    """Channels behind the first convolution."""
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks of each stage."""
    num_classes: int = 1000


RESNET50 = Size()
RESNET50_112 = Size(side=112)
TINY = Size(side=32, width=8, blocks=(1, 1), num_classes=10)


def pictures(size: Size, count: int, seed: int = 1) -> np.ndarray:
    """Return ``count`` random pictures, FP32[count, 3, side, side]."""
    return np.random.default_rng(seed).standard_normal((count, 3, size.side, size.side), np.float32)


class Conv(NamedTuple):
    """A convolution."""

    weight: np.ndarray
    """FP32[out, in, height, width]"""
    bias: np.ndarray
    stride: int
    padding: int


class Block(NamedTuple):
    """A bottleneck; no shortcut: what came in is added as it is."""

    convs: tuple[Conv, Conv, Conv]
    shortcut: Conv | None


class Weights(NamedTuple):
    """All of them."""

    stem: Conv
    blocks: tuple[Block, ...]
    head: np.ndarray
    """FP32[channels, classes]"""
    head_bias: np.ndarray


def random_weights(size: Size, seed: int = 0) -> Weights:
    """Return weights for which values neither vanish nor grow on their way; a seed always gives the same ones."""
    source = np.random.default_rng(seed)

    def conv(channels: int, out: int, kernel: int, stride: int = 1, gain: float = 2.0) -> Conv:
        scale = np.float32(np.sqrt(gain / (channels * kernel * kernel)))
        weight = scale * source.standard_normal((out, channels, kernel, kernel), np.float32)
        return Conv(weight, 0.1 * source.standard_normal(out, np.float32), stride, kernel // 2)

    stem, channels, blocks = conv(3, size.width, 7, 2), size.width, []
    for stage, count in enumerate(size.blocks):
        middle = size.width * 2**stage
        out = middle * EXPANSION
        for index in range(count):
            stride = 2 if stage and not index else 1
            convs = conv(channels, middle, 1), conv(middle, middle, 3, stride), conv(middle, out, 1, gain=0.2)
            keeps = channels == out and stride == 1
            blocks.append(Block(convs, None if keeps else conv(channels, out, 1, stride)))
            channels = out
    head = source.standard_normal((channels, size.num_classes), np.float32) / np.float32(np.sqrt(channels))
    return Weights(stem, tuple(blocks), head, 0.1 * source.standard_normal(size.num_classes, np.float32))


class Operations(Protocol):
    """What a framework has to be able to do. A picture's layout is its own affair."""

    def conv(self, x: Any, conv: Conv) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def max_pool(self, x: Any) -> Any:
        """3×3, stride 2, padding 1."""

    def head(self, x: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
        """Mean over height and width, then a linear layer."""


def compute(operations: Operations, weights: Weights, x: Any) -> Any:
    """Return what `resnet.ResNet` gives, computed by another framework."""
    x = operations.max_pool(operations.relu(operations.conv(x, weights.stem)))
    for block in weights.blocks:
        y = x
        for conv in block.convs[:2]:
            y = operations.relu(operations.conv(y, conv))
        y = operations.conv(y, block.convs[2])
        x = operations.relu(y + (x if block.shortcut is None else operations.conv(x, block.shortcut)))
    return operations.head(x, weights.head, weights.head_bias)
