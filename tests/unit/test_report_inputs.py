"""Which runs a report is about, and what it says when there is nothing to report on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.errors import ConfigError, EvidenceMissing, RunDirectoryError
from ecrl_cli.report.build import report
from ecrl_cli.report.model import run_record
from ecrl_cli.report.model.inputs import destination, run_inputs
from tests.unit.report_runs import Plan, arms, make_run, make_sweep


def test_a_sweep_is_all_its_runs_listed_or_not(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms()[:2])
    make_run(sweep / "extra", Plan("blk"))
    assert [place.name for place in run_inputs([sweep])] == ["digits-cnn-kill-clean-s1337", "digits-cnn-kill-ref-s1337", "extra"]


def test_a_run_named_twice_counts_once(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms()[:1])
    run = sweep / "digits-cnn-kill-clean-s1337"
    assert len(run_inputs([sweep, run, run])) == 1


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run")
    assert [place.name for place in run_inputs([one, two])] == ["a/run", "b/run"]


def test_a_manifest_cannot_point_outside_its_sweep(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere")
    sweep = make_sweep(tmp_path / "sweep", arms()[:1])
    with (sweep / "manifest.csv").open("a") as file:
        file.write("../elsewhere,x,s,v,1,completed,\n")
    assert [place.name for place in run_inputs([sweep])] == ["digits-cnn-kill-clean-s1337"]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match=name):
        report([tmp_path / name])
    assert not (tmp_path / "empty" / "report").exists()


def test_runs_without_any_metrics_are_missing_evidence(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms()[:2])
    for run in sweep.glob("*/supervisor.json"):
        run.unlink()
    with pytest.raises(EvidenceMissing, match="no run has metrics"):
        report([sweep])
    assert not (sweep / "report").exists()


def test_where_the_report_goes(tmp_path: Path) -> None:
    a, b = tmp_path / "s" / "a", tmp_path / "s" / "b"
    assert destination([a], None) == a / "report"
    with pytest.raises(ConfigError, match="add --out DIR"):
        destination([a, b], None)
    assert destination([a, b], tmp_path / "here") == tmp_path / "here"


@pytest.mark.parametrize("part", ["checkpoint_account", "restarts", "recording_of", "timeline_view", "load_environment"])
def test_a_part_of_a_run_that_cannot_be_worked_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def refuse(*given: object) -> None:
        raise ValueError(f"{part} gave up")

    (place,) = run_inputs([make_run(tmp_path / "run")])
    assert run_record.read_run(place).problems == ()
    monkeypatch.setattr(run_record, part, refuse)
    assert run_record.read_run(place).problems == (f"ValueError: {part} gave up",)
