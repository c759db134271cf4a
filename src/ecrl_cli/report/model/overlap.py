"""Which overlapped arm stands against which blocking one."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.overlap import Overlap, RunCosts, overlap
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.paired import pairs
from ecrl_cli.report.model.run_record import Metrics


def overlaps(comparison: Comparison, suites: Sequence[str] | None = None) -> list[tuple[str, str, Overlap]]:
    """Every overlapped arm and its blocking one, by label, and what it saved over the pairs of `suites` (None: all)."""
    labels = {arm.label: arm.variant for arm in comparison.arms}
    wanted = [(a, b) for a in labels if labels[a] == "ovl" for b in labels if labels[b] == "blk"]
    found = [(a, b, pairs(comparison, a, b, suites)) for a, b in wanted]
    return [
        (a, b, overlap([_costs(x.metrics) for x, _ in runs if x.metrics], [_costs(y.metrics) for _, y in runs if y.metrics]))
        for a, b, runs in found
        if runs
    ]


def _costs(m: Metrics) -> RunCosts:
    saves = m.checkpoints
    return RunCosts(m.wall_s, saves["stall_s"], saves["serialize_s"], saves["write_s"], saves["submitted"])
