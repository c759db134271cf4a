"""The statistics as tables of words, for a terminal and for Markdown: arms, comparisons, noise, overlap, restarts. Every title states the scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ecrl_cli.metrics.overlap import Overlap
from ecrl_cli.metrics.restarts import RESTART_COSTS
from ecrl_cli.metrics.statistics import Paired, Signs, Summary, summary
from ecrl_cli.records.events import STALL_PARTS
from ecrl_cli.report.formats import NONE, change, count, duration, plural, rate, share
from ecrl_cli.report.model.arms import MEASURES, Arm
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.overlap import overlaps
from ecrl_cli.report.model.paired import NoiseFloor, against_floor, contrasts, floors, noise_floor, paired_suites, versus

Form = Callable[[float | None], str]
FORMS: dict[str, Form] = {name: duration if name.endswith("_s") else rate if name.startswith("goodput") else count for name in MEASURES}
NAMES = {
    "goodput": "goodput (steps/s)",
    "goodput_published_clock": "goodput, published clock",
    "wall_s": "wall",
    "wall_published_clock_s": "wall, published clock",
    "stall_s": "stall",
    "stall_per_checkpoint_s": "stall per checkpoint",
    "write_s": "write (files)",
    "write_per_checkpoint_s": "write (files) per checkpoint",
    "durable_write_s": "write, serialise to durable (as published)",
    "durable_write_per_checkpoint_s": "write, serialise to durable, per checkpoint",
    "snapshot_s": "snapshot",
    "restarts": "restarts",
    "replayed_steps": "replayed steps",
    "replay_s": "replay",
}
SHORT = ("goodput", "goodput_published_clock", "wall_s", "stall_s")  # what each suite's table of comparisons shows; all is in comparisons.csv
_COMPARED = ("comparison", "measure", "pairs", "ratio of means", "BCa", "mean of ratios", "95% t", "BCa", "difference", "signs", "noise floor")


@dataclass(frozen=True)
class Table:
    """`left`: how many columns at the left are words."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    left: int = 1


def titled(comparison: Comparison, what: str, scope: str, suites: Sequence[str]) -> str:
    """The title of a table over `suites`; the scale belongs to it."""
    return f"{scope}: {what} (scale {comparison.scale(suites)})"


def tables(comparison: Comparison) -> list[Table]:
    """Everything that Markdown shows, all suites together first; tables without rows are left out."""
    found = []
    for scope, suites in sorted(comparison.scopes, key=lambda scope: scope[0] != ALL):
        if set(suites) <= set(comparison.passed):
            every = tuple(MEASURES) if scope == ALL or len(comparison.scopes) == 1 else SHORT
            found += [arms_table(comparison, scope, suites), compared_table(comparison, scope, suites, every)]
    found += [noise_table(comparison), overlap_table(comparison), stalls_table(comparison), restarts_table(comparison)]
    return [table for table in found if table.rows]


def brief(comparison: Comparison) -> list[Table]:
    """What a terminal shows where arms were compared over several pairs: goodput, then the overlap and the restarts, each over everything."""
    compared = [compared_table(comparison, scope, suites, SHORT[:2]) for scope, suites in comparison.overall]
    if not any(row[_COMPARED.index("pairs")] != "1" for table in compared for row in table.rows):
        return []
    kept = [i for i, column in enumerate(_COMPARED) if column not in ("BCa", "difference")]
    columns = tuple(_COMPARED[i] for i in kept)
    short = [Table(table.title, columns, [[row[i] for i in kept] for row in table.rows], 2) for table in compared]
    scopes = {scope for scope, _ in comparison.overall}
    others = [_only(table, scopes) for table in (overlap_table(comparison), restarts_table(comparison))]
    return [table for table in (*short, *others) if table.rows]


def _only(table: Table, scopes: set[str]) -> Table:
    return Table(table.title, table.columns, [row for row in table.rows if row[0] in scopes], table.left)


def arms_table(comparison: Comparison, scope: str, suites: Sequence[str]) -> Table:
    """Mean, sd and both intervals of every measure of every arm."""
    arms = [arm for arm in (comparison.pooled if scope == ALL else comparison.of(scope)) if arm.whole]
    rows = [
        [arm.label, NAMES[measure], *_summary_cells(found, FORMS[measure])] for arm in arms for measure in MEASURES if (found := _worth(arm, measure))
    ]
    return Table(titled(comparison, "arms", scope, suites), ("arm", "measure", "runs", "mean", "sd", "95% t", "BCa"), rows, 2)


def _worth(arm: Arm, measure: str) -> Summary | None:
    """What is zero in every run (the restarts of ref) says nothing."""
    found = arm.summary(measure)
    return found if found and (found.mean or found.sd) else None


def _summary_cells(found: Summary, form: Form) -> list[str]:
    return [count(found.n), form(found.mean), form(found.sd), between(form, found.low, found.high), between(form, found.boot_low, found.boot_high)]


def compared_table(comparison: Comparison, scope: str, suites: Sequence[str], measures: Sequence[str]) -> Table:
    """Arm against base, pair by pair."""
    rows = []
    for arm, base in contrasts(comparison, suites):
        members = paired_suites(comparison, arm, base, suites)
        for measure in measures:
            pair = versus(comparison, arm, base, measure, suites)
            if pair and (pair.difference.mean or pair.signs.positive):
                noise = noise_cell(pair, noise_floor(comparison, measure, members))
                rows.append([f"{arm} against {base}", NAMES[measure], *pair_cells(pair, FORMS[measure]), noise])
    return Table(titled(comparison, "arms compared, pair by pair", scope, suites), _COMPARED, rows, 2)


