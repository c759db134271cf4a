"""Tables 5 to 8: aggregates over the suites, slices of them, and single suites; the published row
above the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ecrl_cli.replication.report.cells import (
    AS_PUBLISHED,
    DATASETS,
    MODELS,
    change,
    counted,
    estimate,
    of_means,
    of_ratios,
    percent,
    printed,
    published_mean_of_ratios,
    published_table,
    signed,
    suite_name,
)
from ecrl_cli.replication.report.sample import CLOCKS, WALLS, Experiment
from ecrl_cli.replication.report.setting import in_short
from ecrl_cli.replication.report.values import BY_SUITE, PUBLISHED, SUITES, SliceValues, SuiteValues
from ecrl_cli.report.render.publication import PublishedTable
from ecrl_cli.report.tables.table import Cell, Column, Row, Value

Cells = tuple[Value, ...]  # reference, blocking, overlapped, overlapped - blocking
Line = tuple[str, Cells, Cells]  # a metric, its published cells, its measured ones
COLUMNS5 = (
    Column("Metric"),
    Column("Values"),
    *(Column(label, "measured") for label in ("Reference", "Blocking", "Overlapped", "Ovl - Blk")),
    *(Column("n", "count"), Column("What differs")),
)
GAINS = ("Ovl vs Blk, ratio of means", "Ovl vs Blk, mean of ratios")
COLUMNS7 = (
    Column("Slice"),
    Column("Group"),
    Column("Values"),
    *(Column(label, "measured change") for label in GAINS),
    Column("Stall change (s)", "measured difference"),
    Column("Loss difference change", "measured difference"),
    *(Column("n", "count"), Column("What differs")),
)
PLAIN = {
    "restarts": ("restarts", "Restarts"),
    "stall_s": ("stall_s", "Stall time (s)"),
    "write_s": ("durable_write_s", "Write time (s), serialise to durable"),
    "snapshot_s": ("snapshot_s", "Snapshot time (s)"),
}  # published: measured, in words
_ARMS = ("ref", "blk", "ovl")
PASS_RATE = "Pass rate"
_NOTHING: Cells = (None,) * 4
_ZERO = Cell(0.0, text="0%")  # of the reference against itself


def table5(experiment: Experiment) -> PublishedTable:
    lines = [
        _pass_rate(experiment),
        *_goodputs(experiment),
        *_drops(experiment),
        *_walls(experiment),
        *(_plain(experiment, *item) for item in PLAIN.items()),
        _per_write(experiment),
        _replayed(experiment),
    ]
    pair = experiment.pair("ovl", "blk", "goodput")
    differs = in_short(experiment.differs_in(experiment.present))
    pairs = counted(pair.n if pair else None)
    rows: list[Row] = []
    for metric, published, measured in lines:
        n = counted(len(experiment.runs), "run") if metric == PASS_RATE else pairs
        rows += [
            (metric, AS_PUBLISHED, *published, counted(len(SUITES), "suite"), None),
            (metric, "measured", *measured, n, differs),
        ]
    title = f"Table 5: aggregate outcomes over {len(experiment.suites)} of {len(SUITES)} suites"
    notes = [*_notes(), *experiment.remarks()]
    return published_table(experiment, "table5", title, COLUMNS5, rows, notes)


def _notes() -> list[str]:
    """Notes on the published aggregates, recomputed from the published suites."""
    gain, typical = (
        PUBLISHED.table5["goodput"].difference or 0.0,
        published_mean_of_ratios(SUITES, "ovl_gain"),
    )
    drop, typical_drop = PUBLISHED.table5["drop"].blk, published_mean_of_ratios(SUITES, "blk_drop")
    clock = PUBLISHED.supervisor_clock_gain
    stall, wall = (
        PUBLISHED.table5["stall_s"].difference or 0.0,
        PUBLISHED.table5["wall_s"].difference or 0.0,
    )
    return [
        (
            f"The published gain of {gain:+.4f}% is a ratio of means; the mean of the eight suites'"
            f" gains is {typical:+.4f}% (drop of blocking: {drop:+.4f}% and {typical_drop:+.4f}%)."
            " Both stand here, named."
        ),
        (
            "The published clock runs from rank 0's first log line to its last: the first launch"
            " is free, restarts are charged. From the supervisor's launch the published runs gain"
            f" {clock.mean:+.2f}% ({clock.least:+.2f}% to {clock.most:+.2f}% over 24 pairs), not"
            f" {PUBLISHED.first_line_clock_gain:+.2f}%."
        ),
        (
            "The published reference checkpoints too, in blocking mode"
            f" ({PUBLISHED.table5['write_s'].ref:.4f} s of writes): the drop of blocking prices"
            " failures, not checkpoints; only an arm without checkpoints (clean) does. The drop of"
            " overlapped is the price of failures less the stall that it saves."
        ),
        (
            f"The published write total of overlapped counts {PUBLISHED.writes_counted['ovl']} of"
            f" {PUBLISHED.writes_submitted} writes, that of blocking"
            f" {PUBLISHED.writes_counted['blk']}; here every submitted write counts. A published"
            " write reaches from serialising to durable; writing the files is a part of that"
            " (write_s in summary.csv)."
        ),
        (
            f"Of {-stall:.4f} s of stall saved, {-wall:.4f} s ({100 * wall / stall:.1f}%) arrived"
            " in the wall time, both on the published clock."
        ),
        "Experiments 1 and 3 of the same author, without a GPU, found the opposite sign.",
    ]


def _pass_rate(experiment: Experiment) -> Line:
    rates = [experiment.pass_rate(arm) for arm in _ARMS]
    return PASS_RATE, _published("pass_rate"), (*(printed(rate) for rate in rates), None)


def _goodputs(experiment: Experiment) -> list[Line]:
    """Means and gains on both clocks; published numbers are compared on theirs."""
    published = {"goodput_published_clock": _published("goodput", "%"), "goodput": _NOTHING}
    typical = {
        "goodput_published_clock": printed(published_mean_of_ratios(SUITES, "ovl_gain"), "%"),
        "goodput": percent(PUBLISHED.supervisor_clock_gain.mean / 100),
    }
    lines: list[Line] = []
    for measure in reversed(CLOCKS):
        pair = experiment.pair("ovl", "blk", measure)
        means = (*(estimate(experiment.mean(arm, measure)) for arm in _ARMS), of_means(pair))
        gain = f"Goodput (steps/s), {CLOCKS[measure]}; gain as ratio of means"
        there, here = (None, None, None, typical[measure]), (None, None, None, of_ratios(pair))
        lines += [
            (gain, published[measure], means),
            (f"Gain as mean of ratios, {CLOCKS[measure]}", there, here),
        ]
    return lines


def _drops(experiment: Experiment) -> list[Line]:
    lines: list[Line] = []
    typical = [published_mean_of_ratios(SUITES, name) for name in ("blk_drop", "ovl_drop")]
    by_ratio = (
        Cell(0.0, text="0.0000%"),
        *(printed(value, "%") for value in typical),
        printed(typical[1] - typical[0], "pp"),
    )
    for measure in reversed(CLOCKS):
        known = measure == "goodput_published_clock"
        pairs = [experiment.pair(arm, "ref", measure) for arm in ("blk", "ovl")]
        means = [pair.ratio_of_means if pair else None for pair in pairs]
        ratios = [
            pair.mean_of_ratios.mean if pair and pair.mean_of_ratios else None for pair in pairs
        ]
        of_mean, of_ratio = (_published("drop", "%"), by_ratio) if known else (_NOTHING, _NOTHING)
        by_means = (_ZERO, *map(of_means, pairs), _points(means))
        by_ratios = (_ZERO, *map(of_ratios, pairs), _points(ratios))
        lines += [
            (f"Drop vs ref, ratio of means, {CLOCKS[measure]}", of_mean, by_means),
            (f"Drop vs ref, mean of ratios, {CLOCKS[measure]}", of_ratio, by_ratios),
        ]
    return lines


def _points(drops: Sequence[float | None]) -> Value:
    """The difference of two percentages, in percentage points."""
    blk, ovl = drops
    return (
        None if blk is None or ovl is None else Cell(ovl - blk, text=f"{100 * (ovl - blk):+.2f}pp")
    )


def _walls(experiment: Experiment) -> list[Line]:
    """Wall times on both clocks; the published ones are 1,600 steps over the published goodput."""
    lines: list[Line] = []
    for clock in reversed(CLOCKS):
        published = _published("wall_s") if clock == "goodput_published_clock" else _NOTHING
        lines.append(
            (f"Wall time (s), {CLOCKS[clock]}", published, _measured(experiment, WALLS[clock]))
        )
    return lines


def _plain(experiment: Experiment, published: str, measured: tuple[str, str]) -> Line:
    measure, name = measured
    return name, _published(published), _measured(experiment, measure)


def _measured(experiment: Experiment, measure: str) -> Cells:
    return (
        *(estimate(experiment.mean(arm, measure)) for arm in _ARMS),
        change(experiment.pair("ovl", "blk", measure)),
    )


def _per_write(experiment: Experiment) -> Line:
    """Seconds per counted write: the only comparable write times of the published arms."""
    published = [
        total / PUBLISHED.writes_counted[arm]
        for arm, total in zip(_ARMS, PUBLISHED.table5["write_s"].arms, strict=True)
    ]
    measured = _measured(experiment, "durable_write_per_checkpoint_s")
    return (
        "Write time per counted write (s), serialise to durable",
        (*map(printed, published), signed(published[2] - published[1])),
        measured,
    )


def _replayed(experiment: Experiment) -> Line:
    """Replayed steps; published by its logs: every failure was on a checkpoint, and all ranks
    left together.
    """
    return (
        "Replayed steps",
        (Cell(PUBLISHED.replayed_steps, "count"),) * 4,
        _measured(experiment, "replayed_steps"),
    )


def _published(measure: str, unit: str = "") -> Cells:
    """A line of table 5 as printed; `unit`: of the last column (of all, for percentages of
    drops).
    """
    values = PUBLISHED.table5[measure]
    difference = values.difference
    own = unit if measure == "drop" else ""
    last = (
        None
        if difference is None
        else printed(difference, "pp" if own else unit)
        if unit
        else signed(difference)
    )
    return (*(printed(value, own) for value in values.arms), last)


def table7(experiment: Experiment) -> PublishedTable:
    rows = [row for values in PUBLISHED.table7 for row in _slice_rows(experiment, values)]
    losses = PUBLISHED.loss_difference
    notes = [
        (
            "The published slices are ratios of means; their means of ratios are worked out from"
            " Table 8."
        ),
        (
            f"Published mean absolute loss differences to the reference: {losses['blk']:.4f}"
            f" (blocking), {losses['ovl']:.4f} (overlapped), {losses['change']:+.6f} between them."
            " They measure how far two runs of the published code drift apart, not a strategy: the"
            " ResNet-18 runs differ from their reference before any failure, and no A/A arm prices"
            " that."
        ),
        (
            "Here a loss difference of 0 means that every committed step had the loss of its"
            " reference."
        ),
    ]
    title = "Table 7: overlapped against blocking, sliced over data set, model and failure schedule"
    notes += experiment.remarks()
    return published_table(experiment, "table7", title, COLUMNS7, rows, notes)


def _slice_rows(experiment: Experiment, values: SliceValues) -> list[Row]:
    """The slice as published, and as measured on each clock; empty if none of its suites was
    run.
    """
    members = [suite for suite in SUITES if getattr(suite, values.axis) == values.group]
    names = [suite.suite for suite in members]
    if not set(names) & set(experiment.present):
        return []
    head = (
        {"dataset": "Data set", "model": "Model", "failure": "Failure"}[values.axis],
        DATASETS.get(values.group) or MODELS.get(values.group) or values.group,
    )
    typical = published_mean_of_ratios(members, "ovl_gain")
    printed_cells = (
        printed(values.gain, "%"),
        printed(typical, "%"),
        signed(values.stall_change),
        signed(values.loss_change),
    )
    rows: list[Row] = [(*head, AS_PUBLISHED, *printed_cells, counted(len(members), "suite"), None)]
    stall, loss = experiment.pair("ovl", "blk", "stall_s", names), experiment.loss_change(names)
    differs = in_short(experiment.differs_in(names))
    for measure, clock in CLOCKS.items():
        pair = experiment.pair("ovl", "blk", measure, names)
        rest = (
            change(stall),
            "no divergence on record" if loss is None else estimate(loss, sign=True),
            counted(pair.n if pair else None),
            differs,
        )
        rows.append((*head, f"measured, {clock}", of_means(pair), of_ratios(pair), *rest))
    return rows


@dataclass(frozen=True)
class _Column:
    """A column of the published table: the cell as printed, and as measured in one suite on one
    clock.
    """

    title: str
    printed: Callable[[SuiteValues], Value]
    measured: Callable[[Experiment, str, str], Value]


def _goodput(title: str, arm: str) -> _Column:
    return _Column(
        title,
        lambda values: printed(getattr(values, arm)),
        lambda e, suite, clock: estimate(e.mean(arm, clock, [suite])),
    )


def _relative(title: str, name: str, arm: str, base: str) -> _Column:
    return _Column(
        title,
        lambda values: printed(getattr(values, name), "%"),
        lambda e, suite, clock: of_means(e.pair(arm, base, clock, [suite])),
    )


def _stall_change(title: str, name: str) -> _Column:
    return _Column(
        title,
        lambda values: signed(getattr(values, name)),
        lambda e, suite, _: change(e.pair("ovl", "blk", "stall_s", [suite])),
    )


def _wall_change(title: str, name: str) -> _Column:
    return _Column(
        title,
        lambda values: signed(getattr(values, name)),
        lambda e, suite, clock: change(e.pair("ovl", "blk", WALLS[clock], [suite])),
    )


def _stall(title: str, arm: str) -> _Column:
    return _Column(
        title,
        lambda values: printed(getattr(values, f"{arm}_stall")),
        lambda e, suite, _: estimate(e.mean(arm, "stall_s", [suite])),
    )


_GOODPUTS = (_goodput("Ref GP", "ref"), _goodput("Blk GP", "blk"), _goodput("Ovl GP", "ovl"))
_GAIN = _relative("Ovl vs Blk", "ovl_gain", "ovl", "blk")
_DROPS = (
    _relative("Blk vs Ref", "blk_drop", "blk", "ref"),
    _relative("Ovl vs Ref", "ovl_drop", "ovl", "ref"),
)
COLUMNS6 = (*_GOODPUTS, _GAIN, *_DROPS, _stall_change("Stall change (s)", "stall_change"))
COLUMNS8 = (
    *_GOODPUTS,
    _GAIN,
    _stall("Blk stall (s)", "blk"),
    _stall("Ovl stall (s)", "ovl"),
    _wall_change("Ovl - Blk wall (s)", "wall_change"),
)


def table6(experiment: Experiment) -> PublishedTable:
    """Table 6, ranked by measured gain; suites left out of the average come last with their
    published row.
    """
    measured = gains(experiment)
    ranked = sorted(
        _shown(experiment), key=lambda suite: measured.get(suite, -math.inf), reverse=True
    )
    published_rank = {
        values.suite: rank
        for rank, values in enumerate(sorted(SUITES, key=lambda values: -values.ovl_gain), 1)
    }
    rows = []
    for rank, suite in enumerate(ranked, 1):
        ranks = (published_rank[suite], *(rank if suite in measured else None for _ in CLOCKS))
        rows += [
            (place, *row)
            for place, row in zip(ranks, _rows(experiment, suite, COLUMNS6), strict=True)
        ]
    title = (
        f"Table 6: suites ranked by the gain of overlapped over blocking, {_how_many(experiment)}"
    )
    columns = (Column("Rank", "count"), *_columns(COLUMNS6))
    ranked_by = f"Ranked by the measured gain ({CLOCKS['goodput']}). {_drift()}"
    notes = [ranked_by, *experiment.remarks()]
    return published_table(experiment, "table6", title, columns, rows, notes)


def table8(experiment: Experiment) -> PublishedTable:
    rows = [row for suite in _shown(experiment) for row in _rows(experiment, suite, COLUMNS8)]
    title = f"Table 8: every suite, {_how_many(experiment)}"
    notes = [_drift(), *experiment.remarks()]
    return published_table(experiment, "table8", title, _columns(COLUMNS8), rows, notes)


def gains(experiment: Experiment, measure: str = "goodput") -> dict[str, float]:
    """By suite, the measured gain of overlapped over blocking as a ratio of means."""
    pairs = {suite: experiment.pair("ovl", "blk", measure, [suite]) for suite in experiment.suites}
    return {
        suite: pair.ratio_of_means
        for suite, pair in pairs.items()
        if pair and pair.ratio_of_means is not None
    }


def _shown(experiment: Experiment) -> list[str]:
    return [values.suite for values in SUITES if values.suite in experiment.present]


def _how_many(experiment: Experiment) -> str:
    return f"{len(experiment.suites)} of {len(SUITES)} averaged"


def _drift() -> str:
    late, base = (BY_SUITE[f"cifar100-r18-{failure}"].ref for failure in ("late", "base"))
    return (
        "Two published reference arms of one configuration (CIFAR-100 ResNet-18, base and late)"
        f" differ by {100 * (late / base - 1):.1f}%: the drift between suites exceeds every gain in"
        " the table; within a suite, pairs of one seed are compared here."
    )


def _columns(columns: Sequence[_Column]) -> tuple[Column, ...]:
    numbers = (Column(column.title, "measured") for column in columns)
    return (
        Column("Suite"),
        Column("Values"),
        *numbers,
        Column("n", "count"),
        Column("What differs"),
    )


def _rows(experiment: Experiment, suite: str, columns: Sequence[_Column]) -> list[Row]:
    values = BY_SUITE[suite]
    rows: list[Row] = [
        (
            suite_name(values),
            AS_PUBLISHED,
            *(column.printed(values) for column in columns),
            counted(3, "seed"),
            None,
        )
    ]
    differs = in_short(experiment.differs_in([suite]))
    for measure, clock in CLOCKS.items():
        pair = experiment.pair("ovl", "blk", measure, [suite])
        measured = [column.measured(experiment, suite, measure) for column in columns]
        rows.append(
            (
                suite_name(values),
                f"measured, {clock}",
                *measured,
                counted(pair.n if pair else None),
                differs,
            )
        )
    return rows
