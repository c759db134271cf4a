"""Digests of the components of a rank's state, and the measured interval at which ranks log them:
recorded once, the same in all attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.config.legs import targets
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of

# The fields of `RankState`; a rank line's `components` has the same keys.
RANK_COMPONENTS = ("parameters", "buffers", "optimizer", "rng", "train")

MEASURED_STEPS = 3  # the first is slow; the interval is derived from the other two
SHARE = 0.005  # of a step's time, for the regular digests
MOST = 2**20


@dataclass(frozen=True)
class RankState:
    """One digest per component of a rank's state.

    `parameters`, `buffers` and `optimizer` are defined as in a checkpoint's manifest; `rng` covers
    this rank's generators; `train` covers cursor, schedule, scaler and the optimizer's
    hyperparameters, as in a checkpoint's train.json (`checkpoint.format.train_document`).
    """

    rank: int
    parameters: str
    buffers: str
    optimizer: str
    rng: str
    train: str


@dataclass(frozen=True)
class RestoredState:
    """`logs/attempt-NN/restored_rankR.json`: rank R's state after `global_step`, right after it was
    restored and before its first step.

    `state_digest`: over parameters, buffers and optimizer, as in a rank line.
    """

    attempt: int
    global_step: int
    state: RankState
    state_digest: str


@dataclass(frozen=True)
class Unloadable:
    """`logs/attempt-NN/unloadable_rankR.json`: the checkpoint that rank R was to resume from and
    its checkpointer could not load, and what it raised.

    Only of checkpoints in the format of another checkpointer: those of ECRL's own are checked
    before a launch. `commit_sha256`: as in launch.json.
    """

    attempt: int
    rank: int
    path: str
    commit_sha256: str
    reason: str


@dataclass(frozen=True)
class DigestInterval:
    """state_digests.json: digests are due after each step that `every` divides and, with
    `at_checkpoints`, each that `checkpoint.every` divides: always, but in runs that a version began
    which left them out where they cost more than SHARE.

    `digest_s`, `step_s`: seconds of the shortest measured digest and step.
    """

    every: int
    at_checkpoints: bool
    digest_s: float
    step_s: float


EVERY_STEP = DigestInterval(1, True, 0.0, 0.0)


def worked_out(digest_s: float, step_s: float) -> DigestInterval:
    """The shortest interval whose digests cost at most SHARE. A power of two, so that runs with
    different intervals have steps in common.
    """
    needed, every = steps_per_digest(digest_s, step_s), 1
    while every < min(needed, MOST):
        every *= 2
    return DigestInterval(every, True, digest_s, step_s)


def steps_per_digest(digest_s: float, step_s: float) -> float:
    """In how many steps of `step_s` a digest costs SHARE of their time."""
    return digest_s / (SHARE * max(step_s, 1e-9))


def digests_due(
    config: RunConfig, interval: DigestInterval | None, began: int
) -> Callable[[int], bool]:
    """After which steps the digests are due in an attempt that resumed after step `began`.

    They always are while the interval is unknown, after the first step of an attempt and at each
    target of the run; and at the checkpoints that another checkpointer writes: nothing else tells
    what they hold.
    """
    if not digests_configured(config):
        return lambda step: False
    if interval is None or interval.every == 1:
        return lambda step: True
    every, always, strategy = interval.every, {began + 1, *targets(config)}, strategy_of(config)
    if strategy.saves and (interval.at_checkpoints or strategy.checkpointer is not None):
        saved = config.checkpoint.every
        return lambda step: step % every == 0 or step in always or step % saved == 0
    return lambda step: step % every == 0 or step in always


def digests_configured(config: RunConfig) -> bool:
    return config.state_digests in (True, "true", "auto")


def recorded_by_rank(config: RunConfig) -> bool:
    """Whether the run's version records the state of every rank; older ones wrote `state_digests`
    as a bool and recorded only rank 0's final state.
    """
    return not isinstance(config.state_digests, bool)
