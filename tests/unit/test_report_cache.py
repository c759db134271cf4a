"""A report shows what the records say: not what metrics.json, verdict.json or divergence.json were
made to say, and no run twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli import main
from ecrl_cli.cli.verify import verify
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.verdict_file import verdict_file
from ecrl_cli.report.build import report
from ecrl_cli.report.model import run_record
from ecrl_cli.report.model.comparison import Comparison, compare, without_copies
from ecrl_cli.report.model.inputs import RunInput
from ecrl_cli.report.model.run_record import Judging, Run, read_run
from ecrl_cli.storage.files import write_json
from tests.runs.builder import build_blk, build_ref, flip
from tests.runs.spoil import at_step, edit_json, edit_lines
from tests.runs.spoilt_metrics import SPOILT_METRICS

Edit = Callable[[RunLayout], Any]
FAKES = [
    name for name, (_, promise, _) in SPOILT_METRICS.items() if promise == "records-consistent"
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ref and blk, both verified."""
    folder = tmp_path_factory.mktemp("sweep")
    build_ref(folder)
    build_blk(folder)
    assert verify([str(folder / "ref"), str(folder / "blk")]) == 0
    return folder


@pytest.fixture
def sweep(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "sweep", symlinks=True))


def read(folder: Path, judge_anew: bool = False) -> Run:
    return read_run(RunInput(RunLayout(folder), folder.name, {}), judge_anew)


def beside(*folders: Path) -> Comparison:
    return compare([read(folder) for folder in folders])


def test_a_verified_run_is_shown_as_judged(sweep: Path) -> None:
    run = read(sweep / "blk")
    assert (
        run.verdict.status,
        run.verdict.why,
        run.verdict.reference,
        run.problems,
        run.reason,
    ) == ("valid", "", "ref", (), "")
    assert run.divergence is not None and run.divergence["final_equal"]["parameters"] is True


@pytest.mark.parametrize("name", FAKES)
def test_faked_metrics_reach_nothing_that_is_shown(sweep: Path, name: str) -> None:
    """Every number is as the records have it, the run is flagged, its verdict is not taken over."""
    true = metrics_document(load(RunLayout(sweep / "blk")))
    before = read(sweep / "blk")
    SPOILT_METRICS[name][0](RunLayout(sweep / "blk"))
    run = read(sweep / "blk")
    assert run.document == json.loads(json.dumps(true)) and run.metrics == before.metrics
    assert any("metrics.json" in trouble for trouble in run.problems)
    assert (run.verdict.status, run.verdict.why) == ("missing", "records changed since")


@pytest.mark.usefixtures("undrawn")
def test_a_fake_is_named_with_both_values_and_fails_its_suite(sweep: Path) -> None:
    goodput = metrics_document(load(RunLayout(sweep / "blk")))["goodput"]
    edit_json(RunLayout(sweep / "blk").metrics, lambda m: m | {"goodput": 987654.25})
    result = report([sweep])
    assert (
        f"in metrics.json goodput is 987654.25, the records fold to {goodput!r}"
        in result.page.read_text()
    )
    written = b"".join(
        p.read_bytes()
        for p in result.page.parent.rglob("*")
        if p.suffix in (".csv", ".json", ".md")
    )
    assert b"987654" not in written.replace(b"goodput is 987654.25", b"") and result.exit_code == 1
    assert "not judged: blk: records changed since" in result.text


def test_missing_metrics_are_folded_and_told(sweep: Path) -> None:
    RunLayout(sweep / "blk").metrics.unlink()
    run = read(sweep / "blk")
    assert run.metrics and run.metrics.goodput > 0 and run.problems == ("metrics.json is missing",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda run: edit_json(run.verdict, lambda v: v | {"run": "x"}),
            "verdict.json was changed",
        ),
        (
            lambda run: edit_json(run.verdict, lambda v: v["findings"][0].update(status="unknown")),
            "verdict.json was changed",
        ),
        (
            lambda run: edit_json(run.verdict, lambda v: v.pop("verdict_sha256") and v),
            "the verdict on file is of an earlier version",
        ),
        (
            lambda run: edit_lines(run.attempt(0).rank(1), at_step(9, seconds=0.5)),
            "records changed since",
        ),
        (
            lambda run: edit_lines(run.attempt(2).spans(0), at_step(22, category="idle")),
            "records changed since",
        ),
        (
            lambda run: edit_json(run.attempt(1).launch, lambda order: order | {"silent": ["x"]}),
            "records changed since",
        ),
        (lambda run: run.environment.write_text("{}"), "records changed since"),
        (
            lambda run: (
                (run.logs / "attempt-07").mkdir()
                or (run.logs / "attempt-07" / "rank0.jsonl").write_text("")
            ),
            "records changed since",
        ),
        (
            lambda run: flip(run.checkpoints / "step_00000018" / "model.safetensors"),
            "checkpoints/step_00000018 changed since",
        ),
        (
            lambda run: shutil.rmtree(run.checkpoints / "step_00000012"),
            "checkpoints/step_00000012 changed since",
        ),
        (
            lambda run: shutil.copytree(
                run.checkpoints / "step_00000024", run.checkpoints / "step_00000030"
            ),
            "checkpoints/step_00000030 changed since",
        ),
        (
            lambda run: edit_lines(
                RunLayout(run.root.parent / "ref").attempt(0).rank(0), at_step(3, seconds=0.5)
            ),
            "records of the reference ref changed since",
        ),
    ],
)
def test_a_verdict_counts_only_for_what_it_was_spoken_over(
    sweep: Path, change: Edit, why: str
) -> None:
    change(RunLayout(sweep / "blk"))
    run = read(sweep / "blk")
    assert (
        run.verdict.status == "missing"
        and run.verdict.why.startswith(why)
        and run.divergence is None
    )
    assert beside(sweep / "ref", sweep / "blk").exit_code in (1, 3)


