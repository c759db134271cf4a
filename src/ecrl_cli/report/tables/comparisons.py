"""The tables that compare arms: contrasts, noise between equal runs, savings by overlapping."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.overlap import Overlap
from ecrl_cli.metrics.statistics import Paired
from ecrl_cli.report.formats import in_brackets, plural, share
from ecrl_cli.report.model.arms import MEASURES
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.contrast import Contrast, NoiseFloor, contrasts, floors, overlaps
from ecrl_cli.report.tables.runs import (
    ARM,
    KINDS,
    NAMES,
    SUITE,
    measures_table,
    where,
)
from ecrl_cli.report.tables.table import (
    Cell,
    Column,
    Row,
    Table,
    Value,
    interval_cell,
    mean_cell,
    signs_cell,
    span_cell,
)
from ecrl_cli.report.tables.time_parts import restarts_table, stalls_table

# measures in each suite's table; all are in comparisons.csv
SHORT = ("goodput", "goodput_published_clock", "wall_s", "stall_s")
PAIR_COLUMNS = (
    Column("pairs", "count"),
    Column("ratio of means", "change"),
    Column("BCa", "change", "95% interval of the ratio of means"),
    Column("mean of ratios", "change"),
    Column("95% t", "change"),
    Column("BCa of ratios", "change"),
    Column("difference", "number"),
    Column(
        "signs", "count", "pairs that went up, the exact interval of their share, the sign test"
    ),
)
COMPARED = (
    Column("suite", facet="suite", hidden=True),
    Column("comparison", facet="arm"),
    Column("measure"),
    *PAIR_COLUMNS,
    Column("noise floor", help="what the mean of as many pairs of equal runs may differ by"),
)
_BRIEF = (
    "comparison",
    "measure",
    "pairs",
    "ratio of means",
    "mean of ratios",
    "95% t",
    "signs",
    "noise floor",
)


def tables(comparison: Comparison) -> list[Table]:
    """All tables for Markdown, the pooled suites first; empty ones are left out."""
    found = []
    for scope, suites in sorted(comparison.scopes, key=lambda scope: scope[0] != ALL):
        if set(suites) <= set(comparison.passed):
            every = tuple(MEASURES) if scope == ALL or len(comparison.scopes) == 1 else SHORT
            found += [
                measures_table(comparison, scope, suites),
                compared_table(comparison, scope, suites, every),
            ]
    found += [
        noise_table(comparison),
        overlap_table(comparison),
        stalls_table(comparison),
        restarts_table(comparison),
    ]
    return [table for table in found if table]


def brief(comparison: Comparison) -> list[Table]:
    """The tables for a terminal if arms were compared over several pairs: goodput, overlap and
    restarts, each over everything.
    """
    compared = [
        compared_table(comparison, scope, suites, SHORT[:2]) for scope, suites in comparison.overall
    ]
    pairs = COMPARED.index(PAIR_COLUMNS[0])
    if not any(row[pairs] != 1 for table in compared for row in table.rows):
        return []
    scopes = {scope for scope, _ in comparison.overall}
    others = [
        table.only([column.label for column in table.columns], first=scopes)
        for table in (overlap_table(comparison), restarts_table(comparison))
    ]
    return [table for table in (*(table.only(_BRIEF) for table in compared), *others) if table]


def compared_table(
    comparison: Comparison, scope: str, suites: Sequence[str], measures: Sequence[str]
) -> Table:
    """Arm against base, pair by pair; measures that are zero on both sides are left out."""
    every = [each for each in contrasts(comparison, scope, suites, measures) if not each.is_noise]
    found = [each for each in every if each.pair.difference.mean or each.pair.signs.positive]
    rows = tuple((scope, Cell(each.title, arm=each.arm), *contrast_cells(each)) for each in found)
    return Table(
        f"{scope}: arms compared, pair by pair{in_brackets(comparison.scale(suites))}",
        COMPARED,
        rows,
        file="comparisons.csv",
    )


def contrast_cells(contrast: Contrast) -> Row:
    """The cells of a contrast, from `measure` to `noise floor`."""
    pair, ratios, kind = contrast.pair, contrast.pair.mean_of_ratios, KINDS[contrast.measure]
    floor = (
        Cell(
            contrast.against_floor,
            small=share(contrast.noise) if contrast.noise is not None else "",
        )
        if contrast.against_floor
        else None
    )
    return (
        NAMES[contrast.measure],
        pair.n,
        pair.ratio_of_means,
        interval_cell(pair.ratio_low, pair.ratio_high),
        *ratio_cells(pair),
        interval_cell(ratios.boot_low, ratios.boot_high) if ratios else None,
        *(Cell(pair.difference.mean, kind), signs_cell(pair.signs), floor),
    )


def ratio_cells(pair: Paired) -> tuple[Value, Value]:
    """The mean of ratios and its interval by Student's t."""
    ratios = pair.mean_of_ratios
    return (ratios.mean, span_cell(ratios)) if ratios else (None, None)


