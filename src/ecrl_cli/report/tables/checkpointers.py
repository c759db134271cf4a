"""The table by which a checkpointer is chosen: what each costs in the same loop under the same
failures, and what the studies know of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ecrl_cli.config.checkpointers import CheckpointerKind
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.errors import ConfigError
from ecrl_cli.metrics.statistics import summary
from ecrl_cli.report.formats import in_brackets, listed
from ecrl_cli.report.model.arms import Arm
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.study_record import StudyResult
from ecrl_cli.report.tables.runs import ARM, SUITE
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, Value, mean_cell

# By the column: the study, its table, and the command that measures it.
_DAMAGE = ("corruption", "anchors", "ecrl study study=corruption 'study.arms=[anchors,random]'")
_POWER = ("power-loss", "real-shutdown", "ecrl study study=power-loss 'study.arms=[shutdown]'")
_OUR_LOADER = "the integrity check, in the random arm"

_COLUMNS = (
    SUITE,
    ARM,
    Column("runs", "count"),
    Column("valid", "count", "runs that `ecrl verify` calls valid"),
    Column("stall", "seconds", "of the training, per checkpoint"),
    Column(
        "save",
        "seconds",
        "from the first byte to the acknowledgement, per checkpoint, on any thread or process",
    ),
    Column("load", "seconds", "of a restart: data, model, and the state from the checkpoint"),
    Column(
        "restart",
        "seconds",
        "all of it, from the launch to the first step, with the steps done again",
    ),
    *(Column("goodput", "rate"), Column("bytes", "bytes", "on disk, per committed checkpoint")),
    Column(
        "damage noticed",
        "share",
        "of one flipped bit each that changed what was loaded: how often the loader refused; study"
        " corruption",
    ),
    Column(
        "power loss survived",
        "share",
        "of shutdowns: how often recovery had all that was acknowledged; study power-loss, all file"
        " systems",
    ),
)


def checkpointers_table(comparison: Comparison, studies: Sequence[StudyResult] = ()) -> Table:
    """A row per arm of the suites in which another checkpointer takes part; empty if none does."""
    suites = [
        suite
        for suite in comparison.suites
        if any(_checkpointer(arm.runs[0]) for arm in comparison.of(suite))
    ]
    rows = tuple(_row(arm, studies) for suite in suites for arm in comparison.of(suite))
    open_ = [
        command for name, table, command in (_DAMAGE, _POWER) if not _found(studies, name, table)
    ]
    note = (
        f"Not measured here: {listed(open_)}; name their folders beside the runs in `ecrl report`."
        if open_
        else ""
    )
    return Table(
        f"Checkpointers in the same loop under the same failures{in_brackets(comparison.scale())}",
        _COLUMNS,
        rows,
        note,
        "checkpointers.csv",
    )


def _checkpointer(run: Run) -> CheckpointerKind | None:
    try:
        return STRATEGIES.of(str(run.config.get("checkpoint", {}).get("strategy", ""))).checkpointer
    except ConfigError:  # of a package that is not installed here
        return None


def _row(arm: Arm, studies: Sequence[StudyResult]) -> Row:
    loads = [restart.seconds["load"] for restart in arm.restarts]
    totals = [restart.total_s for restart in arm.restarts]
    sizes = [
        save.bytes
        for run in arm.runs
        for save in run.saves
        if save.end == "committed" and save.bytes
    ]
    valid = sum(run.verdict.status == "valid" for run in arm.runs)
    return (
        arm.suite,
        Cell(arm.label, arm=arm.label),
        len(arm.runs),
        valid,
        mean_cell(arm.summary("stall_per_checkpoint_s"), strong=True),
        mean_cell(arm.summary("durable_write_per_checkpoint_s")),
        *(
            mean_cell(summary(found)) if found and arm.averaged else None
            for found in (loads, totals)
        ),
        mean_cell(arm.summary("goodput"), strong=True),
        round(math.fsum(sizes) / len(sizes)) if sizes else None,
        *(_damage(arm.runs[0], studies), _power(arm.runs[0], studies)),
    )


def _damage(run: Run, studies: Sequence[StudyResult]) -> Value:
    kind = _checkpointer(run)
    loader = kind.loader if kind else _OUR_LOADER
    rows = [row for row in _found(studies, *_DAMAGE[:2]) if row.get("loader") == loader]
    return _share(rows, lambda row: row["raised"], lambda row: row["flips"] - row["harmless"])


def _power(run: Run, studies: Sequence[StudyResult]) -> Value:
    kind, config = _checkpointer(run), run.config
    ours = (
        f"{config.get('write_mode', {}).get('name')}, {config.get('checkpoint', {}).get('layout')}"
    )
    rows = [
        row
        for row in _found(studies, *_POWER[:2])
        if row.get("subject") == (kind.subject if kind else ours)
    ]
    return _share(rows, lambda row: row["n"] - row["k"], lambda row: row["n"])


def _share(rows: Sequence[dict[str, Any]], kept: Any, tried: Any) -> Value:
    """The share over all rows, with the counts; `not measured` without any."""
    try:
        k, n = sum(int(kept(row)) for row in rows), sum(int(tried(row)) for row in rows)
    except (KeyError, TypeError, ValueError):  # a table of another version
        k, n = 0, 0
    return Cell(k / n, small=f"{k} of {n}") if n > 0 else Cell(None, text="not measured")


def _found(studies: Iterable[StudyResult], name: str, table: str) -> list[dict[str, Any]]:
    """The rows of that table of all studies of that name."""
    results = [study.result for study in studies if study.result and study.name == name]
    return [
        row
        for result in results
        for each in result.tables
        if each.name == table
        for row in each.rows
    ]
