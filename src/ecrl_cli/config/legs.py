"""A run that had reached its target and was given a higher one: its legs, and the schedule of the
learning rate over them.

A schedule with `optimizer.min_lr` = `optimizer.lr` does not depend on the number of steps: such a
run, continued, does what one planned for all its steps does. Any other falls from `lr` to `min_lr`
over the first target, and then once more over the added steps (a warm restart: Loshchilov and
Hutter, SGDR, 2017): another training than one planned for all its steps.
"""

from __future__ import annotations

from itertools import pairwise

from ecrl_cli.config.schema import OptimizerConfig, RunConfig


def targets(config: RunConfig) -> tuple[int, ...]:
    """Every target that the run has had, ascending."""
    return (*config.continued_at, config.target_steps)


def legs(config: RunConfig) -> tuple[tuple[int, int], ...]:
    """(start, end) of each leg: the steps `start` + 1 to `end`, which was the target when they were
    done.
    """
    return tuple(pairwise((0, *targets(config))))


def constant_rate(config: OptimizerConfig) -> bool:
    """Whether the learning rate is the same in all steps."""
    return config.lr == config.min_lr


def schedule_position(ends: tuple[int, ...], step: int, *, constant: bool) -> tuple[int, int]:
    """The scheduler's state after `step` of a run whose targets were `ends`: (steps over which the
    rate falls, how many of these are done).
    """
    end = next((end for end in ends if step <= end), ends[-1])
    start = max((before for before in ends if before < end), default=0)
    return (end, step) if constant else (end - start, step - start)


def schedule_after(config: RunConfig, step: int) -> tuple[int, int]:
    """`schedule_position` of a run."""
    return schedule_position(targets(config), step, constant=constant_rate(config.optimizer))
