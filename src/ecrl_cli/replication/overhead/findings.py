"""The study's figures, its findings as sentences, and the gates that must pass before its numbers
can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from ecrl_cli.metrics.gates import Gate, gate
from ecrl_cli.replication.overhead import closed_forms
from ecrl_cli.replication.overhead.closed_forms import Agreement, critical
from ecrl_cli.replication.overhead.experiments import PAIRS
from ecrl_cli.replication.overhead.record_index import (
    RecordIndex,
    Row,
    cell_name,
    decided,
    predictable,
)
from ecrl_cli.replication.overhead.strategies import (
    BY_NAME,
    PUBLISHED,
    STRATEGIES,
    Parts,
    expected_loss,
)
from ecrl_cli.replication.overhead.tables import duration, published, threshold
from ecrl_cli.studies.frame.result import Figure, Series
from ecrl_cli.studies.frame.tables import grouped

OF_WORK = "overhead, % of the work"
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
    drawn = (_over_workers, _over_mtbf, _parts, _intervals, _curve, _recorded_figure)
    return tuple(figure for draw in drawn for figure in draw(index))


def _over_workers(index: RecordIndex) -> Iterator[Figure]:
    """Overhead over the number of workers, per model, at the shortest MTBF, where differences are
    largest.
    """
    minutes, percent = min(index.config.mtbf_min), max(index.config.fatal_percent)
    if len(index.config.workers) > 1:
        for model in index.models:
            rows = [row for row in _of(index, model, percent) if row["minutes"] == minutes]
            title = (
                f"{model}: overhead over size, MTBF {duration(minutes)}{_of_reference(index)},"
                f" {percent}% of failures fatal"
            )
            lines = _lines(rows, "workers", 1.0)
            yield _logarithmic(f"workers-{model}", title, "workers", lines)


def _over_mtbf(index: RecordIndex) -> Iterator[Figure]:
    if len(index.config.mtbf_min) > 1:
        for model in index.models:
            for percent in index.config.fatal_percent:
                rows = [row for row in _of(index, model, percent) if row["workers"] == index.most]
                title = (
                    f"{model}: overhead over MTBF at {index.most} workers, {percent}% of failures"
                    " fatal"
                )
                label = f"hours between failures{_of_reference(index)}"
                lines = _lines(rows, "minutes", 1 / 60)
                yield _logarithmic(f"mtbf-{model}-{percent}", title, label, lines)


def _logarithmic(name: str, title: str, x_label: str, lines: tuple[Series, ...]) -> Figure:
    return Figure(name, title, "lines", x_label, OF_WORK, lines, log_x=True, log_y=True)


def _of_reference(index: RecordIndex) -> str:
    return f" of {index.config.reference_workers} workers" if index.config.reference_workers else ""


def _of(index: RecordIndex, model: str, percent: int) -> list[Row]:
    return [
        row
        for row in index.jobs()
        if row["model"] == model
        and row["fatal_percent"] in (None, percent)
        and (row["mean"] or 0.0) > SHOWN
    ]


def _lines(rows: Sequence[Row], over: str, unit: float) -> tuple[Series, ...]:
    found = []
    for name in DRAWN:
        mine = sorted((row for row in rows if row["strategy"] == name), key=lambda row: row[over])
        if mine:
            x, y = tuple(row[over] * unit for row in mine), tuple(100 * row["mean"] for row in mine)
            low, high = (
                tuple(100 * max(SHOWN, row[end]) for row in mine) for end in ("low", "high")
            )
            found.append(Series(name, y, x, low, high))
    return tuple(found)


def _parts(index: RecordIndex) -> Iterator[Figure]:
    """The parts of a failure, without the replay of a checkpoint restart, which would dwarf the
    rest.
    """
    for model, parts in index.models.items():
        strategies = [strategy for strategy in STRATEGIES if not strategy.every_epoch]
        costs = [
            s.costs(parts, index.scenario(index.least), expected_loss(parts, parts.every))
            for s in strategies
        ]
        series = tuple(
            Series(label, tuple(sum(cost.get(name, 0.0) for name in names) for cost in costs))
            for label, names in GROUPS.items()
        )
        title = (
            f"{model}: what a failure costs besides the replay since the checkpoint, {index.least}"
            " workers"
        )
        names = tuple(s.name for s in strategies)
        yield Figure(f"parts-{model}", title, "stacked", "strategy", "seconds", series, names)


def _intervals(index: RecordIndex) -> Iterator[Figure]:
    """Best intervals over the system's MTBF, as multiples of the exact one."""
    for model in index.models:
        rows = sorted(
            {row["mtbf"]: row for row in index.optima() if row["model"] == model}.values(),
            key=lambda row: float(row["mtbf"]),
        )
        if len(rows) > 1:
            x = tuple(row["mtbf"] / 60 for row in rows)
            young, daly, simulated, low, high = (
                tuple(row[key] / row["exact"] for row in rows)
                for key in ("young", "daly", "simulated", "low", "high")
            )
            lines = (
                Series("Young", young, x),
                Series("Daly", daly, x),
                Series("simulated", simulated, x, low, high),
            )
            title = f"{model}: the best checkpoint interval, and those that cannot be told from it"
            axes = ("MTBF of the system, minutes", "interval over the exact one")
            yield Figure(f"interval-{model}", title, "lines", *axes, lines, log_x=True)


