"""The learning tasks: one object each, with the form of its samples, the loss of a batch and the
update after it. Torch-free.

From another package: a `TaskKind` as an entry point in the group `ecrl.tasks`.
tests/contract/test_tasks.py checks each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.registry import VariantRegistry, import_attribute


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """`description`: one sentence, also the first of conf/task/NAME.yaml.

    `loss`: "module:attribute" of a function (model, x, y) -> scalar tensor: the forward pass of a
    batch and its mean loss. It is called once per step and rank, or once per replica; x and y are
    what the data set gave, on the model's device. It may call `model` once.
    `update`: "module:attribute" of a function (model, optimizer) -> None, called once a step in the
    place of `optimizer.step()`, which it calls. The gradients are the mean over the global batch,
    the same on every rank. It may change gradients before, and parameters and buffers after (a
    moving average of the weights). What it remembers from step to step must be in the state of the
    model or of the optimizer, which checkpoints hold; it draws no random numbers (a survivor's
    generators are kept before the update). Empty: `optimizer.step()`.
    `measures`: "module:attribute" of a function (model, x, y) -> {name: tensor (n) of one number
    per sample}: what is measured on held-out data, with the model in evaluation mode and without
    gradients; what counts is the mean over all held-out samples. Empty: the loss of each batch.
    `summary`: "module:attribute" of a torch-free function of these means that returns what is
    recorded, the one that matters most first. Empty: the means as they are. `inputs`, `targets`:
    the dtypes of x and y, as numpy names them. `target_dims`: the dimensions of one sample's
    target; None: any.
    """

    name: str
    description: str
    loss: str
    update: str = ""
    measures: str = ""
    summary: str = ""
    inputs: str = "float32"
    targets: str = "int64"
    target_dims: int | None = None

    def load(self) -> Any:
        """Imports the function `loss`."""
        return import_attribute("task", self.name, self.loss)

    def load_update(self) -> Any:
        """Imports the function `update`; None without one."""
        return import_attribute("task", self.name, self.update) if self.update else None

    def load_measures(self) -> Any:
        """Imports the function `measures`; without one, the function that gives each sample the
        loss of its batch.
        """
        if self.measures:
            return import_attribute("task", self.name, self.measures)
        return import_attribute("task", self.name, "ecrl_cli.training.measures:by_batch")(
            self.load()
        )

    def summarised(self, means: Mapping[str, float]) -> dict[str, float]:
        """The recorded form of the means over all held-out samples. Applied to a recorded form, it
        returns the same again.
        """
        return dict(
            import_attribute("task", self.name, self.summary)(means) if self.summary else means
        )


def perplexity(means: Mapping[str, float]) -> dict[str, float]:
    """`means` with the perplexity, e to the mean loss per token."""
    try:
        return {"perplexity": math.exp(means["loss"]), "loss": means["loss"]}
    except OverflowError:
        return {"perplexity": math.inf, "loss": means["loss"]}


CLASSIFICATION = TaskKind(
    name="classification",
    description="one class per sample, by cross-entropy",
    loss="ecrl_cli.training.losses:classification",
    measures="ecrl_cli.training.measures:classification",
    target_dims=0,
)
REGRESSION = TaskKind(
    name="regression",
    description="numbers per sample, by the mean squared error",
    loss="ecrl_cli.training.losses:regression",
    measures="ecrl_cli.training.measures:regression",
    targets="float32",
)
NEXT_TOKEN = TaskKind(
    name="next_token",
    description="the next token at each place of a text, by cross-entropy",
    loss="ecrl_cli.training.losses:next_token",
    measures="ecrl_cli.training.measures:next_token",
    summary="ecrl_cli.config.tasks:perplexity",
    inputs="int64",
    target_dims=1,
)

TASKS = VariantRegistry("task", "ecrl.tasks", TaskKind, (CLASSIFICATION, REGRESSION, NEXT_TOKEN))
