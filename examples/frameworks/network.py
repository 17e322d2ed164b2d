"""The network in plain numbers: its sizes, its weights, and the order of its operations, for any framework that has these few.

No framework is imported here.
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
    return np.random.default_rng(seed).standard_normal((count, 3, size.side, size.side)).astype(np.float32)


class Conv(NamedTuple):
    """A convolution with its normalisation multiplied in, as every exporter does it."""

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


class Operations(Protocol):
    """What a framework has to be able to do. A picture's layout is its own affair."""

    def conv(self, x: Any, conv: Conv) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def max_pool(self, x: Any) -> Any:
        """3×3, stride 2, padding 1."""

    def head(self, x: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
        """Mean over height and width, then a linear layer."""


def compute(operations: Operations, weights: Weights, x: Any) -> Any:
    """Return what `ResNet.forward` does, computed by another framework."""
    x = operations.max_pool(operations.relu(operations.conv(x, weights.stem)))
    for block in weights.blocks:
        y = x
        for conv in block.convs[:2]:
            y = operations.relu(operations.conv(y, conv))
        y = operations.conv(y, block.convs[2])
        x = operations.relu(y + (x if block.shortcut is None else operations.conv(x, block.shortcut)))
    return operations.head(x, weights.head, weights.head_bias)