def wins_table(comparison: Comparison, found: Sequence[Sequence[Contrast]]) -> Table:
    """Arm against arm over all suites, with intervals. `found`: per pair of arms its contrasts, the
    pooled one first.
    """
    columns = (
        *(ARM, Column("pairs", "count")),
        Column(
            "goodput",
            "change",
            "ratio of means, with its 95% interval by BCa bootstrap over the pairs",
        ),
        Column(
            "mean of ratios",
            "change",
            "with its 95% interval by Student's t; this one is held against the noise floor",
        ),
        Column(
            "signs",
            "count",
            "pairs in which the arm was faster, the exact interval of their share, and the sign"
            " test",
        ),
        *(Column("noise floor", "percent"), Column("against the noise")),
        Column(
            "published clock",
            "change",
            "the same from the first to the last line of rank 0; ratio of means",
        ),
    )
    shown = [
        each for members in found for each in (members[:1] if comparison.pooled_suites else members)
    ]
    suites = [suite for suite in comparison.passed if any(suite in each.suites for each in shown)]
    several = len(suites) > 1 and not comparison.pooled_suites
    rows = tuple(_win(each, f", {each.scope}" if several else "") for each in shown)
    return Table(
        f"Arm against arm, {where(comparison, suites)}",
        columns,
        rows,
        floor_note(found[0][0].floor),
        "comparisons.csv",
    )


def _win(contrast: Contrast, suite: str) -> Row:
    pair, floor = contrast.pair, contrast.floor
    noise = (
        Cell(contrast.noise, small=f"{plural(floor.pairs, 'pair')}, at most {share(floor.largest)}")
        if floor
        else None
    )
    ratio = (
        Cell(pair.ratio_of_means, "", pair.ratio_low, pair.ratio_high, strong=True)
        if pair.ratio_of_means is not None
        else None
    )
    published = contrast.published.ratio_of_means if contrast.published else None
    return (
        Cell(contrast.title + suite, arm=contrast.arm),
        pair.n,
        ratio,
        mean_cell(pair.mean_of_ratios, strong=True),
        *(signs_cell(pair.signs), noise, contrast.against_floor, published),
    )


def floor_note(floor: NoiseFloor | None) -> str:
    """The source of the floor, and how many of its pairs ended in the same state."""
    if floor is None:
        return "Nothing ran twice, so that there is no noise floor; the variant ref2 repeats ref."
    ended = (
        f"{floor.alike} of {plural(floor.alike + floor.differing, 'pair')} ended bit for bit alike"
    )
    return (
        f"Noise floor: what the mean of as many pairs of {floor.source} may differ by (95%);"
        f" {ended}."
    )


def noise_table(comparison: Comparison) -> Table:
    """Differences between equal runs: smaller effects mean nothing."""
    rows = [
        (
            scope,
            floor.source,
            NAMES[measure],
            floor.pairs,
            floor.relative.mean,
            floor.relative.sd,
            floor.largest,
            alike(floor),
        )
        for scope, suites in comparison.scopes
        for measure in SHORT
        for floor in floors(comparison, measure, suites)
    ]
    columns = (
        SUITE,
        Column("source"),
        Column("measure"),
        Column("pairs", "count"),
        Column("mean", "change"),
        Column("sd", "change"),
        *(Column("largest", "percent"), Column("ended bit for bit alike", "count")),
    )
    return Table(
        "The noise floor: runs of one configuration against each"
        f" other{in_brackets(comparison.scale())}",
        columns,
        tuple(rows),
        file="report.json",
    )


def alike(floor: NoiseFloor) -> Cell:
    """How many pairs of equal runs ended in the same state."""
    return Cell(floor.alike, text=f"{floor.alike} of {floor.alike + floor.differing}")


def overlap_table(comparison: Comparison) -> Table:
    """Stall and wall time saved by overlapping, and the cost of a write."""
    rows = [
        (scope, Cell(f"{arm} against {base}", arm=arm), *_saved(saved))
        for scope, suites in comparison.scopes
        for arm, base, saved in overlaps(comparison, suites)
    ]
    both = [
        Column(f"{label}, {arm}", kind)
        for label, kind in _WRITES
        for arm in ("blocking", "overlapped")
    ]
    columns = (
        SUITE,
        Column("comparison", facet="arm"),
        Column("pairs", "count"),
        Column("stall saved", "seconds"),
        Column("wall saved", "seconds"),
        Column("95% t", "seconds", "of the wall time saved"),
        Column("wall / stall", "percent"),
        Column("BCa", "percent"),
        *both,
    )
    what = "What overlapping saved per run, and seconds per submitted checkpoint"
    return Table(
        f"{what}{in_brackets(comparison.scale())}", columns, tuple(rows), file="report.json"
    )


_WRITES = (
    ("submitted", "count"),
    ("stall", "seconds"),
    ("serialize", "seconds"),
    ("write", "seconds"),
)


def _saved(saved: Overlap) -> Row:
    b, a, wall = saved.blocking, saved.overlapped, saved.wall_saved_s
    return (
        *(saved.pairs, saved.stall_saved_s.mean, wall.mean, span_cell(wall)),
        *(saved.efficiency, interval_cell(saved.efficiency_low, saved.efficiency_high)),
        b.submitted,
        a.submitted,
        b.stall_s,
        a.stall_s,
        b.serialize_s,
        a.serialize_s,
        b.write_s,
        a.write_s,
    )
