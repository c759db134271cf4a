"""Evidence as no ordinary run leaves it: references cut short, numbers counted twice, checkpoints
and states that only part of the records know.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ecrl_cli.checkpoint.format.names import COMMIT, LATEST, LEASE, STEP_METADATA
from ecrl_cli.checkpoint.store.step_metadata import StepMetadata
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.config.schema import ElasticConfig, OptimizerConfig, RecoveryConfig, WriteModeConfig
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.errors import StorageError
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.events import (
    FOUND,
    CheckpointLine,
    Hang,
    PlannedFailure,
    RankLine,
    Rejected,
    SkippedSnapshot,
    Span,
)
from ecrl_cli.records.journal import Journal, Lines
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.survivor_records import LOST, LostSamples
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.verify import metrics_cache
from ecrl_cli.verify.checkpoint_folder import _check_facts, _check_names, _check_sizes, check_folder
from ecrl_cli.verify.checkpoints import (
    checkpoints_accounted,
    no_acknowledged_loss,
    no_bad_checkpoint,
)
from ecrl_cli.verify.consistency import records_consistent
from ecrl_cli.verify.disk_state import _RenamedFs, integrity_config, quarantined, quarantined_steps
from ecrl_cli.verify.disturbance import disturbance, uninterrupted
from ecrl_cli.verify.exactly_once import _accounts, exactly_once
from ecrl_cli.verify.fault_effects import _ended_by
from ecrl_cli.verify.fault_instants import INSIDE, _window
from ecrl_cli.verify.fault_plan import _dropped_with_its_step
from ecrl_cli.verify.recovery_choice import (
    NOT_ACKNOWLEDGED,
    _check_fresh,
    _check_reason,
    _check_refusals,
    _check_sound,
)
from ecrl_cli.verify.retention import Folder
from ecrl_cli.verify.spans import _check_steps_together
from ecrl_cli.verify.state_consistent import state_consistent
from ecrl_cli.verify.state_restored import state_restored
from ecrl_cli.verify.state_values import NO_TENSORS, differing_ends
from ecrl_cli.verify.supervisor_record import _check_taken, hang_contradictions
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.trajectory import same_trajectory
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case, same_sizes
from ecrl_cli.verify.verify_run import _noise_floor, verify_run
from tests.runs.builder import (
    RunBuilder,
    build_blk,
    build_clean,
    build_elastic,
    build_ref,
    config_of,
    flip,
)
from tests.runs.changed import (
    appended,
    attempts,
    configured,
    event,
    kept,
    left,
    logged,
    ordered,
    supervised,
)
from tests.runs.sentence import assert_said, told
from tests.runs.spoilt_clocks import refold
from tests.runs.spoilt_states import build_states
from tests.runs.survived import build_lossy
from tests.unit.checkpoint_support import CONFIG, commit, store_at


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    for build in (build_blk, build_ref, build_clean, build_elastic, build_lossy):
        build(folder)
    build_states(folder / "states", "blk")
    return folder


def read(sweep: Path, name: str) -> RunRecords:
    return load(RunLayout(sweep / name))


def copied(sweep: Path, name: str, folder: Path) -> RunLayout:
    return RunLayout(Path(shutil.copytree(sweep / name, folder / name, symlinks=True)))


# The trajectory


def test_a_reference_that_was_cut_short_proves_nothing(sweep: Path) -> None:
    run, ref = read(sweep, "blk"), read(sweep, "ref")
    assert same_trajectory(Case(run, ref)).status == VALID
    assert ref.final is not None
    short = left(ref, 0, final=replace(ref.final, global_step=23))
    assert_said(
        same_trajectory(Case(run, short)),
        UNKNOWN,
        "this run ends at step 24, the reference at step 23",
    )
    assert_said(
        same_trajectory(Case(run, attempts(ref, 0, resumed_from_step=3))),
        UNKNOWN,
        "the reference: attempt 0 began at step 3 and names no checkpoint",
    )


def test_why_runs_of_other_sizes_part_is_told_by_what_they_have(sweep: Path) -> None:
    run, ref = read(sweep, "elastic"), read(sweep, "ref")
    cause = (
        "world size 1 from step 11 on, 2 in the reference: in plain DDP gradients are added up in"
        " another order (shards of 8 samples instead of 4)"
    )
    assert (
        f"{cause}, BatchNorm normalises each rank's own shard"
        in same_trajectory(Case(run, ref)).evidence
    )
    dropping = configured(run, model=replace(run.stored.config.model, dropout=0.5))
    assert run.final is not None
    bare = left(dropping, run.final.attempt, final=replace(run.final, buffers_digest=NO_TENSORS))
    assert f"{cause}, each rank draws its own dropout" in same_trajectory(Case(bare, ref)).evidence


def test_the_noise_floor_of_two_equal_runs_is_none(sweep: Path) -> None:
    run, ref = read(sweep, "elastic"), read(sweep, "ref")
    equal = same_trajectory(Case(run, ref, floor=(ref, read(sweep, "clean"))))
    assert told(equal, "noise floor: ref and clean, both undisturbed, are equal in every loss")
    other = logged(ref, lambda line: replace(line, loss=1.0) if line.global_step == 7 else line)
    assert told(
        same_trajectory(Case(run, ref, floor=(ref, other))),
        "noise floor: ref and ref, both undisturbed, differ from step 7",
    )


@pytest.mark.parametrize(
    ("step", "status", "words"),
    [(11, UNKNOWN, "attempt 1 died, attempt 2 went on after step 10"), (9, VALID, "")],
)
def test_a_recovery_from_where_the_sizes_part_is_vouched_for_by_nobody(
    sweep: Path, tmp_path: Path, step: int, status: str, words: str
) -> None:
    """After step 10 one rank is left; who dies in step 11 goes on from the checkpoint of step
    10.
    """
    config = replace(config_of("elastic", "kill", (step,)), elastic=ElasticConfig(schedule={10: 1}))
    run = load(RunBuilder(tmp_path / "elastic", config).build())
    assert_said(same_trajectory(Case(run, read(sweep, "ref"))), status, words)


def test_the_first_differing_step_is_certain_where_every_rank_was_equal_before_it(
    sweep: Path,
) -> None:
    run, ref = read(sweep / "states", "blk"), load(build_states(sweep / "certain", "ref"))
    wrong = logged(run, lambda line: replace(line, loss=1.0) if line.global_step == 19 else line, 2)
    assert told(
        same_trajectory(Case(wrong, ref)), "the first differing step is step 19, component loss"
    )
    for rank in range(2):

        def bare(line: RankLine, rank: int = rank) -> RankLine:
            return (
                replace(line, components=None, state_digest=None)
                if (line.global_step, line.rank) == (18, rank)
                else line
            )

        assert told(
            same_trajectory(Case(logged(wrong, bare, 1), ref)),
            "the first differing step is step 19 at the latest, component loss",
        )


def test_the_noise_floor_is_of_runs_of_the_same_sizes_where_there_are_two(sweep: Path) -> None:
    run, ref = read(sweep, "elastic"), read(sweep, "ref")
    alike = configured(ref, elastic=run.stored.config.elastic)
    pair = (alike, replace(alike))
    assert _noise_floor(run, (ref, *pair, replace(ref))) == pair
    assert _noise_floor(run, (ref, alike, replace(ref))) == (ref, replace(ref))
    assert _noise_floor(run, (ref, alike)) is None


def test_of_two_references_that_disagree_it_does_not_matter_which_one_the_run_equals(
    sweep: Path,
) -> None:
    run, ref = read(sweep, "blk"), read(sweep, "ref")
    assert ref.final is not None
    bent = left(ref, 0, final=replace(ref.final, parameters_digest="0" * 64))
    for first, second in ((ref, bent), (bent, ref)):
        assert_said(
            same_trajectory(Case(run, first, others=(second,))),
            UNKNOWN,
            "the references ref and ref disagree: the final parameters differ",
        )
    other = logged(run, lambda line: replace(line, loss=1.0) if line.global_step == 7 else line, 1)
    assert same_trajectory(Case(other, bent, others=(ref,))).status == INVALID


# What disturbs a run


def test_a_run_that_skips_steps_is_no_undisturbed_one(sweep: Path) -> None:
    ref = read(sweep, "ref")
    assert disturbance(ref) == "" and uninterrupted(ref)
    unstruck = load(
        RunBuilder(
            sweep / "unstruck",
            replace(config_of("unstruck"), elastic=ElasticConfig(schedule={10: 1, 20: 2})),
        ).build()
    )
    assert disturbance(unstruck) == ""
    gap = attempts(unstruck, 1, last_step=19)
    assert disturbance(
        gap
    ) == "attempt 2 began after step 20, attempt 1 reached step 19" and not uninterrupted(gap)
    late = attempts(ref, 0, resumed_from_step=3)
    assert disturbance(
        late
    ) == "attempt 0 began at step 3 and names no checkpoint" and not uninterrupted(late)


def test_a_run_that_was_continued_is_no_reference(sweep: Path) -> None:
    """It rests on the code that a reference is to check."""
    assert not uninterrupted(configured(read(sweep, "ref"), continued_at=(12,)))


def test_an_attempt_whose_end_nobody_saw_disturbs_a_run_that_went_on_behind_it(
    sweep: Path, tmp_path: Path
) -> None:
    unstruck = load(
        RunBuilder(
            tmp_path / "unstruck",
            replace(config_of("unstruck"), elastic=ElasticConfig(schedule={10: 1, 20: 2})),
        ).build()
    )
    assert disturbance(attempts(unstruck, 1, outcome="running")) == "attempt 1 running"
    assert disturbance(attempts(unstruck, 2, outcome="running")) == ""


# Numbers that are counted twice


@pytest.mark.parametrize(
    ("name", "wrong"), [("committed_steps", 23), ("restarts", 1), ("wall_s", 1.5), ("goodput", 9.5)]
)
def test_a_fold_that_is_wrong_does_not_confirm_itself(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: float
) -> None:
    """metrics.json was written by the same code that folds it anew."""
    layout = copied(sweep, "blk", tmp_path)
    right = metrics_cache.metrics_document(load(layout))
    assert records_consistent(Case(load(layout))).status == VALID
    monkeypatch.setattr(metrics_cache, "metrics_document", lambda *_: right | {name: wrong})
    layout.metrics.write_text(json.dumps(right | {name: wrong}))
    assert_said(
        records_consistent(Case(load(layout))),
        INVALID,
        f"the records fold to {name} {wrong}, counted again it is",
    )


@pytest.mark.parametrize("name", ["submitted", "committed", "failed", "lost"])
def test_checkpoints_are_counted_again_by_how_they_ended(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    layout = copied(sweep, "blk", tmp_path)
    right = metrics_cache.metrics_document(load(layout))
    wrong = right | {"checkpoints": right["checkpoints"] | {name: 3}}
    monkeypatch.setattr(metrics_cache, "metrics_document", lambda *_: wrong)
    layout.metrics.write_text(json.dumps(wrong))
    there = {"submitted": 4, "committed": 4, "failed": 0, "lost": 0}[name]
    assert_said(
        records_consistent(Case(load(layout))),
        INVALID,
        f"the records fold to 3 {name} checkpoints, the journals have {there}",
    )


def test_a_save_that_failed_and_was_found_whole_later_counts_by_its_first_end() -> None:
    lines = [
        CheckpointLine(name, 6, 0, 0.0, 0.0)
        for name in ("submitted", "received", "failed", "committed")
    ]
    logs = SimpleNamespace(checkpoints=SimpleNamespace(events=lines))
    counted = metrics_cache._checkpoint_counts(cast("Any", SimpleNamespace(attempt_logs=[logs])))
    assert (counted["submitted"], counted["failed"], counted["committed"], counted["lost"]) == (
        1,
        1,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("status", "owed"), [("completed", True), ("stopped", False), ("running", False)]
)
def test_only_a_completed_run_owes_its_metrics(
    sweep: Path, tmp_path: Path, status: str, owed: bool
) -> None:
    layout = copied(sweep, "blk", tmp_path)
    layout.metrics.unlink()
    finding = records_consistent(Case(supervised(load(layout), terminal_status=status)))
    assert told(finding, "the run is completed and metrics.json is missing") == owed, finding


def test_a_phase_is_what_the_records_fold_to(sweep: Path) -> None:
    run = read(sweep, "blk")
    assert records_consistent(Case(run)).status == VALID
    phases = run.attempts[1].phases
    longer = attempts(run, 1, phases=phases | {"load": phases["load"] + 2e-6})
    assert_said(
        records_consistent(Case(longer)),
        INVALID,
        "attempt 1 took 0.200002 s for load by supervisor.json, 0.200000 s by the records",
    )
    without = left(longer, 1, spans=Lines((), (), 0))
    assert_said(records_consistent(Case(without)), UNKNOWN, "(attempt 1 left no spans of rank 0)")


def test_what_a_later_attempt_lacks_is_known_behind_one_that_did_no_step(sweep: Path) -> None:
    run = attempts(read(sweep, "blk"), 0, first_step=None, last_step=None)
    assert metrics_cache.lacking(Case(run)) == ""
    assert (
        metrics_cache.lacking(Case(left(run, 1, spans=Lines((), (), 0))))
        == "attempt 1 left no spans of rank 0"
    )


# Lines of the ranks


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attempt": 1}, "attempt 1 rank 0 of 2"),
        ({"rank": 1}, "attempt 0 rank 1 of 2"),
        ({"world_size": 1}, "attempt 0 rank 0 of 1"),
    ],
)
def test_a_line_is_of_the_log_that_it_stands_in(
    sweep: Path, change: dict[str, int], words: str
) -> None:
    run = logged(
        read(sweep, "blk"),
        lambda line: replace(line, **change) if (line.global_step, line.rank) == (5, 0) else line,
    )  # type: ignore[arg-type]
    assert_said(
        exactly_once(Case(run)), INVALID, f"attempt 0 rank 0 holds a line of {words} (step 5)"
    )


def test_samples_of_no_shard_are_extra(sweep: Path) -> None:
    run = logged(
        read(sweep, "blk"),
        lambda line: (
            replace(line, sample_ids_hash="0" * 64)
            if (line.global_step, line.rank) == (5, 0)
            else line
        ),
    )
    finding = exactly_once(Case(run))
    assert_said(
        finding, INVALID, "step 5 rank 0 (attempt 0) logged samples of no shard of this run: extra"
    )
    assert told(finding, "epoch 0: duplicates 0, missing 4, extra 4"), finding


@pytest.mark.parametrize(
    "change",
    [
        {"time": -1.0},
        {"at": -1.0},
        {"seconds": -1.0},
        {"loss": math.nan},
        {"loss": math.inf},
        {"time": math.inf},
    ],
)
def test_a_number_that_no_step_has_is_told(sweep: Path, change: dict[str, float]) -> None:
    run = logged(
        read(sweep, "blk"),
        lambda line: replace(line, **change) if (line.global_step, line.rank) == (5, 0) else line,
    )  # type: ignore[arg-type]
    assert_said(
        records_consistent(Case(run)),
        INVALID,
        "logs/attempt-00/rank0.jsonl: step 5 has a number that cannot be",
    )


@pytest.mark.parametrize(("steps", "status"), [((), VALID), ((5,), UNKNOWN), ((9,), UNKNOWN)])
def test_a_line_without_the_gradient_scaler_is_missed(
    sweep: Path, steps: tuple[int, ...], status: str
) -> None:
    run = read(sweep / "states", "blk")
    bare = logged(
        run,
        lambda line: (
            replace(line, loss_scale=None)
            if (line.global_step, line.rank) in {(step, 1) for step in steps}
            else line
        ),
    )
    words = (
        f"step {steps[0]} of attempt 0 rank 1: nothing is on record of the gradient scaler"
        if steps
        else ""
    )
    assert_said(state_consistent(Case(bare)), status, words)


def test_a_component_that_a_line_lacks_is_no_equal_one(sweep: Path) -> None:
    run = read(sweep / "states", "blk")
    assert state_restored(Case(run)).status == VALID

    def without(line: RankLine) -> RankLine:
        rest = {name: value for name, value in (line.components or {}).items() if name != "rng"}
        return replace(line, components=rest) if (line.global_step, line.rank) == (6, 1) else line

    assert_said(
        state_restored(Case(logged(run, without))),
        INVALID,
        "attempt 1 resumed from other rng than rank 1 logged after step 6 of attempt 0",
    )


# Checkpoints and states


def test_what_is_compared_makes_a_promise_checked(sweep: Path) -> None:
    """An early version logged no state: three checkpoints hold what the configuration says, or
    nothing does.
    """
    assert_said(
        state_consistent(Case(read(sweep, "blk"))),
        VALID,
        "3 checkpoints hold what the configuration says",
    )
    assert state_consistent(Case(read(sweep, "clean"))).status == NOT_CHECKED
    assert state_consistent(Case(read(sweep / "states", "blk"))).status == VALID


@pytest.mark.parametrize(("run", "status"), [("blk", VALID), ("states/blk", UNKNOWN)])
def test_a_part_of_train_json_that_is_not_there_is_missed_where_it_is_due(
    sweep: Path, run: str, status: str
) -> None:
    case = Case(read(sweep, run))
    del case.disk[0].train["scheduler"]
    words = "train.json of checkpoints/step_00000012 has no scheduler" if status == UNKNOWN else ""
    assert_said(state_consistent(case), status, words)


@pytest.mark.parametrize(("name", "due"), [("sgd", True), ("adamw", False)])
def test_momentum_is_due_of_an_optimizer_that_has_it(sweep: Path, name: str, due: bool) -> None:
    run = read(sweep, "blk")
    case = Case(configured(run, optimizer=replace(run.stored.config.optimizer, name=name)))
    for c in case.disk:
        c.train["optimizer"]["param_groups"][0]["momentum"] = 0.5
    assert OptimizerConfig().momentum != 0.5
    finding = state_consistent(case)
    said = (finding.message, *finding.evidence)
    assert any("momentum 0.5, not 0.9" in text for text in said) == due, said


@pytest.mark.parametrize(
    ("reason", "there"),
    [
        ("E-storage checkpoints: fsync of the directory: EIO", True),
        ("E-storage write: ENOSPC", False),
        (None, False),
    ],
)
def test_a_save_that_failed_behind_its_rename_counts_for_retention(
    reason: str | None, there: bool
) -> None:
    """Of 6, 12 and 18 the second failed: whether its files have their name decides how many are
    newer than 6.
    """
    folder = Folder(keep=2)
    for step, said in ((6, "committed"), (12, "failed"), (18, "committed"), (6, "retired")):
        folder.apply(
            CheckpointLine(said, step, 0, 0.0, 0.0, reason=reason if said == "failed" else None)
        )
    assert [each.newer for each in folder.overreached] == ([] if there else [1])
    assert folder.superfluous == ({6: 0} if there else {})
    assert (6 in folder.retired) == there and 12 not in folder.live


@pytest.mark.parametrize(
    ("strategy", "inflight", "parts", "status"),
    [
        ("overlapped", 2, True, VALID),
        ("overlapped", 3, True, INVALID),
        ("overlapped", 3, False, VALID),
        ("overlapped", 4, False, INVALID),
        ("blocking", 1, True, VALID),
        ("blocking", 2, True, INVALID),
        ("blocking", 2, False, INVALID),
    ],
)
def test_no_more_are_in_flight_than_there_are_buffers(
    sweep: Path, strategy: str, inflight: int, parts: bool, status: str
) -> None:
    """Before stalls were split into parts, the buffer of one that had just ended was granted while
    it was counted still.
    """
    run = read(sweep, "blk")
    run = configured(
        run, checkpoint=replace(run.stored.config.checkpoint, strategy=strategy, max_inflight=2)
    )
    for a in run.attempt_logs:
        lines = kept(
            a.checkpoints,
            lambda line: replace(
                line,
                inflight=inflight * (line.event == "submitted"),
                stall_parts=line.stall_parts if parts else {},
            ),
        )
        run = left(run, a.attempt, checkpoints=lines)
    words = (
        f"was submitted with {inflight} checkpoints in flight, checkpoint.max_inflight is"
        f" {2 if strategy == 'overlapped' else 1}"
    )
    finding = checkpoints_accounted(Case(run))
    assert told(finding, words) == (status == INVALID) and finding.status == status, finding


@pytest.mark.parametrize(("step", "status"), [(18, VALID), (20, INVALID)])
def test_an_attempt_that_is_resized_has_committed_its_last_step(
    sweep: Path, step: int, status: str
) -> None:
    """Attempt 3 commits steps 18 and 20 and ends there; which of them is lost decides."""
    run = read(sweep, "elastic")
    (resized,) = [a for a in run.attempts if a.outcome == "resized" and a.last_step == 20]

    def lost(line: CheckpointLine) -> CheckpointLine:
        bare = {"path": None, "commit_sha256": None, "write_s": 0.0, "hash_s": 0.0, "commit_s": 0.0}
        return (
            replace(line, event="lost", **bare)
            if (line.event, line.global_step) == ("committed", step)
            else line
        )  # type: ignore[arg-type]

    run = left(run, resized.attempt, checkpoints=kept(run.logs(resized.attempt).checkpoints, lost))
    words = f"attempt {resized.attempt} was resized after step 20, which it did not commit"
    assert told(checkpoints_accounted(Case(run)), words) == (status == INVALID)


def test_a_stall_is_named_by_its_step_and_attempt(sweep: Path) -> None:
    run = read(sweep, "blk")

    def longer(line: CheckpointLine) -> CheckpointLine:
        return (
            replace(line, stall_parts=line.stall_parts | {"barrier": 0.003})
            if (line.event, line.global_step) == ("released", 12)
            else line
        )

    run = left(run, 1, checkpoints=kept(run.logs(1).checkpoints, longer))
    assert_said(
        time_conserved(Case(run)),
        INVALID,
        "the stall of step 12 in attempt 1 is 0.036000 s, its parts add up to 0.037000 s",
    )


def test_too_many_checkpoints_are_as_wrong_as_too_few(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "retire", lambda store: ())
        layout = build_blk(tmp_path)
    assert [c.step for c in Case(load(layout)).disk] == [6, 12, 18, 24]
    text = "checkpoints/step_00000006 is there, and 3 newer ones are: retention was to remove it"
    assert_said(checkpoints_accounted(Case(load(layout))), INVALID, text)


def test_a_folder_of_before_there_was_a_lease_has_none(sweep: Path, tmp_path: Path) -> None:
    layout = copied(sweep, "blk", tmp_path)
    (layout.checkpoints / LEASE).unlink()
    assert checkpoints_accounted(Case(load(layout))).status == VALID


@pytest.mark.parametrize(("atomic", "status"), [(True, INVALID), (False, VALID)])
def test_half_a_checkpoint_may_be_set_aside_where_it_is_not_installed_whole(
    sweep: Path, tmp_path: Path, atomic: bool, status: str
) -> None:
    layout = copied(sweep, "blk", tmp_path)
    shutil.copytree(
        layout.checkpoints / "step_00000012",
        layout.checkpoints / ".rejected_step_00000012.0badcafe",
    )
    mode = WriteModeConfig(name="atomic_dirsync" if atomic else "unsafe", atomic=atomic)
    finding = no_bad_checkpoint(Case(configured(load(layout), write_mode=mode)))
    assert_said(
        finding,
        status,
        "set aside: 1 checkpoint of step 12, on record as refused: 0" if atomic else "",
    )


def test_a_checkpoint_of_one_file_that_was_set_aside_is_counted_by_the_commit_in_its_sidecar(
    sweep: Path, tmp_path: Path
) -> None:
    layout = copied(sweep, "blk", tmp_path)
    commit = json.loads((layout.checkpoints / "step_00000012" / COMMIT).read_text())
    (layout.checkpoints / ".rejected_step_00000012.0badcafe.json").write_text(
        json.dumps({"commit": commit})
    )
    (layout.checkpoints / ".rejected_step_00000012.0badcafe.safetensors").touch()
    (layout.checkpoints / ".rejected_step_00000018.0badcafe.json").write_text("{}")
    assert quarantined_steps(load(layout)) == [12]


def test_each_checkpoint_that_was_set_aside_is_examined_also_where_two_are_of_one_step(
    sweep: Path, tmp_path: Path
) -> None:
    layout = copied(sweep, "blk", tmp_path)
    for name in ("0badcafe", "1badcafe"):
        shutil.copytree(
            layout.checkpoints / "step_00000012",
            layout.checkpoints / f".rejected_step_00000012.{name}",
        )
    flip(layout.checkpoints / ".rejected_step_00000012.1badcafe" / "model.safetensors")
    found = quarantined(load(layout))
    assert [(each.path[-8:], each.step, each.report.ok) for each in found] == [
        ("0badcafe", 12, True),
        ("1badcafe", 12, False),
    ]


@pytest.mark.parametrize(
    ("copies", "ok"),
    [((".safetensors",), False), ((".safetensors", ".json"), True), ((".json",), False)],
)
def test_half_a_file_that_was_set_aside_is_not_completed_by_a_later_save(
    copies: tuple[str, ...], ok: bool, sweep: Path, tmp_path: Path
) -> None:
    """The writer was killed between its two renames, and the step saved again: what lies under the
    step's own names is another save's.
    """
    layout = copied(sweep, "blk", tmp_path)
    shutil.rmtree(layout.checkpoints)
    layout.checkpoints.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "ecrl_cli.verify.disk_state.integrity_config",
            lambda records, contents: CONFIG.integrity,
        )
        store = store_at(layout.root, CONFIG)
        saved = commit(store, 12, single=True).path
        store.close()
        for suffix in copies:
            shutil.copyfile(
                saved.with_suffix(suffix),
                saved.with_name(f".rejected_{saved.stem}.0badcafe{suffix}"),
            )
        (found,) = quarantined(load(layout))
    assert (found.step, found.report.ok) == (12, ok), found.report
    assert found.path == f"checkpoints/.rejected_step_00000012.0badcafe{min(copies)}"


def test_a_run_beside_whose_configuration_cannot_be_read_is_no_evidence(
    sweep: Path, tmp_path: Path
) -> None:
    run = copied(sweep, "blk", tmp_path)
    copied(sweep, "ref", tmp_path)
    (tmp_path / "another").mkdir()
    RunLayout(tmp_path / "another").config.write_text("{")
    flip(copied(sweep, "clean", tmp_path).supervisor, 1)
    verdict = verify_run(run.root)
    assert (verdict.status, verdict.reference) == (VALID, "ref")


# Survivors


def told_of(run: RunRecords, **logs: Any) -> Finding:
    return exactly_once(Case(left(run, 0, **logs)))


def test_a_survivor_whose_log_is_not_there_is_not_believed(sweep: Path) -> None:
    run = read(sweep, "lossy")
    assert exactly_once(Case(run)).status == VALID
    ranks = {rank: lines for rank, lines in run.logs(0).ranks.items() if rank != 1}
    assert_said(
        told_of(run, ranks=ranks),
        UNKNOWN,
        "the log of attempt 0 rank 1, which reports step 9, is not there",
    )
    empty = run.logs(0).ranks | {1: Lines[Any]((), (), 0)}
    assert_said(
        told_of(run, ranks=empty),
        UNKNOWN,
        "the log of attempt 0 rank 1, which reports step 9, is not there",
    )


def test_a_survivor_that_did_no_step_needs_no_log(sweep: Path) -> None:
    """It left behind the step that its attempt resumed from."""
    run = read(sweep, "lossy")
    report = replace(run.logs(0).survivor_reports[1].events[0], global_step=0, redone=(), layers=())
    reports = {
        rank: replace(lines, events=(replace(report, rank=rank),))
        for rank, lines in run.logs(0).survivor_reports.items()
    }
    finding = told_of(run, ranks={}, survivor_reports=reports)
    assert not told(finding, "which reports step 0, is not there"), finding


def test_a_survivor_without_its_report_is_missed(sweep: Path) -> None:
    run = read(sweep, "lossy")
    reports = run.logs(0).survivor_reports
    assert_said(
        told_of(run, survivor_reports={0: reports[0]}),
        UNKNOWN,
        "rank 1 of attempt 0 went on and left no survivor report",
    )
    assert_said(
        told_of(run, survivor_reports=reports | {1: replace(reports[1], events=())}),
        UNKNOWN,
        "the survivor report of attempt 0 rank 1 is empty or cannot be read",
    )
    assert_said(
        told_of(run, survivor_reports=reports | {1: replace(reports[1], torn=1)}),
        UNKNOWN,
        "the survivor report of attempt 0 rank 1 is torn",
    )


def test_samples_that_nobody_reports_as_lost_end_no_claim(tmp_path: Path) -> None:
    """A recovery bug from step 12 on, and one line that calls a sample of step 1 lost: equality
    would be claimed up to there alone.
    """
    build_ref(tmp_path)
    run = build_blk(tmp_path, bug_from=12)
    journal = Journal(run.attempt(0).lost_samples(0))
    journal.append(LostSamples(1, LOST, (3,), ("weight",), (1,), "lossy_forward"))
    journal.close()
    refold(run)
    finding = exactly_once(Case(load(run)))
    assert_said(
        finding,
        INVALID,
        "attempt 0 has samples of step 1 on record as lost, and no survivor reports that step",
    )
    assert verify_run(run.root).status == INVALID


@pytest.mark.parametrize(
    ("recovery", "status"), [("lossy_forward", UNKNOWN), ("checkpoint_restart", INVALID)]
)
def test_a_report_may_be_missing_only_where_samples_may_be_lost(
    sweep: Path, recovery: str, status: str
) -> None:
    lost = Lines((LostSamples(1, LOST, (3,), ("weight",), (1,), "it"),), (b"",), 0)
    run = left(
        configured(read(sweep, "blk"), recovery=RecoveryConfig(recovery)),
        0,
        lost_sample_records={0: lost},
    )
    assert_said(
        exactly_once(Case(run)),
        status,
        "attempt 0 has samples of step 1 on record as lost, and no survivor reports that step",
    )


def test_who_had_died_is_not_reported_as_living(sweep: Path) -> None:
    run = read(sweep, "lossy")
    reports = {
        rank: replace(lines, events=(replace(lines.events[0], alive=(0, 1, 2, 3)),))
        for rank, lines in run.logs(0).survivor_reports.items()
    }
    assert_said(
        told_of(run, survivor_reports=reports),
        INVALID,
        "rank 0 of attempt 0 reports ranks [2, 3] as living, whose deaths are on record",
    )


def test_who_goes_on_left_behind_the_step_that_is_gone_on_with(sweep: Path) -> None:
    run = attempts(read(sweep, "lossy"), 1, resumed_from_step=8)
    assert_said(
        exactly_once(Case(run)),
        INVALID,
        "rank 0 of attempt 0 left after step 9, attempt 1 goes on after step 8",
    )


@pytest.mark.parametrize("there", [False, True])
def test_a_checkpoint_that_nobody_saved_was_refused_only_where_it_lies_aside(
    sweep: Path, tmp_path: Path, there: bool
) -> None:
    """A stranger's file under the name of a step is put aside like any other."""
    layout = copied(sweep, "blk", tmp_path)
    if there:
        (layout.checkpoints / ".rejected_step_00000019.0a0b0c0d").mkdir()
    records = attempts(
        load(layout),
        2,
        rejected=(Rejected("checkpoints/step_00000019", "commit", "COMMIT is missing"),),
    )
    finding = no_bad_checkpoint(Case(records))
    assert told(finding, "which nobody saved") != there and finding.status == (
        VALID if there else INVALID
    ), finding


