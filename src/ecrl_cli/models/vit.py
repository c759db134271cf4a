"""A small vision transformer with dropout: it consumes random numbers on every rank, so exact recovery needs every rank's RNG state."""

from __future__ import annotations

import math

import torch
from torch import nn

from ecrl_cli.config.schema import ModelConfig

PATCHES_PER_SIDE = 8
HEADS = 4


class VisionTransformer(nn.Module):
    """Pre-norm encoder over 8x8 patches with learned positions; the mean of the tokens is classified."""

    def __init__(self, config: ModelConfig, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = shape
        patch = max(1, height // PATCHES_PER_SIDE)
        tokens = (height // patch) * (width // patch)
        self.embed = nn.Conv2d(channels, config.width, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, tokens, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(_layer(config) for _ in range(config.depth))
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


def _layer(config: ModelConfig) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        d_model=config.width,
        nhead=math.gcd(config.width, HEADS),
        dim_feedforward=4 * config.width,
        dropout=config.dropout,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )


def vit(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """`width`: size of a token; `depth`: layers; `dropout`: after the embedding, in the attention and in each layer."""
    return VisionTransformer(config, classes, shape)
