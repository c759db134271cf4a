"""Conditions of single checks, each alone: what is just allowed, and what is just not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.schema import CheckpointConfig
from ecrl_cli.history.load import load
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.fault_instants import _check_passed
from ecrl_cli.verify.labels import check_labels
from ecrl_cli.verify.train_state import GROWTH_INTERVAL, _following
from ecrl_cli.verify.verdict import INVALID, VALID, FindingBuilder, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_whistle import found
from tests.runs.builder import RunBuilder, build_blk, build_ref, config_of
from tests.runs.spoil import append, edit_json
from tests.runs.spoilt import NO_LOSS
from tests.runs.spoilt_record import composed
from tests.runs.spoilt_store import event


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return build_blk(tmp_path)


@pytest.mark.parametrize(("steps", "clean"), [(0.5, True), (1.0, False)])
def test_what_a_scale_changes_may_differ_from_what_was_typed(run: RunLayout, steps: float, clean: bool) -> None:
    edit_json(run.config, lambda document: document["config"]["scale"].update(steps=steps))
    composed(target_steps=48)(run)
    notes = FindingBuilder("records-consistent")
    check_labels(Case(load(run)), notes)
    assert notes.clean == clean


def test_retention_leaves_two_checkpoints_where_one_is_asked_for(tmp_path: Path) -> None:
    config = replace(config_of("blk", "kill", (9, 20), 1), checkpoint=CheckpointConfig(strategy="blocking", every=6, keep=1))
    run = RunBuilder(tmp_path / "blk", config).build()
    build_ref(tmp_path)
    assert found(verify_run(run.root), NO_LOSS).status == VALID, render(verify_run(run.root))
    shutil.rmtree(run.checkpoints / "step_00000018")
    append(run.attempt(2).checkpoints, event(run, 2, "retired", 12) | {"global_step": 18, "path": None})
    finding = found(verify_run(run.root), NO_LOSS)
    assert finding.status == INVALID and "step 18" in finding.message, finding


@pytest.mark.parametrize(
    ("tracker", "expected"),
    [(GROWTH_INTERVAL - 1, {(2.0, 0), (1.0, 0), (0.5, 0)}), (GROWTH_INTERVAL - 2, {(1.0, GROWTH_INTERVAL - 1), (0.5, 0)})],
)
def test_a_loss_scale_grows_at_the_end_of_its_interval(tracker: int, expected: set[tuple[float, int]]) -> None:
    assert set(_following((1.0, tracker))) == expected


@pytest.mark.parametrize(("step", "clean"), [(9, True), (8, False)])
def test_a_failure_is_passed_once_its_victim_is_behind_the_next_step(run: RunLayout, step: int, clean: bool) -> None:
    """Of two failures behind one step only one strikes: who died behind step 9 has not gone past it."""
    case, notes = Case(load(run)), FindingBuilder("failures-once")
    _check_passed(case, case.attempts[0], [PlannedFailure(5, "kill", 0, step)], notes)
    assert notes.clean == clean
