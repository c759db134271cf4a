"""A small convolutional network for 8x8 digits and 32x32 images."""

from __future__ import annotations

from torch import nn

from ecrl_cli.config.schema import ModelConfig

WIDEST = 8  # most channels, as a multiple of the first layer's


def small_cnn(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """`depth` blocks of convolution, batch norm and ReLU: the first has `width` channels; each further one halves the side and doubles the channels
    up to WIDEST times `width`.
    """
    widths = [config.width * min(2**i, WIDEST) for i in range(config.depth)]
    inputs = [shape[0], *widths[:-1]]
    blocks = [_block(i, o, stride=1 if index == 0 else 2) for index, (i, o) in enumerate(zip(inputs, widths, strict=True))]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(widths[-1], classes))


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
