"""The study's findings as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ecrl_cli.replication.overhead import published_claim
from ecrl_cli.replication.overhead.experiments import PAIRS
from ecrl_cli.replication.overhead.parts import PUBLISHED, Parts
from ecrl_cli.replication.overhead.record_index import RecordIndex, Row
from ecrl_cli.replication.overhead.strategies import BY_NAME
from ecrl_cli.replication.overhead.tables import published, threshold

FORWARD = ("lossy_forward", "immediate_rollback, spares")


def notes(index: RecordIndex) -> tuple[str, ...]:
    return (
        *_source(index),
        *_at_scale(index),
        *_wins(index),
        *_crossing(index),
        *_claims(index),
        *_optimum(index),
        *_sanity(index),
        *_recorded(index),
        _limits(index),
    )


def _source(index: RecordIndex) -> Iterator[str]:
    if index.config.source == "published":
        yield (
            "Parts: Table I. Its columns are swapped in the rows of model size and layers (ResNet-50 has 50 layers and 91 MiB, CANDLE-NT3 10 and "
            "600 MiB); the rows of times agree with the text as printed and are used so. Initialization and restart are both paid per failure."
        )
    assumed = (
        "Not from the source, unless typed: warm spares and snapshots (shares in the configuration and of a mini-batch), the broadcast to a joiner"
    )
    yield f"{assumed}; casualties are replaced after {index.config.replace_s:g} s."


def _at_scale(index: RecordIndex) -> Iterator[str]:
    """The best and the worst strategy at the largest size and the shortest MTBF."""
    minutes, percent = min(index.config.mtbf_min), max(index.config.fatal_percent)
    for model in index.models:
        rows = [r for r in index.jobs() if (r["model"], r["minutes"], r["workers"]) == (model, minutes, index.most)]
        rows = [row for row in rows if row["fatal_percent"] in (None, percent)]
        told = sorted((row for row in rows if row["mean"] is not None), key=lambda row: float(row["mean"]))
        listed = ", ".join(f"{row['strategy']} {row['mean']:.2%}" for row in told)
        endless = "".join(f", {row['strategy']} without end" for row in rows if row["mean"] is None)
        if told:
            every = told[0]["mtbf"]
            yield f"{model} at {index.most} workers, a failure every {every:.0f} s, {percent}% of them fatal, overheads: {listed}{endless}."


def _wins(index: RecordIndex) -> Iterator[str]:
    """Which strategy beats which, and in how many cells (model, MTBF, size, share of fatal failures)."""
    for a, b in PAIRS:
        mine = [row for row in index.pairs() if (row["a"], row["b"]) == (a, b)]
        wins, loses = sum(row["high"] < 0 for row in mine), sum(row["low"] > 0 for row in mine)
        if mine:
            yield f"{a} costs less than {b} in {wins} of {len(mine)} cells, more in {loses}; {len(mine) - wins - loses} are not told apart."


def _crossing(index: RecordIndex) -> Iterator[str]:
    for model, parts in index.models.items():
        at = threshold(index, parts, BY_NAME[FORWARD[0]], BY_NAME[FORWARD[1]])
        if at is None:
            yield f"{model}: a survived failure costs less under {FORWARD[1]} than under {FORWARD[0]} at every size."
        else:
            yield f"{model}: from {at:.1f} workers on a survived failure costs less under {FORWARD[0]} than under {FORWARD[1]}."


def _claims(index: RecordIndex) -> Iterator[str]:
    """The published factor between checkpoint_restart and immediate_rollback, with and without the costs that both have."""
    for model, parts in index.models.items():
        if model in PUBLISHED:
            half, factor = parts.every / 2, _factor(parts)
            holds = "holds for the replay alone" if half >= 100 else "does not hold even for the replay alone"
            yield (
                f'{model}: the published "at least two orders of magnitude" between checkpoint_restart and immediate_rollback {holds} '
                f"({half:.0f} mini-batches against one on the average, {parts.every} at most); with what both pay, initialization and restart, it is "
                f"{factor:.1f} times."
            )


def _factor(parts: Parts) -> float:
    after, back = (published(name, parts, parts.every / 2) for name in ("checkpoint_restart", "immediate_rollback"))
    return (after or 0.0) / (back or 1.0)


def _optimum(index: RecordIndex) -> Iterator[str]:
    rows = index.optima()
    if rows:
        young, daly = (max(row["at"][key] / row["at"]["simulated"] - 1 for row in rows) for key in ("young", "daly"))
        wide = median(row["high"] / row["low"] for row in rows)
        yield (
            f"The optimum is flat: over {len(rows)} cells the overhead at Daly's interval is at most {daly:.1%} above the least found, at Young's "
            f"{young:.1%}; intervals that cannot be told from the best span a factor of {wide:.1f} (median)."
        )
    yield from _bursts(index)


def _bursts(index: RecordIndex) -> Iterator[str]:
    shape = index.config.weibull_shape
    excess = [row["at"]["daly"] / row["at"]["simulated"] - 1 for row in index.optima(shape)]
    if excess and shape != 1.0:
        yield f"Where failures come in bursts (Weibull, shape {shape:g}), Daly's interval costs at most {max(excess):.1%} more than the best found."


def _sanity(index: RecordIndex) -> Iterator[str]:
    """Whether the published sentence holds."""
    records = {r.facts["assumption"]: r.facts for r in index.of("two minutes")}
    for name, facts in records.items():
        read = published_claim.read(facts["checkpoint"], facts["restart"])
        when = "at no MTBF" if read.needed_mtbf is None else f"at {read.needed_mtbf / 3600:,.0f} hours per GPU"
        at = "no interval gives 90%" if read.longest is None else f"{read.longest / 60:.1f} minutes suffice"
        yield f"A checkpoint every two minutes for 90% at 100,000 GPUs ({name}): true {when}; at the published 40,000 hours {at}."


def _recorded(index: RecordIndex) -> Iterator[str]:
    rows: list[Row] = index.predicted()
    if rows:
        errors = [row["total"] / row["measured"] - 1 for row in rows]
        worst = max(errors, key=abs)
        yield f"{len(rows)} failures on record, predicted from the others to {median(map(abs, errors)):.1%} at the median, {worst:+.1%} at worst."


def _limits(index: RecordIndex) -> str:
    return (
        "The parts are held constant over size, as measured; a failure stops the whole job; failures are independent of the work. "
        f"Parts per failure are shown for {index.least} workers."
    )
