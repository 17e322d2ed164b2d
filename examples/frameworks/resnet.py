"""The network as people write it in torch, with the weights of `network`."""

from __future__ import annotations

import torch
from network import Block, Conv, Size, Weights, random_weights
from torch import Tensor, nn


def conv_layer(conv: Conv) -> nn.Conv2d:
    """Return the layer that has the weights of ``conv``."""
    out, channels, kernel, _ = conv.weight.shape
    layer = nn.Conv2d(channels, out, kernel, conv.stride, conv.padding)
    layer.weight.data, layer.bias.data = torch.from_numpy(conv.weight), torch.from_numpy(conv.bias)
    return layer


class Bottleneck(nn.Module):
    """1×1 to few channels, 3×3, 1×1 to many; added to what came in."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.reduce, self.conv, self.expand = map(conv_layer, block.convs)
        self.shortcut = nn.Identity() if block.shortcut is None else conv_layer(block.shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.reduce(x).relu()).relu()
        return (self.expand(y) + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """FP32[n, 3, side, side] → FP32[n, classes]."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.stem = conv_layer(weights.stem)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.blocks = nn.Sequential(*map(Bottleneck, weights.blocks))
        self.head = nn.Linear(*weights.head.shape)
        self.head.weight.data = torch.from_numpy(weights.head.T.copy())
        self.head.bias.data = torch.from_numpy(weights.head_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(x).relu()))
        return self.head(x.mean((2, 3)))


def make(size: Size) -> ResNet:
    """Return the network, ready for inference."""
    return ResNet(random_weights(size)).eval().requires_grad_(requires_grad=False)
