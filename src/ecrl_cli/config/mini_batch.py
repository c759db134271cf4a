"""What a user may set of the study `mini-batch-failure`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ecrl_cli.config.counts import count, some_counts, some_of
from ecrl_cli.config.schema import positive

SCALES = ("small", "paper", "smoke")
APPLICATIONS = ("resnet50", "nt3")
STRATEGIES = ("checkpoint_restart", "immediate_rollback", "consistent_rollback", "lossy_forward", "skip")


@dataclass(frozen=True)
class MiniBatchFailure:
    """Workers die in the middle of a mini-batch; simulated, `replicas` workers one after the other. Published: 8 of them, 25, 50 and 75% of the
    gradients applied, 2 to 6 survivors.

    `scale`: paper (as published, days), small (minutes on two cores), smoke (seconds). `percents`: of the gradient tensors in backward order
    (0: in forward). `casualties`: drawn per seed, or the last workers, or the first. `data`: made up, or files under `root`. `mask`, `buffers`,
    `division`: the corrections of the published simulation, each of which can be left out. `long_run`: also go on to the end of the run, after
    one failure and after `failures`. `rounds`: of timing. `averages`: of the dormant workers' arm, 0 without it. `hours`: most that it may take
    by its own estimate.
    """

    name: str = "mini-batch-failure"
    scale: str = field(default="small", metadata={"choices": SCALES})
    applications: tuple[str, ...] = some_of(APPLICATIONS)
    strategies: tuple[str, ...] = some_of(STRATEGIES)
    percents: tuple[int, ...] = some_counts((25, 50, 75), 0, 99)
    survivors: tuple[int, ...] = some_counts((2, 3, 4, 5, 6), 1, 1023)
    replicas: int = field(default=8, metadata={"minimum": 2, "below": 1025})
    casualties: str = field(default="drawn", metadata={"choices": ("drawn", "last", "first")})
    seeds: int = count(4, 1)
    data: str = field(default="made", metadata={"choices": ("made", "files")})
    root: str = "data"
    mask: bool = True
    buffers: bool = True
    division: bool = True
    long_run: bool = True
    failures: int = count(4, 1)
    rounds: int = count(3, 1)
    averages: int = count(200, 0)
    hours: float = positive(12.0)