def _curve(index: RecordIndex) -> Iterator[Figure]:
    """Overhead around the optimum at the shortest MTBF."""
    for model in index.models:
        rows = [
            row for row in index.optima() if row["model"] == model and row["workers"] == index.most
        ]
        if rows:
            lines = tuple(
                Series(
                    duration(row["minutes"]),
                    tuple(100 * y for y in row["overheads"]),
                    tuple(row["intervals"]),
                )
                for row in rows
            )
            marks = tuple(row["daly"] for row in rows)
            title = (
                f"{model}: overhead over the checkpoint interval at {index.most} workers, and a"
                " line where Daly has the best"
            )
            axes = ("seconds between checkpoints", OF_WORK)
            yield Figure(f"flat-{model}", title, "lines", *axes, lines, marks=marks, log_x=True)


def _recorded_figure(index: RecordIndex) -> Iterator[Figure]:
    rows = index.predicted()[:40]
    if rows:
        names = tuple(f"{row['run']}, attempt {row['attempt']}" for row in rows)
        series = (
            Series("predicted", tuple(row["total"] for row in rows)),
            Series("measured", tuple(row["measured"] for row in rows)),
        )
        title = "Failures on record: predicted and measured"
        yield Figure("recorded", title, "bars", "failure", "seconds", series, names)


FORWARD = ("lossy_forward", "immediate_rollback, spares")


def notes(index: RecordIndex) -> tuple[str, ...]:
    told = (_source, _at_scale, _wins, _crossing, _claims, _optimum, _bursts, _sanity, _recorded)
    return (*(note for tell in told for note in tell(index)), _limits(index))


def _source(index: RecordIndex) -> Iterator[str]:
    if index.config.source == "published":
        yield (
            "Parts: Table I. Its columns are swapped in the rows of model size and layers"
            " (ResNet-50 has 50 layers and 91 MiB, CANDLE-NT3 10 and 600 MiB); the rows of times"
            " agree with the text as printed and are used so. Initialization and restart are both"
            " paid per failure."
        )
    assumed = (
        "Not from the source, unless typed: warm spares and snapshots (shares in the configuration"
        " and of a mini-batch); and the regrouping and the broadcast to a joiner where no live"
        " recovery is on record"
    )
    yield f"{assumed}; casualties are replaced after {index.config.replace_s:g} s."


def _at_scale(index: RecordIndex) -> Iterator[str]:
    """The best and the worst strategy at the largest size and the shortest MTBF."""
    minutes, percent = min(index.config.mtbf_min), max(index.config.fatal_percent)
    for model in index.models:
        rows = [
            r
            for r in index.jobs()
            if (r["model"], r["minutes"], r["workers"]) == (model, minutes, index.most)
        ]
        rows = [row for row in rows if row["fatal_percent"] in (None, percent)]
        told = sorted(
            (row for row in rows if row["mean"] is not None), key=lambda row: float(row["mean"])
        )
        listed = ", ".join(f"{row['strategy']} {row['mean']:.2%}" for row in told)
        endless = "".join(f", {row['strategy']} without end" for row in rows if row["mean"] is None)
        if told:
            every = told[0]["mtbf"]
            yield (
                f"{model} at {index.most} workers, a failure every {every:.0f} s, {percent}% of"
                f" them fatal, overheads: {listed}{endless}."
            )


def _wins(index: RecordIndex) -> Iterator[str]:
    """Which strategy beats which, and in how many cells (model, MTBF, size, share of fatal
    failures).
    """
    for a, b in PAIRS:
        if mine := [row for row in index.pairs() if (row["a"], row["b"]) == (a, b)]:
            found = decided(mine)
            less, more, alike = found["wins"], found["loses"], found["open"]
            yield (
                f"{a} costs less than {b} in {less} of {len(mine)} cells, more in {more}; {alike}"
                " are not statistically distinguishable."
            )


