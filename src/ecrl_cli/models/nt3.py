"""NT3 of the CANDLE benchmarks (Pilot 1): two 1D convolutions over a gene expression profile, then dense layers. Normal tissue or tumour."""

from __future__ import annotations

import math

from torch import nn

from ecrl_cli.config.schema import ModelConfig
from ecrl_cli.errors import ConfigError

# nt3_default_model.txt: conv = [128, 20, 1, 128, 10, 1], pool = [1, 10], dense = [200, 20].
FIRST, SECOND, POOL, DENSE = 20, 10, 10, (200, 20)
FEWEST = FIRST + SECOND + POOL - 2


def nt3(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """`width`: filters of each convolution (128 in CANDLE); `dropout`: after each dense layer (0.1). The input is flattened to one profile."""
    features = math.prod(shape)
    if features < FEWEST:
        raise ConfigError("model", f"nt3 needs {FEWEST} features or more, the data set has {features}", "choose another data set or model")
    pooled = (features - FIRST - SECOND + 2) // POOL
    convolutions = [nn.Conv1d(1, config.width, FIRST), nn.ReLU(), nn.Conv1d(config.width, config.width, SECOND), nn.ReLU(), nn.MaxPool1d(POOL)]
    sizes = (config.width * pooled, *DENSE)
    dense = [layer for inputs, outputs in zip(sizes, DENSE, strict=False) for layer in _dense(inputs, outputs, config.dropout)]
    head = nn.Linear(DENSE[-1], classes)
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, features)), *convolutions, nn.Flatten(), *dense, head)


def _dense(inputs: int, outputs: int, dropout: float) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
