"""Each task keeps its word: a sentence and a YAML, and a loss that is one number, the mean over the
batch, and a function of model and samples alone. Its own update, if it has one, is a function of
the states of model and optimizer alone.

An installed task joins: tests/e2e/test_added_variants.py holds the one of docs/extend.md to
`TaskContract`.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ecrl_cli.config.tasks import TASKS
from tests.contract.variants import check_description, check_registration

WIDTH, CLASSES, LENGTH = 6, 5, 3


def batch_of(name: str, samples: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model and samples of the dtypes and dimensions that the task `name` states."""
    kind = TASKS.of(name)
    torch.manual_seed(3)
    tokens = kind.inputs == "int64"
    shape = (LENGTH,) if tokens else (WIDTH,)
    x = torch.randint(CLASSES, (samples, *shape)) if tokens else torch.randn(samples, *shape)
    model: nn.Module = (
        nn.Sequential(nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES))
        if tokens
        else nn.Linear(WIDTH, CLASSES)
    )
    classes = torch.randint(CLASSES, (samples, *((LENGTH,) if kind.target_dims else ())))
    y = classes if kind.targets == "int64" else torch.randn(samples, CLASSES)
    assert kind.target_dims is None or y.ndim - 1 == kind.target_dims
    return model, x, y


def check_update(name: str, model: nn.Module) -> None:
    """Two copies of a model with gradients, one updated after the other, end alike; and something
    is updated.
    """
    update = TASKS.of(name).load_update()
    if update is None:
        return
    gradients = [parameter.grad for parameter in model.parameters()]
    ends = []
    for _ in range(2):
        twin = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(twin.parameters(), lr=0.1)
        for _ in range(3):
            for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            update(twin, optimizer)
        ends.append(twin.state_dict())
    before = model.state_dict()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in before)
    assert any(not torch.equal(ends[0][key], before[key]) for key in before)


def check_task(name: str) -> None:
    """What a task of any package is held to."""
    check_description(TASKS, name, "task", "name")
    loss = TASKS.of(name).load()
    model, x, y = batch_of(name, 8)
    whole = loss(model, x, y)
    assert whole.shape == () and whole.dtype == torch.float32 and torch.isfinite(whole)
    assert torch.equal(whole, loss(model, x, y))
    whole.backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in model.parameters()
    )
    check_update(name, model)
    parts = torch.stack([loss(model, x[part], y[part]) for part in (slice(0, 4), slice(4, 8))])
    # the mean of equal shards is the mean of the batch: what DDP and replicas rely on
    assert torch.allclose(parts.mean(), whole)
    with torch.no_grad():
        measured = TASKS.of(name).load_measures()(model, x, y)
    assert all(each.shape == (8,) for each in measured.values())
    assert float(measured["loss"].double().mean()) == pytest.approx(float(whole.detach()), rel=1e-6)
    means = {measure: float(each.double().mean()) for measure, each in measured.items()}
    summarised = TASKS.of(name).summarised(means)
    assert (
        summarised.items() >= means.items() and TASKS.of(name).summarised(summarised) == summarised
    )


@pytest.mark.parametrize("name", TASKS.builtin)
def test_a_task_keeps_its_word(name: str) -> None:
    check_task(name)


def test_a_task_is_registered_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_registration(TASKS, monkeypatch)


def test_the_losses_are_torchs() -> None:
    """Written out once more: the mean of -log softmax of the target, and the mean of the
    squares.
    """
    for name in ("classification", "next_token"):
        model, x, y = batch_of(name, 8)
        by_hand = -model(x).log_softmax(-1).gather(-1, y.unsqueeze(-1)).mean()
        assert torch.allclose(TASKS.of(name).load()(model, x, y), by_hand)
    model, x, y = batch_of("regression", 8)
    assert torch.allclose(TASKS.of("regression").load()(model, x, y), ((model(x) - y) ** 2).mean())