def _crossing(index: RecordIndex) -> Iterator[str]:
    for model, parts in index.models.items():
        at = threshold(index, parts, BY_NAME[FORWARD[0]], BY_NAME[FORWARD[1]])
        if at is None:
            yield (
                f"{model}: a survived failure costs less under {FORWARD[1]} than under {FORWARD[0]}"
                " at every size."
            )
        else:
            yield (
                f"{model}: from {at:.1f} workers on a survived failure costs less under"
                f" {FORWARD[0]} than under {FORWARD[1]}."
            )


def _claims(index: RecordIndex) -> Iterator[str]:
    """The published factor between checkpoint_restart and immediate_rollback, with and without the
    costs that both have.
    """
    for model, parts in index.models.items():
        if model in PUBLISHED:
            half, factor = parts.every / 2, _factor(parts)
            holds = (
                "holds for the replay alone"
                if half >= 100
                else "does not hold even for the replay alone"
            )
            yield (
                f'{model}: the published "at least two orders of magnitude" between'
                f" checkpoint_restart and immediate_rollback {holds} ({half:.0f} mini-batches"
                f" against one on the average, {parts.every} at most); with what both pay,"
                f" initialization and restart, it is {factor:.1f} times."
            )


def _factor(parts: Parts) -> float:
    after, back = (
        published(name, parts, parts.every / 2)
        for name in ("checkpoint_restart", "immediate_rollback")
    )
    return (after or 0.0) / (back or 1.0)


def _optimum(index: RecordIndex) -> Iterator[str]:
    rows = index.optima()
    if rows:
        young, daly = (max(row["excess"][key] for row in rows) for key in ("young", "daly"))
        wide = median(row["high"] / row["low"] for row in rows)
        yield (
            f"The optimum is flat: over {len(rows)} cells the overhead at Daly's interval is at"
            f" most {daly:.1%} above the least found, at Young's {young:.1%}; intervals that cannot"
            f" be told from the best span a factor of {wide:.1f} (median)."
        )


def _bursts(index: RecordIndex) -> Iterator[str]:
    shape = index.config.weibull_shape
    excess = [row["excess"]["daly"] for row in index.optima(shape)]
    if excess and shape != 1.0:
        yield (
            f"Where failures come in bursts (Weibull, shape {shape:g}), Daly's interval costs at"
            f" most {max(excess):.1%} more than the best found."
        )


def _sanity(index: RecordIndex) -> Iterator[str]:
    """Whether the published sentence holds."""
    records = {r.facts["assumption"]: r.facts for r in index.of("two minutes")}
    for name, facts in records.items():
        read = closed_forms.read_claim(facts["checkpoint"], facts["restart"])
        when = (
            "at no MTBF"
            if read.needed_mtbf is None
            else f"at {read.needed_mtbf / 3600:,.0f} hours per GPU"
        )
        at = (
            "no interval gives 90%"
            if read.longest is None
            else f"{read.longest / 60:.1f} minutes suffice"
        )
        yield (
            f"A checkpoint every two minutes for 90% at 100,000 GPUs ({name}): true {when}; at the"
            f" published 40,000 hours {at}."
        )


def _recorded(index: RecordIndex) -> Iterator[str]:
    rows: list[Row] = index.predicted()
    if rows:
        errors = [row["error"] for row in rows]
        worst = max(errors, key=abs)
        yield (
            f"{len(rows)} failures on record, predicted from the others to"
            f" {median(map(abs, errors)):.1%} at the median, {worst:+.1%} at worst."
        )


def _limits(index: RecordIndex) -> str:
    return (
        "The parts are held constant over size, as measured; a failure stops the whole job;"
        f" failures are independent of the work. Parts per failure are shown for {index.least}"
        " workers."
    )


# allowed relative excess of the overhead at Daly's interval over the minimum, beyond its confidence
# interval
FLAT = 0.05
CLOSE = 1.5  # allowed factor between the exact interval and those not distinguishable from the best
HALF = 0.5  # allowed median relative error of a prediction


def gates(index: RecordIndex) -> tuple[Gate, ...]:
    found = [
        _agreement(index),
        *_planted(index),
        _monotone(index),
        *_optimum_gates(index),
        _sanity_gate(index),
        _ends(index),
    ]
    return (*found, *([_prediction(index)] if predictable(index.recordings) else []))


def _agreed(row: Row, cases: int) -> bool:
    return Agreement(row["simulated"], row["expected"], row["score"], row["freedom"]).within(cases)


