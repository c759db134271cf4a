"""The study's findings: tables, figures, gates and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.metrics.statistics import ratio_of_means, summary
from ecrl_cli.replication.mini_batch import tables, tables_model, tables_run
from ecrl_cli.replication.mini_batch.components import measured
from ecrl_cli.replication.mini_batch.counts import APPLICATIONS, Counts
from ecrl_cli.replication.mini_batch.figures import figures
from ecrl_cli.replication.mini_batch.gates import gates
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import Record

_GUESS = 1.2  # accuracy as a multiple of chance; below it the model counts as untrained


def findings(config: MiniBatchFailure, records: Sequence[Record]) -> Findings:
    tally = Counts(config, records)
    found = (
        *(tables.accuracy(tally), tables.scenarios(tally), tables_run.properties(tally), tables_run.replay(tally), tables.corrections(tally)),
        *(tables_model.model(tally), tables_model.outliers(tally)),
        *(tables_run.long_run(tally), tables_run.dormant(tally), tables_run.lost_samples(tally)),
    )
    return Findings(
        tables=tuple(table for table in found if table.rows),
        figures=figures(tally),
        gates=gates(tally),
        notes=tuple(_notes(tally)),
    )


def _notes(tally: Counts) -> Iterator[str]:
    config = tally.config
    if config.scale == "smoke":
        yield "The scale smoke only shows that everything runs: its accuracies mean nothing, and ResNet-50 is a small network with BatchNorm."
    if config.data == "made":
        yield "Made-up data of the published shapes: the differences between strategies can be compared, the accuracies not with the published ones."
    yield (
        "The published study: the mini-batch moves the accuracy by 2.6 to 8.5%, immediate rollback ends up to 5.5% away from Baseline, lossy forward "
        "nearer in every case; rollback takes almost twice a mini-batch, a restart up to 400 times. One run each, no intervals."
    )
    for application in tally.applications:
        yield from _compared(tally, application)
    if guessing := [case.label for case in tally.cases if summary(case.baselines("accuracy")).mean < _GUESS / case.size.classes]:
        yield f"Still guessing there, so that its accuracies say nothing: {'; '.join(guessing)}."
    for parts in measured(tally.records):
        typed = " ".join(f"study.{key}={value}" for key, value in parts.typed().items())
        yield f"{APPLICATIONS[parts.application]}: at scale, by the model: ecrl study study=recovery-overhead study.source=typed {typed}"
    if tally.dormant is not None:
        seconds = {name: summary(values).mean for name, values in tally.dormant["seconds"].items() if values}
        yield (
            f"A rank left and came back within a mini-batch in {1e3 * seconds['rebuild']:.3g} ms by groups made anew; as a dormant worker without "
            f"a call, the mini-batch taking {1e3 * seconds['dormant']:.3g} ms instead of {1e3 * seconds['all']:.3g} ms. "
            "The bits of the averages are the same."
        )


def _compared(tally: Counts, application: str) -> Iterator[str]:
    """Over all scenarios: each strategy's distance from Baseline, and its time relative to a restart."""
    far: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {"": []}
    for case in (each for each in tally.cases if each.application == application):
        for run in case.runs:
            seconds[""].append(run["baseline"]["seconds"])
            for found in (each for each in run["cells"] if not each["flipped"] and each["percent"]):
                far.setdefault(found["strategy"], []).append(abs(found["accuracy"] - run["baseline"]["accuracy"]))
                seconds.setdefault(found["strategy"], []).append(found["seconds"])
    told = ", ".join(f"{name.replace('_', ' ')} {100 * summary(values).mean:.2f}" for name, values in far.items())
    yield f"{APPLICATIONS[application]}: mean distance to Baseline after the failed mini-batch, in points of accuracy: {told}."
    times = {name: ratio_of_means(values, seconds[""]) for name, values in seconds.items() if name and seconds[""]}
    told = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in times.items())
    yield f"{APPLICATIONS[application]}: times as long as the mini-batch without a failure, over all scenarios (of a restart the replay): {told}."