def test_a_status_above_its_findings_is_not_believed(sweep: Path) -> None:
    """Whoever writes the digest anew can still not call a broken promise valid; only --judge does
    not look at the file at all.
    """
    layout = RunLayout(sweep / "blk")
    said = json.loads(layout.verdict.read_text())
    said["findings"][2]["status"] = "invalid"
    write_json(layout.verdict, verdict_file(layout, said | {"status": "valid"}, None, None))
    assert read(sweep / "blk").verdict.status == "invalid"
    assert read(sweep / "blk", judge_anew=True).verdict.status == "valid"


def test_judged_anew_no_file_is_believed(sweep: Path) -> None:
    """A forger wrote verdict and digest over damaged records."""
    layout = RunLayout(sweep / "blk")
    edit_lines(layout.attempt(2).rank(1), at_step(21, loss=0.1))
    write_json(
        layout.verdict, verdict_file(layout, json.loads(layout.verdict.read_text()), None, None)
    )
    assert read(sweep / "blk").verdict.status == "valid"
    anew = read(sweep / "blk", judge_anew=True)
    assert (
        anew.verdict.status == "invalid"
        and anew.divergence is not None
        and anew.divergence["loss"]["first_differing_step"] == 21
    )


def test_distances_that_were_edited_are_not_shown(sweep: Path) -> None:
    edit_json(RunLayout(sweep / "blk").divergence, lambda d: d["loss"].update(mean=0.5))
    run = read(sweep / "blk")
    assert run.divergence is None and run.verdict.status == "valid"
    assert run.problems == (
        "divergence.json was changed after it was written: not shown; run ecrl verify again",
    )
    RunLayout(sweep / "blk").divergence.unlink()
    assert read(sweep / "blk").problems == (
        "divergence.json is missing: not shown; run ecrl verify again",
    )
    assert read(sweep / "blk", judge_anew=True).problems == ()


def test_distances_of_another_verdict_are_not_shown(sweep: Path) -> None:
    layout = RunLayout(sweep / "blk")
    write_json(
        layout.verdict, verdict_file(layout, json.loads(layout.verdict.read_text()), None, None)
    )
    run = read(sweep / "blk")
    assert run.divergence is None and run.problems == (
        "divergence.json is of another verdict: not shown; run ecrl verify again",
    )


def test_a_copy_judged_without_its_reference_keeps_no_distances_to_it(
    sweep: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sweep / "blk", tmp_path / "copy" / "blk", symlinks=True))
    assert RunLayout(copy).divergence.exists()
    verify([str(copy)])
    assert not RunLayout(copy).divergence.exists() and read(copy).problems == ()


def test_a_copy_keeps_its_verdict(sweep: Path, tmp_path: Path) -> None:
    """A copy has other times, and the same content."""
    shutil.copytree(sweep, tmp_path / "copy", symlinks=True, copy_function=shutil.copy)
    assert read(tmp_path / "copy" / "blk").verdict.status == "valid"


