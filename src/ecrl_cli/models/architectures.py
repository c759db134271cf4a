"""The models that need no torchvision: a small convolutional network, a small vision transformer,
and NT3 of the CANDLE benchmarks.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ecrl_cli.config.parameter_shapes import (
    NT3_DENSE,
    NT3_FIRST,
    NT3_POOL,
    NT3_SECOND,
    PATCHES_PER_SIDE,
    WIDEST,
)
from ecrl_cli.config.schema import ModelConfig
from ecrl_cli.errors import ConfigError

HEADS = 4  # vit
FEWEST_FEATURES = NT3_FIRST + NT3_SECOND + NT3_POOL - 2


def small_cnn(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """`depth` blocks of convolution, batch norm and ReLU: the first has `width` channels; each
    further one halves the side and doubles the channels up to WIDEST times `width`.
    """
    widths = [config.width * min(2**i, WIDEST) for i in range(config.depth)]
    inputs = [shape[0], *widths[:-1]]
    blocks = [
        _block(i, o, stride=1 if index == 0 else 2)
        for index, (i, o) in enumerate(zip(inputs, widths, strict=True))
    ]
    return nn.Sequential(
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(config.dropout),
        nn.Linear(widths[-1], classes),
    )


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class VisionTransformer(nn.Module):
    """Pre-norm encoder over 8x8 patches with learned positions; the mean of the tokens is
    classified.

    `width`: size of a token; `depth`: layers; `dropout`: after the embedding, in the attention and
    in each layer. It consumes random numbers on every rank, so exact recovery needs every rank's
    RNG state.
    """

    def __init__(self, config: ModelConfig, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = shape
        patch = max(1, height // PATCHES_PER_SIDE)
        tokens = (height // patch) * (width // patch)
        self.embed = nn.Conv2d(channels, config.width, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, tokens, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d_model=config.width,
                nhead=math.gcd(config.width, HEADS),
                dim_feedforward=4 * config.width,
                dropout=config.dropout,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, classes)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) to logits (n, classes)."""
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = self.dropout(tokens + self.positions)
        for layer in self.layers:
            tokens = layer(tokens)
        logits: torch.Tensor = self.head(self.norm(tokens).mean(dim=1))
        return logits


def nt3(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """`width`: filters of each convolution (128 in CANDLE); `dropout`: after each dense layer
    (0.1). The input is flattened to one profile.
    """
    features = math.prod(shape)
    if features < FEWEST_FEATURES:
        raise ConfigError(
            "model",
            f"nt3 needs {FEWEST_FEATURES} features or more, the data set has {features}",
            "choose another data set or model",
        )
    pooled = (features - NT3_FIRST - NT3_SECOND + 2) // NT3_POOL
    convolutions = [
        nn.Conv1d(1, config.width, NT3_FIRST),
        nn.ReLU(),
        nn.Conv1d(config.width, config.width, NT3_SECOND),
        nn.ReLU(),
    ]
    sizes = (config.width * pooled, *NT3_DENSE)
    dense = [
        layer
        for inputs, outputs in zip(sizes, NT3_DENSE, strict=False)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(config.dropout))
    ]
    head = nn.Linear(NT3_DENSE[-1], classes)
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, features)),
        *convolutions,
        nn.MaxPool1d(NT3_POOL),
        nn.Flatten(),
        *dense,
        head,
    )
