"""Digests of the components of a rank's state."""

from __future__ import annotations

from dataclasses import dataclass

# The fields of `RankState`; a rank line's `components` has the same keys.
RANK_COMPONENTS = ("parameters", "buffers", "optimizer", "rng", "train")


@dataclass(frozen=True)
class RankState:
    """One digest per component of a rank's state.

    `parameters`, `buffers` and `optimizer` are defined as in a checkpoint's manifest; `rng` covers this rank's generators; `train` covers
    cursor, schedule, scaler and the optimizer's hyperparameters, as in a checkpoint's train.json (`checkpoint.format.train_document`).
    """

    rank: int
    parameters: str
    buffers: str
    optimizer: str
    rng: str
    train: str


@dataclass(frozen=True)
class RestoredState:
    """`logs/attempt-NN/restored_rankR.json`: rank R's state after `global_step`, right after it was restored and before its first step.

    `state_digest`: over parameters, buffers and optimizer, as in a rank line.
    """

    attempt: int
    global_step: int
    state: RankState
    state_digest: str
