"""Quality on held-out data, as recorded: what one evaluation found, and after which steps one is
due.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.config.legs import targets
from ecrl_cli.config.schema import RunConfig


@dataclass(frozen=True)
class Evaluation:
    """A line of `logs/attempt-NN/evaluations.jsonl`, written by rank 0: quality after `global_step`
    on `samples` held-out samples.

    `measures`: by name, as the task defines them (`config.tasks`); the first matters most. A number
    may be infinite or not a number: a model that diverged is measured as it is. `seconds`: how long
    it took on rank 0, which ended at `at`.
    """

    global_step: int
    attempt: int
    samples: int
    measures: dict[str, float]
    seconds: float
    at: float
    time: float


def evaluation_due(config: RunConfig, step: int) -> bool:
    """Whether quality is measured after `step`: every `evaluate.every` steps and at the target;
    never where that is 0.
    """
    every = config.evaluate.every
    return every > 0 and step > 0 and (step % every == 0 or step in targets(config))
