"""Published figures 3 and 4, and the distribution of the random kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ecrl_cli.studies.crash_points.counts import Records, count, group, whole
from ecrl_cli.studies.crash_points.points import NONE, PHASES, PUBLISHED
from ecrl_cli.studies.frame.result import Figure, Series, proportion
from ecrl_cli.studies.frame.study import Record, Results

# The published conditions, and one after the commit, where the new checkpoint is expected.
CONDITIONS = {"none": NONE, **PUBLISHED, "after_root_sync": "after_root_sync"}
REMAINS = ("size mismatch", "missing parts", "missing manifest", "manifest cut off", "missing commit", "commit cut off", "other")


def atomicity(results: Results) -> Figure:
    """Published Figure 3."""
    return _shares(results, "atomicity", "The group being saved is usable after the kill (95% Wilson)", lambda mine: count(mine, "new"))


def recovery(results: Results) -> Figure:
    return _shares(results, "recovery", "A whole checkpoint, new or previous, is recovered after the kill (95% Wilson)", whole)


def _shares(results: Results, name: str, title: str, counted: Callable[[Sequence[Record]], int]) -> Figure:
    series, found = [], Records(results.records)
    for mode in found.modes:
        shares = [proportion(counted(mine), len(mine)) for mine in (group(found, mode, point) for point in CONDITIONS.values())]
        if all(share["n"] for share in shares):
            rate, low, high = (tuple(share[key] for share in shares) for key in ("rate", "wilson_low", "wilson_high"))
            series.append(Series(mode, rate, low=low, high=high))
    return Figure(name, title, "bars", "killed at", "share of groups", tuple(series), categories=tuple(CONDITIONS))


def breakdown(results: Results) -> Figure:
    """Published figure 4: by state of the files, for groups written in unsafe mode."""
    mine = [r for r in results.of("point") if r.facts["mode"] == "unsafe" and r.facts["layout"] == "group" and r.found["rejected"]]
    points = sorted({r.facts["point"] for r in mine}, key=PHASES.index)
    counted = Counter((r.facts["point"], rejected["remains"]) for r in mine for rejected in r.found["rejected"])
    shares = {point: sum(counted[point, kind] for kind in REMAINS) for point in points}
    kinds = [kind for kind in REMAINS if any(counted[point, kind] for point in points)]
    series = tuple(Series(kind, tuple(counted[point, kind] / shares[point] for point in points)) for kind in kinds)
    title = "Why unsafe groups were refused"
    return Figure("reasons", title, "stacked", "killed at", "share of refused groups", series, categories=tuple(points))


def phases(results: Results) -> Figure:
    found = Records(results.records)
    counted = phase_counts(found)
    series = tuple(Series(mode, tuple(float(counts[mode]) for counts in counted.values())) for mode in found.modes) if counted else ()
    return Figure("phases", "Where the random kills fell", "bars", "last point passed", "kills", series, categories=tuple(counted))


def phase_counts(found: Records) -> dict[str, dict[str, int]]:
    """Kills per mode by the last point passed, in protocol order."""
    counted = Counter((r.found["passed"], r.facts["mode"]) for r in found.kills)
    hit = [phase for phase in PHASES if any(counted[phase, mode] for mode in found.modes)]
    return {phase: {mode: counted[phase, mode] for mode in found.modes} for phase in hit}
