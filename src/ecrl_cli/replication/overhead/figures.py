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


def figures(ledger: RecordIndex) -> tuple[Figure, ...]:
    return tuple(
        figure for figure in (*_over_workers(ledger), *_over_mtbf(ledger), *_parts(ledger), *_intervals(ledger), *_curve(ledger), *_recorded(ledger))
    )


def _over_workers(ledger: RecordIndex) -> Iterator[Figure]:
    """Overhead over the number of workers, per model, at the shortest MTBF, where differences are largest."""
    minutes, percent = min(ledger.config.mtbf_min), max(ledger.config.fatal_percent)
    if len(ledger.config.workers) > 1:
        for model in ledger.models:
            rows = [row for row in _of(ledger, model, percent) if row["minutes"] == minutes]
            title = f"{model}: overhead over size, MTBF {duration(minutes)}{_of_reference(ledger)}, {percent}% of failures fatal"
            yield Figure(
                f"workers-{model}", title, "lines", "workers", "overhead, % of the work", _lines(rows, "workers", 1.0), log_x=True, log_y=True
            )


def _over_mtbf(ledger: RecordIndex) -> Iterator[Figure]:
    if len(ledger.config.mtbf_min) > 1:
        for model in ledger.models:
            for percent in ledger.config.fatal_percent:
                rows = [row for row in _of(ledger, model, percent) if row["workers"] == ledger.most]
                title = f"{model}: overhead over MTBF at {ledger.most} workers, {percent}% of failures fatal"
                label = f"hours between failures{_of_reference(ledger)}"
                lines = _lines(rows, "minutes", 1 / 60)
                yield Figure(f"mtbf-{model}-{percent}", title, "lines", label, "overhead, % of the work", lines, log_x=True, log_y=True)


def _of_reference(ledger: RecordIndex) -> str:
    return f" of {ledger.config.reference_workers} workers" if ledger.config.reference_workers else ""


def _of(ledger: RecordIndex, model: str, percent: int) -> list[Row]:
    return [row for row in ledger.jobs() if row["model"] == model and row["fatal_percent"] in (None, percent) and (row["mean"] or 0.0) > SHOWN]


def _lines(rows: Sequence[Row], over: str, unit: float) -> tuple[Series, ...]:
    found = []
    for name in DRAWN:
        mine = sorted((row for row in rows if row["strategy"] == name), key=lambda row: row[over])
        if mine:
            x, y = tuple(row[over] * unit for row in mine), tuple(100 * row["mean"] for row in mine)
            low, high = (tuple(100 * max(SHOWN, row[end]) for row in mine) for end in ("low", "high"))
            found.append(Series(name, y, x, low, high))
    return tuple(found)


def _parts(ledger: RecordIndex) -> Iterator[Figure]:
    """The parts of a failure, without the replay of a checkpoint restart, which would dwarf the rest."""
    for model, parts in ledger.models.items():
        strategies = [strategy for strategy in STRATEGIES if not strategy.every_epoch]
        costs = [s.costs(parts, ledger.scene(ledger.least), expected_loss(parts, parts.every)) for s in strategies]
        series = tuple(Series(label, tuple(sum(cost.get(name, 0.0) for name in names) for cost in costs)) for label, names in GROUPS.items())
        title = f"{model}: what a failure costs besides the replay since the checkpoint, {ledger.least} workers"
        yield Figure(f"parts-{model}", title, "stacked", "strategy", "seconds", series, tuple(s.name for s in strategies))


def _intervals(ledger: RecordIndex) -> Iterator[Figure]:
    """Best intervals over the system's MTBF, as multiples of the exact one."""
    for model in ledger.models:
        rows = sorted({row["mtbf"]: row for row in ledger.optima() if row["model"] == model}.values(), key=lambda row: float(row["mtbf"]))
        if len(rows) > 1:
            x = tuple(row["mtbf"] / 60 for row in rows)
            lines = [Series(label, tuple(row[key] / row["exact"] for row in rows), x) for key, label in (("young", "Young"), ("daly", "Daly"))]
            low, high = (tuple(row[end] / row["exact"] for row in rows) for end in ("low", "high"))
            lines.append(Series("simulated", tuple(row["simulated"] / row["exact"] for row in rows), x, low, high))
            title = f"{model}: the best checkpoint interval, and those that cannot be told from it"
            yield Figure(f"interval-{model}", title, "lines", "MTBF of the system, minutes", "interval over the exact one", tuple(lines), log_x=True)


def _curve(ledger: RecordIndex) -> Iterator[Figure]:
    """Overhead around the optimum at the shortest MTBF."""
    for model in ledger.models:
        rows = [row for row in ledger.optima() if row["model"] == model and row["workers"] == ledger.most]
        if rows:
            lines = tuple(Series(duration(row["minutes"]), tuple(100 * y for y in row["overheads"]), tuple(row["intervals"])) for row in rows)
            marks = tuple(row["daly"] for row in rows)
            title = f"{model}: overhead over the checkpoint interval at {ledger.most} workers, and a line where Daly has the best"
            yield Figure(f"flat-{model}", title, "lines", "seconds between checkpoints", "overhead, % of the work", lines, marks=marks, log_x=True)


def _recorded(ledger: RecordIndex) -> Iterator[Figure]:
    rows = ledger.predicted()[:40]
    if rows:
        names = tuple(f"{row['run']}, attempt {row['attempt']}" for row in rows)
        series = (Series("predicted", tuple(row["total"] for row in rows)), Series("measured", tuple(row["measured"] for row in rows)))
        yield Figure("recorded", "Failures on record: predicted and measured", "bars", "failure", "seconds", series, names)
