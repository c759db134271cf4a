"""The tables of runs: results and costs, recoveries, distances from the reference; and of arms over
their runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ecrl_cli.config.recoveries import RECOVERIES
from ecrl_cli.config.schema import RecoveryConfig
from ecrl_cli.metrics.statistics import Paired, summary
from ecrl_cli.report import formats
from ecrl_cli.report.model.arms import BASES, HELD_OUT, MEASURES, Arm, run_versus
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.contrast import noise_floor, same_runs, versus
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.palette import FAMILIES
from ecrl_cli.report.tables.records import divergence_cells, recovery_of
from ecrl_cli.report.tables.table import (
    Cell,
    Column,
    Row,
    Table,
    Value,
    interval_cell,
    mean_cell,
    span_cell,
)
from ecrl_cli.verify.verdict import VALID

Anchors = Mapping[int, str]  # of the runs' sections on the page, by id(run)
SUITE, ARM, SEED = (
    Column("suite", facet="suite"),
    Column("arm", facet="arm"),
    Column("seed", facet="seed"),
)
_ENDS = ("committed", "failed", "lost")
# The columns of the runs' table that fit in a terminal and Markdown.
BRIEF = (
    "arm",
    "seed",
    "verdict",
    "steps",
    "restarts",
    "replayed",
    "goodput",
    "vs ref",
    "vs clean",
    "stall per checkpoint",
    *_ENDS,
)
KINDS = {
    name: "seconds" if name.endswith("_s") else "rate" if name.startswith("goodput") else "count"
    for name in MEASURES
}
KINDS |= dict.fromkeys(HELD_OUT, "measured")
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
    "evaluate_s": "evaluating",
    "accuracy": "held-out accuracy",
    "perplexity": "held-out perplexity",
    "held_out_loss": "held-out loss",
}


NOTHING_TWICE = (
    "noise floor of goodput: not measured, nothing ran twice; variant=...,ref,ref2 repeats the"
    " reference"
)
REFERENCE_NOTE = (
    "ref is the undisturbed run in references/, which saves one checkpoint, at its end."
)


def in_order(comparison: Comparison, suite: str) -> list[Run]:
    """The runs of a suite, arm by arm, then the excluded ones."""
    compared = {
        id(run): run for arm in comparison.of(suite) for run in arm.runs if not arm.is_reference
    }
    return [
        *compared.values(),
        *(run for run in comparison.runs if run.suite == suite and id(run) not in compared),
    ]


def runs_table(
    comparison: Comparison, anchors: Anchors | None = None, suites: Sequence[str] | None = None
) -> Table:
    """Every run of `suites` (None: of all), whether compared or not; those that failed first."""
    columns = (
        SUITE,
        ARM,
        SEED,
        Column("verdict", facet="verdict"),
        Column("steps", "count"),
        Column("goodput", "rate"),
        *(
            Column(f"vs {base}", "change", "goodput against the run of the same suite and seed")
            for base in BASES
        ),
        Column("restarts", "count"),
        Column("replayed", "count"),
        Column("stall per checkpoint", "seconds"),
        *(Column(end, "count", "checkpoints that ended so") for end in _ENDS),
    )
    runs = [
        run
        for suite in (comparison.suites if suites is None else suites)
        for run in in_order(comparison, suite)
    ]
    rows = tuple(
        _run(comparison, run, anchors or {})
        for run in sorted(runs, key=lambda run: not run.failing)
    )
    note = (
        "Goodput in committed steps per second of wall time, from the supervisor's launch to the"
        " target."
    )
    return Table(
        f"Run by run{formats.at_scale(comparison.scale())}", columns, rows, note, "runs.csv"
    )


def brief_runs(comparison: Comparison, suite: str) -> Table:
    """The runs of one suite with the columns that fit in a terminal."""
    return runs_table(comparison, suites=[suite]).only(BRIEF, first=(suite,))


def _run(comparison: Comparison, run: Run, anchors: Anchors) -> Row:
    status, m = run.verdict.status, run.counted
    words = ("not judged" if run.verdict.why else "not verified") if status == "missing" else status
    head = (
        *_names(comparison, run, anchors),
        Cell(status, text=words, badge=status, anchor=anchors.get(id(run), "")),
    )
    if m is None:
        steps = f"{run.metrics.committed_steps}/{run.metrics.target_steps}" if run.metrics else None
        return (*head, steps, run.reason)
    compared = [
        None if same_runs(run.variant, base) else run_versus(run, list(comparison.arms), base)
        for base in BASES
    ]
    ends = [m.checkpoints[end] for end in _ENDS]
    reached: tuple[Value, ...] = (m.committed_steps, Cell(m.goodput, strong=True))
    return (
        *head,
        *reached,
        *compared,
        m.restarts,
        m.replayed_steps,
        m.stall_per_checkpoint_s,
        *ends,
    )


def _names(comparison: Comparison, run: Run, anchors: Anchors) -> Row:
    label = comparison.label(run)
    return run.suite, Cell(label, arm=label, anchor=anchors.get(id(run), "")), run.seed


def divergence_table(comparison: Comparison, anchors: Anchors) -> Table:
    """How far each run ended from its reference."""
    columns = (
        *(SUITE, ARM, SEED, Column("verdict", facet="verdict", hidden=True), Column("reference")),
        *(
            Column(
                label, "magnitude", "absolute difference of the mean loss over the committed steps"
            )
            for label in ("loss: max", "mean", "area")
        ),
        Column("first differing step", "count"),
        Column("parameters L2", "magnitude"),
        Column("buffers L2", "magnitude"),
    )
    compared = [
        run for suite in comparison.suites for run in in_order(comparison, suite) if run.divergence
    ]
    rows = tuple(_divergence(comparison, run, anchors) for run in compared)
    return Table(
        f"Distance from the reference{formats.at_scale(comparison.scale())}",
        columns,
        rows,
        "Zero is exact.",
        "runs.csv",
    )


def _divergence(comparison: Comparison, run: Run, anchors: Anchors) -> Row:
    found = divergence_cells(run)
    step, reference = found["loss_difference_first_differing_step"], found["reference"]
    lengths = [
        (found[f"{part}_l2"], found[f"{part}_relative_l2"]) for part in ("parameters", "buffers")
    ]
    return (
        *(*_names(comparison, run, anchors), run.verdict.status, reference),
        *(found[f"loss_difference_{key}"] for key in ("maximum", "mean", "auc")),
        Cell(math.inf, text="none") if step is None else step,
        *(
            Cell(length, small=formats.magnitude(share) if length else "")
            for length, share in lengths
        ),
    )


def recoveries_table(comparison: Comparison) -> Table:
    """Recoveries, one row per run; empty unless a run had spares or a recovery other than a
    restart.
    """
    counted = ("recoveries", "survived", "replayed", "given up", "lost samples")
    columns = (
        SUITE,
        ARM,
        SEED,
        Column("recovery"),
        Column("goodput (steps/s)", "rate"),
        Column("wall", "seconds"),
        *(Column(label, "count") for label in counted),
        Column("per recovery", "seconds", "mean, from each failure to the first new step"),
        Column("range", "seconds"),
    )
    found = [
        run
        for suite in comparison.suites
        for arm in comparison.of(suite)
        for run in arm.runs
        if run.metrics
    ]
    rows = (
        tuple(_recovered(run, comparison) for run in found)
        if any(_recovers_in_place(run) for run in found)
        else ()
    )
    title = (
        "Recoveries, run by run: from each failure to the first new"
        f" step{formats.in_brackets(comparison.scale())}"
    )
    return Table(title, columns, rows, file="recoveries.csv")


def _recovers_in_place(run: Run) -> bool:
    named, spares = (
        run.config.get("recovery", {}).get("name", RecoveryConfig.name),
        run.config.get("supervision", {}).get("spares", 0),
    )
    return RECOVERIES.of(named).survivors_stay(spares)


def _recovered(run: Run, comparison: Comparison) -> Row:
    m = run.metrics
    assert m is not None
    seconds = [float(each["seconds"]) for each in m.recoveries]
    given_up = sum(int(each["given_up_steps"]) for each in m.recoveries)
    label = comparison.label(run)
    return (
        *(run.suite, Cell(label, arm=label), run.seed, recovery_of(run), m.goodput, m.wall_s),
        *(len(seconds), m.survivals, m.replayed_steps, given_up, m.lost_samples),
        summary(seconds).mean if seconds else None,
        interval_cell(min(seconds), max(seconds)) if len(seconds) > 1 else None,
    )


def arms_table(comparison: Comparison) -> Table:
    """Every arm of every suite: means over seeds with their intervals, and goodput compared with
    the base arms.
    """
    bases = [base for base in BASES if any(arm.variant == base for arm in comparison.arms)]
    labels = {
        "goodput": "goodput",
        "goodput_published_clock": "published clock",
        "durable_write_s": "write, serialise to durable",
        "replayed_steps": "replayed",
    }
    shown = (
        "goodput_published_clock",
        "wall_s",
        "stall_s",
        "write_s",
        "durable_write_s",
        "snapshot_s",
        "restarts",
        "replayed_steps",
    )
    columns = (
        *(SUITE, ARM, Column("n", "count"), Column("goodput", "rate")),
        *(
            Column(f"vs {base}", "change", "ratio of means; below it the mean of ratios")
            for base in bases
        ),
        *(Column(labels.get(measure, NAMES[measure]), KINDS[measure]) for measure in shown),
    )
    rows: list[Row] = []
    for arm in comparison.arms:
        others = [
            base for base in bases if base != arm.variant and not same_runs(arm.variant, base)
        ]
        compared = [
            (
                _versus(versus(comparison, arm.label, base, "goodput", [arm.suite]))
                if base in others
                else None
            )
            for base in bases
        ]
        means = [mean_cell(arm.summary(measure), strong=True) for measure in ("goodput", *shown)]
        rows.append(
            (
                arm.suite,
                Cell(arm.label, arm=arm.label),
                len(arm.metrics),
                means[0],
                *compared,
                *means[1:],
            )
        )
    failed = [suite for suite in comparison.suites if suite not in comparison.passed]
    note = (
        f"Not averaged, because a quality gate failed: {formats.listed(failed)}." if failed else ""
    )
    note = (
        f"{note} {REFERENCE_NOTE}".strip()
        if any(arm.is_reference for arm in comparison.arms)
        else note
    )
    return Table(
        f"Arms over seeds{formats.at_scale(comparison.scale())}",
        columns,
        tuple(rows),
        note,
        "summary.csv",
    )


def arms_brief(comparison: Comparison) -> Table:
    """The arms by suite with the columns that fit in a terminal; the repeated reference is the
    noise floor, and no row.
    """
    arms = [
        arm for arm in comparison.arms if not any(same_runs(arm.variant, base) for base in BASES)
    ]
    compared = {base: [_against(comparison, arm, base) for arm in arms] for base in BASES}
    bases = [base for base, cells in compared.items() if any(cell is not None for cell in cells)]
    columns = (
        SUITE,
        ARM,
        Column("valid"),
        Column("goodput", "rate"),
        *(Column(f"vs {base}", "change") for base in bases),
        Column("stall per checkpoint", "seconds"),
        Column("restarts", "count"),
        Column("replayed", "count"),
    )
    rows = tuple(
        (
            *(arm.suite, arm.label, "reference" if arm.is_reference else _valid(arm)),
            *(_mean(arm, "goodput"), *(compared[base][place] for base in bases)),
            *(
                arm.shown(measure)
                for measure in ("stall_per_checkpoint_s", "restarts", "replayed_steps")
            ),
        )
        for place, arm in enumerate(arms)
    )
    return Table("Arms by suite", columns, rows, file="summary.csv")


def _valid(arm: Arm) -> str:
    return f"{sum(run.verdict.status == VALID for run in arm.runs)} of {len(arm.runs)}"


def _mean(arm: Arm, measure: str) -> Value:
    return mean_cell(arm.summary(measure)) if arm.averaged else arm.shown(measure)


def _against(comparison: Comparison, arm: Arm, base: str) -> Value:
    earlier = arm.variant in BASES[: BASES.index(base) + 1]
    pair = None if earlier else versus(comparison, arm.label, base, "goodput", [arm.suite])
    return mean_cell(pair.mean_of_ratios) if pair else None


def floor_lines(comparison: Comparison) -> list[str]:
    """The noise floor of goodput in each scope: what its differences have to exceed."""
    lines = []
    for scope, suites in comparison.overall:
        floor = noise_floor(comparison, "goodput", suites)
        if floor:
            means = sorted({len(arm.metrics) for arm in comparison.arms if arm.suite in suites})
            words = (
                f"{formats.share(floor.of_mean(means[-1]))} for a mean of"
                f" {formats.plural(means[-1], 'pair')}"
            )
            lines.append(
                f"noise floor of goodput, {scope}: {words} ({formats.plural(floor.pairs, 'pair')}"
                f" of {floor.source})"
            )
    return lines or ([NOTHING_TWICE] if len(comparison.arms) > 1 else [])


def _versus(pair: Paired | None) -> Value:
    if pair is None or pair.ratio_of_means is None:
        return None
    return Cell(
        pair.ratio_of_means,
        small=formats.change(pair.mean_of_ratios.mean) if pair.mean_of_ratios else "",
        strong=True,
    )


def costs_table(comparison: Comparison) -> Table:
    """The share of each arm's wall time by category, and the cost of a checkpoint and of a
    restart.
    """
    chosen = comparison.pooled_arms or [arm for arm in comparison.arms if arm.averaged]
    evaluated = any(m.seconds["evaluate"] for arm in chosen for m in arm.metrics)
    families = {
        name: categories
        for name, categories in FAMILIES.items()
        if evaluated or name != "evaluating"
    }
    columns = (
        *(ARM, Column("runs", "count")),
        *(
            Column(family, "percent", "share of the wall time, mean over runs")
            for family in families
        ),
        Column("stall per checkpoint", "seconds"),
        _DURABLE,
        Column("per restart", "seconds"),
        Column("steps replayed", "count"),
    )
    several = len({arm.suite for arm in chosen}) > 1
    rows = tuple(
        _cost(arm, f", {arm.suite}" if several else "", families.values()) for arm in chosen
    )
    return Table(
        f"What each arm costs, {where(comparison, comparison.passed)}",
        columns,
        rows,
        file="summary.csv",
    )


def _cost(arm: Arm, suite: str, families: Iterable[tuple[str, ...]]) -> Row:
    shares = [
        summary(
            [math.fsum(m.seconds[c] for c in names) / m.wall_s for m in arm.metrics if m.wall_s > 0]
            or [0]
        )
        for names in families
    ]
    return (
        *(Cell(arm.label + suite, arm=arm.label), len(arm.metrics)),
        *(round(share.mean, 4) + 0.0 for share in shares),  # avoids negative zero
        mean_cell(arm.summary("stall_per_checkpoint_s"), strong=True),
        _durable_after(arm),
        mean_cell(arm.restart_costs().get("total"), strong=True),
        mean_cell(arm.summary("replayed_steps"), strong=True),
    )


_DURABLE = Column(
    "durable after",
    "seconds",
    "from handing a checkpoint over until it is durable; below it as a share of the time between"
    " two checkpoints",
)


def _durable_after(arm: Arm) -> Value:
    found = [run.save_latency for run in arm.runs if run.counted]
    latencies = [each.latency_s for each in found if each.latency_s is not None]
    shares = [each.share for each in found if each.share is not None]
    if not latencies:
        return None
    return Cell(
        summary(latencies).mean,
        small=f"{formats.proportion(summary(shares).mean)} of the interval" if shares else "",
    )


def where(comparison: Comparison, suites: Sequence[str]) -> str:
    """The suites and scale of a table, for its title."""
    name = (
        suites[0]
        if len(suites) == 1
        else f"{len(suites)} suites{' pooled' if comparison.pooled_suites else ', one by one'}"
    )
    return f"{name}{formats.at_scale(comparison.scale(suites))}"


def measures_table(comparison: Comparison, scope: str, suites: Sequence[str]) -> Table:
    """Mean, standard deviation and both intervals of every measure of every arm; measures that are
    zero in every run are left out.
    """
    columns = (
        Column("suite", facet="suite", hidden=True),
        ARM,
        Column("measure"),
        Column("runs", "count"),
        Column("mean", "number"),
        *(Column("sd", "number"), Column("95% t", "number"), Column("BCa", "number")),
    )
    rows: list[Row] = []
    for arm in comparison.pooled_arms if scope == ALL else comparison.of(scope):
        for measure in MEASURES if arm.averaged else ():
            found, kind = arm.summary(measure), KINDS[measure]
            if found and (found.mean or found.sd):
                numbers = (
                    Cell(found.mean, kind),
                    Cell(found.sd, kind) if found.sd is not None else None,
                )
                spans = (
                    span_cell(found, kind),
                    interval_cell(found.boot_low, found.boot_high, kind),
                )
                rows.append(
                    (
                        scope,
                        Cell(arm.label, arm=arm.label),
                        NAMES[measure],
                        found.n,
                        *numbers,
                        *spans,
                    )
                )
    return Table(
        f"{scope}: arms{formats.in_brackets(comparison.scale(suites))}",
        columns,
        tuple(rows),
        file="summary.csv",
    )
