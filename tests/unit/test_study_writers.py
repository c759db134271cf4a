"""Two writers, clocks and readers: what the study calls sound, what it must find, and the promises
of the store that it rests on.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.studies import Writers
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.frame.study import Record, StudyContext
from ecrl_cli.studies.writers import clocks, fencing, flaky_nfs, mutants, races
from ecrl_cli.studies.writers.store_fixture import CommittedStore
from ecrl_cli.studies.writers.study import STUDY
from tests.studies import opened

SMALL = Writers(races=2, every=60, lies=1, saves=3, planted=False)


@pytest.fixture
def history(tmp_path: Path) -> CommittedStore:
    return CommittedStore(tmp_path / "history", 1)


def study_at(folder: Path, **changes: Any) -> Any:
    return opened(STUDY, replace(SMALL, **changes), folder)


def test_a_small_study_passes_its_gates_and_plans_the_same_again(tmp_path: Path) -> None:
    study = study_at(tmp_path)
    try:
        plan = [
            trial
            for trial in study.plan()
            if trial.facts["arm"] not in ("remote", "reader") or trial.facts["at"] in (-1, 3)
        ]
        records = [Record(trial.key, trial.facts, study.run(trial), 0.0) for trial in plan]
    finally:
        study.close()
    found = study.findings(records)
    assert [gate for gate in found.gates if not gate.passed] == []
    assert {record.facts["arm"] for record in records} == {
        "race",
        "fence",
        "publish",
        "clock",
        "remote",
        "reader",
        "source",
    }
    assert all(
        row.keys() == {column.key for column in table.columns}
        for table in found.tables
        for row in table.rows
    )
    again = study_at(tmp_path)
    assert [trial.key for trial in again.plan()] == [trial.key for trial in study.plan()]
    again.close()
    assert list(tmp_path.iterdir()) == [tmp_path / "gate"]


def test_the_published_number_of_trials_is_the_default(tmp_path: Path) -> None:
    study = STUDY.open(StudyContext(StudyConfig(Writers()), tmp_path))
    arms = [trial.facts["arm"] for trial in study.plan()]
    study.close()
    assert (arms.count("race"), arms.count("clock"), arms.count("planted")) == (
        200,
        100,
        len(mutants.WRITER_MUTANTS),
    )
    assert arms.count("fence") + arms.count("publish") >= 200 and arms.count("remote") >= 100


@pytest.mark.parametrize("at", range(38, 42))
@pytest.mark.parametrize("newer", ["same", "other"])
def test_a_late_writer_removes_nothing_of_the_newer_one(
    history: CommittedStore, tmp_path: Path, newer: str, at: int
) -> None:
    """Around the renames of the single file, and in place under unsafe: both deleted the newer
    writer's checkpoint once.
    """
    for mode, place in (("atomic_dirsync", at), ("unsafe", at - 16)):
        facts = {"arm": "fence", "mode": mode, "layout": "single", "newer": newer, "at": place}
        found = fencing.run(history, 1, tmp_path / "t", facts)
        assert fencing.sound(found, facts) and not str(found["old"]).startswith("refused"), (
            facts,
            found,
        )


def test_the_same_state_published_twice_is_one_checkpoint_and_another_state_is_a_conflict(
    history: CommittedStore, tmp_path: Path
) -> None:
    calls = fencing.calls_of(history, 1, tmp_path, "atomic_dirsync", "group")
    at = calls.index("rename")
    facts = {"arm": "publish", "mode": "atomic_dirsync", "layout": "group", "at": at}
    same = fencing.run(history, 1, tmp_path / "t", facts | {"newer": "same"})
    other = fencing.run(history, 1, tmp_path / "t", facts | {"newer": "other"})
    assert (same["old"], same["newer"], same["outcome"]) == ("saved", "saved", "new")
    assert (other["old"], other["newer"], other["outcome"]) == ("conflict", "saved", "new")


@pytest.mark.parametrize(
    "bug",
    [bug for bug in mutants.WRITER_MUTANTS if bug.cell["arm"] == "reader"],
    ids=lambda bug: bug.name,
)
def test_a_planted_bug_is_found(
    history: CommittedStore, tmp_path: Path, bug: mutants.WriterMutant
) -> None:
    found = mutants.run(bug.name, history, 1, tmp_path / "t")
    assert 0 < found["shown"] <= found["tried"]


@pytest.mark.parametrize(
    ("bug", "at"),
    [
        ("no look at the fence after the build", 40),
        ("no fence at all", 20),
        ("a rename that overwrites", 41),
        ("clearing up by name", 40),
    ],
)
def test_a_planted_bug_of_the_fence_is_found(
    history: CommittedStore, tmp_path: Path, bug: str, at: int
) -> None:
    """The study sweeps over all calls of a save; here those around one of them."""
    wanted = next(one for one in mutants.WRITER_MUTANTS if one.name == bug)
    with wanted.around():
        facts = [wanted.cell | {"at": place} for place in range(at - 3, at + 3)]
        assert not all(
            fencing.sound(fencing.run(history, 1, tmp_path / "t", one, wanted.kind), one)
            for one in facts
        )


def test_races_have_one_winner_whatever_a_predecessor_left(tmp_path: Path) -> None:
    raced = races.Races(tmp_path)
    try:
        for number in range(len(races.STALE)):
            found = raced.run(number)
            assert races.sound(found), (races.stale_of(number), found)
    finally:
        raced.close()


def test_a_choice_by_mtime_is_found(tmp_path: Path) -> None:
    bug = next(one for one in mutants.WRITER_MUTANTS if one.name == "newest by mtime")
    honest = clocks.scenario(tmp_path / "honest", 1, "group", "", random.Random(1))
    assert (
        clocks.scenario(tmp_path / "planted", 1, "group", "stuck", random.Random(1), bug.kind.store)
        != honest
    )


def test_clocks_change_nothing(tmp_path: Path) -> None:
    honest = clocks.scenario(tmp_path / "honest", 1, "single", "", random.Random(1))
    assert honest["kept"][-1] == [50, 40] and honest["chosen"] == 40 and len(honest["refused"]) == 1
    for jump in ("back an hour", "to and fro"):
        assert clocks.scenario(tmp_path / jump, 1, "single", jump, random.Random(2)) == honest


@pytest.mark.parametrize("fault", ["absent", "stale"])
def test_a_recovery_that_is_told_once_that_a_file_is_not_there_looks_again(
    history: CommittedStore, tmp_path: Path, fault: str
) -> None:
    for at in (1, 2, 4, 7):
        facts = {"layout": "group", "phase": "recovery", "fault": fault, "at": at}
        assert flaky_nfs.sound(flaky_nfs.run(history, 1, tmp_path / "t", facts)), facts


def test_a_reader_is_not_misled_by_a_writer_that_retires_what_it_has_listed(
    history: CommittedStore, tmp_path: Path
) -> None:
    for at in (1, 3, 5):
        found = fencing.run_reader(
            history, 1, tmp_path / "t", {"layout": "group", "saves": 3, "at": at}
        )
        assert not found["misled"], (at, found)


@pytest.mark.parametrize(
    "text",
    [
        "newest = max(paths, key=lambda p: p.stat().st_mtime)",
        "import os\nold = os.path.getmtime('x')",
        "if monotonic() > limit:\n    pass",
        "while wall() < until:\n    pass",
        "keep = clock.time() - made > day",
        "import time\nx = time.time()",
    ],
)
def test_a_source_that_lets_a_clock_decide_is_seen(text: str) -> None:
    assert clocks.offences(text)


def test_a_source_that_records_a_time_is_not_accused() -> None:
    assert not clocks.offences(
        "document = {'time': wall(), 'at': monotonic()}\nif step > 3:\n    save()"
    )


@pytest.mark.parametrize("module", clocks.DECIDES)
def test_every_module_that_decides_is_there_and_looks_at_no_clock(module: str) -> None:
    source = clocks.source_of(module)
    assert "def " in source, "an empty module decides nothing"
    assert clocks.offences(source) == []
