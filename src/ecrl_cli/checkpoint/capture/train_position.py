"""How far a rank is: what the next step will consume. Torch-free, so that everyone may hold it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainPosition:
    """`global_step` steps are done; `epoch` and `cursor_step` name the next window; `line_chain` is this rank's running SHA-256.

    `loss` is the last step's, None where there is none or it is not finite: a run that resumes at its target has no other.
    """

    global_step: int
    epoch: int
    cursor_step: int
    seed: int
    line_chain: str
    loss: float | None = None


NOWHERE = TrainPosition(global_step=0, epoch=0, cursor_step=0, seed=0, line_chain="")
