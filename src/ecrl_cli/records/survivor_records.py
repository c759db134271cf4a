"""What ranks that outlive others put on record: how the step ended without them, and which samples have no influence, or more than their share."""

from __future__ import annotations

from dataclasses import dataclass

LOST, REPEATED = "lost", "repeated"
SURVIVORS, SNAPSHOT = "survivors", "snapshot"  # `Attempt.memory`: with whose an attempt goes on
SURVIVED = "survived"  # `Attempt.outcome`
EFFECTS = (LOST, REPEATED)


@dataclass(frozen=True)
class RedoneStep:
    """What a death changed in `global_step`: of its `buckets`, those from `first` on hold the gradients of `left` alone.

    `lost`: who has died since the last agreement; `seconds`: from the failing exchange to the agreement.
    """

    global_step: int
    first: int
    buckets: int
    lost: tuple[int, ...]
    left: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class SurvivorReport:
    """What a rank that outlived others says when its attempt ends: the one line of `logs/attempt-NN/recovery_rankR.jsonl`.

    `global_step`: the last step that this rank has committed; whoever goes on goes on behind it. `alive`: who was left, as it knew. `redone`: what
    was done again to commit that step without the dead (empty where the step that a death interrupted was given up, or none was interrupted).
    `layers`: by bucket, the parameters of it by the model's names; empty where `redone` is. `state_digest`: of parameters, buffers and optimizer
    behind that step: equal on all who are left.
    """

    global_step: int
    attempt: int
    rank: int
    alive: tuple[int, ...]
    redone: tuple[RedoneStep, ...]
    layers: tuple[tuple[str, ...], ...]
    state_digest: str
    at: float
    time: float


@dataclass(frozen=True)
class LostSamples:
    """`samples`: dataset indices, one for each time that the sample stood in the mini-batch. `layers`: parameters by the model's names.

    `effect`: lost (without influence) or repeated (once more than its due). `ranks`: the casualties. `cause`: the recovery that caused it.
    A run's are in `logs/attempt-NN/ledger_rankR.jsonl`: each survivor has the whole ledger of its attempt.
    """

    global_step: int
    effect: str
    samples: tuple[int, ...]
    layers: tuple[str, ...]
    ranks: tuple[int, ...]
    cause: str


@dataclass(frozen=True)
class AppliedSamples:
    """`samples` had their influence on `layers`, once: an average to which they contributed was applied to these."""

    global_step: int
    samples: tuple[int, ...]
    layers: tuple[str, ...]
