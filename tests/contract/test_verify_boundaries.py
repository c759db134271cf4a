"""Conditions of single checks, each alone: what is just allowed, and what is just not."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ecrl_cli.checkpoint.format.train_document import TRAIN_STATE
from ecrl_cli.config.schema import CheckpointConfig
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.columns import rank_columns
from ecrl_cli.records.events import FOUND, CheckpointLine, PlannedFailure, RankLine, Rejected
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.checkpoints import _taken_back, no_acknowledged_loss, no_bad_checkpoint
from ecrl_cli.verify.exactly_once import exactly_once
from ecrl_cli.verify.fault_instants import _beside_lines, _check_passed, _window
from ecrl_cli.verify.fault_plan import _unplanned, failures_once
from ecrl_cli.verify.journal_instants import _outside
from ecrl_cli.verify.labels import check_labels
from ecrl_cli.verify.reference import References, find_references
from ecrl_cli.verify.retention import Folder
from ecrl_cli.verify.same_input import same_input
from ecrl_cli.verify.state_consistent import state_consistent
from ecrl_cli.verify.state_restored import state_restored
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.train_state import (
    FIRST_SCALE,
    GROWTH_INTERVAL,
    _check_rates,
    _following,
    check_documents,
    check_settings,
    learning_rate,
)
from ecrl_cli.verify.trajectory import _whole_steps
from ecrl_cli.verify.verdict import INVALID, VALID, FindingBuilder, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import RunBuilder, build_blk, build_elastic, build_ref, config_of
from tests.runs.changed import attempts, configured, left, logged, restored, span, supervised
from tests.runs.spoil import Edit, append, at_step, edit_json, edit_lines, without
from tests.runs.spoilt import NO_LOSS
from tests.runs.spoilt_record import composed
from tests.runs.spoilt_states import build_states
from tests.runs.spoilt_store import event
from tests.runs.survived import build_rollback


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return build_blk(tmp_path)


@pytest.mark.parametrize(("steps", "clean"), [(0.5, True), (1.0, False)])
def test_what_a_scale_changes_may_differ_from_what_was_typed(
    run: RunLayout, steps: float, clean: bool
) -> None:
    edit_json(run.config, lambda document: document["config"]["scale"].update(steps=steps))
    composed(target_steps=48)(run)
    notes = FindingBuilder("records-consistent")
    check_labels(Case(load(run)), notes)
    assert notes.clean == clean


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("r-${dataset.name}-${scale.name}", True),
        ("r-${dataset.name}-${nobody.name}", False),
        ("r-fake", False),
    ],
)
def test_a_name_composed_from_others_is_compared_as_it_reads(
    run: RunLayout, name: str, clean: bool
) -> None:
    """As the suites of `+matrix=failures` are named: Hydra stores the text with its
    interpolations.
    """
    edit_json(run.config, lambda document: document["config"].update(suite_name="r-fake-paper"))
    composed(suite_name=name)(run)
    notes = FindingBuilder("x")
    check_labels(Case(load(run)), notes)
    assert notes.clean == clean, notes.finding("").message


@pytest.mark.parametrize(
    ("written", "clean"), [("${verbose}", True), ("${quiet}", False), ("${oc.env:AUGMENT}", True)]
)
def test_a_value_taken_from_another_key_is_compared_by_its_type(
    run: RunLayout, written: str, clean: bool
) -> None:
    """Only a resolver knows what `${oc.env:...}` was: it contradicts nothing."""
    augment = json.loads(run.config.read_text())["config"]["dataset"]["augment"]
    composed(dataset__augment=written, verbose=augment, quiet=not augment)(run)
    notes = FindingBuilder("x")
    check_labels(Case(load(run)), notes)
    assert notes.clean == clean, notes.finding("").message


def test_retention_leaves_two_checkpoints_where_one_is_asked_for(tmp_path: Path) -> None:
    config = replace(
        config_of("blk", "kill", (9, 20), 1),
        checkpoint=CheckpointConfig(strategy="blocking", every=6, keep=1),
    )
    run = RunBuilder(tmp_path / "blk", config).build()
    build_ref(tmp_path)
    assert found(verify_run(run.root), NO_LOSS).status == VALID, render(verify_run(run.root))
    shutil.rmtree(run.checkpoints / "step_00000018")
    append(
        run.attempt(2).checkpoints, event(run, 2, "retired", 12) | {"global_step": 18, "path": None}
    )
    finding = found(verify_run(run.root), NO_LOSS)
    assert finding.status == INVALID and "step 18" in finding.message, finding


@pytest.mark.parametrize(
    ("tracker", "expected"),
    [
        (GROWTH_INTERVAL - 1, {(2.0, 0), (1.0, 0), (0.5, 0)}),
        (GROWTH_INTERVAL - 2, {(1.0, GROWTH_INTERVAL - 1), (0.5, 0)}),
    ],
)
def test_a_loss_scale_grows_at_the_end_of_its_interval(
    tracker: int, expected: set[tuple[float, int]]
) -> None:
    assert set(_following((1.0, tracker))) == expected


@pytest.mark.parametrize(("step", "clean"), [(9, True), (8, False)])
def test_a_failure_is_passed_once_its_victim_is_behind_the_next_step(
    run: RunLayout, step: int, clean: bool
) -> None:
    """Of two failures after one step only one strikes: who died after step 9 has not gone past
    it.
    """
    case, notes = Case(load(run)), FindingBuilder("failures-once")
    _check_passed(case, case.attempts[0], [PlannedFailure(5, "kill", 0, step)], notes)
    assert notes.clean == clean


@pytest.mark.parametrize(("attempt", "step", "status"), [(1, 6, VALID), (2, 12, INVALID)])
def test_only_retention_that_may_have_died_owes_no_line(
    tmp_path: Path, attempt: int, step: int, status: str
) -> None:
    """Each attempt retired one checkpoint at its end, and its journal lacks the line; attempt 1
    died, attempt 2 completed.
    """
    config = replace(
        config_of("blk", "kill", (9, 20), 1),
        checkpoint=CheckpointConfig(strategy="blocking", every=6, keep=1),
    )
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
    assert _window(another, fired, entry, first) == (
        first.launched_at,
        case.attempts[1].launched_at,
    )


@pytest.mark.parametrize(("boot", "bounded"), [("boot", True), ("another", False)])
def test_a_fault_between_two_attempts_has_bounds_on_the_clock_of_one_boot_alone(
    run: RunLayout, boot: str, bounded: bool
) -> None:
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


def test_a_batch_is_compared_with_what_was_typed_where_only_the_steps_are_scaled(
    run: RunLayout,
) -> None:
    edit_json(run.config, lambda document: document["config"]["scale"].update(steps=0.5))
    composed(target_steps=48, global_batch=16)(run)
    notes = FindingBuilder("records-consistent")
    check_labels(Case(load(run)), notes)
    assert (
        "global_batch is '8' in config.json, '16' in .hydra/config.yaml"
        in notes.finding("").message
    )


@pytest.mark.parametrize(
    ("overrides", "named", "said"),
    [
        (["+suite=mine", "schedule=between", "seed=7"], "fake-small_cnn-between", ""),
        (
            ["+suite=mine", "schedule=between"],
            "fake-small_cnn-late",
            "in config.json, 'fake-small_cnn-between' by .hydra/overrides.yaml",
        ),
        (
            ["+suite=mine", "schedule=between", "suite_name=mine"],
            "fake-small_cnn-between",
            "in config.json, 'mine' in .hydra/config.yaml",
        ),
        (["+suite=mine"], "fake-small_cnn-between", "in config.json, 'mine' in .hydra/config.yaml"),
        (None, "fake-small_cnn-between", "in config.json, 'mine' in .hydra/config.yaml"),
    ],
    ids=[
        "named anew",
        "another name",
        "a name that was typed",
        "no schedule was typed",
        "not on record",
    ],
)
def test_a_typed_schedule_names_the_suite_anew(
    run: RunLayout, overrides: list[str] | None, named: str, said: str
) -> None:
    edit_json(
        run.config,
        lambda document: document["config"].update(
            suite_name=named, schedule={"name": "between", "at": [0.5], "offset": 0.5}
        ),
    )
    composed(suite_name="mine")(run)
    if overrides is not None:
        (run.hydra / "overrides.yaml").write_text(json.dumps(overrides))
    notes = FindingBuilder("records-consistent")
    check_labels(Case(load(run)), notes)
    assert notes.clean == (not said)
    assert said in notes.finding("").message


@pytest.mark.parametrize(("step", "clean"), [(24, True), (25, False)])
def test_what_ended_well_works_on_no_step_behind_its_last(
    run: RunLayout, step: int, clean: bool
) -> None:
    records = load(run)
    last = records.logs(2).spans.events[-1]
    assert (last.category, last.global_step) == ("idle", 24)
    finding = time_conserved(Case(span(records, 2, -1, global_step=step)))
    assert (finding.status == VALID) == clean, finding
    assert (
        clean
        or "attempt 2 rank 0 has a span of idle of step 25, when step 24 was the last"
        in str(finding)
    )


@pytest.mark.parametrize(("after", "told"), [(0, False), (1, True)])
def test_who_is_killed_in_a_step_has_not_logged_it(tmp_path: Path, after: int, told: bool) -> None:
    """Rank 1 dies in the backward pass of step 9; the other rank, past its last wait for it, may
    have logged the step.
    """
    records = load(build_rollback(tmp_path))
    lines = records.logs(0).ranks[1]
    last = lines.events[-1]
    assert last.global_step == 8
    more = replace(last, global_step=9, cursor_step=last.cursor_step + 1, at=last.at + 1e-4)
    longer = left(
        records,
        0,
        ranks=records.logs(0).ranks
        | {1: replace(lines, events=(*lines.events, more)[: len(lines.events) + after])},
    )
    assert (
        "entry 0 fired in step 9, rank 1 went on to step 9" in str(failures_once(Case(longer)))
    ) == told


def test_the_preferred_reference_is_the_one_of_the_arms_made_for_it(tmp_path: Path) -> None:
    """Whatever the others are called: a variant of another name comes last, though its folder comes
    first.
    """
    blk = build_blk(tmp_path)
    for number, (folder, variant) in enumerate((("a", "a"), ("b", "clean"), ("c", "ref"))):
        config = config_of(variant)
        config = replace(config, checkpoint=config_of("ref").checkpoint)
        RunBuilder(tmp_path / folder, config, now=2000.0 + number).build()
    usable = find_references(load(blk), References()).usable
    assert [records.layout.root.name for records in usable] == ["c", "b", "a"]


@pytest.mark.parametrize(("scale", "clean"), [(4096.0, True), (FIRST_SCALE, False)])
def test_who_goes_on_from_memory_goes_on_with_the_scale_it_had(
    tmp_path: Path, scale: float, clean: bool
) -> None:
    """Attempt 1 continues after step 8 of attempt 0, where the scale was 4096."""
    records = configured(load(build_rollback(tmp_path)), precision="fp16")
    begun = records.attempts[1]
    assert begun.memory == "survivors" and begun.resumed_from_step == 8

    def scaled(found: RunRecords, number: int, start: int, first: float) -> RunRecords:
        return logged(
            found,
            lambda line: replace(
                line, lr=0.1, loss_scale=first, growth_tracker=start + line.global_step
            ),
            number,
        )

    records = scaled(scaled(records, 0, 100, 4096.0), 1, 100 if clean else -8, scale)
    notes = FindingBuilder("x")
    check_settings(Case(records), notes)
    follows = [text for text in notes.finding("").evidence if "do not follow" in text] + [
        notes.finding("").message
    ]
    said = any(
        "step 9 of attempt 1" in text and "do not follow from 4096.0 and 108 after step 8" in text
        for text in follows
    )
    assert said != clean, follows


@pytest.mark.parametrize("replicas", [4, 0])
def test_ranks_restore_equal_buffers_where_something_makes_them_equal(
    tmp_path: Path, replicas: int
) -> None:
    """With fixed replicas they are; in stock DDP each rank has its own."""
    records = load(build_states(tmp_path, "blk"))
    records = configured(records, elastic=replace(records.stored.config.elastic, replicas=replicas))
    records = restored(
        records, 1, 1, state=replace(records.logs(1).restored[1].state, buffers="c" * 64)
    )
    assert (
        "attempt 1 rank 1 began with other buffers than rank 0"
        in str(state_restored(Case(records)))
    ) == bool(replicas)


@pytest.mark.parametrize(("reason", "step", "taken"), [(FOUND, 6, 1), ("", 6, 0), (FOUND, 12, 0)])
def test_a_failed_save_is_taken_back_by_finding_that_checkpoint_alone(
    run: RunLayout, reason: str, step: int, taken: int
) -> None:
    line = next(line for line in load(run).logs(0).checkpoints.events if line.event == "committed")
    failed = replace(line, event="failed", global_step=6, reason="disk full")
    assert _taken_back((failed, replace(line, global_step=step, reason=reason))) == Counter(
        {step: taken} if taken else {}
    )


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_end_of_every_rank_is_what_it_logged_last(tmp_path: Path, rank: int) -> None:
    records = load(build_states(tmp_path, "blk"))
    assert records.final is not None
    there = rank if rank < 2 else 0
    ends = tuple(
        replace(state, rng="c" * 64) if state.rank == rank else state
        for state in records.final.ranks
    )
    finding = state_consistent(Case(left(records, 2, final=replace(records.final, ranks=ends))))
    assert (
        f"the end of rank {there} differs in rng from what it logged after step 24" in str(finding)
    ) == (rank < 2)


@pytest.mark.parametrize(
    ("at", "words"), [(-0.002, "before its victim had logged step 9"), (0.0, ""), (9.0, "")]
)
def test_a_fault_behind_a_step_waits_for_its_line(run: RunLayout, at: float, words: str) -> None:
    records = load(run)
    logged_at = records.logs(0).ranks[0].events[-1].at
    claim = replace(records.fired[0], at=logged_at + at, rank=0)
    entry = replace((records.plan or ())[0], rank=0)
    told = [text for bound, text in _beside_lines(Case(records), claim, entry) if bound > 0.001]
    assert told == ([words] if words else [])


@pytest.mark.parametrize(("at", "told"), [(-0.002, True), (0.002, False)])
def test_a_fault_in_a_step_waits_for_the_step_before(tmp_path: Path, at: float, told: bool) -> None:
    records = load(build_rollback(tmp_path))
    eight = next(line.at for line in records.logs(0).ranks[1].events if line.global_step == 8)
    claim, entry = replace(records.fired[0], at=eight + at), (records.plan or ())[0]
    assert entry.moment == "backward"
    found = [text for bound, text in _beside_lines(Case(records), claim, entry) if bound > 0.001]
    assert found == (["before its victim had logged step 8"] if told else [])


@pytest.mark.parametrize(("step", "told"), [(9, False), (8, True)])
def test_a_fault_behind_a_step_strikes_before_the_next_one_is_logged(
    run: RunLayout, step: int, told: bool
) -> None:
    records = load(run)
    lines = records.logs(0).ranks[1]
    claim = replace(records.fired[0], at=lines.events[-1].at + 0.002, at_step=step)
    found = [
        text
        for bound, text in _beside_lines(Case(records), claim, (records.plan or ())[0])
        if bound > 0.001
    ]
    assert found == (["after its victim had logged step 9"] if told else [])


@pytest.mark.parametrize(("entry", "told"), [("kill", False), ("slow_rank", True), (None, False)])
def test_a_death_is_unplanned_unless_a_fault_was_to_end_its_attempt(
    run: RunLayout, entry: str | None, told: bool
) -> None:
    """A fault that only slows its rank explains no death; one that the plan does not know is told
    of by itself.
    """
    records = load(run)
    planned = replace((records.plan or ())[0], kind=entry) if entry else None
    by_index = {0: planned} if planned else {}
    records = replace(records, fired=records.fired[:1])
    assert (
        "attempt 0 died unplanned: rank 1, exit code None, signal 9"
        in _unplanned(Case(records), by_index)
    ) == told


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("checkpoints/step_00000000", True),
        ("checkpoints/step_00000018", True),
        ("checkpoints/x", False),
    ],
)
def test_what_is_not_newer_than_what_was_chosen_had_not_to_be_refused(
    run: RunLayout, path: str, told: bool
) -> None:
    """Attempt 2 resumed from step 18; a name without a step says nothing of its age."""
    records = attempts(load(run), 2, rejected=(Rejected(path, "hash", "x"),))
    words = f"attempt 2 refused {path}, which is not newer than what it resumed from"
    assert (words in str(no_bad_checkpoint(Case(records)))) == told


@pytest.mark.parametrize(("number", "began"), [(0, 0), (1, 1)])
def test_a_line_belongs_to_no_time_before_its_attempt_or_the_session_that_wrote_it(
    run: RunLayout, number: int, began: int
) -> None:
    records = load(run)
    a = records.attempts[1]
    later = replace(
        records.sessions[0],
        started_at=a.launched_at + 100.0,
        time=records.sessions[0].time + 200.0,
        ended_at=a.launched_at + 200.0,
    )
    records = supervised(records, sessions=(records.sessions[0], later))
    line = next(line for line in records.logs(1).checkpoints.events if line.event == "committed")
    start = a.launched_at if number == 0 else later.started_at
    with patch("ecrl_cli.verify.journal_instants.session_of_line", lambda *_: number):
        early = _outside(Case(records), a, replace(line, at=start - 0.5, reason=FOUND))
        just = _outside(Case(records), a, replace(line, at=start, reason=FOUND))
    assert (early, just) == ("is dated 0.500 s before the attempt was launched", "")


def test_a_world_size_that_cannot_share_the_batch_is_judged_too(run: RunLayout) -> None:
    """A stranger's record may name any: 3 ranks cannot share 8 samples, and no plan is made for
    them.
    """
    finding = exactly_once(Case(attempts(load(run), 1, world_size=3)))
    assert (
        finding.status == INVALID
        and "attempt 1 rank 0 holds a line of attempt 1 rank 0 of 2 (step 7)" in finding.message
    )


def test_a_train_document_of_another_place_is_told(run: RunLayout) -> None:
    records = load(run)
    case = Case(records)
    wrong = tuple(
        replace(
            c,
            train={
                **c.train,
                **{name: {} for name in TRAIN_STATE if name not in c.train},
                "global_step": 99,
            },
        )
        for c in case.disk
    )
    notes = FindingBuilder("x")
    with patch.object(Case, "disk", wrong):
        assert check_documents(Case(records), notes) == len(wrong) > 0
    assert "has global_step 99, not " in notes.finding("").message


def test_a_line_without_a_learning_rate_is_no_wrong_one() -> None:
    config = config_of("ref")
    notes = FindingBuilder("x")
    line = RankLine(
        **{field.name: None for field in fields(RankLine)} | {"global_step": 1, "lr": None}
    )  # type: ignore[arg-type]
    _check_rates(config, 0, 0, [line, replace(line, lr=learning_rate(config, 1))], notes)
    assert notes.clean
    _check_rates(config, 0, 0, [replace(line, lr=2.0)], notes)
    assert "the learning rate is 2.0" in notes.finding("").message


@pytest.mark.parametrize(("there", "told"), [((18,), False), ((18, 18), True)])
def test_as_many_checkpoints_of_a_step_are_set_aside_as_were_refused(
    run: RunLayout, there: tuple[int, ...], told: bool
) -> None:
    records = attempts(load(run), 2, rejected=(Rejected("checkpoints/step_00000018", "hash", "x"),))
    with patch("ecrl_cli.verify.recovery_choice.quarantined_steps", lambda _: list(there)):
        said = str(no_bad_checkpoint(Case(records)))
    assert ("set aside: 2 checkpoints of step 18, on record as refused: 1" in said) == told


def test_a_step_is_whole_where_all_ranks_that_its_attempt_had_logged_it(tmp_path: Path) -> None:
    """2 ranks to step 10, then one to step 20, then 2. Of steps that more than one attempt did."""
    records = load(build_elastic(tmp_path))
    done = [
        (a, step)
        for a in records.attempts
        for step in range(a.first_step or 0, (a.last_step or 0) + 1)
    ]
    times = Counter(step for _, step in done)
    alone = {(a.attempt, step) for a, step in done if a.world_size == 1 and times[step] > 1}
    assert alone and alone <= _whole_steps(Case(records))
    one = {rank: lines for rank, lines in records.logs(0).ranks.items() if rank == 0}
    assert not any(attempt == 0 for attempt, _ in _whole_steps(Case(left(records, 0, ranks=one))))


@pytest.mark.parametrize(
    ("again", "status", "said"),
    [
        ("blake3:" + "1" * 64, VALID, ""),
        (None, VALID, ""),
        ("blake3:" + "2" * 64, INVALID, "step 8 rank 0: the targets of attempt 1 are not those of"),
        ("none", INVALID, "'none' is no hash of targets"),
    ],
    ids=["the same", "older records", "others", "none"],
)
def test_a_shard_has_the_same_targets_whenever_it_is_computed(
    run: RunLayout, again: str | None, status: str, said: str
) -> None:
    for attempt, text in ((0, "blake3:" + "1" * 64), (1, again)) if again else ():
        edit_lines(run.attempt(attempt).rank(0), at_step(8, targets_hash=text))
    finding = same_input(Case(load(run)))
    assert finding.status == status
    assert said in finding.message


@pytest.mark.parametrize("other", [False, True])
def test_targets_on_every_line_are_compared_as_columns_too(run: RunLayout, other: bool) -> None:
    """As a run records them: each line has some. Rank 0 does step 8 again with others, or not."""

    def targets_of(attempt: int) -> Edit:
        def edit(line: dict[str, Any]) -> dict[str, Any]:
            spoilt = other and (attempt, line["global_step"], line["rank"]) == (1, 8, 0)
            number = 1000 * line["rank"] + line["global_step"] + (5000 if spoilt else 0)
            return line | {"targets_hash": f"blake3:{number:064x}"}

        return edit

    records = load(run)
    for a in records.attempts:
        for rank in range(a.world_size):
            edit_lines(run.attempt(a.attempt).rank(rank), targets_of(a.attempt))
    records = load(run)
    assert all(
        rank_columns(lines) is not None
        for a in records.attempts
        for lines in records.logs(a.attempt).ranks.values()
    )
    finding = same_input(Case(records))
    assert finding.status == (INVALID if other else VALID)
    said = "step 8 rank 0: the targets of attempt 1 are not those of attempt 0"
    assert (said in finding.message) == other
