"""What the tests of studies share: run trials, conclude from records, name the gates that fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import (
    OpenStudy,
    PreparedStudy,
    Record,
    Study,
    StudyContext,
    Trial,
    TrialResults,
)


def opened(study: Study, keys: Any, scratch: Path, seed: int = 1337) -> OpenStudy:
    return study.open(StudyContext(StudyConfig(keys, seed), scratch))


def tried(
    study: PreparedStudy,
    trials: Iterable[Trial],
    planting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Record]:
    """The records of `trials`, each run under a planted bug or none."""
    records = []
    for trial in trials:
        with planting():
            records.append(Record(trial.key, trial.facts, study.run(trial), 0.0))
    return records


def results(study: Study, keys: Any, records: Sequence[Record]) -> TrialResults:
    return TrialResults(StudyContext(StudyConfig(keys), Path()), records, study.fact)


def concluded(study: Study, keys: Any, records: Sequence[Record]) -> Findings:
    """The findings; every value of their tables has a column, and all of it is JSON."""
    findings = study.conclude(results(study, keys, records))
    for table in findings.tables:
        columns = {column.key for column in table.columns}
        assert {key for row in table.rows for key in row} <= columns, table.name
        json.dumps(table.rows, allow_nan=False)
    return findings


def failed(findings: Findings) -> dict[str, str]:
    """The gates that fail, with their messages."""
    return {gate.name: gate.message for gate in findings.gates if not gate.passed}


def failing(findings: Findings) -> set[str]:
    """The names of the gates that fail."""
    return set(failed(findings))


def rows_of(findings: Findings, name: str) -> list[dict[str, Any]]:
    return [dict(row) for table in findings.tables if table.name == name for row in table.rows]