def pair_cells(pair: Paired, form: Form) -> list[str]:
    """A comparison from `pairs` to `signs`."""
    ratios = pair.mean_of_ratios
    return [
        count(pair.n),
        change(pair.ratio_of_means),
        between(change, pair.ratio_low, pair.ratio_high),
        change(ratios.mean if ratios else None),
        between(change, ratios.low if ratios else None, ratios.high if ratios else None),
        between(change, ratios.boot_low if ratios else None, ratios.boot_high if ratios else None),
        form(pair.difference.mean),
        sign_count(pair.signs),
    ]


def noise_cell(pair: Paired, floor: NoiseFloor | None) -> str:
    """`above the floor (1.2%)`: where the effect stands, and what the mean of as many pairs of equal runs may differ by."""
    return (against_floor(pair, floor) or NONE) + (f" ({share(floor.of_mean(pair.n))})" if floor else "")


def sign_count(signs: Signs) -> str:
    """`8 up, 0 down (63.1% to 100.0% up, p 0.0078)`: the exact interval of the share, the two-sided sign test."""
    text = f"{signs.positive} up, {signs.negative} down" + (f", {plural(signs.ties, 'tie')}" if signs.ties else "")
    return text if signs.low is None or signs.high is None else f"{text} ({signs.low:.0%} to {signs.high:.0%} up, p {signs.p:.2g})"


def between(form: Form, low: float | None, high: float | None) -> str:
    """An interval; a dash where there is none."""
    return NONE if low is None or high is None else f"{form(low)} to {form(high)}"


def noise_table(comparison: Comparison) -> Table:
    """What equal runs differ by: the measure below which no difference says anything."""
    rows = [
        [floor.source, scope, NAMES[measure], count(floor.pairs), change(floor.relative.mean), change(floor.relative.sd), share(floor.largest)]
        + [f"{floor.alike} of {floor.alike + floor.differing}"]
        for scope, suites in comparison.scopes
        for measure in SHORT
        for floor in floors(comparison, measure, suites)
    ]
    columns = ("source", "suite", "measure", "pairs", "mean", "sd", "largest", "ended bit for bit alike")
    return Table(f"The noise floor: runs of one configuration against each other (scale {comparison.scale()})", columns, rows, 3)


def overlap_table(comparison: Comparison) -> Table:
    """Where the stall went that overlapping saved, and what one write costs."""
    rows = [
        [scope, f"{arm} against {base}", *_saved_cells(saved)]
        for scope, suites in comparison.scopes
        for arm, base, saved in overlaps(comparison, suites)
    ]
    columns = (
        "suite",
        "comparison",
        "pairs",
        "stall saved",
        "wall saved",
        "95% t",
        "wall / stall",
        "BCa",
        "submitted",
        "stall",
        "serialize",
        "write",
    )
    what = "What overlapping saved per run, and seconds per submitted checkpoint (blocking, overlapped)"
    return Table(f"{what} (scale {comparison.scale()})", columns, rows, 2)


def _saved_cells(saved: Overlap) -> list[str]:
    b, a = saved.blocking, saved.overlapped
    wall = saved.wall_saved_s
    return [
        count(saved.pairs),
        duration(saved.stall_saved_s.mean),
        duration(wall.mean),
        between(duration, wall.low, wall.high),
        share(saved.efficiency),
        between(share, saved.efficiency_low, saved.efficiency_high),
        f"{count(b.submitted)}, {count(a.submitted)}",
        *(f"{duration(x)}, {duration(y)}" for x, y in ((b.stall_s, a.stall_s), (b.serialize_s, a.serialize_s), (b.write_s, a.write_s))),
    ]


def stalls_table(comparison: Comparison) -> Table:
    """What the stalls consist of: means over runs; arms with a run that does not say are left out."""
    rows = []
    for arm in [*comparison.arms, *comparison.pooled]:
        runs = arm.metrics if arm.whole else []
        parts = {part: [m.stalled(part) for m in runs] for part in STALL_PARTS}
        if runs and all(value is not None for values in parts.values() for value in values):
            means = [duration(summary([value or 0.0 for value in values]).mean) for values in parts.values()]
            total = summary([m.checkpoints["stall_s"] for m in runs])
            rows.append([arm.suite, arm.label, count(len(runs)), duration(total.mean), *means])
    columns = ("suite", "arm", "runs", "stall", *STALL_PARTS)
    return Table(f"What the stalls of a run consist of: mean seconds per run, which add up (scale {comparison.scale()})", columns, rows, 2)


def restarts_table(comparison: Comparison) -> Table:
    """What a restart costs, phase by phase: means over restarts."""
    rows = []
    for arm in [*comparison.arms, *comparison.pooled]:
        restarts = [restart for run in arm.runs if run.counted for restart in run.restarts] if arm.whole else []
        if restarts:
            total = summary([restart.total_s for restart in restarts])
            phases = [duration(summary([restart.seconds[phase] for restart in restarts]).mean) for phase in RESTART_COSTS]
            rows.append([arm.suite, arm.label, count(len(restarts)), *phases, duration(total.mean), between(duration, total.low, total.high)])
    columns = ("suite", "arm", "restarts", *(phase.replace("_", "-") for phase in RESTART_COSTS), "total", "95% t")
    return Table(f"A restart, phase by phase: mean seconds per restart (scale {comparison.scale()})", columns, rows, 2)
