"""The losses of our tasks (config/tasks.py): the forward pass of a batch, and its mean loss in
float32 whatever the precision of the pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def classification(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of logits (n, classes) against classes (n)."""
    return F.cross_entropy(model(x).float(), y)


def regression(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared error of outputs (n, ...) against targets of as many elements."""
    return F.mse_loss(model(x).float().reshape(y.shape), y)


def next_token(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of logits (n, length, vocabulary) against tokens (n, length)."""
    return F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
