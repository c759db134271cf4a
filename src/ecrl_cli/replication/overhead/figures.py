"""Figures: overhead over size and MTBF, the best interval, the parts of a failure, predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ecrl_cli.replication.overhead.record_index import RecordIndex, Row
from ecrl_cli.replication.overhead.strategies import STRATEGIES, expected_loss
from ecrl_cli.replication.overhead.tables import duration
from ecrl_cli.studies.frame.result import Figure, Series

SHOWN = 1e-7  # smallest share shown on a logarithmic axis
# Six, one per available colour; those left out lie close to one of them.
DRAWN = (
    *("checkpoint_restart, every epoch", "checkpoint_restart", "in_memory, spares"),
    *("immediate_rollback", "immediate_rollback, spares", "lossy_forward"),
)
GROUPS = {
    "detect": ("detect",),
    "start": ("replace", "init", "restart", "spare"),
    "join": ("regroup", "join"),
    "mini-batch again": ("redo",),
    "samples lost": ("lost",),
    "fewer workers": ("degraded",),
}


def figures(index: RecordIndex) -> tuple[Figure, ...]:
    return tuple(
        figure for figure in (*_over_workers(index), *_over_mtbf(index), *_parts(index), *_intervals(index), *_curve(index), *_recorded(index))
    )


def _over_workers(index: RecordIndex) -> Iterator[Figure]:
    """Overhead over the number of workers, per model, at the shortest MTBF, where differences are largest."""
    minutes, percent = min(index.config.mtbf_min), max(index.config.fatal_percent)
    if len(index.config.workers) > 1:
        for model in index.models:
            rows = [row for row in _of(index, model, percent) if row["minutes"] == minutes]
            title = f"{model}: overhead over size, MTBF {duration(minutes)}{_of_reference(index)}, {percent}% of failures fatal"
            yield Figure(
                f"workers-{model}", title, "lines", "workers", "overhead, % of the work", _lines(rows, "workers", 1.0), log_x=True, log_y=True
            )


def _over_mtbf(index: RecordIndex) -> Iterator[Figure]:
    if len(index.config.mtbf_min) > 1:
        for model in index.models:
            for percent in index.config.fatal_percent:
                rows = [row for row in _of(index, model, percent) if row["workers"] == index.most]
                title = f"{model}: overhead over MTBF at {index.most} workers, {percent}% of failures fatal"
                label = f"hours between failures{_of_reference(index)}"
                lines = _lines(rows, "minutes", 1 / 60)
                yield Figure(f"mtbf-{model}-{percent}", title, "lines", label, "overhead, % of the work", lines, log_x=True, log_y=True)


def _of_reference(index: RecordIndex) -> str:
    return f" of {index.config.reference_workers} workers" if index.config.reference_workers else ""


def _of(index: RecordIndex, model: str, percent: int) -> list[Row]:
    return [row for row in index.jobs() if row["model"] == model and row["fatal_percent"] in (None, percent) and (row["mean"] or 0.0) > SHOWN]


def _lines(rows: Sequence[Row], over: str, unit: float) -> tuple[Series, ...]:
    found = []
    for name in DRAWN:
        mine = sorted((row for row in rows if row["strategy"] == name), key=lambda row: row[over])
        if mine:
            x, y = tuple(row[over] * unit for row in mine), tuple(100 * row["mean"] for row in mine)
            low, high = (tuple(100 * max(SHOWN, row[end]) for row in mine) for end in ("low", "high"))
            found.append(Series(name, y, x, low, high))
    return tuple(found)


def _parts(index: RecordIndex) -> Iterator[Figure]:
    """The parts of a failure, without the replay of a checkpoint restart, which would dwarf the rest."""
    for model, parts in index.models.items():
        strategies = [strategy for strategy in STRATEGIES if not strategy.every_epoch]
        costs = [s.costs(parts, index.scene(index.least), expected_loss(parts, parts.every)) for s in strategies]
        series = tuple(Series(label, tuple(sum(cost.get(name, 0.0) for name in names) for cost in costs)) for label, names in GROUPS.items())
        title = f"{model}: what a failure costs besides the replay since the checkpoint, {index.least} workers"
        yield Figure(f"parts-{model}", title, "stacked", "strategy", "seconds", series, tuple(s.name for s in strategies))


def _intervals(index: RecordIndex) -> Iterator[Figure]:
    """Best intervals over the system's MTBF, as multiples of the exact one."""
    for model in index.models:
        rows = sorted({row["mtbf"]: row for row in index.optima() if row["model"] == model}.values(), key=lambda row: float(row["mtbf"]))
        if len(rows) > 1:
            x = tuple(row["mtbf"] / 60 for row in rows)
            lines = [Series(label, tuple(row[key] / row["exact"] for row in rows), x) for key, label in (("young", "Young"), ("daly", "Daly"))]
            low, high = (tuple(row[end] / row["exact"] for row in rows) for end in ("low", "high"))
            lines.append(Series("simulated", tuple(row["simulated"] / row["exact"] for row in rows), x, low, high))
            title = f"{model}: the best checkpoint interval, and those that cannot be told from it"
            yield Figure(f"interval-{model}", title, "lines", "MTBF of the system, minutes", "interval over the exact one", tuple(lines), log_x=True)


def _curve(index: RecordIndex) -> Iterator[Figure]:
    """Overhead around the optimum at the shortest MTBF."""
    for model in index.models:
        rows = [row for row in index.optima() if row["model"] == model and row["workers"] == index.most]
        if rows:
            lines = tuple(Series(duration(row["minutes"]), tuple(100 * y for y in row["overheads"]), tuple(row["intervals"])) for row in rows)
            marks = tuple(row["daly"] for row in rows)
            title = f"{model}: overhead over the checkpoint interval at {index.most} workers, and a line where Daly has the best"
            yield Figure(f"flat-{model}", title, "lines", "seconds between checkpoints", "overhead, % of the work", lines, marks=marks, log_x=True)


def _recorded(index: RecordIndex) -> Iterator[Figure]:
    rows = index.predicted()[:40]
    if rows:
        names = tuple(f"{row['run']}, attempt {row['attempt']}" for row in rows)
        series = (Series("predicted", tuple(row["total"] for row in rows)), Series("measured", tuple(row["measured"] for row in rows)))
        yield Figure("recorded", "Failures on record: predicted and measured", "bars", "failure", "seconds", series, names)
