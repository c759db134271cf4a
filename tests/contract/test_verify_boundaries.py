"""Conditions of single checks, each alone: what is just allowed, and what is just not."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.schema import CheckpointConfig
from ecrl_cli.history.load import load
from ecrl_cli.records.events import CheckpointLine, PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.checkpoints import no_acknowledged_loss
from ecrl_cli.verify.fault_instants import _check_passed, _window
from ecrl_cli.verify.labels import check_labels
from ecrl_cli.verify.retention import Folder
from ecrl_cli.verify.train_state import GROWTH_INTERVAL, _following, check_documents
from ecrl_cli.verify.verdict import INVALID, VALID, FindingBuilder, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_whistle import found
from tests.runs.builder import RunBuilder, build_blk, build_ref, config_of
from tests.runs.spoil import append, edit_json, edit_lines, without
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


@pytest.mark.parametrize(
    ("name", "clean"), [("r-${dataset.name}-${scale.name}", True), ("r-${dataset.name}-${nobody.name}", False), ("r-fake", False)]
)
def test_a_name_composed_from_others_is_compared_as_it_reads(run: RunLayout, name: str, clean: bool) -> None:
    """As the suites of `+matrix=failures` are named: Hydra stores the text with its interpolations."""
    edit_json(run.config, lambda document: document["config"].update(suite_name="r-fake-paper"))
    composed(suite_name=name)(run)
    notes = FindingBuilder("x")
    check_labels(Case(load(run)), notes)
    assert notes.clean == clean, notes.finding("").message


@pytest.mark.parametrize(("written", "clean"), [("${verbose}", True), ("${quiet}", False), ("${oc.env:AUGMENT}", True)])
def test_a_value_taken_from_another_key_is_compared_by_its_type(run: RunLayout, written: str, clean: bool) -> None:
    """Only a resolver knows what `${oc.env:...}` was: it contradicts nothing."""
    augment = json.loads(run.config.read_text())["config"]["dataset"]["augment"]
    composed(dataset__augment=written, verbose=augment, quiet=not augment)(run)
    notes = FindingBuilder("x")
    check_labels(Case(load(run)), notes)
    assert notes.clean == clean, notes.finding("").message


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


@pytest.mark.parametrize(("attempt", "step", "status"), [(1, 6, VALID), (2, 12, INVALID)])
def test_only_retention_that_may_have_died_owes_no_line(tmp_path: Path, attempt: int, step: int, status: str) -> None:
    """Each attempt retired one checkpoint at its end, and its journal lacks the line; attempt 1 died, attempt 2 completed."""
    config = replace(config_of("blk", "kill", (9, 20), 1), checkpoint=CheckpointConfig(strategy="blocking", every=6, keep=1))
    run = RunBuilder(tmp_path / "blk", config).build()
    edit_lines(run.attempt(attempt).checkpoints, without(event="retired", global_step=step))
    assert no_acknowledged_loss(Case(load(run))).status == status


def test_a_checkpoint_that_was_refused_is_no_newer_one() -> None:
    """Of 6, 12 and 18 the last is refused: only 12 is left that is newer than 6."""
    folder = Folder(keep=2)
    for step in (6, 12, 18):
        folder.apply(CheckpointLine("committed", step, 0, 0.0, 0.0))
    folder.remove(18)
    folder.apply(CheckpointLine("retired", 6, 1, 0.0, 0.0))
    assert [(each.line.global_step, each.newer) for each in folder.overreached] == [(6, 1)]
    assert folder.live.keys() == {6, 12} and not folder.retired


def test_one_of_two_faults_of_an_attempt_may_fire_after_the_other_ended_it(run: RunLayout) -> None:
    case = Case(load(run))
    first, (fired, entry) = case.attempts[0], (case.run.fired[0], (case.run.plan or ())[0])
    assert _window(case, fired, entry, first) == (first.launched_at, first.ended_at)
    another = Case(replace(case.run, fired=(fired, replace(fired, index=1, rank=0))))
    assert _window(another, fired, entry, first) == (first.launched_at, case.attempts[1].launched_at)


@pytest.mark.parametrize(("boot", "bounded"), [("boot", True), ("another", False)])
def test_a_fault_between_two_attempts_has_bounds_on_the_clock_of_one_boot_alone(run: RunLayout, boot: str, bounded: bool) -> None:
    edit_json(run.supervisor, lambda s: s["sessions"].append(s["sessions"][0] | {"boot_id": boot}))
    edit_json(run.supervisor, lambda s: s["attempts"][1].update(session=1))
    case = Case(load(run))
    before, after = case.attempts[:2]
    entry = replace((case.run.plan or ())[0], moment="rest")
    bounds = (before.ended_at, after.launched_at) if bounded else (-math.inf, math.inf)
    assert _window(case, replace(case.run.fired[0], attempt=1), entry, after) == bounds


@pytest.mark.parametrize("name", ["sampler", "scheduler", "optimizer"])
def test_a_part_of_train_json_that_is_no_object_is_told(run: RunLayout, name: str) -> None:
    case = Case(load(run))
    case.disk[0].train[name] = [1]
    notes = FindingBuilder("state-consistent")
    check_documents(case, notes)
    assert not notes.clean
