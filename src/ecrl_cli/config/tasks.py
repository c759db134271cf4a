"""What is learnt: one object per task, with what its samples are and the loss of a batch. Torch-free.

From another package: a `TaskKind` as an entry point in the group `ecrl.tasks`. tests/contract/test_tasks.py checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.registry import VariantRegistry, import_attribute


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """`description`: one sentence, also the first of conf/task/NAME.yaml.

    `loss`: "module:attribute" of a function (model, x, y) -> scalar tensor: the forward pass of a batch and its mean loss. It is called once per step
    and rank, or once per replica; x and y are what the data set gave, on the model's device. It may call `model` once.
    `inputs`, `targets`: the dtypes of x and y, as numpy names them. `target_dims`: the dimensions of one sample's target; None: any.
    """

    name: str
    description: str
    loss: str
    inputs: str = "float32"
    targets: str = "int64"
    target_dims: int | None = None

    def load(self) -> Any:
        """Imports the function `loss`."""
        return import_attribute("task", self.name, self.loss)


CLASSIFICATION = TaskKind(
    name="classification",
    description="one class per sample, by cross-entropy",
    loss="ecrl_cli.training.losses:classification",
    target_dims=0,
)
REGRESSION = TaskKind(
    name="regression",
    description="numbers per sample, by the mean squared error",
    loss="ecrl_cli.training.losses:regression",
    targets="float32",
)
NEXT_TOKEN = TaskKind(
    name="next_token",
    description="the next token at each place of a text, by cross-entropy",
    loss="ecrl_cli.training.losses:next_token",
    inputs="int64",
    target_dims=1,
)

TASKS = VariantRegistry("task", "ecrl.tasks", TaskKind, (CLASSIFICATION, REGRESSION, NEXT_TOKEN))
