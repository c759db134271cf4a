"""What a rank's state consists of, as digests."""

from __future__ import annotations

from dataclasses import dataclass

# The fields of `RankState`; a rank line's `components` uses the same words.
RANK_COMPONENTS = ("parameters", "buffers", "optimizer", "rng", "train")


@dataclass(frozen=True)
class RankState:
    """The state of one rank, a digest per component.

    `parameters`, `buffers` and `optimizer` are defined as in a checkpoint's manifest; `rng` covers this rank's generators; `train` covers cursor,
    schedule, scaler and the optimizer's hyperparameters, as a checkpoint's train.json holds them (`checkpoint.train_document`).
    """

    rank: int
    parameters: str
    buffers: str
    optimizer: str
    rng: str
    train: str


@dataclass(frozen=True)
class RestoredState:
    """`logs/attempt-NN/restored_rankR.json`: what rank R holds behind `global_step`, right after it has taken up a state and before its first step.

    `state_digest`: of parameters, buffers and optimizer, in the definition of a rank line's.
    """

    attempt: int
    global_step: int
    state: RankState
    state_digest: str
