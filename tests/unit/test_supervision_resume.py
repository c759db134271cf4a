"""What the next attempt resumes from, and what goes on record before it does."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.names import MODEL
from ecrl_cli.checkpoint.store import examination as module
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.store.examination import CheckpointPrevalidator
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, synthetic_image, synthetic_plan
from ecrl_cli.config.codec import decode
from ecrl_cli.config.schema import ElasticConfig, RunConfig, SupervisionConfig
from ecrl_cli.errors import NoValidCheckpoint, StorageError
from ecrl_cli.records.events import FOUND, GONE, Attempt, CheckpointLine, Rejected
from ecrl_cli.records.journal import Journal, read_journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.supervision.launch.slurm_allocation import NodePlacement
from ecrl_cli.supervision.resume import ResumePlan, choose, or_initial, order
from tests.unit.checkpoint_support import CountingFs, commit, flip, store_at

TEN, TWENTY = Attempt(0, 2, last_step=20), Rejected("checkpoints/step_00000020", "file", GONE)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


@pytest.fixture
def store(layout: RunLayout) -> CheckpointStore:
    """Checkpoints of steps 10 and 20, both acknowledged."""
    made = store_at(layout.root)
    log = CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)
    for step in (10, 20):
        log.committed(step, commit(made, step))
    log.close()
    return made


def test_an_acknowledged_checkpoint_that_is_gone_is_refused_once(
    layout: RunLayout, store: CheckpointStore
) -> None:
    shutil.rmtree(layout.checkpoints / "step_00000020")
    choice = choose(layout, store, (TEN,))
    assert choice.report is not None and choice.report.global_step == 10
    assert choice.rejected == (TWENTY,)
    (layout.attempt(1).folder).mkdir(parents=True)
    assert choose(layout, store, (TEN, Attempt(1, 2, rejected=choice.rejected))).rejected == ()


def test_a_checkpoint_is_read_once_and_refused_all_the_same(
    layout: RunLayout, store: CheckpointStore
) -> None:
    """All ranks wait for it."""
    model, read = layout.checkpoints / "step_00000020" / MODEL, []
    for session in (TEN.session, TEN.session + 1):
        store.fs = fs = CountingFs()
        assert choose(layout, store, (TEN,), session=session).rejected == ()
        read.append(fs.read[MODEL] / model.stat().st_size)
    assert all(1 <= times < 1.5 for times in read)
    flip(model, model.stat().st_size - 1)
    choice = choose(layout, store, (TEN,), session=TEN.session)
    assert choice.report is not None and choice.report.global_step == 10
    assert [(each.path, each.layer) for each in choice.rejected] == [
        ("checkpoints/step_00000020", "hash")
    ]


def test_a_look_that_was_begun_is_taken_for_what_it_was_of(
    layout: RunLayout, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the others leave; not where something has been written since, or another one is the
    newest.
    """
    part, looked = layout.checkpoints / "step_00000020" / MODEL, threading.Event()

    def look(*given: Any, once: bool) -> IntegrityReport:
        try:
            return verify_checkpoint(*given, once=once)
        finally:
            looked.set()

    monkeypatch.setattr(module, "verify_checkpoint", look)
    with closing(CheckpointPrevalidator(store)) as ahead:
        for newest, again in ((20, False), (20, True), (10, False), (10, True)):
            store.fs = fs = CountingFs()
            if not again:
                looked.clear()
                ahead.begin()
                assert looked.wait(60)
            if (newest, again) == (10, False):
                flip(part, part.stat().st_size - 1)
            report = choose(layout, store, (TEN,), session=TEN.session, ahead=ahead).report
            assert report is not None and report.ok and report.global_step == newest
            assert bool(fs.read[MODEL]) is (again or newest == 10)
        ahead.begin()
        shutil.rmtree(part.parent)
        found = choose(layout, store, (TEN,), session=TEN.session, ahead=ahead)
        assert (
            found.report is not None
            and found.report.global_step == 10
            and found.rejected == (TWENTY,)
        )


def test_a_look_that_was_begun_is_not_taken_for_another_checkpoints(
    layout: RunLayout, store: CheckpointStore
) -> None:
    """The background writer has ended one since."""
    with closing(CheckpointPrevalidator(store)) as ahead:
        ahead.begin()
        log = CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)
        log.committed(30, commit(store, 30))
        log.close()
        report = choose(layout, store, (TEN,), session=TEN.session, ahead=ahead).report
        assert report is not None and report.global_step == 30


