"""Runs of a sweep side by side: how many at a time, how each ended, what a stop signal does, and
what the records say of it.
"""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest

from ecrl_cli.errors import DEFECT, RunDirectoryError
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.runs.run import RunResult
from ecrl_cli.runs.side_by_side import RunProcess, sweep_side_by_side
from ecrl_cli.runs.sweep import SweepProgress, todo
from tests.conftest import Ecrl
from tests.in_process import ecrl_in_process
from tests.unit.test_runs_sweep import GOOD, plans, statuses

STOPPED = RunResult(143, "stopped", "stopped by SIGTERM")


class Fake:
    """A run that ends as soon as it is looked at, or (`stops_only`) when it is told to stop."""

    def __init__(self, result: RunResult = GOOD, stops_only: bool = False) -> None:
        self.given = result
        self.signals: list[int] = []
        self._read, self._write = os.pipe()
        if not stops_only:
            os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def send(self, number: int) -> None:
        self.signals.append(number)
        os.close(self._write)

    def result(self) -> RunResult:
        os.close(self._read)
        return self.given


def swept(
    layout: SweepLayout, made: dict[str, Fake], at_once: int = 2
) -> tuple[dict[str, RunResult], list[str]]:
    """The results, and what happened in order: `+a` began, `-a` ended."""
    seen: list[str] = []

    class Progress(SweepProgress):
        def ended(self, name: str, status: str) -> None:
            seen.append(f"-{name}")

    do = todo(plans(layout, *made), {})

    def begin(name: str) -> Fake:
        seen.append(f"+{name}")
        return made[name]

    return sweep_side_by_side(layout, do, begin, Progress(do, lambda line: None), at_once), seen  # type: ignore[arg-type]


def test_so_many_are_at_work_at_once_and_no_more(tmp_path: Path) -> None:
    layout = SweepLayout(tmp_path / "all")
    results, seen = swept(layout, {name: Fake() for name in "abcde"})
    assert seen[:2] == ["+a", "+b"] and sorted(seen) == sorted(
        sign + name for name in "abcde" for sign in "+-"
    )
    working = [sum(1 if step[0] == "+" else -1 for step in seen[: n + 1]) for n in range(len(seen))]
    assert max(working) == 2
    assert list(results) == list("abcde") and statuses(layout) == dict.fromkeys(
        "abcde", "completed"
    )


def test_a_run_that_fails_or_cannot_begin_does_not_end_the_others(tmp_path: Path) -> None:
    layout = SweepLayout(tmp_path / "all")
    do = todo(plans(layout, "a", "b", "c"), {})

    def begin(name: str) -> Fake:
        if name == "b":
            raise RunDirectoryError("run_dir", "is taken", "choose another")
        return Fake(RunResult(1, "failed", "E-x") if name == "a" else GOOD)

    said: list[str] = []
    results = sweep_side_by_side(layout, do, begin, SweepProgress(do, said.append), 2)  # type: ignore[arg-type, return-value]
    assert {name: result.exit_code for name, result in results.items()} == {
        "a": 1,
        "b": RunDirectoryError.exit_code,
        "c": 0,
    }
    assert statuses(layout) == {"a": "failed", "b": "failed", "c": "completed"}
    assert any("is taken" in line for line in said) and said[-1] == "sweep: 1 of 3 done, 2 failed"


def test_a_process_that_ends_without_a_result_is_a_defect_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecrl_cli.runs.side_by_side.MODULE", "no_such_module")
    (plan,) = plans(SweepLayout(tmp_path), "a").values()
    result = RunProcess(plan, 2, tmp_path / "a.log").result()
    assert (result.exit_code, result.status) == (
        DEFECT,
        "failed",
    ) and "ended with 1 and without a result" in result.reason
    assert "no_such_module" in (tmp_path / "a.log").read_text()


def test_a_stop_signal_reaches_what_is_at_work_and_nothing_begins_after_it(tmp_path: Path) -> None:
    layout = SweepLayout(tmp_path / "all")
    made = {name: Fake(STOPPED, stops_only=True) for name in "abc"}
    do = todo(plans(layout, *made), {})

    def begin(name: str) -> Fake:
        if name == "b":
            os.kill(os.getpid(), signal.SIGTERM)
        return made[name]

    results = sweep_side_by_side(layout, do, begin, SweepProgress(do, lambda line: None), 2)  # type: ignore[arg-type, return-value]
    assert {name: fake.signals for name, fake in made.items()} == {
        "a": [signal.SIGTERM],
        "b": [signal.SIGTERM],
        "c": [],
    }
    assert results == {"a": STOPPED, "b": STOPPED}
    assert statuses(layout) == {"a": "pending", "b": "pending", "c": "pending"}


def test_the_time_left_is_shared_by_the_runs_at_once(tmp_path: Path) -> None:
    now = [0.0]
    do = todo(plans(SweepLayout(tmp_path), "a", "b", "c"), {})
    progress = SweepProgress(do, lambda line: None, lambda: now[0], runs_at_once=2)
    for name in "ab":
        progress.began(name)
    now[0] = 10.0
    progress.ended("a", "completed")
    # b has run for as long as a took, c not begun: 20 - 10 s of work, by two
    assert progress.seconds_left() == pytest.approx(5.0)


def test_a_sweep_side_by_side_for_real(ecrl: Ecrl, tmp_path: Path) -> None:
    run = [
        "dataset=digits",
        "model=small_cnn",
        "model.width=8",
        "global_batch=48",
        "target_steps=8",
        "checkpoint.every=4",
        "device=cpu",
    ]
    arms = ["-m", *run, "supervision=zygote", "failure=none", "seed=1,2", "hydra.launcher.n_jobs=2"]
    began = ecrl("train", *arms, "run_dir=sweep")
    assert (
        "2 runs at once: they disturb each other, so the report compares no times" in began.stderr
    )
    sweep = tmp_path / "sweep"
    with (sweep / "manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["completed"] * 2
    for row in rows:
        layout = RunLayout(sweep / row["run"])
        assert json.loads(layout.environment.read_text())["runs_at_once"] == 2
        assert "target" in (sweep / ".hydra" / "jobs" / f"{Path(row['run']).name}.log").read_text()
    assert (
        ecrl_in_process(tmp_path, "verify", "sweep").stdout.count(
            ": valid (8 promises kept, 5 not checked)"
        )
        == 2
    )
    reported = ecrl_in_process(tmp_path, "report", "sweep", check=1)
    assert "gate failed: digits-small_cnn: alone" in reported.stdout + reported.stderr
    # alone: the same runs, and finished
    again = ecrl_in_process(tmp_path, "train", *arms[:-1], "run_dir=sweep")
    assert "at once" not in again.stderr
