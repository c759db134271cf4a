"""`io-errors`: what it counts, that it sees planted bugs, that each gate can fail, and its arms on
the real kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.studies import IoErrors
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.storage.fault_injecting_fs import Fault
from ecrl_cli.studies.frame.runner import run_study
from ecrl_cli.studies.frame.study import PreparedStudy, StudyContext
from ecrl_cli.studies.io_errors.cases import run_cases
from ecrl_cli.studies.io_errors.operations import NEWEST, NEXT, StoreSetup
from ecrl_cli.studies.io_errors.study import STUDY, syncs_of_a_save
from ecrl_cli.studies.mutants.careless_fs import MUTANTS
from tests.studies import concluded, failing, rows_of, tried
from tests.study_records import IO_ERRORS

STRICT = StoreSetup("group", "atomic_dirsync")


@contextmanager
def study(folder: Path, **keys: Any) -> Iterator[PreparedStudy]:
    made = STUDY.open(StudyContext(StudyConfig(IoErrors(**keys)), folder))
    yield made
    made.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("layout", "mode", "syncs"),
    [("group", "atomic_dirsync", 8), ("group", "unsafe", 0), ("single", "atomic_dirsync", 3)],
)
def test_every_sync_of_a_save_is_refused_once_and_none_is_acknowledged(
    layout: str, mode: str, syncs: int
) -> None:
    counts = run_cases("save", StoreSetup(layout, mode), Fault("EIO", 1, scope="sync"), {})
    assert (counts.cases, counts.errors, counts.successes, counts.violations) == (
        syncs,
        syncs,
        0,
        0,
    )
    assert syncs_of_a_save(StoreSetup(layout, mode)) == syncs


def test_short_writes_are_taken_up_again_and_the_save_succeeds() -> None:
    counts = run_cases("save", STRICT, Fault("short write", 1, sticky=True, scope="write"), {})
    # two writes to each of the six files
    assert (counts.cases, counts.successes, counts.errors, counts.violations) == (12, 12, 0, 0)


@pytest.mark.parametrize("operation", ["settle", "claim", "set aside"])
def test_an_operation_that_is_refused_somewhere_breaks_no_promise(operation: str) -> None:
    counts = run_cases(operation, STRICT, Fault("ENOSPC", 1, sticky=True, scope="change"), {})
    assert counts.cases >= 1 and counts.violations == 0, counts.first
    assert counts.cases == counts.errors + counts.successes


def test_all_planted_bugs_are_found(tmp_path: Path) -> None:
    with study(tmp_path, arms=("calls",)) as made:
        found = tried(made, [trial for trial in made.plan() if trial.facts["arm"] == "planted"])
    assert [record.facts["mutant"] for record in found] == list(MUTANTS)
    assert {
        record.facts["mutant"]: record.found["first"]
        for record in found
        if not record.found["found"]
    } == {}


def test_what_is_not_planted_is_not_found() -> None:
    """The same cases without a bug: else a study that always shouts would find everything."""
    for scope, kind in (("write", "ENOSPC"), ("close", "EIO"), ("write", "EINTR")):
        counts = run_cases(
            "save", STRICT, Fault(kind, 1, sticky=True, scope=scope), {}, lambda fs: fs
        )
        assert counts.cases and counts.violations == 0, counts.first


def test_a_trial_runs_again_by_its_key(tmp_path: Path) -> None:
    with study(tmp_path, arms=("calls",), operations=("claim",)) as made:
        plan = {trial.key: trial for trial in made.plan()}
        trial = plan["calls/claim/single/atomic_dirsync/any/EROFS/once"]
        assert made.run(trial) == made.run(trial)


def test_a_violation_is_shown_with_the_key_that_runs_it_again() -> None:
    broken = IO_ERRORS.changed("calls/x", {"violations": 2, "first": "call 7 (fsync): lost_ack"})
    (row,) = rows_of(concluded(STUDY, IoErrors(), broken), "violations")
    assert row == {"trial": "calls/x", "count": 2, "first": "call 7 (fsync): lost_ack"}


@pytest.mark.needs("private mounts")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    with study(tmp_path, arms=("space", "inodes"), spaces=24, planted=False) as made:
        plan = [
            trial
            for trial in made.plan()
            if trial.facts["arm"] == "space" or trial.facts["left"] in (1, 9)
        ]
        found = tried(made, plan)
    assert [record.found["first"] for record in found if record.found["violations"]] == []
    assert {record.found["errno"] for record in found} == {0, 28}
    calls, bug, *_ = IO_ERRORS.good
    assert failing(concluded(STUDY, IoErrors(), [*found, bug, calls])) == set()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("at", "outcome"), [(2, "previous"), (4, "new")])
def test_a_sync_that_the_kernel_refuses(tmp_path: Path, at: int, outcome: str) -> None:
    with study(
        tmp_path, arms=("sync",), layouts=("single",), modes=("atomic_dirsync",), planted=False
    ) as made:
        (trial,) = [
            trial
            for trial in made.plan()
            if trial.facts["at"] == at and trial.facts["persistence"] == "once"
        ]
        (record,) = tried(made, [trial])
    assert record.found["violations"] == 0, record.found["first"]
    assert (record.found["outcome"], record.found["refused"], record.found["retried"]) == (
        outcome,
        outcome == "previous",
        0,
    )
    assert record.found["acknowledged"] == (NEXT if outcome == "new" else NEWEST)


def test_an_arm_that_cannot_run_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecrl_cli.linux.prerequisites.program", lambda name: "")
    with study(tmp_path, arms=("sync", "calls"), operations=("claim",)) as made:
        assert [(skip.arm, skip.reason) for skip in made.skips()] == [
            ("sync", "strace is not installed (apt-get install strace)")
        ]
        assert not [trial for trial in made.plan() if trial.facts["arm"] == "sync"]


def test_a_small_study_from_plan_to_result(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "arms": ("calls",),
        "operations": ("set aside",),
        "layouts": ("single",),
        "modes": ("unsafe",),
    }
    assert (
        run_study(
            StudyConfig(IoErrors(**keys, planted=False), workers=1),
            tmp_path / "out",
            lambda line: None,
        )
        == 1
    )
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["complete"] and [
        gate["name"] for gate in result["gates"] if not gate["passed"]
    ] == ["cases"]
    assert {table["name"] for table in result["tables"]} == {"calls", "cells"}
