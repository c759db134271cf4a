"""The study's findings: tables, published figures 2, 3 and 4, notes, and gates that must hold
whatever the accuracies are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.metrics.statistics import ratio_of_means, summary
from ecrl_cli.replication.mini_batch import tables
from ecrl_cli.replication.mini_batch.cells import ScenarioTrial, corrections
from ecrl_cli.replication.mini_batch.claims import claims
from ecrl_cli.replication.mini_batch.counts import (
    APPLICATION,
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
                series = _series(
                    f"held-out {name}", [spread(column, "y") for column in columns], "y", at
                )
                title = (
                    f"{counts.named(application)} without failures: held-out {name}, mean of"
                    f" {len(evolutions)} runs"
                )
                found.append(
                    Figure(
                        f"evolution-{application}-{name}",
                        title,
                        "lines",
                        "mini-batch",
                        name,
                        (series,),
                        marks=marks,
                    )
                )
    return found


def _replay(counts: MiniBatchCounts) -> Figure:
    """Published figure 2c: the replay."""
    rows = tables.replay(counts).rows
    names = {"measured": "replay", "predicted": "replay, predicted", "epoch": "whole epoch"}
    series = (
        tuple(Series(text, tuple(row[key] for row in rows)) for key, text in names.items())
        if rows
        else ()
    )
    categories = tuple(f"{row['application']}, mini-batch {row['mini_batch']:,}" for row in rows)
    return Figure(
        "replay",
        "Replay after a restart from the epoch's checkpoint",
        "bars",
        "scenario",
        "seconds",
        series,
        categories=categories,
    )


def _scenarios(counts: MiniBatchCounts) -> list[Figure]:
    """Published figures 3 and 4: accuracy and slowdown of every state, per scenario."""
    found = []
    rows = tables.accuracy(counts).rows
    for case in counts.cases:
        mine = [
            row
            for row in rows
            if (row["application"], row["published"])
            == (case.about[APPLICATION.key], case.published)
        ]
        name, title = f"{case.application}-{case.published}", case.label
        found.append(
            _bars(
                f"accuracy-{name}",
                f"{title}: held-out accuracy after it",
                "held-out accuracy",
                mine,
                "accuracy",
            )
        )
        timed = [row for row in mine if row.get("slowdown") is not None]
        found.append(
            _bars(
                f"slowdown-{name}",
                f"{title}: duration by that without the failure",
                "times as long",
                timed,
                "slowdown",
            )
        )
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
        found.append(
            _bars(
                f"end-{application}",
                f"{name}: final held-out accuracy",
                "held-out accuracy",
                mine,
                "accuracy",
            )
        )
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
    return Figure(name, title, "bars", "state", y_label, series, categories=categories)


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
    found = [
        _planned(counts),
        _casualties(counts),
        _masked(counts),
        _moved(counts),
        _exact(counts),
        _inexact(counts),
        *_forward(counts),
    ]
    found += [*_lost_samples(counts), *_long(counts), *_dormant(counts)]
    return tuple(gate for gate in found if gate is not None)


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


def _casualties(counts: MiniBatchCounts) -> Gate:
    every = list(counts.every())
    wrong = [
        _named(case, found)
        for case, found in every
        if found["contributed"] != due(cell_of(found), counts.config.replicas)
    ]
    return _none("casualties", wrong, len(every), "cells had other contributors than planned")


def _masking(counts: MiniBatchCounts) -> Iterator[tuple[ScenarioRuns, Run, bool]]:
    """The cells in which some layers must not move, and whether the update was masked there."""
    for case, found in counts.every():
        if found["percent"] and found["strategy"] != "lossy_forward":
            yield case, found, corrections(counts.config, found["flipped"]).mask


def _masked(counts: MiniBatchCounts) -> Gate | None:
    tried = [(case, found) for case, found, masked in _masking(counts) if masked]
    wrong = [_named(case, found) for case, found in tried if not found["kept"]]
    return (
        _none(
            "masked",
            wrong,
            len(tried),
            "masked updates moved a bit of what they were to leave alone",
        )
        if tried
        else None
    )


def _moved(counts: MiniBatchCounts) -> Gate | None:
    """Updates with zero gradients must move the state under momentum or weight decay; otherwise the
    masking gate could not fail.
    """
    unmasked = [(case, found) for case, found, masked in _masking(counts) if not masked]
    tried = [
        each
        for each in unmasked
        if each[0].size.optimizer.momentum or each[0].size.optimizer.weight_decay
    ]
    wrong = [_named(case, found) for case, found in tried if found["kept"]]
    return (
        _none("zero gradients", wrong, len(tried), "updates with gradients of zero moved nothing")
        if tried
        else None
    )


def _exact(counts: MiniBatchCounts) -> Gate | None:
    tried = [(case, found) for case, found in counts.every() if found["strategy"] in EXACT]
    wrong = [_named(case, found) for case, found in tried if not case.exact(found)]
    return (
        _none("exact", wrong, len(tried), "exact recoveries ended in another state than Baseline")
        if tried
        else None
    )


def _inexact(counts: MiniBatchCounts) -> Gate | None:
    """Half-updated states must not compare as exact; otherwise the comparison is blind."""
    tried = [
        (case, found)
        for case, found in counts.every()
        if found["strategy"] not in EXACT and found["percent"]
    ]
    wrong = [_named(case, found) for case, found in tried if case.exact(found)]
    return (
        _none("inexact", wrong, len(tried), "recoveries from a half-updated state passed for exact")
        if tried
        else None
    )


def _forward(counts: MiniBatchCounts) -> Iterator[Gate]:
    """A failure in the forward pass is exact only with buffers rolled back or absent, contrary to
    the published study.
    """
    tried = [
        each
        for each in counts.every()
        if each[1]["strategy"] == "half_updated_rollback" and not each[1]["percent"]
    ]
    if not tried:
        return
    rolled = [
        (case, found)
        for case, found in tried
        if corrections(counts.config, found["flipped"]).buffers or case.application == "nt3"
    ]
    moved = [each for each in tried if each not in rolled]
    wrong = [_named(case, found) for case, found in rolled if not case.exact(found)]
    yield _none(
        "forward", wrong, len(rolled), "failures in forward ended in another state than Baseline"
    )
    if moved:
        wrong = [_named(case, found) for case, found in moved if case.exact(found)]
        yield _none(
            "forward is not read-only",
            wrong,
            len(moved),
            "failures in forward passed for exact although BatchNorm had moved",
        )


def _lost_samples(counts: MiniBatchCounts) -> Iterator[Gate]:
    every = list(counts.every())
    wrong = [
        f"{_named(case, found)}: {found['unaccounted'][0]}"
        for case, found in every
        if found["unaccounted"]
    ]
    yield _none(
        "ledger",
        wrong,
        len(every),
        "cells have samples that are neither applied once nor on record",
    )
    needed = [(case, found) for case, found in every if found["lost"] or found["repeated"]]
    if needed:
        blind = [_named(case, found) for case, found in needed if found["blind"]]
        yield _none(
            "ledger, planted", blind, len(needed), "missing lost-samples records went unnoticed"
        )


def _long(counts: MiniBatchCounts) -> Iterator[Gate]:
    arms = [(record, arm) for record in counts.longs for arm in record.found["arms"]]
    if not arms:
        return
    names = [f"{record.key}: {arm['strategy']} {arm['often']}" for record, arm in arms]
    wrong = [
        f"{name}: {arm['unaccounted'][0]}"
        for name, (_, arm) in zip(names, arms, strict=True)
        if arm["unaccounted"]
    ]
    yield _none(
        "long run, ledger",
        wrong,
        len(arms),
        "runs have samples that are neither applied once nor on record",
    )
    exact = [
        (name, arm) for name, (_, arm) in zip(names, arms, strict=True) if arm["strategy"] in EXACT
    ]
    if exact:
        wrong = [name for name, arm in exact if not arm["same"]]
        yield _none(
            "long run, exact",
            wrong,
            len(exact),
            "runs with exact recoveries ended in another state than the run without a failure",
        )


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
    found = (
        *(
            claims(counts),
            tables.accuracy(counts),
            tables.scenarios(counts),
            tables.properties(counts),
            tables.replay(counts),
            tables.corrections(counts),
        ),
        *(tables.model(counts), tables.outliers(counts)),
        *(tables.long_run(counts), tables.dormant(counts), tables.lost_samples(counts)),
    )
    return Findings(
        tables=tuple(table for table in found if table.rows),
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