@pytest.mark.usefixtures("undrawn")
def test_the_same_run_twice_is_one_run(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        for name in ("ref", "blk"):
            shutil.copytree(sweep / name, sweep / f"more{number}" / name)
    folders = [str(sweep), *(str(sweep / f"more{number}") for number in range(4))]
    assert main.main(["report", *folders, "--out", str(sweep / "out"), "--json"]) == 0
    said = capsys.readouterr()
    shown = json.loads(said.out)
    assert len(shown["runs"]) == 2
    assert (
        "ecrl: more0/blk, more1/blk, more2/blk and more3/blk are copies of sweep/blk: counted"
        " once.\n" in said.err
    )
    assert "are copies of sweep/ref: counted once." in (sweep / "out" / "index.html").read_text()
    assert "are copies of sweep/ref: counted once." in shown["text"]


def test_copies_that_differ_are_both_refused(sweep: Path) -> None:
    shutil.copytree(sweep / "blk", sweep / "blk2")
    edit_lines(RunLayout(sweep / "blk2").attempt(0).rank(1), at_step(9, seconds=0.5))
    shown = beside(sweep / "ref", sweep / "blk", sweep / "blk2")
    assert [run.name for run in shown.counted] == ["ref"]
    assert {run.reason for run in shown.left_out} == {
        "blk and blk2 are copies of one recording that differ"
    }
    assert shown.exit_code == 1


def test_two_recordings_of_one_run_are_repeats(sweep: Path) -> None:
    runs = [read(sweep / "ref"), read(sweep / "blk")]
    again = replace(
        runs[1],
        input=RunInput(RunLayout(sweep / "again"), "again", {}),
        recording=replace(runs[1].recording, start=("boot", 5.0, 5.0)),
    )
    kept, notes = without_copies([*runs, again])
    assert len(kept) == 3 and notes == (
        "blk and again are 2 recordings of one run: each is counted.",
    )


@pytest.mark.usefixtures("undrawn")
# one after the other, and by forked workers
@pytest.mark.parametrize("names", [("blk",), ("blk", "more", "again")])
def test_a_run_without_a_verdict_that_holds_is_verified_first(
    sweep: Path, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Once: the verdict is kept, and the next report repeats none."""
    for name in names[1:]:
        shutil.copytree(sweep / "blk", sweep / name)
    for name in names:
        RunLayout(sweep / name).verdict.unlink()
    before = RunLayout(sweep / "ref").verdict.stat().st_mtime_ns
    assert main.main(["report", str(sweep)]) == 0
    what = f"{len(names)} run{'s' if len(names) > 1 else ''}"
    assert (
        f"verifying {what} without a verdict that holds (--no-verify leaves that out)\n"
        in capsys.readouterr().err
    )
    assert all(read(sweep / name).verdict.status == "valid" for name in names)
    assert RunLayout(sweep / "ref").verdict.stat().st_mtime_ns == before
    assert main.main(["report", str(sweep)]) == 0
    assert "verif" not in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_a_verdict_over_other_records_is_spoken_again(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_lines(RunLayout(sweep / "blk").attempt(0).rank(1), at_step(9, loss=0.5))
    assert (
        main.main(["report", str(sweep), "--no-verify"]) in (1, 3)
        and read(sweep / "blk").verdict.status == "missing"
    )
    assert "verifying" not in capsys.readouterr().err
    assert main.main(["report", str(sweep)]) == 1
    assert read(sweep / "blk").verdict.status == "invalid"


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_has_not_ended_or_cannot_be_written_is_not_verified(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sweep / "blk", sweep / "running")
    edit_json(
        RunLayout(sweep / "running").supervisor,
        lambda record: record | {"terminal_status": "running"},
    )
    for name in ("blk", "running"):
        RunLayout(sweep / name).verdict.unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main.main(["report", str(sweep), "--out", str(sweep / "out")]) in (1, 3)
    said = capsys.readouterr().err
    assert (
        "blk: cannot be written, so it is not verified; ecrl report --judge judges without storing"
        " anything" in said
    )
    assert "running:" not in said and not any(
        RunLayout(sweep / name).verdict.exists() for name in ("blk", "running")
    )


@pytest.mark.usefixtures("undrawn")
def test_a_page_opens_with_what_broke(sweep: Path) -> None:
    """Run, promise, step and likely cause stand before anything else is said."""
    edit_lines(RunLayout(sweep / "blk").attempt(2).rank(1), at_step(21, loss=0.1))
    made = report([sweep], judging=Judging(anew=True))
    opening = made.page.read_text().partition('<div class="answer">')[2].partition("</p>")[0]
    assert (
        "blk broke same-trajectory: the first differing step is step 21 at the latest, component"
        " loss (rank 1: 0.1 for 0.733" in opening
    )
    cause = (
        "records contradict one another, so they were edited or are incomplete (the lines of rank 1"
        " up to step 24 are not those that checkpoints/"
    )
    assert (
        f"it broke records-consistent too. Likely cause: {cause}step_00000024 was taken after)."
        in opening
    )
    assert made.text.startswith(
        "1 of 2 runs broke a promise.\n\nblk broke same-trajectory: the first differing step is"
        " step 21"
    )


def test_a_run_that_is_judged_anew_without_a_reference_differs_from_nothing(tmp_path: Path) -> None:
    made = read(build_ref(tmp_path).root, judge_anew=True)
    assert (made.verdict.status, made.verdict.reference, made.divergence, made.problems) == (
        "valid",
        "",
        None,
        (),
    )


@pytest.mark.parametrize("name", ["read_records", "timeline", "verdict_on_file", "load_disk"])
def test_a_run_that_is_deleted_while_it_is_read_costs_no_report(
    sweep: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, blk = getattr(run_record, name), sweep / "blk"
    deleting = lambda *given: (shutil.rmtree(blk, ignore_errors=True), look(*given))[1]  # noqa: E731
    monkeypatch.setattr(run_record, name, deleting)
    assert main.main(["report", str(sweep)]) == 1
    text = (sweep / "report" / "report.md").read_text()
    assert "blk has no metrics" in text or "blk lacks config.json" in text
