"""A network of ResNet-50's shape with random weights, in torch, and its weights for other frameworks.

Speed does not depend on what the weights say, and neither does whether two frameworks agree.

Source: He et al., "Deep Residual Learning for Image Recognition", table 1; the stride is in the 3×3 convolution, as everybody has
it since.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from network import EXPANSION, Block, Conv, Size, Weights
from torch import Tensor, nn


class ConvNorm(nn.Sequential):
    """A convolution and the normalisation behind it."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(out))


class Bottleneck(nn.Module):
    """1×1 to few channels, 3×3, 1×1 to many; added to what came in."""

    def __init__(self, channels: int, middle: int, stride: int) -> None:
        super().__init__()
        out = middle * EXPANSION
        self.reduce = ConvNorm(channels, middle, 1)
        self.conv = ConvNorm(middle, middle, 3, stride)
        self.expand = ConvNorm(middle, out, 1)
        keeps = channels == out and stride == 1
        self.shortcut = nn.Identity() if keeps else ConvNorm(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.reduce(x).relu()
        y = self.expand(self.conv(y).relu())
        return (y + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """FP32[n, 3, side, side] → FP32[n, num_classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.stem = ConvNorm(3, size.width, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        channels, blocks = size.width, []
        for stage, count in enumerate(size.blocks):
            middle = size.width * 2**stage
            for index in range(count):
                blocks.append(Bottleneck(channels, middle, stride=2 if stage and not index else 1))
                channels = middle * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, size.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(x).relu()))
        return self.head(x.mean((2, 3)))


def make(size: Size, seed: int = 0) -> ResNet:
    """Return a network ready for inference; a seed always gives the same one."""
    torch.manual_seed(seed)
    net = ResNet(size)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net.eval().requires_grad_(requires_grad=False)


def weights_of(net: ResNet) -> Weights:
    """Return the weights of ``net``."""
    blocks = tuple(
        Block(
            (_folded(block.reduce), _folded(block.conv), _folded(block.expand)),
            _folded(block.shortcut) if isinstance(block.shortcut, ConvNorm) else None,
        )
        for block in _blocks(net)
    )
    return Weights(_folded(net.stem), blocks, net.head.weight.numpy().T.copy(), net.head.bias.numpy())


def _blocks(net: ResNet) -> Iterator[Bottleneck]:
    yield from net.blocks  # type: ignore[misc]  # a Sequential of these


def _folded(layer: ConvNorm) -> Conv:
    conv, norm = layer
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = conv.weight * scale[:, None, None, None]
    bias = norm.bias - norm.running_mean * scale
    return Conv(weight.numpy(), bias.numpy(), conv.stride[0], conv.padding[0])
