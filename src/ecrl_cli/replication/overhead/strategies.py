"""The cost of a failure under each strategy as a sum of named, measured parts, and the job
parameters of each strategy at scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.replication import applications
from ecrl_cli.replication.overhead.closed_forms import daly
from ecrl_cli.replication.overhead.simulate import JobCosts

# In a trial with gloo and three processes a killed rank was detected after 44 ms and the group
# rebuilt in 2 ms.
DETECT_S, REGROUP_S = 0.044, 0.002
# Assumed, as nobody published these: the state crosses the network once; a copy in memory costs a
# fiftieth of a mini-batch.
JOIN_S, SNAPSHOT_SHARE = 0.5, 0.02
TYPEABLE = ("mini_batch", "checkpoint", "init", "restart", "detect", "regroup", "join", "snapshot")


@dataclass(frozen=True)
class Parts:
    """Seconds, except `every`: mini-batches from one checkpoint to the next.

    `mini_batch`: mean duration. `checkpoint`: training stall per checkpoint. `init`: creating
    processes and communicators; `restart`: loading and warming up model, optimizer and data.
    `regroup`: the survivors' new group. `join`: their wait while a joiner gets the state.
    `snapshot`: a copy of the state into memory.
    """

    mini_batch: float
    checkpoint: float
    init: float
    restart: float
    every: int
    detect: float = DETECT_S
    regroup: float = REGROUP_S
    join: float = JOIN_S
    snapshot: float = 0.0

    @property
    def start(self) -> float:
        """The cost of a cold start."""
        return self.init + self.restart


# A checkpoint at the end of each epoch.
PUBLISHED = {
    a.name: Parts(a.mini_batch_s, a.checkpoint_s, a.init_s, a.restart_s, a.in_epoch)
    for a in applications.PUBLISHED.values()
}


def typed(config: RecoveryOverhead, parts: Parts) -> Parts:
    """`parts`, overridden by typed values (0: not typed). No source has snapshots: unless typed
    they are derived from the mini-batch.
    """
    given = {name: value for name in TYPEABLE if (value := getattr(config, f"{name}_s")) > 0}
    made = replace(parts, **given, every=config.every or parts.every)
    return made if "snapshot" in given else replace(made, snapshot=SNAPSHOT_SHARE * made.mini_batch)


def typed_alone(config: RecoveryOverhead) -> Parts:
    """The parts for `study.source=typed`; values not typed are 0 or the assumed default."""
    return typed(config, Parts(mini_batch=0.0, checkpoint=0.0, init=0.0, restart=0.0, every=1))


# In order of occurrence.
NAMES = (
    "detect",
    "replace",
    "init",
    "restart",
    "spare",
    "regroup",
    "join",
    "replay",
    "redo",
    "lost",
    "degraded",
)
# downtime; the other parts are lost work
RESTARTS = ("detect", "replace", "init", "restart", "spare", "regroup", "join")


@dataclass(frozen=True)
class FailureScenario:
    """A job of `workers`, of which `casualties` (fewer) die at once; replacements arrive after
    `replace_s`; a warm spare takes `spare_share` of a cold start.
    """

    workers: int
    casualties: int = 1
    replace_s: float = 0.0
    spare_share: float = 0.2

    @property
    def gone(self) -> float:
        """The share of the workers that a failure takes."""
        return self.casualties / self.workers


@dataclass(frozen=True)
class Loss:
    """Position of a failure: `since` mini-batches after the last checkpoint, with `share` of the
    next one done.
    """

    since: float
    share: float = 0.5


Costs = dict[str, float]


def checkpoint_restart(parts: Parts, scenario: FailureScenario, loss: Loss) -> Costs:
    """All workers restart; everything since the checkpoint is replayed, and the current mini-batch
    redone.
    """
    return {
        "detect": parts.detect,
        "replace": scenario.replace_s,
        "init": parts.init,
        "restart": parts.restart,
        **_replay(parts, loss),
    }


def spared_restart(parts: Parts, scenario: FailureScenario, loss: Loss) -> Costs:
    """Checkpoint restart from warm spare processes."""
    return {
        "detect": parts.detect,
        "spare": scenario.spare_share * parts.start,
        **_replay(parts, loss),
    }


def in_memory(parts: Parts, scenario: FailureScenario, loss: Loss) -> Costs:
    """Restart from warm processes and the last in-memory snapshot, one per mini-batch: only the
    current mini-batch is redone.
    """
    return spared_restart(parts, scenario, Loss(0.0, loss.share))


def immediate_rollback(parts: Parts, scenario: FailureScenario, loss: Loss) -> Costs:
    """New workers get a survivor's state and the mini-batch runs again. Published cost: restart and
    one mini-batch; here only its done share is lost.
    """
    return {
        "detect": parts.detect,
        "replace": scenario.replace_s,
        "init": parts.init,
        "restart": parts.restart,
        "join": parts.join,
        **_redo(parts, loss),
    }


def spared_rollback(parts: Parts, scenario: FailureScenario, loss: Loss) -> Costs:
    """Immediate rollback with warm spares in place of the dead workers."""
    return {
        "detect": parts.detect,
        "spare": scenario.spare_share * parts.start,
        "join": parts.join,
        **_redo(parts, loss),
    }


def lossy_forward(parts: Parts, scenario: FailureScenario, loss: Loss) -> Costs:
    """Survivors finish the mini-batch: lost are the casualties' samples, and their share of
    throughput until replacements join.
    """
    return {
        **_survivors(parts),
        "lost": scenario.gone * parts.mini_batch,
        "degraded": scenario.gone * (scenario.replace_s + parts.start),
    }


def skip(parts: Parts, scenario: FailureScenario, loss: Loss) -> Costs:
    """Survivors drop the mini-batch and continue with the next."""
    return {
        **_survivors(parts),
        **_redo(parts, loss),
        "degraded": scenario.gone * (scenario.replace_s + parts.start),
    }


def _survivors(parts: Parts) -> Costs:
    """Two regroupings: without the dead workers, and with the replacements."""
    return {"detect": parts.detect, "regroup": 2 * parts.regroup, "join": parts.join}


def _replay(parts: Parts, loss: Loss) -> Costs:
    return {"replay": loss.since * parts.mini_batch, **_redo(parts, loss)}


def _redo(parts: Parts, loss: Loss) -> Costs:
    return {"redo": loss.share * parts.mini_batch}


@dataclass(frozen=True)
class StrategyModel:
    """`costs`: of one failure. `rolls_back`: to a checkpoint at every failure. `every_epoch`:
    checkpoints each epoch as published, not at Daly's interval. `snapshots`: pays for one per
    mini-batch. `samples`: mini-batches whose influence is lost for good per failure, by the share
    of workers gone.
    """

    name: str
    costs: Callable[[Parts, FailureScenario, Loss], Costs]
    rolls_back: bool = False
    every_epoch: bool = False
    snapshots: bool = False
    samples: Callable[[float], float] = lambda gone: 0.0

    @property
    def redoes(self) -> bool:
        """Whether the work of the current mini-batch is lost."""
        return self.costs is not lossy_forward


STRATEGIES = (
    StrategyModel(
        "checkpoint_restart, every epoch", checkpoint_restart, rolls_back=True, every_epoch=True
    ),
    StrategyModel("checkpoint_restart", checkpoint_restart, rolls_back=True),
    StrategyModel("checkpoint_restart, spares", spared_restart, rolls_back=True),
    StrategyModel("in_memory, spares", in_memory, snapshots=True),
    StrategyModel("immediate_rollback", immediate_rollback),
    StrategyModel("immediate_rollback, spares", spared_rollback),
    StrategyModel("skip", skip, samples=lambda gone: 1.0),
    StrategyModel("lossy_forward", lossy_forward, samples=lambda gone: gone),
)
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


def expected_loss(parts: Parts, every: float) -> Loss:
    """Mean loss: half an interval of `every` mini-batches in total, half a mini-batch of it in
    progress.
    """
    return Loss(max(0.0, every / 2 - 0.5), 0.5)


def job_spec(
    strategy: StrategyModel, parts: Parts, scenario: FailureScenario, mtbf: float, fatal: float
) -> JobCosts:
    """Job parameters under `strategy`; `fatal`: share of failures that leave no usable survivor
    state.
    """
    if strategy.rolls_back:
        interval = (
            parts.every * parts.mini_batch if strategy.every_epoch else _interval(parts, mtbf)
        )
        return JobCosts(
            interval, parts.checkpoint, restart=waiting(strategy.costs(parts, scenario, Loss(0.0)))
        )
    costs = strategy.costs(parts, scenario, Loss(0.0))
    alive = JobCosts(
        fatal=fatal,
        pause=waiting(costs),
        grain=parts.mini_batch if strategy.redoes else 0.0,
        debt=costs.get("lost", 0.0) + costs.get("degraded", 0.0),
        tax=parts.snapshot / parts.mini_batch if strategy.snapshots else 0.0,
    )
    if fatal == 0:
        return alive
    back = spared_restart if "spare" in costs else checkpoint_restart
    restart = waiting(back(parts, scenario, Loss(0.0)))
    return replace(
        alive, interval=_interval(parts, mtbf / fatal), checkpoint=parts.checkpoint, restart=restart
    )


def waiting(costs: Costs) -> float:
    return math.fsum(costs.get(name, 0.0) for name in RESTARTS)


def _interval(parts: Parts, mtbf: float) -> float:
    """Daly's interval, at least one mini-batch."""
    return max(daly(parts.checkpoint, mtbf), parts.mini_batch)
