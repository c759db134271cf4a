"""Published figures 2, 3 and 4, and the end of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecrl_cli.replication.mini_batch import tables, tables_run
from ecrl_cli.replication.mini_batch.counts import APPLICATIONS, Counts, spread
from ecrl_cli.studies.frame.result import Figure, Series


def figures(tally: Counts) -> tuple[Figure, ...]:
    found = [*_evolutions(tally), _replay(tally), *_scenarios(tally), *_ends(tally)]
    return tuple(figure for figure in found if figure.series)


def _evolutions(tally: Counts) -> list[Figure]:
    """Published figures 2a and 2b: held-out accuracy and loss of the runs without failures, with a line at each scenario."""
    found = []
    for application in tally.applications:
        evolutions = [record.found["evolution"] for record in tally.runs_of(application)]
        at = tuple(float(point[0]) for point in evolutions[0])
        marks = tuple(float(case.mini_batch) for case in tally.cases if case.application == application)
        for place, name in ((1, "accuracy"), (2, "loss")):
            columns = [[run[index][place] for run in evolutions] for index in range(len(at))]
            if all(value is not None for column in columns for value in column):
                series = _series(f"held-out {name}", [spread(column, "y") for column in columns], "y", at)
                title = f"{APPLICATIONS[application]} without failures: held-out {name}, mean of {len(evolutions)} runs"
                found.append(Figure(f"evolution-{application}-{name}", title, "lines", "mini-batch", name, (series,), marks=marks))
    return found


def _replay(tally: Counts) -> Figure:
    """Published figure 2c: the replay."""
    rows = tables_run.replay(tally).rows
    names = {"measured": "replay", "predicted": "replay, predicted", "epoch": "whole epoch"}
    series = tuple(Series(text, tuple(row[key] for row in rows)) for key, text in names.items()) if rows else ()
    categories = tuple(f"{row['application']}, {row['published']:,}" for row in rows)
    return Figure("replay", "Replay after a restart from the epoch's checkpoint", "bars", "scenario", "seconds", series, categories=categories)


def _scenarios(tally: Counts) -> list[Figure]:
    """Published figures 3 and 4: accuracy and slowdown of every state, per scenario."""
    found = []
    rows = tables.accuracy(tally).rows
    for case in tally.cases:
        mine = [row for row in rows if (row["application"], row["published"]) == (APPLICATIONS[case.application], case.published)]
        name, title = f"{case.application}-{case.published}", f"{case.label} (standing in: {case.mini_batch:,})"
        found.append(_bars(f"accuracy-{name}", f"{title}: held-out accuracy after it", "held-out accuracy", mine, "accuracy"))
        timed = [row for row in mine if row.get("slowdown") is not None and not row["state"].startswith("Checkpoint")]
        found.append(_bars(f"slowdown-{name}", f"{title}: duration by that without the failure", "times as long", timed, "slowdown"))
    return found


def _ends(tally: Counts) -> list[Figure]:
    rows = tables_run.long_run(tally).rows
    found = []
    for application, name in APPLICATIONS.items():
        mine = [row | {"state": f"{row['state']}, {row['failures']} failures"} for row in rows if row["application"] == name and row["n"] > 1]
        found.append(_bars(f"end-{application}", f"{name}: final held-out accuracy", "held-out accuracy", mine, "accuracy"))
    return found


def _bars(name: str, title: str, y_label: str, rows: Sequence[dict[str, Any]], key: str) -> Figure:
    series = (_series(y_label, rows, key),) if rows else ()
    return Figure(name, title, "bars", "state", y_label, series, categories=tuple(row["state"] for row in rows))


def _series(text: str, rows: Sequence[dict[str, Any]], key: str, x: tuple[float, ...] = ()) -> Series:
    """A series; rows without an interval get one of length zero, and there are no intervals where no row has one."""
    y = tuple(row[key] for row in rows)
    if all(row.get(f"{key}_low") is None for row in rows):
        return Series(text, y, x)
    low, high = (tuple(row[key] if row.get(f"{key}_{end}") is None else row[f"{key}_{end}"] for row in rows) for end in ("low", "high"))
    return Series(text, y, x, low, high)
