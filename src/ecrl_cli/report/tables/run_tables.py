"""The tables of the runs on the page: who wins, what it costs, arm by arm, restart by restart, run by run, how far from the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ecrl_cli.metrics.statistics import Paired, summary
from ecrl_cli.report import formats
from ecrl_cli.report.figures.palette import FAMILIES
from ecrl_cli.report.model.arms import BASES, Arm, run_versus
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrasts import Contrast, Effect, floor_note, floor_words, sign_share, sign_words
from ecrl_cli.report.model.paired import versus
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.render.markdown import in_order
from ecrl_cli.report.tables.csv_files import divergence_cells
from ecrl_cli.report.tables.html_table import NOTHING, Cell, Column, Line, Sheet, mean, number, words

Anchors = dict[int, str]  # of the runs' own sections, by id(run)


def wins(comparison: Comparison, found: Sequence[Contrast]) -> Sheet:
    """Each arm against each other over all suites: by how much, how surely, and against the noise."""
    columns = (
        *(Column("arm", words=True), Column("pairs")),
        Column("goodput", hint="ratio of means, with its 95% interval by BCa bootstrap over the pairs"),
        Column("mean of ratios", hint="with its 95% interval by Student's t; this one is held against the noise floor"),
        *(Column("signs", hint="pairs in which the arm was faster, the exact interval of their share, and the sign test"), Column("noise floor")),
        *(
            Column("against the noise", words=True),
            Column("published clock", hint="the same from the first to the last line of rank 0; ratio of means"),
        ),
    )
    shown = [(contrast, effect) for contrast in found for effect in (contrast.effects[:1] if comparison.together else contrast.effects)]
    suites = [suite for suite in comparison.passed if any(suite in effect.suites for _, effect in shown)]
    several = len(suites) > 1 and not comparison.together
    lines = tuple(_win(contrast, effect, f", {effect.suite}" if several else "") for contrast, effect in shown)
    return Sheet(f"Arm against arm, {_scope(comparison, suites)}", columns, lines, floor_note(found[0].floor), "comparisons.csv")


def _win(contrast: Contrast, effect: Effect, where: str) -> Line:
    pair, floor = effect.pair, effect.floor
    cells = (
        words(contrast.title + where, arm=contrast.arm),
        number(pair.n, formats.count),
        number(pair.ratio_of_means, formats.change, _range(pair.ratio_low, pair.ratio_high), strong=True),
        mean(pair.mean_of_ratios, formats.change),
        Cell(sign_words(pair.signs), repr(float(pair.signs.positive)), sign_share(pair.signs)),
        Cell(formats.share(floor.of_mean(pair.n)), repr(floor.of_mean(pair.n)), floor_words(floor)) if floor else NOTHING,
        words(effect.noise),
        number(effect.published.ratio_of_means if effect.published else None, formats.change),
    )
    return Line(cells, {"arm": contrast.arm})


def costs(comparison: Comparison) -> Sheet:
    """Where the wall time of each arm went, and what one checkpoint and one restart cost."""
    families = tuple(Column(family, hint="share of the wall time, mean over runs") for family in FAMILIES)
    columns = (Column("arm", words=True), Column("runs"), *families, Column("stall per checkpoint"), Column("per restart"), Column("steps replayed"))
    chosen = comparison.pooled or [arm for arm in comparison.arms if arm.whole]
    several = len({arm.suite for arm in chosen}) > 1
    lines = tuple(_cost(arm, f", {arm.suite}" if several else "") for arm in chosen)
    return Sheet(f"What each arm costs, {_scope(comparison, comparison.passed)}", columns, lines, file="summary.csv")


def _cost(arm: Arm, where: str) -> Line:
    shares = [summary([math.fsum(m.seconds[c] for c in names) / m.wall_s for m in arm.metrics if m.wall_s > 0] or [0]) for names in FAMILIES.values()]
    restarts = [restart.total_s for run in arm.runs if run.counted for restart in run.restarts]
    cells = (
        *(words(arm.label + where, arm=arm.label), number(len(arm.metrics), formats.count)),
        *(number(round(share.mean, 4) + 0.0, formats.share) for share in shares),  # not a negative zero
        mean(arm.summary("stall_per_checkpoint_s"), formats.duration),
        mean(summary(restarts) if restarts else None, formats.duration),
        mean(arm.summary("replayed_steps"), formats.count),
    )
    return Line(cells, {"arm": arm.label})


_ARM_MEASURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("goodput", "goodput", formats.rate),
    ("goodput_published_clock", "published clock", formats.rate),
    ("wall_s", "wall", formats.duration),
    ("stall_s", "stall", formats.duration),
    ("write_s", "write (files)", formats.duration),
    ("durable_write_s", "write, serialise to durable", formats.duration),
    ("snapshot_s", "snapshot", formats.duration),
    ("restarts", "restarts", formats.count),
    ("replayed_steps", "replayed", formats.count),
)


def arms(comparison: Comparison) -> Sheet:
    """Every arm of every suite: means over seeds with their intervals, and goodput against the arms that others are compared with."""
    bases = _present(comparison)
    head = (Column("suite", words=True), Column("arm", words=True), Column("n"), Column("goodput"))
    compared = tuple(Column(f"vs {base}", hint="ratio of means; below it the mean of ratios") for base in bases)
    columns = (*head, *compared, *(Column(label) for _, label, _ in _ARM_MEASURES[1:]))
    lines = tuple(_arm(comparison, arm, bases) for arm in comparison.arms)
    return Sheet(f"Arms over seeds, scale {comparison.scale()}", columns, lines, _unaveraged(comparison), "summary.csv")


def _arm(comparison: Comparison, arm: Arm, bases: Sequence[str]) -> Line:
    first, *rest = (mean(arm.summary(measure), form) for measure, _, form in _ARM_MEASURES)
    compared = [NOTHING if base == arm.variant else _versus(versus(comparison, arm.label, base, "goodput", [arm.suite])) for base in bases]
    cells = (words(arm.suite), words(arm.label, arm=arm.label), number(len(arm.metrics), formats.count), first, *compared, *rest)
    return Line(cells, {"suite": arm.suite, "arm": arm.label})


def _versus(pair: Paired | None) -> Cell:
    ratios = pair.mean_of_ratios if pair else None
    return number(pair.ratio_of_means if pair else None, formats.change, formats.change(ratios.mean) if ratios else "", strong=True)


def _unaveraged(comparison: Comparison) -> str:
    names = [suite for suite in comparison.suites if suite not in comparison.passed]
    return f"Not averaged, because a quality gate failed: {formats.listed(names)}." if names else ""


def runs(comparison: Comparison, anchors: Anchors) -> Sheet:
    """Every run, whether it is compared or not."""
    columns = (
        *(Column("suite", words=True), Column("run", words=True), Column("seed"), Column("verdict", words=True), Column("goodput")),
        *(
            *(Column(f"vs {base}") for base in _present(comparison)),
            Column("steps"),
            Column("restarts"),
            Column("replayed"),
            Column("stall per checkpoint"),
        ),
        Column("committed / failed / lost", hint="how the checkpoints ended"),
    )
    lines = tuple(_run(comparison, run, anchors) for suite in comparison.suites for run in in_order(comparison, suite))
    note = "Goodput in committed steps per second of wall time, from the supervisor's launch to the target."
    return Sheet(f"Run by run, scale {comparison.scale()}", columns, lines, note, "runs.csv")


def _run(comparison: Comparison, run: Run, anchors: Anchors) -> Line:
    label = comparison.label(run)
    head = (
        words(run.suite),
        words(label, arm=label, anchor=anchors[id(run)]),
        Cell(run.seed, run.seed),
        Cell("", run.verdict.status, status=run.verdict.status, anchor=anchors[id(run)]),
    )
    m = run.counted
    if m is None:
        return Line((*head, Cell(run.reason)), of(run, comparison))
    every = list(comparison.arms)
    ends = " / ".join(formats.count(m.checkpoints[end]) for end in ("committed", "failed", "lost"))
    cells = (
        number(m.goodput, formats.rate, strong=True),
        *(number(run_versus(run, every, base), formats.change) for base in _present(comparison)),
        *(number(value, formats.count) for value in (m.committed_steps, m.restarts, m.replayed_steps)),
        number(m.stall_per_checkpoint_s, formats.duration),
        Cell(ends, repr(float(m.checkpoints["committed"]))),
    )
    return Line((*head, *cells), of(run, comparison))


def of(run: Run, comparison: Comparison) -> dict[str, str]:
    """What the filter knows of a run."""
    return {"suite": run.suite, "arm": comparison.label(run), "seed": run.seed, "verdict": run.verdict.status}


def divergence(comparison: Comparison, anchors: Anchors) -> Sheet:
    """How far each run went from its reference."""
    labels = ("loss: max", "mean", "area", "first differing step", "parameters L2", "buffers L2")
    columns = (Column("suite", words=True), Column("run", words=True), Column("seed"), Column("reference", words=True), *map(Column, labels))
    compared = [run for suite in comparison.suites for run in in_order(comparison, suite) if run.divergence]
    lines = tuple(_divergence(comparison, run, anchors) for run in compared)
    return Sheet(f"Distance from the reference, scale {comparison.scale()}", columns, lines, "Zero is exact.", "runs.csv")


def _divergence(comparison: Comparison, run: Run, anchors: Anchors) -> Line:
    found, label = divergence_cells(run), comparison.label(run)
    step = found["loss_difference_first_differing_step"]
    cells = (
        *(words(run.suite), words(label, arm=label, anchor=anchors[id(run)]), Cell(run.seed, run.seed), words(str(found["reference"] or ""))),
        *(number(found[f"loss_difference_{key}"], formats.magnitude) for key in ("maximum", "mean", "auc")),
        Cell("none", "inf") if step is None else number(step, formats.count),
        *(
            number(length := found[f"{part}_l2"], formats.magnitude, _relative(length, found[f"{part}_relative_l2"]))
            for part in ("parameters", "buffers")
        ),
    )
    return Line(cells, of(run, comparison))


def _relative(length: float | None, share: float | None) -> str:
    """As a share of the state's own length, where there is any distance."""
    return formats.magnitude(share) if length else ""


def _present(comparison: Comparison) -> list[str]:
    """The variants that others are compared with, as far as they ran."""
    return [base for base in BASES if any(arm.variant == base for arm in comparison.arms)]


def _scope(comparison: Comparison, suites: Sequence[str]) -> str:
    where = suites[0] if len(suites) == 1 else f"{len(suites)} suites{' pooled' if comparison.together else ', one by one'}"
    return f"{where}, scale {comparison.scale(suites)}"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{formats.change(low)} to {formats.change(high)}"


def _spaced(name: str) -> str:
    return name.replace("_", " ")
