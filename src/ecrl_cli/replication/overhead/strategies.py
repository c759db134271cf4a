"""The overhead of a failure under each strategy, as a sum of named parts; and the course that a job takes under it at scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ecrl_cli.replication.overhead.closed_forms import daly
from ecrl_cli.replication.overhead.job_model import JobSpec
from ecrl_cli.replication.overhead.parts import Parts

# In the order in which they occur.
NAMES = ("detect", "replace", "init", "restart", "spare", "regroup", "join", "replay", "redo", "lost", "degraded")
RESTARTS = ("detect", "replace", "init", "restart", "spare", "regroup", "join")  # nobody works meanwhile; the others are work lost


@dataclass(frozen=True)
class Scene:
    """`workers`, of which `casualties` (fewer) die at once; a replacement is there after `replace_s`; a warm spare takes `spare_share` of a start."""

    workers: int
    casualties: int = 1
    replace_s: float = 0.0
    spare_share: float = 0.2

    @property
    def gone(self) -> float:
        """The share of the job that a failure takes."""
        return self.casualties / self.workers


@dataclass(frozen=True)
class Loss:
    """Where a failure strikes: `since` mini-batches behind the last checkpoint, `share` of the next one done."""

    since: float
    share: float = 0.5


Costs = dict[str, float]


def checkpoint_restart(parts: Parts, scene: Scene, loss: Loss) -> Costs:
    """Everybody starts again; all since the checkpoint is replayed, the mini-batch in hand done again."""
    return {"detect": parts.detect, "replace": scene.replace_s, "init": parts.init, "restart": parts.restart, **_replay(parts, loss)}


def spared_restart(parts: Parts, scene: Scene, loss: Loss) -> Costs:
    """The same from processes that wait warm."""
    return {"detect": parts.detect, "spare": scene.spare_share * parts.start, **_replay(parts, loss)}


def in_memory(parts: Parts, scene: Scene, loss: Loss) -> Costs:
    """From warm processes and the last snapshot in memory, one per mini-batch: what is replayed is the mini-batch in hand."""
    return spared_restart(parts, scene, Loss(0.0, loss.share))


def immediate_rollback(parts: Parts, scene: Scene, loss: Loss) -> Costs:
    """New workers get a survivor's state; the same mini-batch again. Published: restart and one mini-batch; what is lost is its share done."""
    return {
        "detect": parts.detect,
        "replace": scene.replace_s,
        "init": parts.init,
        "restart": parts.restart,
        "join": parts.join,
        **_redo(parts, loss),
    }


def spared_rollback(parts: Parts, scene: Scene, loss: Loss) -> Costs:
    """The same with warm spares in the place of the dead."""
    return {"detect": parts.detect, "spare": scene.spare_share * parts.start, "join": parts.join, **_redo(parts, loss)}


def lossy_forward(parts: Parts, scene: Scene, loss: Loss) -> Costs:
    """Survivors finish the mini-batch: the casualties' samples are lost, and their share of the job until replacements join."""
    return {**_survivors(parts), "lost": scene.gone * parts.mini_batch, "degraded": scene.gone * (scene.replace_s + parts.start)}


def skip(parts: Parts, scene: Scene, loss: Loss) -> Costs:
    """Survivors give the mini-batch up and go on with the next."""
    return {**_survivors(parts), **_redo(parts, loss), "degraded": scene.gone * (scene.replace_s + parts.start)}


def _survivors(parts: Parts) -> Costs:
    """They form a group twice: without the dead, and with those who join."""
    return {"detect": parts.detect, "regroup": 2 * parts.regroup, "join": parts.join}


def _replay(parts: Parts, loss: Loss) -> Costs:
    return {"replay": loss.since * parts.mini_batch, **_redo(parts, loss)}


def _redo(parts: Parts, loss: Loss) -> Costs:
    return {"redo": loss.share * parts.mini_batch}


@dataclass(frozen=True)
class Strategy:
    """`costs`: of a failure. `rolls_back`: to a checkpoint, at each of them. `every_epoch`: checkpoints as published, not where Daly has them.
    `snapshots`: pays for one per mini-batch. `samples`: mini-batches whose influence is lost for good per failure, by the share of workers gone."""

    name: str
    costs: Callable[[Parts, Scene, Loss], Costs]
    rolls_back: bool = False
    every_epoch: bool = False
    snapshots: bool = False
    samples: Callable[[float], float] = lambda gone: 0.0

    @property
    def redoes(self) -> bool:
        """Whether the mini-batch in hand is lost as work."""
        return self.costs is not lossy_forward


STRATEGIES = (
    Strategy("checkpoint_restart, every epoch", checkpoint_restart, rolls_back=True, every_epoch=True),
    Strategy("checkpoint_restart", checkpoint_restart, rolls_back=True),
    Strategy("checkpoint_restart, spares", spared_restart, rolls_back=True),
    Strategy("in_memory, spares", in_memory, snapshots=True),
    Strategy("immediate_rollback", immediate_rollback),
    Strategy("immediate_rollback, spares", spared_rollback),
    Strategy("skip", skip, samples=lambda gone: 1.0),
    Strategy("lossy_forward", lossy_forward, samples=lambda gone: gone),
)
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


def expected_loss(parts: Parts, every: float) -> Loss:
    """Half an interval of `every` mini-batches, half a mini-batch in hand; the two together are half the interval."""
    return Loss(max(0.0, every / 2 - 0.5), 0.5)


def course(strategy: Strategy, parts: Parts, scene: Scene, mtbf: float, fatal: float) -> JobSpec:
    """The course of a job under `strategy`; `fatal`: the share of failures that leave nobody whose state could be used."""
    if strategy.rolls_back:
        interval = parts.every * parts.mini_batch if strategy.every_epoch else _interval(parts, mtbf)
        return JobSpec(interval, parts.checkpoint, restart=waiting(strategy.costs(parts, scene, Loss(0.0))))
    costs = strategy.costs(parts, scene, Loss(0.0))
    alive = JobSpec(
        fatal=fatal,
        pause=waiting(costs),
        grain=parts.mini_batch if strategy.redoes else 0.0,
        debt=costs.get("lost", 0.0) + costs.get("degraded", 0.0),
        tax=parts.snapshot / parts.mini_batch if strategy.snapshots else 0.0,
    )
    if fatal == 0:
        return alive
    back = spared_restart if "spare" in costs else checkpoint_restart
    restart = waiting(back(parts, scene, Loss(0.0)))
    return replace(alive, interval=_interval(parts, mtbf / fatal), checkpoint=parts.checkpoint, restart=restart)


def waiting(costs: Costs) -> float:
    return math.fsum(costs.get(name, 0.0) for name in RESTARTS)


def _interval(parts: Parts, mtbf: float) -> float:
    """Daly's, but never less than a mini-batch."""
    return max(daly(parts.checkpoint, mtbf), parts.mini_batch)