def test_another_checkpoint_in_the_place_of_the_acknowledged_one_is_refused(
    layout: RunLayout, store: CheckpointStore, tmp_path: Path
) -> None:
    """Whole and consistent, so that the integrity check alone cannot tell: the records outside the
    folder can.
    """
    (tmp_path / "other").mkdir()
    other = store_at(tmp_path / "other")
    forged = other.save(synthetic_image(99, 20, synthetic_plan(4096, 4096), run_id=RUN_ID), 0)
    shutil.rmtree(layout.checkpoints / "step_00000020")
    shutil.copytree(forged.path, layout.checkpoints / "step_00000020")
    choice = choose(layout, store, (TEN,))
    assert choice.report is not None and choice.report.global_step == 10
    assert [(each.path, each.layer, each.reason) for each in choice.rejected] == [
        ("checkpoints/step_00000020", "commit", "is not the checkpoint that was acknowledged")
    ]
    events = read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
    assert [line.commit_sha256 for line in events if line.global_step == 20] != [
        forged.commit_sha256
    ], "the forged one was acknowledged"
    assert all(line.commit_sha256 != forged.commit_sha256 for line in events)


@pytest.mark.parametrize(("newest", "ranks", "until"), [(20, 1, 25), (10, 2, 20), (None, 2, 20)])
def test_an_attempt_has_the_size_of_where_it_resumes_and_ends_at_the_next_change(
    layout: RunLayout, store: CheckpointStore, newest: int | None, ranks: int, until: int
) -> None:
    """One that falls back behind a change comes to it again."""
    config = RunConfig(elastic=ElasticConfig(schedule={20: 1, 25: 4}))
    layout.failures.write_text("[]")
    choice = choose(layout, store, (TEN,))
    report = replace(choice.report, global_step=newest) if newest and choice.report else None
    made = order(layout, config, (TEN,), replace(choice, report=report))
    assert (made.world_size, made.until, made.resume_step) == (ranks, until, newest or 0)
    assert decode(AttemptSpec, read_json(layout.attempt(1).launch)) == made


def test_who_sits_where_and_who_did_not_answer_is_on_record(
    layout: RunLayout, store: CheckpointStore
) -> None:
    layout.failures.write_text("[]")
    config = RunConfig(world_size=4, supervision=SupervisionConfig(nodes=2, on_node_loss="shrink"))
    made = order(
        layout, config, (TEN,), choose(layout, store, (TEN,)), NodePlacement(("a",), 2, ("b",))
    )
    assert (made.world_size, made.nodes, made.silent) == (2, ("a",), ("b",))
    assert decode(AttemptSpec, read_json(layout.attempt(1).launch)) == made


def test_a_run_whose_checkpoints_are_all_gone_does_not_begin_anew(
    layout: RunLayout, store: CheckpointStore
) -> None:
    for step in (10, 20):
        shutil.rmtree(layout.checkpoints / f"step_{step:08d}")
    with pytest.raises(NoValidCheckpoint, match=r"step_00000020 \(file: is gone\)"):
        choose(layout, store, (TEN,))


def test_what_is_resumed_from_is_on_record_as_committed(
    layout: RunLayout, store: CheckpointStore
) -> None:
    log = CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)
    saved = commit(store, 30)
    log.failed(30, StorageError("fsync", "EIO"))
    for _ in range(2):
        choose(layout, store, (TEN,))
    events = [
        line
        for line in read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
        if line.global_step == 30
    ]
    assert [(line.event, line.reason) for line in events[1:]] == [("committed", FOUND)]
    assert (events[1].commit_sha256, events[1].path, events[1].attempt) == (
        saved.commit_sha256,
        "checkpoints/step_00000030",
        0,
    )


def test_a_run_that_begins_with_another_runs_checkpoint_takes_that_one_whole_and_no_other(
    tmp_path: Path,
) -> None:
    """Only where it has none of its own to resume from."""
    other, own = RunLayout(tmp_path / "other"), RunLayout(tmp_path / "own")
    other.root.mkdir(), own.root.mkdir()
    with closing(store_at(other.root)) as theirs, closing(store_at(own.root)) as store:
        saved, newer = commit(theirs, 10), commit(store, 12)
        shutil.copytree(saved.path, own.initial / saved.path.name)
        given = own.relative(own.initial / saved.path.name), saved.commit_sha256, RUN_ID
        config, nothing = RunConfig(begins_from=given), ResumePlan(None, ())
        assert or_initial(nothing, own, RunConfig(), store) == nothing
        chosen = or_initial(nothing, own, config, store)
        assert chosen.report is not None and chosen.report.commit_sha256 == saved.commit_sha256
        resumed = ResumePlan(store.verify(newer.path), ())
        assert or_initial(resumed, own, config, store) == resumed
        for wrong, why in (
            ((given[0], "0" * 64, RUN_ID), "it is not the checkpoint that config.json names"),
            ((given[0], given[1], "0" * 64), "belongs to run"),
        ):
            with pytest.raises(NoValidCheckpoint, match=why):
                or_initial(nothing, own, RunConfig(begins_from=wrong), store)
        flip(own.initial / saved.path.name / MODEL, 100)
        with pytest.raises(
            NoValidCheckpoint, match=r"the run begins with it, and .*train it again"
        ):
            or_initial(nothing, own, config, store)
