"""Training loops whose state changes between two updates, or whose models and optimizers come and
go; recorded as those of audit_traps.py.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from ecrl import hooks


def model_and_optimizer(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    model(torch.full((2, 3), float(step))).square().mean().backward()
    optimizer.step()


def clipped_behind_the_counters() -> None:
    """As Wasserstein GANs do: a write through `.data` moves no version counter."""
    model, optimizer = model_and_optimizer()
    for step in range(1, 6):
        update(model, optimizer, step)
        for parameter in model.parameters():
            parameter.data.clamp_(-0.05, 0.05)


def averaged_now_and_then() -> None:
    """Local SGD: the ranks' models are averaged after every fourth step, through `.data`."""
    model, optimizer = model_and_optimizer()
    for step in range(1, 10):
        update(model, optimizer, step)
        if step % 4 == 0:
            for parameter in model.parameters():
                parameter.data.mul_(0.5)


def one_element_behind_the_counters() -> None:
    """From the fourth step on, one element of 128 is written through `.data` after each update."""
    torch.manual_seed(0)
    model = nn.Linear(16, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(1, 19):
        optimizer.zero_grad()
        model(torch.full((2, 16), float(step))).square().mean().backward()
        optimizer.step()
        if step >= 4:
            model.weight.data[1, 4] += 1.0


def rate_is_searched() -> None:
    """A few updates are tried and taken back before the training."""
    model, optimizer = model_and_optimizer()
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for step in range(1, 4):
        update(model, optimizer, 100 * step)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    for step in range(1, 5):
        update(model, optimizer, step)


def folds() -> None:
    """A new model and a new optimizer for each, from the same seed."""
    for _ in range(2):
        model, optimizer = model_and_optimizer()
        for step in range(1, 4):
            update(model, optimizer, step)


def late_optimizer() -> None:
    """One optimizer waits for two steps of the other."""
    model, first = model_and_optimizer()
    other = nn.Linear(3, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, 5):
        update(model, first, step)
        if step > 2:
            update(other, second, step)


def evaluated_with_gradients() -> None:
    """An evaluation without `no_grad` in front of step 3."""
    model, optimizer = model_and_optimizer()
    for step in range(1, 5):
        if step == 3:
            model(torch.zeros(4, 3))
        update(model, optimizer, step)


LOOPS: tuple[Callable[[], None], ...] = (
    clipped_behind_the_counters,
    averaged_now_and_then,
    one_element_behind_the_counters,
    rate_is_searched,
    folds,
    late_optimizer,
    evaluated_with_gradients,
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    hooks.install()
    for loop in LOOPS:
        os.environ["ECRL_RECORD"] = str(folder / loop.__name__)
        loop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