def test_layers_are_held_against_the_checkpoints_only_where_there_are_any(
    sweep: Path, tmp_path: Path
) -> None:
    layout = copied(sweep, "lossy", tmp_path)
    shutil.rmtree(layout.checkpoints)
    layout.checkpoints.mkdir()
    assert not told(exactly_once(Case(load(layout))), "which is no parameter of the checkpoints")


def foreign(sweep: Path, folder: Path, strategy: str) -> RunRecords:
    """The struck run as another checkpointer would have saved it: three bytes for each state."""
    layout = copied(sweep, "blk", folder)
    shutil.rmtree(layout.checkpoints)
    records = load(layout)
    kind = STRATEGIES.of(strategy).checkpointer
    assert kind is not None
    named: dict[int, str] = {}
    for logs in records.attempt_logs:
        for line in logs.checkpoints.events:
            if line.event == "committed":
                step = layout.checkpoints / f"step_{line.global_step:08d}"
                step.mkdir(parents=True)
                (step / "state.pt").write_bytes(b"abc")
                train = {
                    "global_step": line.global_step,
                    "line_chain": [],
                    "sampler": {"epoch": 0, "cursor_step": line.global_step, "seed": 7},
                }
                train |= {
                    "scheduler": {},
                    "scaler": None,
                    "optimizer": {"param_groups": [], "scalars": {}, "host_keys": []},
                }
                metadata = StepMetadata(
                    records.stored.run_id, logs.attempt, line.global_step, kind.name, (), train
                )
                (step / STEP_METADATA).write_bytes(metadata.encoded())
                named[line.global_step] = metadata.sha256
    for logs in records.attempt_logs:
        for line in logs.checkpoints.events:
            if line.event == "committed":
                records = event(
                    records,
                    logs.attempt,
                    "committed",
                    line.global_step,
                    commit_sha256=named[line.global_step],
                    bytes=3,
                )
    for a in records.attempts:
        if a.resumed_from:
            records = attempts(
                records,
                a.attempt,
                resumed_from=replace(a.resumed_from, commit_sha256=named[a.resumed_from_step]),
            )
    shutil.rmtree(layout.checkpoints / "step_00000006")  # retired
    return configured(
        records, checkpoint=replace(records.stored.config.checkpoint, strategy=strategy)
    )


