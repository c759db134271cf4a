"""Stalls that are split into parts, and those of older records that are not; checkpoints of
format=torch in a recorded run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.disk_state import quarantined
from ecrl_cli.verify.verdict import NOT_CHECKED, VALID, Finding, Verdict, render
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import build_blk
from tests.runs.spoil import edit_lines
from tests.runs.spoilt_stalls import as_torch_file


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return build_blk(tmp_path)


def time_of(verdict: Verdict) -> Finding:
    return next(finding for finding in verdict.findings if finding.promise == "time-conserved")


def test_the_parts_of_every_stall_add_up(run: RunLayout) -> None:
    assert time_of(verify_run(run.root)).message.endswith("; the parts of 4 stalls add up")


def test_an_older_record_without_parts_is_judged_as_before(run: RunLayout) -> None:
    def older(line: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value for name, value in line.items() if name not in ("stall_parts", "hash_s")
        }

    for attempt in range(3):
        edit_lines(run.attempt(attempt).checkpoints, older)
    finding = time_of(verify_run(run.root))
    assert finding.status == VALID and finding.message.endswith(
        "; how 4 stalls are made up was not recorded"
    )


def test_of_an_honest_torch_file_only_its_form_is_another(run: RunLayout) -> None:
    """Alone: nobody vouches for its trajectory, and config.json asks for folders."""
    as_torch_file(run)
    verdict = verify_run(run.root)
    wrong = {
        finding.promise: finding.message
        for finding in verdict.findings
        if finding.status not in (VALID, NOT_CHECKED)
    }
    assert wrong.keys() == {"same-trajectory", "state-consistent"}, render(verdict)
    assert wrong["state-consistent"] == (
        "Broke promise: state-consistent - checkpoints/step_00000024.pt is a single file (pt),"
        " config.json has a folder of parts"
    )


def test_a_torch_file_that_was_set_aside_is_examined_with_its_sidecar(run: RunLayout) -> None:
    as_torch_file(run)
    for suffix in ("pt", "json"):
        (run.checkpoints / f"step_00000024.{suffix}").rename(
            run.checkpoints / f".rejected_step_00000024.0badcafe.{suffix}"
        )
    (found,) = quarantined(load(run))
    assert (found.step, found.report.ok) == (24, True), found.report
