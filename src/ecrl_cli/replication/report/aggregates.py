"""Tables 5 and 7: aggregates over the suites and over their slices, the published number above the measured one."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.statistics import Summary
from ecrl_cli.replication.report import cells
from ecrl_cli.replication.report.cells import PUBLISHED, change, counted, estimate, of_means, of_ratios, printed, signed
from ecrl_cli.replication.report.sample import CLOCKS, WALLS, Experiment
from ecrl_cli.replication.report.setting import in_short
from ecrl_cli.replication.report.values import (
    FIRST_LINE_CLOCK_GAIN,
    LOSS_DIFFERENCE,
    REPLAYED_STEPS,
    SUITES,
    SUPERVISOR_CLOCK_GAIN,
    TABLE5,
    TABLE7,
    WRITES_COUNTED,
    WRITES_SUBMITTED,
    SliceValues,
)
from ecrl_cli.report.formats import NONE
from ecrl_cli.report.model.replication import PublishedTable

Cells = tuple[str, ...]  # reference, blocking, overlapped, overlapped - blocking
Line = tuple[str, Cells, Cells]  # a metric, its published cells, its measured ones
COLUMNS5 = ("Metric", "Values", "Reference", "Blocking", "Overlapped", "Ovl - Blk", "n", "What differs")
GAINS = ("Ovl vs Blk, ratio of means", "Ovl vs Blk, mean of ratios")
COLUMNS7 = ("Slice", "Group", "Values", *GAINS, "Stall change (s)", "Loss difference change", "n", "What differs")
PLAIN = {
    "restarts": ("restarts", "Restarts"),
    "stall_s": ("stall_s", "Stall time (s)"),
    "write_s": ("durable_write_s", "Write time (s), serialise to durable"),
    "snapshot_s": ("snapshot_s", "Snapshot time (s)"),
}  # published: measured, in words
_ARMS = ("ref", "blk", "ovl")
PASS_RATE = "Pass rate"
_NOTHING: Cells = (NONE,) * 4


def table5(experiment: Experiment) -> PublishedTable:
    lines = [_pass_rate(experiment), *_goodputs(experiment), *_drops(experiment), *_walls(experiment)]
    lines += [*(_plain(experiment, *item) for item in PLAIN.items()), _per_write(experiment), _replayed(experiment)]
    pair, differs = experiment.pair("ovl", "blk", "goodput"), in_short(experiment.differs_in(experiment.present))
    pairs = counted(pair.n if pair else None)
    rows: list[Cells] = []
    for metric, published, measured in lines:
        n = counted(len(experiment.runs), "run") if metric == PASS_RATE else pairs
        rows += [(metric, PUBLISHED, *published, "8 suites", NONE), (metric, "measured", *measured, n, differs)]
    title = f"Table 5: aggregate outcomes over {len(experiment.suites)} of {len(SUITES)} suites ({experiment.scale})"
    return PublishedTable("table5", title, " ".join([*_notes(), *experiment.remarks()]), COLUMNS5, tuple(rows), experiment.setting)


def _notes() -> list[str]:
    """What the published aggregates are, worked out from the published suites."""
    gain, typical = TABLE5["goodput"][3] or 0.0, cells.published_mean_of_ratios(SUITES, "ovl_gain")
    drop, typical_drop = TABLE5["drop"][1], cells.published_mean_of_ratios(SUITES, "blk_drop")
    mean, low, high = SUPERVISOR_CLOCK_GAIN
    stall, wall = TABLE5["stall_s"][3] or 0.0, TABLE5["wall_s"][3] or 0.0
    return [
        f"The published gain of {gain:+.4f}% is a ratio of means; the mean of the eight suites' gains is {typical:+.4f}%"
        f" (drop of blocking: {drop:+.4f}% and {typical_drop:+.4f}%). Both stand here, named.",
        "The published clock runs from rank 0's first log line to its last: the first launch is free, restarts are charged. From the supervisor's"
        f" launch the published runs gain {mean:+.2f}% ({low:+.2f}% to {high:+.2f}% over 24 pairs), not {FIRST_LINE_CLOCK_GAIN:+.2f}%.",
        f"The published reference checkpoints too, in blocking mode ({TABLE5['write_s'][0]:.4f} s of writes): the drop of blocking prices"
        " failures, not checkpoints; only an arm without checkpoints (clean) does. The drop of overlapped is the price of failures less the stall"
        " that it saves.",
        f"The published write total of overlapped counts {WRITES_COUNTED['ovl']} of {WRITES_SUBMITTED} writes, that of blocking"
        f" {WRITES_COUNTED['blk']}; here every submitted write counts. A published write reaches from"
        " serialising to durable; writing the files is a part of that (write_s in summary.csv).",
        f"Of {-stall:.4f} s of stall saved, {-wall:.4f} s ({100 * wall / stall:.1f}%) arrived in the wall time, both on the published clock.",
        "Experiments 1 and 3 of the same author, without a GPU, found the opposite sign.",
    ]


def _pass_rate(experiment: Experiment) -> Line:
    rates = [experiment.pass_rate(arm) for arm in _ARMS]
    return PASS_RATE, _published("pass_rate"), (*(NONE if rate is None else f"{rate:.4f}" for rate in rates), NONE)


def _goodputs(experiment: Experiment) -> list[Line]:
    """Means and gains on both clocks; the published numbers belong to theirs."""
    published = {"goodput_published_clock": _published("goodput", "%"), "goodput": _NOTHING}
    typical = {
        "goodput_published_clock": f"{cells.published_mean_of_ratios(SUITES, 'ovl_gain'):+.4f}%",
        "goodput": f"{SUPERVISOR_CLOCK_GAIN[0]:+.2f}%",
    }
    lines: list[Line] = []
    for measure in reversed(CLOCKS):
        pair = experiment.pair("ovl", "blk", measure)
        means = (*(estimate(experiment.mean(arm, measure)) for arm in _ARMS), of_means(pair))
        lines.append((f"Goodput (steps/s), {CLOCKS[measure]}; gain as ratio of means", published[measure], means))
        lines.append((f"Gain as mean of ratios, {CLOCKS[measure]}", (NONE, NONE, NONE, typical[measure]), (NONE, NONE, NONE, of_ratios(pair))))
    return lines


def _drops(experiment: Experiment) -> list[Line]:
    lines: list[Line] = []
    typical = [cells.published_mean_of_ratios(SUITES, name) for name in ("blk_drop", "ovl_drop")]
    by_ratio = ("0.0000%", *(f"{value:+.4f}%" for value in typical), f"{typical[1] - typical[0]:+.4f}pp")
    for measure in reversed(CLOCKS):
        known = measure == "goodput_published_clock"
        pairs = [experiment.pair(arm, "ref", measure) for arm in ("blk", "ovl")]
        means = [pair.ratio_of_means if pair else None for pair in pairs]
        ratios = [pair.mean_of_ratios.mean if pair and pair.mean_of_ratios else None for pair in pairs]
        measured = ("0%", *map(of_means, pairs), _points(means))
        lines.append((f"Drop vs ref, ratio of means, {CLOCKS[measure]}", _published("drop", "%") if known else _NOTHING, measured))
        measured = ("0%", *map(of_ratios, pairs), _points(ratios))
        lines.append((f"Drop vs ref, mean of ratios, {CLOCKS[measure]}", by_ratio if known else _NOTHING, measured))
    return lines


def _points(drops: Sequence[float | None]) -> str:
    """The difference of two percentages, in percentage points."""
    blk, ovl = drops
    return NONE if blk is None or ovl is None else f"{100 * (ovl - blk):+.2f}pp"


def _walls(experiment: Experiment) -> list[Line]:
    """On both clocks: the published wall times are on theirs, 1,600 steps over the published goodput."""
    lines: list[Line] = []
    for clock in reversed(CLOCKS):
        published = _published("wall_s") if clock == "goodput_published_clock" else _NOTHING
        lines.append((f"Wall time (s), {CLOCKS[clock]}", published, _measured(experiment, WALLS[clock])))
    return lines


def _plain(experiment: Experiment, published: str, measured: tuple[str, str]) -> Line:
    measure, name = measured
    return name, _published(published), _measured(experiment, measure)


def _measured(experiment: Experiment, measure: str) -> Cells:
    return (*(estimate(experiment.mean(arm, measure)) for arm in _ARMS), change(experiment.pair("ovl", "blk", measure)))


def _per_write(experiment: Experiment) -> Line:
    """Seconds per write that the total counts: the only write times of the published arms that can be compared."""
    published = [total / WRITES_COUNTED[arm] for arm, total in zip(_ARMS, TABLE5["write_s"][:3], strict=True)]
    measured = _measured(experiment, "durable_write_per_checkpoint_s")
    return (
        "Write time per counted write (s), serialise to durable",
        (*(f"{value:.4f}" for value in published), signed(published[2] - published[1])),
        measured,
    )


def _replayed(experiment: Experiment) -> Line:
    """Published from the raw logs: every failure lay on a checkpoint, and all ranks left together."""
    return "Replayed steps", (str(REPLAYED_STEPS),) * 4, _measured(experiment, "replayed_steps")


def _published(measure: str, unit: str = "") -> Cells:
    """A line of Table 5 as printed; `unit`: of the last column (of all, for percentages of drops)."""
    ref, blk, ovl, difference = TABLE5[measure]
    own = unit if measure == "drop" else ""
    last = NONE if difference is None else printed(difference, "pp" if own else unit) if unit else signed(difference)
    return (*(printed(value, own) for value in (ref, blk, ovl)), last)


def table7(experiment: Experiment) -> PublishedTable:
    rows = [row for values in TABLE7 for row in _slice_rows(experiment, values)]
    change_there = LOSS_DIFFERENCE["change"]
    notes = [
        "The published slices are ratios of means; their means of ratios are worked out from Table 8.",
        f"Published mean absolute loss differences to the reference: {LOSS_DIFFERENCE['blk']:.4f} (blocking), {LOSS_DIFFERENCE['ovl']:.4f}"
        f" (overlapped), {change_there:+.6f} between them. They measure how far two runs of the published code drift apart, not a strategy:"
        " the ResNet-18 runs differ from their reference before any failure, and no A/A arm prices that.",
        "Here a loss difference of 0 means that every committed step had the loss of its reference.",
    ]
    title = f"Table 7: overlapped against blocking, sliced over data set, model and failure schedule ({experiment.scale})"
    return PublishedTable("table7", title, " ".join([*notes, *experiment.remarks()]), COLUMNS7, tuple(rows), experiment.setting)


def _slice_rows(experiment: Experiment, values: SliceValues) -> list[Cells]:
    """The slice as published, and on each clock as measured; nothing where no suite of it was run."""
    members = [suite for suite in SUITES if getattr(suite, values.axis) == values.group]
    names = [suite.suite for suite in members]
    if not set(names) & set(experiment.present):
        return []
    head = ({"dataset": "Data set", "model": "Model", "failure": "Failure"}[values.axis], _group(values))
    typical = cells.published_mean_of_ratios(members, "ovl_gain")
    printed_cells = (f"{values.gain:+.4f}%", f"{typical:+.4f}%", signed(values.stall_change), signed(values.loss_change))
    rows: list[Cells] = [(*head, PUBLISHED, *printed_cells, f"{len(members)} suites", NONE)]
    stall, loss = experiment.pair("ovl", "blk", "stall_s", names), experiment.loss_change(names)
    differs = in_short(experiment.differs_in(names))
    for measure, clock in CLOCKS.items():
        pair = experiment.pair("ovl", "blk", measure, names)
        rest = (change(stall), _loss(loss), counted(pair.n if pair else None), differs)
        rows.append((*head, f"measured, {clock}", of_means(pair), of_ratios(pair), *rest))
    return rows


def _loss(found: Summary | None) -> str:
    return "no divergence on record" if found is None else estimate(found, sign=True)


def _group(values: SliceValues) -> str:
    return cells.DATASETS.get(values.group) or cells.MODELS.get(values.group) or values.group
