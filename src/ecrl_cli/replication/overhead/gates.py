"""Gates that must pass before the study's numbers can be used."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from ecrl_cli.metrics.gates import Gate, gate
from ecrl_cli.replication.overhead.checks import Agreement, critical
from ecrl_cli.replication.overhead.measured import predictable
from ecrl_cli.replication.overhead.record_index import RecordIndex, Row, cell_name

FLAT = 0.05  # allowed relative excess of the overhead at Daly's interval over the minimum, beyond its confidence interval
CLOSE = 1.5  # allowed factor between the exact interval and those not distinguishable from the best
HALF = 0.5  # allowed median relative error of a prediction


def gates(index: RecordIndex) -> tuple[Gate, ...]:
    found = [_agreement(index), *_planted(index), _monotone(index), *_optimum(index), _sanity(index), _ends(index)]
    return (*found, *([_prediction(index)] if predictable(index.recordings) else []))


def _agreed(row: Row, cases: int) -> bool:
    return Agreement(row["simulated"], row["expected"], row["score"], row["freedom"]).within(cases)


def _agreement(index: RecordIndex) -> Gate:
    """All exact cases agree within statistical error."""
    rows = index.checks(planted=False)
    wrong = [f"{row['case']}: {row['score']:+.1f} standard errors" for row in rows if not _agreed(row, len(rows))]
    if not rows:
        return Gate("closed form", False, "no case was simulated")
    bar = critical(len(rows), rows[0]["freedom"])
    worst = max(rows, key=lambda row: abs(row["score"]))
    off = max(abs(row["simulated"] / row["expected"] - 1) for row in rows)
    said = f"{len(rows)} exact cases, the furthest {abs(worst['score']):.1f} standard errors off ({bar:.1f} allowed), at most {off:.2%} apart"
    return gate("closed form", wrong, said)


def _planted(index: RecordIndex) -> list[Gate]:
    """The same threshold must reject a simulation with a planted bug."""
    rows, cases = index.checks(planted=True), len(index.checks(planted=False))
    return [Gate(row["case"], not _agreed(row, max(1, cases)), f"{row['score']:+.1f} standard errors off the closed form") for row in rows]


def _monotone(index: RecordIndex) -> Gate:
    """A strategy's overhead falls with the MTBF, within its confidence interval."""
    wrong = [f"{row['strategy']} costs more at {cell_name(row)} than with more failures" for row in _rising(index)]
    return gate("monotone", wrong[:3], "no strategy's overhead rises with the MTBF")


def _rising(index: RecordIndex) -> Iterator[Row]:
    series = dict[tuple[object, ...], list[Row]]()
    for row in index.jobs():
        series.setdefault((row["model"], row["workers"], row["strategy"], row["fatal_percent"]), []).append(row)
    for rows in series.values():
        for worse, better in pairwise(sorted(rows, key=lambda row: row["mtbf"])):
            if better["mean"] is not None and worse["mean"] is not None and better["low"] > worse["high"]:
                yield better


def _optimum(index: RecordIndex) -> list[Gate]:
    """Daly's interval is nowhere much worse than the best found, and the best is near the exact one."""
    rows = index.optima()
    if not rows:
        return [Gate("optimum", False, "no search came to an end")]
    excess = [row["at"]["daly"] / row["at"]["simulated"] - 1 for row in rows]
    apart = [max(row["simulated"] / row["exact"], row["exact"] / row["simulated"]) for row in rows]
    steep = [f"{cell_name(row)}: surely {row['surely']:.2%} of the work" for row in rows if row["surely"] > FLAT * row["at"]["simulated"]]
    far = [
        f"{cell_name(row)}: {row['low']:.3g} to {row['high']:.3g} s"
        for row in rows
        if max(row["low"] / row["exact"], row["exact"] / row["high"]) > CLOSE
    ]
    flat = f"at Daly's interval the overhead is at most {max(excess):.1%} above the least found, in {len(rows)} cells"
    near = f"the best interval found lies within a factor of {max(apart):.2f} of the exact one, in {len(rows)} cells"
    return [gate("optimum: flat", steep[:3], flat), gate("optimum: near", far[:3], near)]


def _sanity(index: RecordIndex) -> Gate:
    """The simulated efficiency of a checkpoint every two minutes agrees with the closed form."""
    rows = [{**record.facts, **record.found} for record in index.of("two minutes")]
    wrong = [f"{row['assumption']}, {row['at']}: {row['score']:+.1f} standard errors" for row in rows if not _agreed(row, len(rows))]
    return gate("two minutes", wrong if rows else ["nothing was simulated"], f"{len(rows)} simulated efficiencies agree with the closed form")


def _ends(index: RecordIndex) -> Gate:
    """Every job that ends by the closed form was simulated to its end."""
    jobs = [row for row in index.jobs() if row["expected"] is not None]
    endless = [f"{row['strategy']} at {cell_name(row)}" for row in jobs if row["mean"] is None]
    return gate("ends", endless[:3] if jobs else ["no job was simulated"], f"all {len(jobs)} jobs that should end were simulated to their end")


def _prediction(index: RecordIndex) -> Gate:
    rows = index.predicted()
    if not rows:
        return Gate("prediction", False, "no failure was predicted from others")
    error = median(abs(row["total"] / row["measured"] - 1) for row in rows)
    return Gate("prediction", error <= HALF, f"{len(rows)} failures on record, predicted to {error:.0%} at the median ({HALF:.0%} allowed)")