@pytest.mark.parametrize(
    ("strategy", "durable"), [("torch_save", False), ("torch_save_durable", True)]
)
def test_of_checkpoints_that_another_wrote_it_is_said_how_far_they_were_looked_at(
    sweep: Path, tmp_path: Path, strategy: str, durable: bool
) -> None:
    """Where they are lost, that is a broken promise only of those that were made durable."""
    records = foreign(sweep, tmp_path, strategy)
    resumed = no_bad_checkpoint(Case(records))
    assert resumed.status == NOT_CHECKED and told(
        resumed, "2 resumed from the newest that was committed and loaded, 0 refused"
    ), resumed
    loss = no_acknowledged_loss(Case(records))
    assert_said(loss, NOT_CHECKED, "committed checkpoints are there with as many bytes as recorded")
    (records.layout.checkpoints / "step_00000024" / "state.pt").write_bytes(b"ab")
    loss = no_acknowledged_loss(Case(records))
    assert loss.status == (INVALID if durable else NOT_CHECKED), loss
    assert (
        told(loss, "step 24 was committed with 3 bytes, there are 2")
        and told(loss, "; 1 lost, ") != durable
    ), loss
    folder = records.layout.checkpoints
    (folder / "step_00000018").rename(folder / ".rejected_step_00000018.0badcafe")
    assert [(aside.step, aside.report.ok) for aside in quarantined(records)] == [(18, True)]


