"""torchvision's ResNets, untrained, with the stem of the CIFAR papers as an option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import nn
from torchvision import models

from ecrl_cli.config.schema import ModelConfig


def resnet18(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """ResNet-18: `width` and `depth` are the published ones, whatever the config says of them."""
    return _with_stem(models.resnet18, config, classes, shape)


def resnet50(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """ResNet-50: `width` and `depth` are the published ones, whatever the config says of them."""
    return _with_stem(models.resnet50, config, classes, shape)


def _with_stem(builder: Callable[..., Any], config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    model = builder(weights=None, num_classes=classes)
    if config.stem == "cifar":
        model.conv1 = _convolution(shape[0], kernel=3, stride=1)
        model.maxpool = nn.Identity()
    elif shape[0] != 3:
        model.conv1 = _convolution(shape[0], kernel=7, stride=2)
    if config.dropout:
        model.fc = nn.Sequential(nn.Dropout(config.dropout), model.fc)
    return cast(nn.Module, model)


def _convolution(channels: int, kernel: int, stride: int) -> nn.Conv2d:
    """A first layer, initialised as torchvision initialises the one that it replaces."""
    layer = nn.Conv2d(channels, 64, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
