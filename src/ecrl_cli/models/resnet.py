"""torchvision's ResNets, untrained, with the stem of the CIFAR papers and narrower layers as
options.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from ecrl_cli.config.schema import ModelConfig

WIDTH = 64  # channels of the first layer, as published


def resnet18(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """ResNet-18; `config.depth` is ignored."""
    return _with_stem(BasicBlock, [2, 2, 2, 2], config, classes, shape)


def resnet50(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """ResNet-50; `config.depth` is ignored."""
    return _with_stem(Bottleneck, [3, 4, 6, 3], config, classes, shape)


def resnet152(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """ResNet-152; `config.depth` is ignored."""
    return _with_stem(Bottleneck, [3, 8, 36, 3], config, classes, shape)


class _Narrow(ResNet):  # type: ignore[misc]
    """torchvision's ResNet, every layer's channels multiplied by `width` / 64. At 64 it is
    torchvision's, bit for bit.
    """

    def __init__(
        self, block: type[BasicBlock | Bottleneck], layers: list[int], width: int, classes: int
    ) -> None:
        self._width = width
        super().__init__(block, layers, num_classes=classes)

    def _make_layer(self, block: Any, planes: int, *rest: Any, **named: Any) -> nn.Sequential:
        # the first layer: replace the stem, which was built at full width
        if planes == WIDTH and self._width != WIDTH:
            self.conv1, self.bn1 = _convolution(3, 7, 2, self._width), nn.BatchNorm2d(self._width)
            self.inplanes = self._width
        made: nn.Sequential = super()._make_layer(
            block, planes * self._width // WIDTH, *rest, **named
        )
        return made


def _with_stem(
    block: type[BasicBlock | Bottleneck],
    layers: list[int],
    config: ModelConfig,
    classes: int,
    shape: tuple[int, ...],
) -> nn.Module:
    model = _Narrow(block, layers, config.width, classes)
    if config.width != WIDTH:
        model.fc = nn.Linear(512 * config.width // WIDTH * block.expansion, classes)
    if config.stem == "cifar":
        model.conv1 = _convolution(shape[0], 3, 1, config.width)
        model.maxpool = nn.Identity()
    elif shape[0] != 3:
        model.conv1 = _convolution(shape[0], 7, 2, config.width)
    if config.dropout:
        model.fc = nn.Sequential(nn.Dropout(config.dropout), model.fc)
    return model


def _convolution(channels: int, kernel: int, stride: int, width: int) -> nn.Conv2d:
    """A first layer, initialised as torchvision initialises the one it replaces."""
    layer = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
