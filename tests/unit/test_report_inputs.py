"""Which runs a report is about, and what it says when there is nothing to report on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.errors import ConfigError, EvidenceMissing, RunDirectoryError, StorageError
from ecrl_cli.report.build import report
from ecrl_cli.report.model import run_record
from ecrl_cli.report.model.inputs import destination, run_inputs
from tests.unit.report_runs import Plan, arms, compared, edit, later, make_run, make_sweep


def test_a_sweep_is_all_its_runs_listed_or_not(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms()[:2])
    make_run(sweep / "extra", Plan("blk"))
    assert [place.name for place in run_inputs([sweep])] == [
        "digits-cnn-kill-clean-s1337",
        "digits-cnn-kill-ref-s1337",
        "extra",
    ]


def test_a_run_named_twice_counts_once(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms()[:1])
    run = sweep / "digits-cnn-kill-clean-s1337"
    assert len(run_inputs([sweep, run, run])) == 1


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run")
    assert [place.name for place in run_inputs([one, two])] == ["a/run", "b/run"]


def test_runs_of_one_name_in_folders_of_one_name_are_told_apart_by_the_folders_above(
    tmp_path: Path,
) -> None:
    sweeps = [make_sweep(tmp_path / side / "nightly", arms()[:1]) for side in ("a", "b")]
    (alone,) = make_sweep(tmp_path / "c" / "nightly", arms("alone")[:1]).glob("alone-*")
    assert [place.name for place in run_inputs([*sweeps, alone])] == [
        "a/nightly/digits-cnn-kill-clean-s1337",
        "b/nightly/digits-cnn-kill-clean-s1337",
        "alone-clean-s1337",
    ]


def test_runs_that_links_of_one_folder_lead_to_are_told_apart_by_where_they_lie(
    tmp_path: Path,
) -> None:
    links = [tmp_path / name for name in ("first", "second")]
    for link, side in zip(links, "ab", strict=True):
        link.symlink_to(make_run(tmp_path / side / "run"))
    assert [place.name for place in run_inputs([*links, make_run(tmp_path / "other")])] == [
        "a/run",
        "b/run",
        "other",
    ]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_broken_run_fails_its_suite_whichever_of_two_sweeps_of_one_name_comes_first(
    order: str, tmp_path: Path
) -> None:
    for side in "ab":
        make_sweep(tmp_path / side / "nightly", arms())
    edit(
        tmp_path / "a" / "nightly" / "digits-cnn-kill-blk-s1337" / "verdict.json", status="invalid"
    )
    for supervisor in (tmp_path / "b").glob("*/*/supervisor.json"):
        later(supervisor.parent, 1e6)
    found = compared(*(tmp_path / side / "nightly" for side in order))
    failed = [gate.message for gate in found.gates["digits-cnn-kill"] if not gate.passed]
    assert found.exit_code == 1 and failed == ["a/nightly/digits-cnn-kill-blk-s1337 is invalid"]


def test_names_that_no_folder_can_have_are_passed_over(tmp_path: Path) -> None:
    """What a power loss leaves of a manifest: zeros."""
    sweep = make_sweep(tmp_path / "sweep", arms()[:1])
    with (sweep / "manifest.csv").open("a") as file:
        file.write(
            "..,x,s,v,1,completed,\n.,x,s,v,1,completed,\n\0\0\0,x,s,v,1,completed,\n\0\0\0\0"
        )
    assert [place.name for place in run_inputs([sweep])] == ["digits-cnn-kill-clean-s1337"]


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


@pytest.mark.parametrize("given", [["a", "b"], ["a", "--against", "empty"], ["a", "damaged"]])
def test_bad_input_is_refused_before_any_run_is_verified(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        make_sweep(tmp_path / name, [replace(plan, verdict=None) for plan in arms()[:1]])
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.json").write_text("{}")
    (tmp_path / "damaged" / "result.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *given]) in (2, 6)
    assert not list(tmp_path.glob("*/*/verdict.json"))


@pytest.mark.usefixtures("undrawn")
def test_a_report_that_cannot_be_written_in_full_leaves_no_older_page_beside_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms()[:2])
    pages = [report([sweep]).page, sweep / "report" / "report.json"]
    assert all(page.exists() for page in pages)

    def full(path: Path, data: bytes, durable: bool = True) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("ecrl_cli.report.build.write_whole", full)
    with pytest.raises(StorageError, match="No space left"):
        report([sweep])
    assert not any(page.exists() for page in pages)


def test_where_the_report_goes(tmp_path: Path) -> None:
    a, b = tmp_path / "s" / "a", tmp_path / "s" / "b"
    assert destination([a], None) == a / "report"
    with pytest.raises(ConfigError, match="add --out DIR"):
        destination([a, b], None)
    assert destination([a, b], tmp_path / "here") == tmp_path / "here"


@pytest.mark.parametrize(
    "part", ["checkpoint_account", "restarts", "recording_of", "timeline_view", "load_environment"]
)
def test_a_part_of_a_run_that_cannot_be_worked_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def refuse(*given: object) -> None:
        raise ValueError(f"{part} gave up")

    (place,) = run_inputs([make_run(tmp_path / "run")])
    assert run_record.read_run(place).problems == ()
    monkeypatch.setattr(run_record, part, refuse)
    assert run_record.read_run(place).problems == (f"ValueError: {part} gave up",)
