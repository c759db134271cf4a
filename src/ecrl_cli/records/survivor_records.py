"""Records of surviving ranks: how a step ended without the dead ranks, and which samples lost their
influence or have too much.

A recovery that does not roll back to a consistent state gives up "exactly once". Each exception is
recorded, one line per failure and effect; all other samples must have been applied exactly once,
which `verify.sample_accounting` checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

LOST, REPEATED = "lost", "repeated"
# `Attempt.memory`: whose in-memory state an attempt continues from
SURVIVORS, SNAPSHOT = "survivors", "snapshot"
SURVIVED = "survived"  # `Attempt.outcome`
EFFECTS = (LOST, REPEATED)


@dataclass(frozen=True)
class RedoneStep:
    """How deaths changed `global_step`: its `buckets` from number `first` on hold the gradients of
    the `left` ranks only.

    `left` is empty where the survivors dropped the step: it changed nothing, and `buckets` is 1.
    `lost`: the ranks that died since the last agreement; `seconds`: from the failed exchange to the
    agreement.
    """

    global_step: int
    first: int
    buckets: int
    lost: tuple[int, ...]
    left: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class SurvivorReport:
    """The report of a surviving rank when its attempt ends: the one line of
    `logs/attempt-NN/recovery_rankR.jsonl`.

    `global_step`: the last step that this rank committed or dropped; survivors resume after it.
    `alive`: the surviving ranks, as far as it knew.
    `redone`: what was redone to commit that step without the dead ranks, or that it was dropped
    (empty if the interrupted step was discarded, or none was interrupted). `layers`: by bucket, the
    names of its parameters; empty where `redone` is. `state_digest`: over parameters, buffers and
    optimizer after that step: equal on all survivors. `state_before`: the same before a step that
    was dropped, taken ahead of the rollback; empty otherwise, and in older records.
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
    state_before: str = ""

    @property
    def dropped(self) -> bool:
        """Whether `global_step` changed nothing: the survivors dropped its mini-batch."""
        return any(not redone.left for redone in self.redone)

    @property
    def finished_step(self) -> int:
        """The last step that its attempt finished, or began after: the one before a step that was
        dropped.
        """
        return self.global_step - self.dropped


@dataclass(frozen=True)
class LostSamples:
    """Samples that lost their influence on some layers, or had it more than once.

    `samples`: dataset indices, one for each time that the sample was in the mini-batch. `layers`:
    names of the affected parameters. `effect`: lost (no influence) or repeated (once too often).
    `ranks`: the ranks that died. `cause`: the recovery that caused it. Stored in
    `logs/attempt-NN/ledger_rankR.jsonl`: each survivor has all lines of its attempt.
    """

    global_step: int
    effect: str
    samples: tuple[int, ...]
    layers: tuple[str, ...]
    ranks: tuple[int, ...]
    cause: str


@dataclass(frozen=True)
class AppliedSamples:
    """`samples` influenced `layers` once: an average to which they contributed was applied to these
    parameters.
    """

    global_step: int
    samples: tuple[int, ...]
    layers: tuple[str, ...]


def _line(
    effect: str,
    global_step: int,
    samples: Iterable[int],
    layers: Iterable[str],
    ranks: Iterable[int],
    cause: str,
) -> list[LostSamples]:
    line = LostSamples(global_step, effect, tuple(samples), tuple(layers), tuple(ranks), cause)
    return [line] if line.samples and line.layers else []


# the record of samples that are lost, or repeated: one line, or none if there are none
lost, repeated = partial(_line, LOST), partial(_line, REPEATED)