def _agreement(index: RecordIndex) -> Gate:
    """All exact cases agree within statistical error."""
    rows = index.checks(planted=False)
    wrong = [
        f"{row['case']}: {row['score']:+.1f} standard errors"
        for row in rows
        if not _agreed(row, len(rows))
    ]
    if not rows:
        return Gate("closed form", False, "no case was simulated")
    bar = critical(len(rows), rows[0]["freedom"])
    worst = max(rows, key=lambda row: abs(row["score"]))
    off = max(abs(row["simulated"] / row["expected"] - 1) for row in rows)
    said = (
        f"{len(rows)} exact cases, the furthest {abs(worst['score']):.1f} standard errors off"
        f" ({bar:.1f} allowed), at most {off:.2%} apart"
    )
    return gate("closed form", wrong, said)


def _planted(index: RecordIndex) -> list[Gate]:
    """The same threshold must reject a simulation with a planted bug."""
    rows, cases = index.checks(planted=True), len(index.checks(planted=False))
    return [
        Gate(
            row["case"],
            not _agreed(row, max(1, cases)),
            f"{row['score']:+.1f} standard errors off the closed form",
        )
        for row in rows
    ]


def _monotone(index: RecordIndex) -> Gate:
    """A strategy's overhead falls with the MTBF, within its confidence interval."""
    wrong = [
        f"{row['strategy']} costs more at {cell_name(row)} than with more failures"
        for row in _rising(index)
    ]
    return gate("monotone", wrong[:3], "no strategy's overhead rises with the MTBF")


def _rising(index: RecordIndex) -> Iterator[Row]:
    keys = ("model", "workers", "strategy", "fatal_percent")
    for rows in grouped(index.jobs(), lambda row: tuple(row[key] for key in keys)).values():
        for worse, better in pairwise(sorted(rows, key=lambda row: row["mtbf"])):
            if (
                better["mean"] is not None
                and worse["mean"] is not None
                and better["low"] > worse["high"]
            ):
                yield better


def _optimum_gates(index: RecordIndex) -> list[Gate]:
    """Daly's interval is nowhere much worse than the best found, and the best is near the exact
    one.
    """
    rows = index.optima()
    if not rows:
        return [Gate("optimum", False, "no search came to an end")]
    excess = [row["excess"]["daly"] for row in rows]
    apart = [max(row["simulated"] / row["exact"], row["exact"] / row["simulated"]) for row in rows]
    steep = [
        f"{cell_name(row)}: surely {row['surely']:.2%} of the work"
        for row in rows
        if row["surely"] > FLAT * row["at"]["simulated"]
    ]
    far = [
        f"{cell_name(row)}: {row['low']:.3g} to {row['high']:.3g} s"
        for row in rows
        if max(row["low"] / row["exact"], row["exact"] / row["high"]) > CLOSE
    ]
    flat = (
        f"at Daly's interval the overhead is at most {max(excess):.1%} above the least found, in"
        f" {len(rows)} cells"
    )
    near = (
        f"the best interval found lies within a factor of {max(apart):.2f} of the exact one, in"
        f" {len(rows)} cells"
    )
    return [gate("optimum: flat", steep[:3], flat), gate("optimum: near", far[:3], near)]


def _sanity_gate(index: RecordIndex) -> Gate:
    """The simulated efficiency of a checkpoint every two minutes agrees with the closed form."""
    rows = [{**record.facts, **record.found} for record in index.of("two minutes")]
    wrong = [
        f"{row['assumption']}, {row['at']}: {row['score']:+.1f} standard errors"
        for row in rows
        if not _agreed(row, len(rows))
    ]
    return gate(
        "two minutes",
        wrong if rows else ["nothing was simulated"],
        f"{len(rows)} simulated efficiencies agree with the closed form",
    )


def _ends(index: RecordIndex) -> Gate:
    """Every job that ends by the closed form was simulated to its end."""
    jobs = [row for row in index.jobs() if row["expected"] is not None]
    endless = [f"{row['strategy']} at {cell_name(row)}" for row in jobs if row["mean"] is None]
    return gate(
        "ends",
        endless[:3] if jobs else ["no job was simulated"],
        f"all {len(jobs)} jobs that should end were simulated to their end",
    )


def _prediction(index: RecordIndex) -> Gate:
    rows = index.predicted()
    if not rows:
        return Gate("prediction", False, "no failure was predicted from others")
    error = median(abs(row["error"]) for row in rows)
    return Gate(
        "prediction",
        error <= HALF,
        f"{len(rows)} failures on record, predicted to {error:.0%} at the median ({HALF:.0%}"
        " allowed)",
    )
