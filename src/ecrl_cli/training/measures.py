"""The measures of our tasks on held-out data (config/tasks.py): one number per sample, in float32
or wider, from a forward pass as in the loss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Measures = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]


def classification(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor
) -> dict[str, torch.Tensor]:
    """1 where the largest of the logits (n, classes) is that of the class (the first of equal
    ones), else 0; and the cross-entropy.
    """
    logits = model(x).float()
    return {"accuracy": logits.argmax(1) == y, "loss": F.cross_entropy(logits, y, reduction="none")}


def regression(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mean squared error over the numbers of a sample."""
    return {
        "loss": (
            F.mse_loss(model(x).float().reshape(y.shape), y, reduction="none")
            .double()
            .flatten(1)
            .mean(1)
        )
    }


def next_token(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mean cross-entropy over the tokens of a sample, all of one length."""
    each = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten(), reduction="none")
    return {"loss": each.double().view(len(y), -1).mean(1)}


def by_batch(
    loss: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor],
) -> Measures:
    """For a task that has a loss alone: each sample counts with the mean loss of its batch."""
    return lambda model, x, y: {"loss": loss(model, x, y).expand(len(x))}
