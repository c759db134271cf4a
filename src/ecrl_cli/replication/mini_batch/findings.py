"""The study's findings: tables, published figures 2, 3 and 4, notes, and gates that must hold
whatever the accuracies are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.metrics.statistics import ratio_of_means, summary
from ecrl_cli.replication.mini_batch import tables
from ecrl_cli.replication.mini_batch.cells import ScenarioTrial, corrections
from ecrl_cli.replication.mini_batch.claims import claims
from ecrl_cli.replication.mini_batch.counts import (
    APPLICATIONS,
    MiniBatchCounts,
    Run,
    ScenarioRuns,
    cell_of,
    label,
    measured,
    spread,
)
from ecrl_cli.replication.mini_batch.dormant import RANKS
from ecrl_cli.replication.mini_batch.simulated_run import EXACT
from ecrl_cli.studies.frame.result import Figure, Findings, Series
from ecrl_cli.studies.frame.study import Record


def figures(counts: MiniBatchCounts) -> tuple[Figure, ...]:
    found = [*_evolutions(counts), _replay(counts), *_scenarios(counts), *_ends(counts)]
    return tuple(figure for figure in found if figure.series)


def _evolutions(counts: MiniBatchCounts) -> list[Figure]:
    """Published figures 2a and 2b: held-out accuracy and loss of the runs without failures, with a
    line at each scenario.
    """
    found = []
    for application in counts.applications:
        evolutions = [record.found["evolution"] for record in counts.runs_of(application)]
        at = tuple(float(point[0]) for point in evolutions[0])
        marks = tuple(float(case.mini_batch) for case in counts.of(application))
        for place, name in ((1, "accuracy"), (2, "loss")):
            columns = [[run[index][place] for run in evolutions] for index in range(len(at))]
            if all(value is not None for column in columns for value in column):
                spreads = [spread(column, "y") for column in columns]
                series = (_series(f"held-out {name}", spreads, "y", at),)
                title = (
                    f"{counts.named(application)} without failures: held-out {name}, mean of"
                    f" {len(evolutions)} runs"
                )
                axes = ("lines", "mini-batch", name)
                ident = f"evolution-{application}-{name}"
                found.append(Figure(ident, title, *axes, series, marks=marks))
    return found


def _replay(counts: MiniBatchCounts) -> Figure:
    """Published figure 2c: the replay."""
    rows = tables.replay(counts).rows
    names = {"measured": "replay", "predicted": "replay, predicted", "epoch": "whole epoch"}
    series = tuple(
        Series(text, tuple(row[key] for row in rows)) for key, text in names.items() if rows
    )
    categories = tuple(f"{row['application']}, mini-batch {row['mini_batch']:,}" for row in rows)
    title = "Replay after a restart from the epoch's checkpoint"
    return Figure("replay", title, "bars", "scenario", "seconds", series, categories)


def _scenarios(counts: MiniBatchCounts) -> list[Figure]:
    """Published figures 3 and 4: accuracy and slowdown of every state, per scenario."""
    found = []
    rows = tables.accuracy(counts).rows
    for case in counts.cases:
        place = (case.about["application"], case.published)
        mine = [row for row in rows if (row["application"], row["published"]) == place]
        timed = [row for row in mine if row.get("slowdown") is not None]
        name = f"{case.application}-{case.published}"
        accuracy = f"{case.label}: held-out accuracy after it"
        slowdown = f"{case.label}: duration by that without the failure"
        found += [
            _bars(f"accuracy-{name}", accuracy, "held-out accuracy", mine, "accuracy"),
            _bars(f"slowdown-{name}", slowdown, "times as long", timed, "slowdown"),
        ]
    return found


def _ends(counts: MiniBatchCounts) -> list[Figure]:
    rows = tables.long_run(counts).rows
    found = []
    for application in APPLICATIONS:
        name = counts.named(application)
        mine = [
            row | {"state": f"{row['state']}, {row['failures']} failures"}
            for row in rows
            if row["application"] == name and row["n"] > 1
        ]
        title = f"{name}: final held-out accuracy"
        found.append(_bars(f"end-{application}", title, "held-out accuracy", mine, "accuracy"))
    return found


def _bars(name: str, title: str, y_label: str, rows: Sequence[dict[str, Any]], key: str) -> Figure:
    """With the relative difference to Baseline in the name of each bar of an accuracy that has
    one.
    """
    series = (_series(y_label, rows, key),) if rows else ()
    changes = [
        "" if key != "accuracy" or row.get("relative") is None else f" ({row['relative']:+.1%})"
        for row in rows
    ]
    categories = tuple(f"{row['state']}{change}" for row, change in zip(rows, changes, strict=True))
    return Figure(name, title, "bars", "state", y_label, series, categories)


def _series(
    text: str, rows: Sequence[dict[str, Any]], key: str, x: tuple[float, ...] = ()
) -> Series:
    """A series; rows without an interval get one of length zero, and there are no intervals where
    no row has one.
    """
    y = tuple(row[key] for row in rows)
    if all(row.get(f"{key}_low") is None for row in rows):
        return Series(text, y, x)
    low, high = (
        tuple(row[key] if row.get(f"{key}_{end}") is None else row[f"{key}_{end}"] for row in rows)
        for end in ("low", "high")
    )
    return Series(text, y, x, low, high)


def gates(counts: MiniBatchCounts) -> tuple[Gate, ...]:
    rules = (gate for rule in RULES if (gate := rule(counts)) is not None)
    return (_planned(counts), *rules, *_long(counts), *_dormant(counts))


def _none(name: str, wrong: Iterable[str], of: int, what: str) -> Gate:
    """Passed if nothing is `wrong` among at least one case."""
    found = list(wrong)
    named = (
        "".join((": ", "; ".join(found[:3]), "; ..." if len(found) > 3 else "")) if found else ""
    )
    return Gate(name, not found and of > 0, f"{len(found)} of {of} {what}{named}")


def _named(case: ScenarioRuns, found: Run) -> str:
    cell = cell_of(found)
    return (
        f"{case.label}: {label(cell)}{f' ({cell.flipped} the other way)' if cell.flipped else ''}"
    )


def _planned(counts: MiniBatchCounts) -> Gate:
    """Every planned cell was tried in every scenario of every run."""
    plan = counts.plan()
    runs = [(case, run) for case in counts.cases for run in case.runs]
    wrong = [case.label for case, run in runs if [cell_of(found) for found in run["cells"]] != plan]
    return _none(
        "cells", wrong, len(runs), f"scenarios were not tried in all of their {len(plan)} cells"
    )


def due(cell: ScenarioTrial, workers: int) -> list[int]:
    """Expected number of contributors to each update of the mini-batch that is part of the final
    state.
    """
    if cell.strategy in EXACT:
        return [workers]
    head = [workers] if cell.percent else []
    return (
        head
        + {"half_updated_rollback": [workers], "lossy_forward": [cell.survivors], "skip": []}[
            cell.strategy
        ]
    )


Test = Callable[[MiniBatchCounts, ScenarioRuns, Run], Any]


@dataclass(frozen=True)
class CellRule:
    """A gate over the cells that pass `tried`: none may be `wrong`. Without such a cell there is no
    gate, unless it is there `always` or one of the cells is `needed`: then it fails.
    """

    name: str
    tried: Test
    wrong: Test
    what: str
    always: bool = False
    needed: Callable[[Run], Any] = lambda found: False
    reason: Callable[[Run], str] = lambda found: ""

    def __call__(self, counts: MiniBatchCounts) -> Gate | None:
        cells = list(counts.every())
        tried = [(case, found) for case, found in cells if self.tried(counts, case, found)]
        wrong = [
            _named(case, found) + self.reason(found)
            for case, found in tried
            if self.wrong(counts, case, found)
        ]
        if tried or self.always or any(self.needed(found) for _, found in cells):
            return _none(self.name, wrong, len(tried), self.what)
        return None


def _stays(counts: MiniBatchCounts, found: Run, *, masked: bool) -> bool:
    """Whether some layers must not move in this cell, and the update was masked there or not."""
    backward = found["percent"] and found["strategy"] != "lossy_forward"
    return backward and corrections(counts.config, found["flipped"]).mask is masked


def _struck_forward(found: Run) -> bool:
    return found["strategy"] == "half_updated_rollback" and not found["percent"]


def _in_forward(counts: MiniBatchCounts, case: ScenarioRuns, found: Run, *, rolled: bool) -> bool:
    """Whether the failure came in the forward pass, and buffers were rolled back or absent."""
    buffers = corrections(counts.config, found["flipped"]).buffers or case.application == "nt3"
    return _struck_forward(found) and buffers is rolled


RULES = (
    CellRule(
        "casualties",
        lambda counts, case, found: True,
        lambda counts, case, found: (
            found["contributed"] != due(cell_of(found), counts.config.replicas)
        ),
        "cells had other contributors than planned",
        always=True,
    ),
    CellRule(
        "masked",
        lambda counts, case, found: _stays(counts, found, masked=True),
        lambda counts, case, found: not found["kept"],
        "masked updates moved a bit of what they were to leave alone",
    ),
    # Under momentum or weight decay; otherwise the masking gate could not fail.
    CellRule(
        "zero gradients",
        lambda counts, case, found: (
            _stays(counts, found, masked=False)
            and (case.size.optimizer.momentum or case.size.optimizer.weight_decay)
        ),
        lambda counts, case, found: found["kept"],
        "updates with gradients of zero moved nothing",
    ),
    CellRule(
        "exact",
        lambda counts, case, found: found["strategy"] in EXACT,
        lambda counts, case, found: not case.exact(found),
        "exact recoveries ended in another state than Baseline",
    ),
    # Half-updated states must not compare as exact; otherwise the comparison is blind.
    CellRule(
        "inexact",
        lambda counts, case, found: found["strategy"] not in EXACT and found["percent"],
        lambda counts, case, found: case.exact(found),
        "recoveries from a half-updated state passed for exact",
    ),
    # A failure in the forward pass is exact only with buffers rolled back or absent, contrary to
    # the published study.
    CellRule(
        "forward",
        lambda counts, case, found: _in_forward(counts, case, found, rolled=True),
        lambda counts, case, found: not case.exact(found),
        "failures in forward ended in another state than Baseline",
        needed=_struck_forward,
    ),
    CellRule(
        "forward is not read-only",
        lambda counts, case, found: _in_forward(counts, case, found, rolled=False),
        lambda counts, case, found: case.exact(found),
        "failures in forward passed for exact although BatchNorm had moved",
    ),
    CellRule(
        "ledger",
        lambda counts, case, found: True,
        lambda counts, case, found: found["unaccounted"],
        "cells have samples that are neither applied once nor on record",
        always=True,
        reason=lambda found: f": {found['unaccounted'][0]}",
    ),
    CellRule(
        "ledger, planted",
        lambda counts, case, found: found["lost"] or found["repeated"],
        lambda counts, case, found: found["blind"],
        "missing lost-samples records went unnoticed",
    ),
)


def _long(counts: MiniBatchCounts) -> Iterator[Gate]:
    arms = [
        (f"{record.key}: {arm['strategy']} {arm['often']}", arm)
        for record in counts.longs
        for arm in record.found["arms"]
    ]
    if not arms:
        return
    wrong = [f"{name}: {arm['unaccounted'][0]}" for name, arm in arms if arm["unaccounted"]]
    what = "runs have samples that are neither applied once nor on record"
    yield _none("long run, ledger", wrong, len(arms), what)
    exact = [(name, arm) for name, arm in arms if arm["strategy"] in EXACT]
    if exact:
        wrong = [name for name, arm in exact if not arm["same"]]
        what = "runs with exact recoveries ended in another state than the run without a failure"
        yield _none("long run, exact", wrong, len(exact), what)


def _dormant(counts: MiniBatchCounts) -> Iterator[Gate]:
    if counts.dormant is None:
        return
    counted, rounds = counts.dormant["counted"], counts.dormant["rounds"]
    same = bool(counts.dormant["same"])
    trained = f"in {rounds} mini-batches of training with a dormant worker all weights"
    said = (
        f"{trained} {'had' if same else 'did not all have'} the bits of a training in groups of the"
        " active ones alone"
    )
    yield Gate("dormant", same, said)
    planned = [RANKS, RANKS - 1, RANKS - 1, RANKS]
    yield Gate(
        "dormant, planned",
        counted == planned,
        f"{counted} of {planned} contributed to the averages of a mini-batch",
    )
    if losses := counts.dormant.get("losses"):  # earlier studies averaged made-up gradients
        yield Gate(
            "dormant, trained",
            losses[-1] < losses[0],
            f"the loss went from {losses[0]:.4g} to {losses[-1]:.4g} with a dormant worker",
        )


_GUESS = 1.2  # accuracy as a multiple of chance; below it the model counts as untrained


def findings(config: MiniBatchFailure, records: Sequence[Record]) -> Findings:
    counts = MiniBatchCounts(config, records)
    found = (claims, *tables.ORDER)
    return Findings(
        tables=tuple(made for make in found if (made := make(counts)).rows),
        figures=figures(counts),
        gates=gates(counts),
        notes=tuple(_notes(counts)),
    )


def _notes(counts: MiniBatchCounts) -> Iterator[str]:
    config = counts.config
    if config.scale == "smoke":
        yield (
            "The scale smoke only shows that everything runs: its accuracies mean nothing, and"
            " ResNet-50 is a small network with BatchNorm."
        )
    if config.data == "made" and counts.applications:
        samples = "; ".join(map(counts.samples, counts.applications))
        yield (
            f"Made-up data ({samples}): the differences between strategies can be compared, the"
            " accuracies not with the published ones."
        )
    yield (
        "The published study: the mini-batch moves the accuracy by 2.6 to 8.5%, immediate rollback"
        " ends up to 5.5% away from Baseline, lossy forward nearer in every case; rollback takes"
        " almost twice a mini-batch, a restart up to 400 times. One run each, no intervals."
    )
    for application in counts.applications:
        yield from _compared(counts, application)
    if guessing := [
        case.label
        for case in counts.cases
        if summary(case.baselines("accuracy")).mean < _GUESS / case.size.classes
    ]:
        yield f"Still guessing there, so that its accuracies say nothing: {'; '.join(guessing)}."
    for parts in measured(counts.records):
        typed = " ".join(f"study.{key}={value}" for key, value in parts.typed().items())
        yield (
            f"{counts.named(parts.application)}: at scale, by the model: ecrl study"
            f" study=recovery-overhead study.source=typed {typed}"
        )
    if counts.dormant is not None:
        seconds = {
            name: summary(values).mean
            for name, values in counts.dormant["seconds"].items()
            if values
        }
        yield (
            f"A rank left and came back within a mini-batch in {1e3 * seconds['rebuild']:.3g} ms by"
            " groups made anew; as a dormant worker without a call, the mini-batch taking"
            f" {1e3 * seconds['dormant']:.3g} ms instead of {1e3 * seconds['all']:.3g} ms. The bits"
            " are the same."
        )


def _compared(counts: MiniBatchCounts, application: str) -> Iterator[str]:
    """Over all scenarios: each strategy's distance from Baseline, and its time relative to a
    restart.
    """
    far: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    once = [second for case in counts.of(application) for second in case.baselines("seconds")]
    for run, found in (each for each in counts.tried(application) if each[1]["percent"]):
        far.setdefault(found["strategy"], []).append(
            abs(found["accuracy"] - run["baseline"]["accuracy"])
        )
        seconds.setdefault(found["strategy"], []).append(found["seconds"])
    told = ", ".join(
        f"{name.replace('_', ' ')} {100 * summary(values).mean:.2f}" for name, values in far.items()
    )
    yield (
        f"{counts.named(application)}: mean distance to Baseline after the failed mini-batch, in"
        f" points of accuracy: {told}."
    )
    times = {name: ratio_of_means(values, once) for name, values in seconds.items() if once}
    told = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in times.items())
    yield (
        f"{counts.named(application)}: times as long as the mini-batch without a failure, over all"
        f" scenarios (of a restart the replay): {told}."
    )
