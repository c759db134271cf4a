"""A finished run that is given a higher target: it goes on, and is judged and reported as what it
is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.build import report
from ecrl_cli.verify.verdict import INVALID, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.e2e.runs import end_state, last_losses, metrics, supervisor, tiny
from tests.in_process import ecrl_in_process

NONE = ("failure=none", "failure.steps=", "failure.rank=")
CONSTANT = (
    "optimizer.lr=0.05",
    "optimizer.min_lr=0.05",
    "evaluate.every=5",
    "dataset.held_out=297",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """With a learning rate that does not depend on the length: `whole`, 30 steps, and `more`, 24
    steps with two kills, then continued to 30. With one that falls: `short`, 24 steps, and `falls`,
    the same with two kills, then continued to 36.
    """
    folder = tmp_path_factory.mktemp("continued")
    for name, *keys in (
        ("whole", *NONE, *CONSTANT, "target_steps=30"),
        ("more", *CONSTANT),
        ("more", *CONSTANT, "target_steps=30"),
        ("short", *NONE),
        ("falls",),
        ("falls", "target_steps=36"),
    ):
        ecrl_in_process(folder, "train", *tiny(*keys), f"run_dir={folder / name}")
    return {name: folder / name for name in ("whole", "more", "short", "falls")}


def test_it_ends_as_a_run_planned_for_all_its_steps_where_the_rate_does_not_fall(
    runs: dict[str, Path],
) -> None:
    assert end_state(runs["more"]) == end_state(runs["whole"])
    assert last_losses(runs["more"], 1) == last_losses(runs["whole"], 1)
    verdict = verify_run(runs["more"], runs["whole"])
    assert verdict.status == VALID, render(verdict)
    said = {finding.promise: finding.message for finding in verdict.findings}
    assert "every loss of 30 steps and in the final state" in said["same-trajectory"]
    assert "those of an earlier end as they were then" in said["records-sealed"]


def test_what_it_went_on_from_is_on_record(runs: dict[str, Path]) -> None:
    layout, record = RunLayout(runs["more"]), supervisor(runs["more"])
    ended = next(a for a in record["attempts"] if a["outcome"] == "completed")
    after = record["attempts"][ended["attempt"] + 1]
    assert (
        json.loads(layout.attempt(ended["attempt"]).final.read_text())["global_step"]
        == 24
        == after["resumed_from_step"]
    )
    assert (
        after["resumed_from"]["path"].endswith("00000024")
        and after["session"] == ended["session"] + 1
    )
    assert json.loads(layout.earlier_seal(24).read_text())["terminal_status"] == "completed"
    stored = json.loads(layout.config.read_text())
    assert (
        stored["config"]["continued_at"] == [24]
        and stored["config"]["target_steps"] == record["target_steps"] == 30
    )
    first, second = metrics(runs["more"])["legs"]
    assert (first["from_step"], first["to_step"], second["to_step"]) == (0, 24, 30) and second[
        "attempts"
    ] == [after["attempt"]]
    assert first["wall_s"] + second["wall_s"] == pytest.approx(metrics(runs["more"])["wall_s"])


def test_a_rate_that_falls_falls_anew_and_is_held_against_a_reference_as_far_as_that_goes(
    runs: dict[str, Path],
) -> None:
    lines = [
        json.loads(line)
        for path in sorted(runs["falls"].glob("logs/*/rank0.jsonl"))
        for line in path.read_text().splitlines()
    ]
    rates = {line["global_step"]: line["lr"] for line in lines}
    assert (
        rates[24] == pytest.approx(1e-6)
        and rates[25] > 0.09
        and rates[30] == pytest.approx(0.05, abs=1e-3)
        and rates[36] == pytest.approx(1e-6)
    )
    verdict = verify_run(runs["falls"], runs["short"])
    assert verdict.status == VALID, render(verdict)
    (said,) = (each.message for each in verdict.findings if each.promise == "same-trajectory")
    assert (
        "equal to short in every loss of the 24 steps to its target, from which this run was"
        " continued; not claimed after them" in said
    )
    found = verify_run(runs["falls"])  # by itself it finds the same
    assert found.status == VALID and found.reference == "short", render(found)


def test_the_report_says_so(runs: dict[str, Path], tmp_path: Path) -> None:
    report([runs["more"], runs["falls"]], tmp_path / "page")
    assert "had reached its target and was continued" in (tmp_path / "page/index.html").read_text()


def test_a_record_of_before_that_was_changed_is_seen_through_the_seal_of_that_end(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "falls"
    shutil.copytree(runs["falls"], copy, symlinks=True)
    path = RunLayout(copy).attempt(0).output
    path.write_text(path.read_text() + "more\n")
    (finding,) = (
        each
        for each in verify_run(copy, runs["short"]).findings
        if each.promise == "records-sealed"
    )
    told = (finding.message, *map(str, finding.evidence))
    assert finding.status == INVALID and any(
        "changed since the end at step 24 was sealed: logs/attempt-00/output.log" in text
        for text in told
    )


def test_repeated_it_is_finished_and_its_first_target_is_refused(runs: dict[str, Path]) -> None:
    again = ecrl_in_process(
        runs["falls"].parent, "train", *tiny("target_steps=36"), f"run_dir={runs['falls']}"
    )
    assert "already at step 36; nothing to do" in again.stderr
    lower = ecrl_in_process(
        runs["falls"].parent, "train", *tiny(), f"run_dir={runs['falls']}", check=2
    )
    assert f"{runs['falls']} went on to step 36; set target_steps=36" in lower.stderr


def test_what_cannot_go_on_is_refused_in_one_line(tmp_path: Path) -> None:
    place, keys = f"run_dir={tmp_path / 'bare'}", (*NONE, "checkpoint.final=false")
    ecrl_in_process(tmp_path, "train", *tiny(*keys, "target_steps=10"), place)
    refused = ecrl_in_process(tmp_path, "train", *tiny(*keys, "target_steps=20"), place, check=2)
    assert (
        "ended at step 10 without a checkpoint to go on from" in refused.stderr
        and refused.stderr.count("\n") == 1
    )
    typed = ecrl_in_process(
        tmp_path, "train", *tiny("continued_at=[5]"), f"run_dir={tmp_path / 'typed'}", check=2
    )
    assert "continued_at: is recorded by ECRL" in typed.stderr