def test_checkpoints_of_another_user_are_judged_like_ones_own(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may have been copied from another machine."""
    layout = copied(sweep, "ref", tmp_path)
    fstat = PosixFs.fstat
    monkeypatch.setattr(
        PosixFs,
        "fstat",
        lambda fs, fd: os.stat_result((*(found := fstat(fs, fd))[:4], 4711, *found[5:])),
    )
    disk = Case(load(layout)).disk
    assert [c.step for c in disk] == [12, 18, 24] and all(c.report.ok for c in disk)


def test_an_attempt_without_an_end_did_not_end_behind_the_next_launch(sweep: Path) -> None:
    records = read(sweep, "blk")
    for a in records.attempts[:2]:
        assert not told(
            time_conserved(Case(attempts(records, a.attempt, ended_at=None))),
            f"before attempt {a.attempt} ended",
        )


@pytest.mark.parametrize(
    ("reason", "aside", "status"),
    [
        ("is damaged", 1, INVALID),
        ("is damaged", 2, VALID),
        (NOT_ACKNOWLEDGED, 1, VALID),
        ("EIO at step_00000006", 1, UNKNOWN),
    ],
)
def test_a_refused_checkpoint_that_passes_is_told_where_it_must_be_that_one(
    reason: str, aside: int, status: str
) -> None:
    """Of a checkpoint that no line acknowledges: of two copies under its step either may have been
    the damaged one.
    """
    case = SimpleNamespace(checkpoints=SimpleNamespace(found={1: {}}), disk=())
    copies = [
        SimpleNamespace(
            path=f"copy {number}", report=SimpleNamespace(ok=True, commit_sha256="a" * 64)
        )
        for number in range(aside)
    ]
    notes = FindingBuilder("it")
    _check_sound(
        cast("Any", case),
        cast("Any", SimpleNamespace(attempt=1)),
        Rejected("checkpoints/step_00000006", "parts", reason),
        cast("Any", copies),
        notes,
    )
    assert notes.finding("").status == status


@pytest.mark.parametrize("reason", ["b is damaged", "a is damaged", "EIO at a", NOT_ACKNOWLEDGED])
@pytest.mark.parametrize("aside", [1, 2])
def test_the_copy_set_aside_is_refused_for_the_reason_on_record(reason: str, aside: int) -> None:
    report = SimpleNamespace(ok=False, layer="hash", reason="b is damaged")
    copies = cast("Any", [SimpleNamespace(path="copy", report=report)] * aside)
    notes, refused = FindingBuilder("it"), Rejected("checkpoints/step_00000006", "hash", reason)
    _check_reason(cast("Any", SimpleNamespace(attempt=1)), refused, copies, notes)
    assert (notes.finding("").status == UNKNOWN) == ((aside, reason) == (1, "a is damaged"))


def test_what_is_quarantined_is_read_under_its_original_names_and_nothing_else_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "quarantine-1-step").mkdir()
    (tmp_path / "quarantine-1-step" / "part").write_bytes(b"its part")
    (tmp_path / "elsewhere" / "step").write_bytes(b"another's")
    (tmp_path / "quarantine-1-file").write_bytes(b"its file")
    fs = _RenamedFs(tmp_path, {"step": "quarantine-1-step", "file": "quarantine-1-file"})
    assert fs.listdir(tmp_path / "step") == ["part"]
    for path, content in (
        ("file", b"its file"),
        ("elsewhere/step", b"another's"),
        ("step/part", None),
    ):
        try:
            fd = fs.open(tmp_path / path, os.O_RDONLY)
        except StorageError:
            assert content is None  # of a folder's files only through the folder
            continue
        assert os.read(fd, 20) == content
        fs.close(fd)
    for folder, name, content in (
        (tmp_path, "file", b"its file"),
        (tmp_path / "elsewhere", "step", b"another's"),
    ):
        within = fs.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fd = fs.open_at(within, name, os.O_RDONLY)
        assert os.read(fd, 20) == content
        fs.close(fd)
        fs.close(within)


@pytest.mark.parametrize(
    ("last", "booked", "wrong"), [(8, False, True), (7, False, False), (8, True, False)]
)
def test_a_refused_snapshot_was_taken_unless_its_rank_died_in_that_step(
    last: int, booked: bool, wrong: bool
) -> None:
    """Of step 7: whoever died in it may not have closed the span."""
    spans = [Span("snapshot", 0.0, 1.0, 0, 7)] * booked + [Span("compute", 1.0, 2.0, 0, last)]
    case = SimpleNamespace(
        spans=SimpleNamespace(of=lambda attempt, rank: SimpleNamespace(spans=spans))
    )
    notes = FindingBuilder("it")
    _check_taken(cast("Any", case), SkippedSnapshot(7, 0, "torn"), "attempt 1", notes)
    assert notes.clean != wrong


@pytest.mark.parametrize(
    ("step", "wrong"), [(0, False), (6, False), (5, True), (20, False), (21, False), (22, True)]
)
def test_a_hang_is_in_a_step_of_its_rank_or_before_the_first_one(
    sweep: Path, step: int, wrong: bool
) -> None:
    """Attempt 1 goes on from step 6, and its ranks log up to step 20: one that is still being
    launched stands in step 0.
    """
    records = read(sweep, "blk")
    a = records.attempts[1]
    if step < 20:  # the rank that hangs has logged nothing yet
        records = left(
            records,
            1,
            ranks={rank: lines for rank, lines in records.logs(1).ranks.items() if rank != 1},
        )
    found = hang_contradictions(Case(records), a, Hang((1,), "training", step, 1.0, 1.0, "it"))
    assert any("stood still" in text for text in found) == wrong, found


def test_what_was_replayed_is_counted_to_the_last_step_that_was_seen(sweep: Path) -> None:
    """Steps 7 to 9 and 19 to 20, of 8 samples each: a run that survivors continued says so."""
    records = attempts(read(sweep, "blk"), 1, continues=0)
    assert (
        _accounts(Case(records), 192)
        == "; 192 applied to every layer, 40 replayed, 0 on record as lost"
    )


@pytest.mark.parametrize(("committed", "status"), [(False, VALID), (True, UNKNOWN)])
def test_what_was_refused_again_before_it_was_set_aside_lies_there_once(
    committed: bool, status: str
) -> None:
    """The supervisor died in between. Where the step was committed again, there were two."""
    lines = {
        0: [CheckpointLine("committed", 6, 0, 0.0, 0.0)],
        1: [CheckpointLine("committed", 6, 1, 1.0, 1.0)] * committed,
    }
    logs = {
        number: SimpleNamespace(
            attempt=number, checkpoints=SimpleNamespace(events=lines.get(number, []))
        )
        for number in range(3)
    }
    report = SimpleNamespace(ok=False, layer="parts")
    aside = SimpleNamespace(path="copy", step=6, report=report)
    case = SimpleNamespace(
        quarantined=[aside],
        disk=(),
        run=SimpleNamespace(attempt_logs=logs.values(), logs=logs.__getitem__),
        checkpoints=SimpleNamespace(found={1: {}, 2: {}}),
        attempts=[
            SimpleNamespace(
                attempt=number,
                rejected=(Rejected("checkpoints/step_00000006", "parts", "is damaged"),),
            )
            for number in (1, 2)
        ],
    )
    notes = FindingBuilder("it")
    _check_refusals(cast("Any", case), notes)
    assert_said(
        notes.finding(""),
        status,
        (
            "2 refused checkpoints of step 6 cannot be looked at again: 1 are still there"
            if committed
            else ""
        ),
    )


@pytest.mark.parametrize(("left_behind", "status"), [(5, VALID), (6, VALID), (7, INVALID)])
def test_memory_is_gone_on_with_unless_a_newer_checkpoint_is_there(
    left_behind: int, status: str
) -> None:
    notes = FindingBuilder("it")
    there = cast("Any", {left_behind: None})
    _check_fresh(
        cast("Any", SimpleNamespace(attempt=1, memory="survivors", resumed_from_step=6)),
        there,
        there,
        notes,
    )
    words = (
        "attempt 1 went on from memory after step 6 although step 7 was committed and is on no"
        " record as refused"
        if status == INVALID
        else ""
    )
    assert_said(notes.finding(""), status, words)


@pytest.mark.parametrize(("name", "ranks"), [("buffers", (0,)), ("optimizer", (0, 1))])
def test_of_the_buffers_that_survivors_end_with_only_those_of_rank_0_are_the_reference_s(
    sweep: Path, name: str, ranks: tuple[int, ...]
) -> None:
    """Stock DDP leaves each rank its own."""
    ref = load(build_states(sweep / "ends" / name, "ref"))
    assert ref.final is not None and len(ref.final.ranks) == 2
    other = left(
        ref,
        0,
        final=replace(
            ref.final, ranks=tuple(replace(state, **{name: "0" * 64}) for state in ref.final.ranks)
        ),
    )  # type: ignore[arg-type]
    survived = configured(other, recovery=RecoveryConfig("immediate_rollback"))
    assert differing_ends(survived, ref) == [
        f"the end of rank {rank} differs from that of the reference's in {name}" for rank in ranks
    ]
    assert len(differing_ends(other, ref)) == 2


@pytest.mark.parametrize(("written", "status"), [(10.5, VALID), (19.0, VALID), (20.5, UNKNOWN)])
def test_the_newest_pointer_is_written_before_the_end_of_the_last_session(
    written: float, status: str
) -> None:
    sessions = [SimpleNamespace(ended_time=end) for end in (10.0, 20.0)]
    case = SimpleNamespace(disk=(), run=SimpleNamespace(sessions=sessions, attempt_logs=()))
    notes = FindingBuilder("it")
    _check_facts(cast("Any", case), "step_00000006", {"timestamp": written}, notes)
    assert_said(
        notes.finding(""),
        status,
        "latest.json says that it was written at 20.500" if status == UNKNOWN else "",
    )


@pytest.mark.parametrize(
    ("blamed", "ended"), [((0,), True), ((1,), True), ((0, 2), True), ((2,), False), ((), True)]
)
def test_of_several_that_are_made_to_hang_any_may_be_to_blame(
    blamed: tuple[int, ...], ended: bool
) -> None:
    a = SimpleNamespace(
        exit_code=None, signal=9, outcome="hung", hang=SimpleNamespace(ranks=blamed)
    )
    entry = PlannedFailure(0, "stop", 0, 9, others=(1,))
    assert (
        _ended_by(cast("Any", None), cast("Any", a), cast("Any", SimpleNamespace(rank=0)), entry)
        == ended
    )


@pytest.mark.parametrize(
    ("name", "step", "wrong"),
    [("failed", 18, False), ("lost", 18, False), ("failed", 12, True), ("submitted", 18, True)],
)
def test_what_a_save_left_that_is_on_record_as_failed_is_accounted_for(
    sweep: Path, tmp_path: Path, name: str, step: int, wrong: bool
) -> None:
    """The remains lie under step 18, of which no other line says anything."""
    run = copied(sweep, "blk", tmp_path)
    (run.checkpoints / "step_00000018" / COMMIT).write_bytes(b"{}")
    found = load(run)
    for number in range(3):
        found = left(
            found,
            number,
            checkpoints=kept(
                found.logs(number).checkpoints,
                lambda line: line if line.global_step != 18 else None,
            ),
        )
    found = appended(found, 0, "committed", 6, event=name, global_step=step)
    notes = FindingBuilder("it")
    _check_names(Case(found), notes)
    assert notes.clean != wrong


@pytest.mark.parametrize(("nodes", "wrong"), [(1, True), (2, False)])
def test_whether_ranks_were_in_a_step_together_is_asked_of_those_on_one_machine(
    sweep: Path, nodes: int, wrong: bool
) -> None:
    """Rank 1's clock is 100 s ahead: on another machine it may be."""
    found = logged(
        read(sweep, "blk"),
        lambda line: replace(line, at=line.at + 100.0) if line.rank == 1 else line,
    )
    found = ordered(found, 0, nodes=tuple(f"node{number}" for number in range(nodes)))
    notes = FindingBuilder("it")
    _check_steps_together(Case(found), found.attempts[0], notes)
    assert notes.clean != wrong


@pytest.mark.parametrize(("dropped", "excused"), [(True, True), (False, False)])
def test_a_failure_inside_a_step_is_excused_where_survivors_dropped_that_step(
    dropped: bool, excused: bool
) -> None:
    """Where they finished it, it should have struck."""
    report = SimpleNamespace(dropped=dropped, global_step=9)
    case = SimpleNamespace(
        path=SimpleNamespace(segments=[SimpleNamespace(attempt=0, steps=lambda: range(1, 10))]),
        run=SimpleNamespace(logs=lambda attempt: SimpleNamespace(survivor_report=report)),
    )
    entries = [
        SimpleNamespace(index=number, moment=moment, global_step=step)
        for number, (moment, step) in enumerate(((INSIDE[0], 9), (INSIDE[0], 8)))
    ]
    assert list(_dropped_with_its_step(cast("Any", case), cast("Any", entries))) == (
        [0] if excused else []
    )


@pytest.mark.parametrize(
    ("strategy", "moment", "until"),
    [("overlapped", "save", 50.0), ("blocking", "save", 20.0), ("overlapped", "step_end", 20.0)],
)
def test_a_writer_in_the_background_may_be_hit_when_the_next_attempt_has_begun(
    sweep: Path, strategy: str, moment: str, until: float
) -> None:
    found = read(sweep, "blk")
    found = configured(found, checkpoint=replace(found.stored.config.checkpoint, strategy=strategy))
    found = supervised(found, sessions=(replace(found.sessions[0], ended_at=50.0),))
    found = attempts(attempts(found, 0, launched_at=10.0), 1, launched_at=20.0)
    entry, fault = (
        SimpleNamespace(moment=moment, kind="kill", others=()),
        replace(found.fired[0], attempt=0),
    )
    # two in one attempt: neither can be said to have ended it
    doubled = replace(found, fired=(fault, replace(fault, index=1)))
    assert _window(Case(doubled), fault, cast("Any", entry), found.attempts[0]) == (10.0, until)


def test_with_fixed_replicas_the_number_of_processes_makes_no_other_size(sweep: Path) -> None:
    ours = read(sweep, "blk")
    theirs = configured(ours, world_size=1)
    assert not same_sizes(ours, theirs) and same_sizes(ours, configured(ours, seed=3))
    replicas = ElasticConfig(replicas=4)
    assert same_sizes(configured(ours, elastic=replicas), configured(theirs, elastic=replicas))


@pytest.mark.parametrize(
    ("status", "wrong"),
    [("completed", True), ("stopped", True), ("gave_up", True), ("running", False)],
)
def test_the_folder_of_a_run_that_ended_in_any_way_is_looked_at(
    sweep: Path, tmp_path: Path, status: str, wrong: bool
) -> None:
    run = copied(sweep, "blk", tmp_path)
    (run.checkpoints / LATEST).write_text("[]")
    notes = FindingBuilder("it")
    check_folder(Case(supervised(load(run), terminal_status=status)), notes)
    assert notes.clean != wrong


@pytest.mark.parametrize(("reason", "wrong"), [(FOUND, False), (None, True)])
def test_a_commit_without_bytes_is_one_that_was_found_afterwards(
    sweep: Path, reason: str | None, wrong: bool
) -> None:
    """Whoever finds a checkpoint of a dead writer did not count its bytes."""
    found, notes = (
        event(read(sweep, "blk"), 2, "committed", 24, bytes=0, reason=reason),
        FindingBuilder("it"),
    )
    _check_sizes(Case(found), notes)
    assert notes.clean != wrong and (
        not wrong or told(notes.finding(""), "step 24 was committed with no bytes")
    )


@pytest.mark.parametrize("finite", ["all", "model", "off"])
def test_a_checkpoint_is_looked_at_for_what_its_run_allows(sweep: Path, finite: str) -> None:
    found = read(sweep, "blk")
    found = configured(
        found, checkpoint=replace(found.stored.config.checkpoint, finite=finite, max_bytes=7)
    )
    made = integrity_config(found, contents=True)
    assert (made.finite, made.max_bytes, made.run_id, made.contents) == (
        finite,
        7,
        found.stored.run_id,
        True,
    )
