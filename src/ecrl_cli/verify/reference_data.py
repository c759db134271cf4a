"""Differences between two reference runs that should be equal."""

from __future__ import annotations

from ecrl_cli.history.divergence import first_differing_step
from ecrl_cli.history.lineage import lineage, losses
from ecrl_cli.history.load import RunRecords
from ecrl_cli.verify.verification_input import same_sizes

_ENDS = ("parameters_digest", "buffers_digest", "optimizer_digest", "rng_digest")


def disagreement(one: RunRecords, other: RunRecords) -> str:
    """How two references differ, as text; empty if they are equal or cannot be compared."""
    ours, theirs = one.final, other.final
    if ours is None or theirs is None or not same_sizes(one, other):
        return ""
    differing = [name.partition("_")[0] for name in _ENDS if getattr(ours, name) != getattr(theirs, name)]
    if differing:
        return f"the final {', '.join(differing)} differ"
    step = first_differing_step(losses(one, lineage(one)), losses(other, lineage(other)))
    return "" if step is None else f"the losses of step {step} differ"
