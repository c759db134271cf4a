"""A rank's position in the run: which window the next step consumes. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainPosition:
    """`global_step`: steps done; `epoch` and `cursor_step`: the next window; `line_chain`: this rank's running SHA-256 over its log lines.

    `loss`: that of the last step, None if there is none or it is not finite. A run that resumes at its target reports it as its last loss.
    """

    global_step: int
    epoch: int
    cursor_step: int
    seed: int
    line_chain: str
    loss: float | None = None


NOWHERE = TrainPosition(global_step=0, epoch=0, cursor_step=0, seed=0, line_chain="")
