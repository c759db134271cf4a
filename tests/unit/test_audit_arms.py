"""Which arms are drawn, where they strike, and how the answer speaks of what came of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import pytest
import torch

from ecrl import faults
from ecrl.masking import masked, masked_text
from ecrl_cli.audit import runner
from ecrl_cli.audit.components import BROKEN, KEPT, NOT_CHECKED, UNKNOWN, judged_arm
from ecrl_cli.audit.inside_save import recoverable
from ecrl_cli.audit.lineage import resume_kinds
from ecrl_cli.audit.plan import PlannedArm, _twice, planned_arms, points, too_few_steps
from ecrl_cli.audit.progress import how_it_ended, last_words, progress
from ecrl_cli.audit.promises import complete_record, right_checkpoint
from ecrl_cli.audit.records import Arm, read_arm
from ecrl_cli.audit.runner import Job, Steps, longest_gap, run_arm
from ecrl_cli.audit.saving import SaveEvents, checkpoints, reads, save_events
from ecrl_cli.audit.verdict import arms_of, judge
from ecrl_cli.config import audit as config
from ecrl_cli.config.audit import AuditConfig, AuditFailure, AuditKeys
from ecrl_cli.errors import ConfigError
from tests.unit.audit_recordings import LAST, attempt_lines, healthy, write

Line = dict[str, Any]


def file(op: str, path: str, after: int, **more: Any) -> Line:
    return {"type": "file", "op": op, "path": path, "after_step": after, "at": float(after), **more}


def saved(step: int) -> list[Line]:
    """A folder whose last file is a small one."""
    folder = f"checkpoint-{step}"
    return [
        file("mkdir", folder, step),
        file("write", f"{folder}/model.bin", step),
        file("closed", f"{folder}/model.bin", step),
        file("write", f"{folder}/state.json", step),
        file("closed", f"{folder}/state.json", step),
    ]


def process(last: int, *more: Line, rank: int = 0, first: int = 0, attempt: int = 0) -> list[Line]:
    """A process that does steps `first` + 1 to `last` (counted by itself from 1), saves by no
    recorder that knows it, and says `more`.
    """
    lines = [
        line
        for line in attempt_lines(rank, first, last, resumed=first > 0)
        if line["type"] not in ("save", "load")
    ]
    kept: list[Line] = []
    for line in [line | {"at": 100.0 * attempt + line.get("step", 0)} for line in lines]:
        kept.append(line)
        after = line["step"] if line["type"] == "step" else 0 if line["type"] == "process" else None
        kept += [
            extra | {"at": 100.0 * attempt + extra.get("at", 0.0)}
            for extra in more
            if after is not None and extra["after_step"] == after
        ]
    return kept


def recorded(folder: Path, *attempts: list[Line], launches: list[Line] | None = None) -> Arm:
    for number, lines in enumerate(attempts):
        write(folder, number, 0, lines)
    if launches is not None:
        told = [
            {"attempt": number, "exit_code": 0, "signal": None, "seconds": 1.0, **launch}
            for number, launch in enumerate(launches)
        ]
        (folder / "arm.json").write_text(json.dumps({"launches": told}))
    return read_arm(folder)


def drawn(arm: Arm, **keys: Any) -> dict[str, PlannedArm]:
    return {
        planned.name: planned
        for planned in planned_arms(AuditConfig(AuditKeys(**keys)), judged_arm(arm))
    }


SAVES = [line for step in (4, 8, 12, 16) for line in saved(step)]


def test_each_kind_of_arm_is_drawn_where_the_job_can_show_it(tmp_path: Path) -> None:
    handler = {"type": "call", "what": "signal.signal", "signal": 15, "after_step": 0}
    arms = drawn(recorded(tmp_path / "ref", process(LAST, handler, *SAVES)))
    assert list(arms) == ["off-boundary", "twice", "later-epoch", "inside-save", "sigterm"]
    twice = [(fault.attempt, fault.step) for fault in arms["twice"].faults]
    # right after the first save; and after the second, which the next attempt makes
    assert twice == [(0, 5), (1, 11)]
    assert [(fault.kind, fault.step) for fault in arms["sigterm"].faults] == [("term", 15)]
    inside = arms["inside-save"].faults
    assert {(fault.step, fault.moment, fault.attempt) for fault in inside} == {(8, "save", 0)}
    assert [fault.point for fault in inside] == [
        "checkpoint-#:before",
        "checkpoint-#/model.bin:empty",
        "checkpoint-#/model.bin:torn",
        "checkpoint-#/state.json:before",
        "checkpoint-#/state.json:torn",
    ]
    assert str(inside[-1]) == "kill of rank 0 at step 8 (save: checkpoint-#/state.json torn)"


@pytest.mark.parametrize(
    ("epochs", "struck"), [([12, 24], [13, 19, 23]), ([16], [13, 19, 23]), ([], [13, 19])]
)
def test_where_a_restart_begins_an_epoch_a_third_death_has_two_restarts_inside_one(
    epochs: list[int], struck: list[int]
) -> None:
    arm = _twice([4, 8, 12, 16, 20, 24, 28], epochs, 36, 0)
    assert arm is not None and [fault.step for fault in arm.faults] == struck[: len(arm.faults)]
    assert len(arm.faults) == (3 if epochs == [12, 24] else 2)
    assert [fault.attempt for fault in arm.faults] == list(range(len(arm.faults)))


def test_what_is_saved_less_often_meanwhile_is_no_checkpoint(tmp_path: Path) -> None:
    """A member of an ensemble, after step 6; what an earlier phase saved, after step 2, is one."""
    other = [
        file(op, f"{name}.pt", step)
        for name, step in (("member", 6), ("teacher", 2))
        for op in ("write", "closed")
    ]
    arms = drawn(recorded(tmp_path / "ref", process(LAST, *other, *SAVES)))
    assert [(fault.attempt, fault.step) for fault in arms["twice"].faults] == [(0, 3), (1, 7)]
    assert arms["twice"].why.endswith("after the checkpoint of step 4")


def test_a_job_without_a_handler_gets_no_sigterm_and_failures_is_how_many(tmp_path: Path) -> None:
    arm = recorded(tmp_path / "ref", process(LAST, *SAVES))
    assert "sigterm" not in drawn(arm) and list(drawn(arm, failures=2)) == ["off-boundary", "twice"]


def test_where_no_save_is_on_record_nothing_else_is_claimed(tmp_path: Path) -> None:
    arms = drawn(
        recorded(
            tmp_path / "ref",
            process(LAST, file("write", "log.txt", 4), file("write", "log.txt", 8)),
        )
    )
    assert (
        list(arms) == ["no-checkpoint"]
        and arms["no-checkpoint"].why == "no finished checkpoint before the job's end is on record"
    )


def test_one_save_before_the_end_is_struck_after_it_once(tmp_path: Path) -> None:
    arms = drawn(recorded(tmp_path / "ref", process(LAST, *saved(8))))
    assert "twice" not in arms and [fault.step for fault in arms["on-boundary"].faults] == [9]


def test_ranks_that_write_are_struck(tmp_path: Path) -> None:
    own = [
        line
        for step in (4, 8, 12)
        for line in (file("write", f"checkpoint-{step}/rank1.bin", step),)
    ]
    write(tmp_path / "ref", 0, 0, process(LAST, *SAVES))
    write(tmp_path / "ref", 0, 1, process(LAST, *own, rank=1))
    inside = drawn(read_arm(tmp_path / "ref"))["inside-save"].faults
    assert [(fault.attempt, fault.point) for fault in inside if fault.rank == 1] == [
        (5, "checkpoint-#/rank1.bin:before"),
        (5, "checkpoint-#/rank1.bin:torn"),
    ]


def test_files_that_are_saved_apart_are_struck_apart(tmp_path: Path) -> None:
    """A best model in step 3 and 6, a checkpoint every fourth step."""
    lines = [
        file(op, f"{name}.pt", step)
        for name, steps in (("best", (3, 6)), ("last", (4, 8, 12)))
        for step in steps
        for op in ("write", "closed")
    ]
    arm = drawn(recorded(tmp_path / "ref", process(LAST, *lines)))["inside-save"]
    assert {(fault.step, fault.point) for fault in arm.faults} >= {
        (6, "best.pt:torn"),
        (8, "last.pt:before"),
        (8, "last.pt:torn"),
    }
    assert {fault.step for fault in arm.faults} == {6, 8}
    assert arm.why.endswith(
        " inside the save of step 6 and the save of step 8 and those after them"
    )


def test_a_file_of_some_saves_only_is_struck_in_its_last_one_too(tmp_path: Path) -> None:
    """What a death loses in an earlier one, the next may put right."""
    lines = [
        file(op, f"{name}.pt", step)
        for name, steps in (("last", (2, 4, 6, 8, 10)), ("best", (2, 4, 8)))
        for step in steps
        for op in ("write", "closed")
    ]
    # whichever rank comes first makes a folder
    lines += [file("mkdir", "parts", step) for step in (2, 6, 10)]
    arm = drawn(recorded(tmp_path / "ref", process(LAST, *lines)))["inside-save"]
    faults = [(fault.step, fault.point) for fault in arm.faults]
    assert faults[-1] == (8, "best.pt:before") and {step for step, _ in faults} == {4, 8}


def test_where_a_best_model_comes_first_the_checkpoint_is_torn_as_well(tmp_path: Path) -> None:
    lines = [
        file(op, name, step)
        for step in (4, 8, 12)
        for name in ("best.pt", "last.pt", f"note-{step}.csv")
        for op in ("write", "closed")
    ]
    arm = drawn(recorded(tmp_path / "ref", process(LAST, *lines)))["inside-save"]
    points = {fault.point for fault in arm.faults}
    assert {"best.pt:empty", "best.pt:torn", "last.pt:torn"} <= points


def test_a_data_set_written_before_the_first_step_is_no_save_to_strike(tmp_path: Path) -> None:
    data = [file(op, "data.bin", 0) for op in ("write", "closed")]
    arms = drawn(recorded(tmp_path / "ref", process(LAST, *data, *SAVES)))
    assert {fault.step for fault in arms["inside-save"].faults} == {8}


def test_points_of_a_file_that_is_renamed() -> None:
    events = [("write", "tmp1a2b3c_4/last.pt.tmp"), ("rename", "last.pt"), ("remove", "old.pt")]
    assert points(SaveEvents(0, 4, events), None) == [
        "*/last.pt.tmp:before",
        "*/last.pt.tmp:empty",
        "*/last.pt.tmp:torn",
        "last.pt:before",
    ]


def test_what_two_threads_of_a_rank_write_is_struck_in_both(tmp_path: Path) -> None:
    """A pointer that moves before the file behind it is written."""
    lines = [
        line
        for step in (4, 8)
        for line in (
            file("write", f"step-{step}/a.bin", step, overlapped=True),
            file("write", "latest", step),
        )
    ]
    inside = drawn(recorded(tmp_path / "ref", process(LAST, *lines)))["inside-save"].faults
    assert {fault.attempt for fault in inside} == {0}
    assert {fault.point for fault in inside} >= {
        "step-#/a.bin:torn",
        "latest:before",
        "latest:torn",
    }


def test_a_save_of_another_thread_is_one_whatever_step_the_training_is_at(tmp_path: Path) -> None:
    aside = [
        file(op, f"step-{step}/{name}", at, overlapped=True)
        for step in (4, 8)
        for op, name, at in (("write", "a.bin", step), ("write", "b.bin", step + 1))
    ]
    saves = save_events(recorded(tmp_path / "ref", process(LAST, *aside)))
    assert [(save.step, len(save.events)) for save in saves] == [(4, 2), (8, 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4.save:model.bin:torn", ""),
        ("8.save:checkpoint-#/state.json:before", ""),
        (
            "8.save:optimizer.bin:torn",
            "no file of that name is written in the undisturbed run's save",
        ),
        ("5.save:model.bin:torn", "rank 0 saves nothing after step 5"),
    ],
)
def test_a_typed_point_must_exist(tmp_path: Path, text: str, said: str) -> None:
    arm = recorded(tmp_path / "ref", process(LAST, *SAVES))
    asked = AuditConfig(failure=AuditFailure("kill", (text,), 0))
    if said:
        with pytest.raises(ConfigError, match=said):
            planned_arms(asked, judged_arm(arm))
    else:
        (planned,) = planned_arms(asked, judged_arm(arm))
        assert f"{planned.faults[0].step}.save:{planned.faults[0].point}" == text


def test_a_save_that_is_typed_without_a_point_is_torn_in_its_main_file(tmp_path: Path) -> None:
    lines = [
        line
        for step in (4, 8)
        for line in (
            file("write", "latest", step),
            file("write", f"step-{step}/a.pt", step, overlapped=True),
        )
    ]
    (planned,) = planned_arms(
        AuditConfig(failure=AuditFailure("kill", ("8.save",), 0)),
        judged_arm(recorded(tmp_path / "ref", process(LAST, *lines))),
    )
    assert planned.faults[0].point == "step-8/a.pt:torn"


@pytest.mark.parametrize(
    "text", ["4.backward:model.bin:torn", "4.save:model.bin:burnt", "4.save:model.bin"]
)
def test_what_is_no_point_of_a_save_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        config.step_and_moment(text)
    assert config.POINTS == faults.POINTS


def test_too_few_steps_says_what_was_seen(tmp_path: Path) -> None:
    lines = [line for line in attempt_lines(0, 0, 1) if line["type"] != "step"]
    batches = [
        {"type": "batch", "n": number, "ids": [number], "hash": "x"} for number in range(2, 13)
    ]
    step = next(line for line in attempt_lines(0, 0, 1) if line["type"] == "step")
    arm = recorded(tmp_path / "ref", [*lines, *batches, step | {"batches": list(range(1, 13))}])
    assert "1 optimizer step in 12 batches, 0 saves and 0 whole epochs were seen" in str(
        too_few_steps(judged_arm(arm))
    )


# -- checkpoints


def test_a_checkpoint_is_finished_when_every_file_of_it_is(tmp_path: Path) -> None:
    first = process(8, *saved(4), *saved(8)[:3])
    found = checkpoints(recorded(tmp_path / "struck", first))
    # of step 8 state.json is missing
    assert [(one.step, one.finished) for one in found] == [(4, True), (8, False)]
    assert found[0].paths == ("checkpoint-4/model.bin", "checkpoint-4/state.json")


def test_a_file_that_is_not_renamed_yet_is_no_finished_checkpoint(tmp_path: Path) -> None:
    def parts(step: int, whole: bool) -> list[Line]:
        lines = [
            file("write", "last.pt.tmp", step),
            file("closed", "last.pt.tmp", step),
            file("rename", "last.pt.tmp", step, to="last.pt"),
        ]
        return lines if whole else lines[:2]

    found = checkpoints(
        recorded(tmp_path / "struck", process(8, *parts(4, True), *parts(8, False)))
    )
    assert [(one.step, one.paths, one.finished) for one in found] == [
        (4, ("last.pt",), True),
        (8, ("last.pt.tmp",), False),
    ]


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_temporary_file_that_was_not_renamed_is_none_whatever_other_phases_save(
    how: str, tmp_path: Path
) -> None:
    """No kind of file is in every save of the job; this one is renamed elsewhere."""

    def renamed(name: str, step: int, events: int = 3) -> list[Line]:
        whole = [file(op, f"{name}.tmp", step) for op in ("write", "closed")]
        return [*whole, file("rename", f"{name}.tmp", step, to=name)][:events]

    lines = [*renamed("pre.pt", 4), *renamed("fine.pt", 8, 2), struck("fine.pt.tmp", how, 8)]
    second = process(LAST, *renamed("fine.pt", 4), first=4, attempt=1)
    arm = recorded(tmp_path / "struck", process(8, *lines), second)
    assert [(one.attempt, one.step, one.finished) for one in checkpoints(arm)] == [
        (0, 4, True),
        (0, 8, False),
        (1, 4, True),
    ]


def test_saves_that_only_the_recorder_knows_are_checkpoints_too(tmp_path: Path) -> None:
    lines = attempt_lines(0, 0, LAST)
    assert [(one.step, one.paths) for one in checkpoints(recorded(tmp_path / "ref", lines))] == [
        (step, (f"out/step-{step}.pt",)) for step in (4, 8, 12, 16)
    ]


def test_a_process_that_only_writes_saves_after_the_step_of_its_time(tmp_path: Path) -> None:
    write(tmp_path / "ref", 0, 0, process(LAST))
    writer = [
        {"type": "process", "format": 1, "rank": 0, "world_size": 1},
        file("write", "a.pt", 0, at=5.5),
        file("closed", "a.pt", 0, at=5.6),
    ]
    write(tmp_path / "ref", 0, 7, writer)
    assert [(one.step, one.finished) for one in checkpoints(read_arm(tmp_path / "ref"))] == [
        (5, True)
    ]


def test_a_checkpoint_that_was_not_finished_is_not_the_newest(tmp_path: Path) -> None:
    """Its last file is missing, though the recorder knows that the first was saved."""
    known = [
        {
            "type": "save",
            "path": f"/x/checkpoint-{step}/model.bin",
            "done": True,
            "after_step": step,
        }
        for step in (4, 8)
    ]
    again = process(LAST, file("read", "checkpoint-4/model.bin", 0), first=4, attempt=1)
    arm = recorded(tmp_path / "struck", process(8, *saved(4), *saved(8)[:3], *known), again)
    assert [(begun.after, begun.newest_saved) for begun in judged_arm(arm).path.resumed] == [(4, 4)]


def test_a_pointer_that_moved_before_its_file_is_no_newer_checkpoint(tmp_path: Path) -> None:
    """Attempt 2 reads the pointer, finds no file where it leads, and does no step."""

    def part(name: str, step: int) -> list[Line]:
        return [file(op, name, step) for op in ("write", "closed")]

    whole = [*part("step-4/model.bin", 4), *part("latest", 4)]
    again = [file("read", "latest", 0), file("read", "step-4/model.bin", 0)]
    arm = recorded(
        tmp_path / "struck",
        process(6, *whole),
        process(10, *again, *part("latest", 4), first=4, attempt=1),
        [{"type": "process", "format": 1, "rank": 0, "world_size": 1}, file("read", "latest", 0)],
    )
    needed = resume_kinds([arm])
    assert needed == {"latest", "step-#/model.bin"}
    resumed = judged_arm(arm, needed=needed).path.resumed
    assert [begun.newest_saved for begun in resumed] == [4, 4]


def test_a_file_made_before_the_first_step_is_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    """A memory on disk that each attempt opens again."""
    made = [file(op, "memory.npy", 0) for op in ("write", "closed")]
    read = [file("read", name, 0) for name in ("memory.npy", "checkpoint-8/model.bin")]
    arm = recorded(
        tmp_path / "struck",
        process(10, *made, *saved(4), *saved(8)),
        process(LAST, *read, first=8, attempt=1),
    )
    needed = resume_kinds([arm])
    assert [begun.newest_saved for begun in judged_arm(arm, needed=needed).path.resumed] == [8]


def test_a_checkpoint_that_is_read_by_its_folder_is_known(tmp_path: Path) -> None:
    """As DCP does: an older one is told from the newest."""
    again = process(
        LAST, {"type": "load", "path": "/x/checkpoint-4", "after_step": 0}, first=4, attempt=1
    )
    arm = recorded(tmp_path / "struck", process(10, *saved(4), *saved(8)), again)
    assert [(begun.after, begun.newest_saved) for begun in judged_arm(arm).path.resumed] == [(4, 8)]


def test_of_files_of_two_phases_the_one_that_was_enough_before_is_the_checkpoint(
    tmp_path: Path,
) -> None:
    """The second attempt reads the file of the first phase too, and goes on from that."""

    def phase(name: str, step: int) -> list[Line]:
        return [file("write", name, step), file("closed", name, step)]

    first = process(6, *phase("phase1.pt", 4), *phase("state.pt", 4))
    second = process(10, file("read", "state.pt", 0), *phase("state.pt", 4), first=4, attempt=1)
    third = process(
        LAST, file("read", "state.pt", 0), file("read", "phase1.pt", 0), first=4, attempt=2
    )
    arm = recorded(tmp_path / "struck", first, second, third)
    assert [(begun.after, begun.newest_saved) for begun in judged_arm(arm).path.resumed] == [
        (4, 4),
        (4, 8),
    ]


def test_a_rank_that_makes_no_step_of_its_own_is_on_record_by_its_files(tmp_path: Path) -> None:
    """Rank 1 computes gradients for rank 0. Where it trains undisturbed, it is missing."""

    def with_files(folder: Path, *steps: Line) -> Arm:
        lines = [{"type": "process", "format": 1, "rank": 1, "world_size": 2}, *steps]
        write(folder, 0, 1, [*lines, file("write", "rank1.pt", 4)])
        return recorded(folder, process(LAST))

    arm = judged_arm(with_files(tmp_path / "struck"))
    assert complete_record(arm, judged_arm(with_files(tmp_path / "ref"))).status == KEPT
    trained = [line for line in process(LAST, rank=1) if line["type"] in ("start", "step")]
    missing = complete_record(arm, judged_arm(with_files(tmp_path / "ref2", *trained)))
    assert (missing.status, missing.message) == (
        UNKNOWN,
        "attempt 0 had 2 processes, and the record lacks rank 1",
    )


def test_where_an_attempt_went_on_is_not_known_is_said(tmp_path: Path) -> None:
    again = process(LAST, first=4, attempt=1)
    strange = [
        line | {"objects": {}, "params": "strange", "optimizer": "strange"}
        if line["type"] == "start"
        else line
        for line in again
    ]
    arm = recorded(tmp_path / "struck", process(10, *saved(4), *saved(8)), strange)
    finding = right_checkpoint(judged_arm(arm))
    assert (finding.status, finding.message) == (
        NOT_CHECKED,
        "where attempt 1 went on is not on record (a checkpoint of step 8 had been finished)",
    )


def test_what_a_resume_read_is_traced_to_its_save(tmp_path: Path) -> None:
    again = process(
        LAST,
        file("read", "checkpoint-4/model.bin", 0),
        file("read", "data.bin", 0),
        first=4,
        attempt=1,
    )
    found = reads(recorded(tmp_path / "struck", process(10, *saved(4), *saved(8)), again))
    assert [(read.path, read.checkpoint.step if read.checkpoint else None) for read in found] == [
        ("checkpoint-4/model.bin", 4),
        ("data.bin", None),
    ]


# -- recoverable inside a save


def struck(path: str, how: str, step: int) -> Line:
    return {
        "type": "strike",
        "index": 0,
        "kind": "kill",
        "moment": "save",
        "step": step,
        "path": path,
        "how": how,
        "after_step": step,
    }


def inside(folder: Path, second: list[Line], launch: Line) -> list[tuple[str, str]]:
    first = process(8, *saved(4), *saved(8)[:2], struck("checkpoint-8/model.bin", "torn", 8))
    arm = recorded(
        folder, first, second, launches=[{"exit_code": None, "signal": 9, "planned": True}, launch]
    )
    return [(finding.status, finding.message) for finding in recoverable(judged_arm(arm))]


DEATH = "a death inside the save of step 8 (checkpoint-8/model.bin torn)"


def test_a_job_that_goes_on_from_the_checkpoint_before_has_recovered(tmp_path: Path) -> None:
    ((status, said),) = inside(tmp_path / "inside-save", process(LAST, first=4, attempt=1), {})
    assert (
        status == KEPT
        and said
        == "after 1 death inside a save (checkpoint-8/model.bin torn) it went on from a finished"
        " checkpoint"
    )


def test_a_death_after_which_nothing_is_on_record_is_none_that_was_recovered_from(
    tmp_path: Path,
) -> None:
    first = process(8, *saved(4), *saved(8)[:2], struck("checkpoint-8/model.bin", "torn", 8))
    later = struck("checkpoint-12/model.bin", "empty", 8) | {"step": 12}
    second = process(12, *saved(4), later, first=4, attempt=1)
    died = {"exit_code": None, "signal": 9, "planned": True}
    arm = recorded(tmp_path / "inside-save", first, second, launches=[died, died])
    (finding,) = recoverable(judged_arm(arm))
    assert (finding.status, finding.message) == (
        KEPT,
        "after 1 death inside a save (checkpoint-8/model.bin torn) it went on from a finished"
        " checkpoint; after 1 further death no step was done",
    )
    assert finding.evidence == ("nothing was started after checkpoint-12/model.bin empty",)


@pytest.mark.parametrize("whole", [True, False])
def test_files_of_two_saves_are_no_checkpoint(whole: bool, tmp_path: Path) -> None:
    """Killed between two files of the save of step 8, it goes on from step 8: recovered if it goes
    on as the undisturbed run.
    """
    reference = judged_arm(recorded(tmp_path / "ref", process(LAST, *saved(4), *saved(8))))
    first = process(8, *saved(4), *saved(8)[:3], struck("checkpoint-8/state.json", "before", 8))
    second = process(LAST, file("read", "checkpoint-8/state.json", 0), first=8, attempt=1)
    second = (
        second
        if whole
        else [line | ({"losses": [0.5]} if "losses" in line else {}) for line in second]
    )
    died = {"exit_code": None, "signal": 9, "planned": True}
    arm = recorded(tmp_path / "inside-save", first, second, launches=[died, {}])
    judged = judged_arm(arm, reference)
    (finding,) = recoverable(judged, reference)
    went_on = "attempt 1 went on from step 8, whose save had not ended"
    assert right_checkpoint(judged).message == went_on
    assert (finding.status, finding.message) == (
        (
            KEPT,
            "after 1 death inside a save (checkpoint-8/state.json before) it went on, attempt 1"
            " from step 8, whose save had not ended and was whole",
        )
        if whole
        else (
            BROKEN,
            f"{went_on} (checkpoint-8/state.json before), and differs from step 9 on:"
            " checkpoint-8/state.json was still that of an earlier save",
        )
    )


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_the_struck_save_had_replaced_belongs_to_another_save(
    replaced: bool, tmp_path: Path
) -> None:
    """The replay memory of step 8 beside the weights of step 4."""
    reference = judged_arm(recorded(tmp_path / "ref", process(LAST, *saved(4), *saved(8))))
    memory = [file(op, "memory.pkl", 8 if replaced else 6) for op in ("write", "closed")]
    died_in = struck("checkpoint-8/model.bin", "torn", 8)
    first = process(8, *saved(4), *memory, *saved(8)[:2], died_in)
    second = process(LAST, file("read", "memory.pkl", 0), first=4, attempt=1)
    second = [line | ({"losses": [0.5]} if "losses" in line else {}) for line in second]
    died = {"exit_code": None, "signal": 9, "planned": True}
    arm = recorded(tmp_path / "inside-save", first, second, launches=[died, {}])
    (finding,) = recoverable(judged_arm(arm, reference), reference)
    assert finding.status == (BROKEN if replaced else KEPT)
    assert not replaced or finding.message == (
        "attempt 1 went on from step 4 and read memory.pkl, which the save of step 8 had replaced"
        " before a death ended it (checkpoint-8/model.bin torn), and differs from step 5 on"
    )


@pytest.mark.parametrize("mended", [True, False])
def test_a_torn_file_read_later_is_none_to_take_for_whole(mended: bool, tmp_path: Path) -> None:
    """A cache, say: read when its turn comes, unless the attempt has written it anew."""
    reference = judged_arm(recorded(tmp_path / "ref", process(LAST, *saved(4))))
    first = process(6, *saved(4), file("write", "cache.bin", 6), struck("cache.bin", "torn", 6))
    again = [file("write", "cache.bin", 2)] if mended else []
    second = process(LAST, *again, file("read", "cache.bin", 2), first=4, attempt=1)
    second = [line | ({"losses": [0.5]} if line.get("step", 0) > 2 else {}) for line in second]
    died = {"exit_code": None, "signal": 9, "planned": True}
    arm = recorded(tmp_path / "inside-save", first, second, launches=[died, {}])
    (finding,) = recoverable(judged_arm(arm, reference), reference)
    assert finding.status == (KEPT if mended else BROKEN)
    assert mended or finding.message == (
        "attempt 1 read cache.bin, which a death inside the save of step 6 had left torn, and"
        " differs from step 7 on"
    )


def test_a_job_that_begins_anew_although_a_checkpoint_lay_there_has_not(tmp_path: Path) -> None:
    ((status, said),) = inside(tmp_path / "inside-save", process(LAST, attempt=1), {})
    assert (
        status == BROKEN
        and said
        == f"attempt 1 began anew after {DEATH}, although the checkpoint of step 4 had been"
        " finished"
    )


@pytest.mark.parametrize(("anew", "status"), [(True, KEPT), (False, BROKEN)])
def test_a_best_model_saved_before_the_first_checkpoint_is_none_to_go_on_from(
    anew: bool, status: str, tmp_path: Path
) -> None:
    """Every attempt that reads anything reads last.pt: beginning anew after best.pt alone is right,
    after last.pt it is not.
    """
    died = {"exit_code": None, "signal": 9, "planned": True}

    def whole(name: str, step: int) -> list[Line]:
        return [file(op, f"{name}.pt", step) for op in ("write", "closed")]

    due = whole("last", 4)
    before = [file("write", "last.pt", 4)] if anew else [*due, file("write", "last.pt", 8)]
    step = 4 if anew else 8
    first = process(step, *whole("best", 3), *before, struck("last.pt", "torn", step))
    second = process(8, *whole("best", 3), *due, struck("best.pt", "before", 6), attempt=1)
    third = process(LAST, file("read", "last.pt", 0), first=4, attempt=2)
    arm = recorded(tmp_path / "inside-save", first, second, third, launches=[died, died, {}])
    needed = resume_kinds([arm])
    assert needed == {"last.pt"}
    (finding,) = recoverable(judged_arm(arm, needed=needed))
    assert finding.status == status, finding.message
    assert judged_arm(arm, needed=needed).path.resumed[0].newest_saved == (None if anew else 4)


def test_a_checkpoint_that_was_being_overwritten_is_said_to_be(tmp_path: Path) -> None:
    first = process(
        8,
        file("write", "last.pt", 4),
        file("closed", "last.pt", 4),
        file("write", "last.pt", 8),
        struck("last.pt", "torn", 8),
    )
    launches = [{"exit_code": None, "signal": 9, "planned": True}, {}]
    (finding,) = recoverable(
        judged_arm(
            recorded(tmp_path / "inside-save", first, process(LAST, attempt=1), launches=launches)
        )
    )
    assert finding.status == BROKEN and finding.message.endswith(
        "although the checkpoint of step 4 had been finished, and was being overwritten"
    )


def test_a_save_in_which_the_job_was_killed_is_not_finished(tmp_path: Path) -> None:
    """No other save says which files it lacks."""
    lines = process(4, *saved(4)[:3], struck("checkpoint-4/state.json", "before", 4))
    assert [one.finished for one in checkpoints(recorded(tmp_path / "struck", lines))] == [False]


def test_a_job_that_does_not_start_again_has_not(tmp_path: Path) -> None:
    second = [process(1)[0], file("read", "checkpoint-8/model.bin", 0)]
    write(tmp_path / "inside-save", 1, 0, [])
    (tmp_path / "inside-save" / "attempt-01" / "output.log").write_text(
        "Traceback (most recent call last):\n  File x\npickle.UnpicklingError: torn\n"
    )
    ((status, said),) = inside(tmp_path / "inside-save", second, {"exit_code": 1})
    assert status == BROKEN
    assert (
        said
        == f"after {DEATH}, attempt 1 ended with exit code 1 while it read checkpoint-8/model.bin:"
        " UnpicklingError: torn"
    )


def test_a_death_in_the_first_save_leaves_nothing_to_recover(tmp_path: Path) -> None:
    first = process(4, *saved(4)[:2], struck("checkpoint-4/model.bin", "torn", 4))
    arm = recorded(
        tmp_path / "inside-save",
        first,
        process(LAST, attempt=1),
        launches=[{"exit_code": None, "signal": 9, "planned": True}, {}],
    )
    assert [finding.status for finding in recoverable(judged_arm(arm))] == [KEPT]


def test_an_arm_without_a_death_inside_a_save_says_nothing_of_it(tmp_path: Path) -> None:
    assert list(recoverable(judged_arm(read_arm(healthy(tmp_path) / "struck")))) == []


# -- progress


def test_a_job_that_hangs_while_it_prints_is_told_from_one_that_stands_still(
    tmp_path: Path,
) -> None:
    arm = recorded(
        tmp_path / "struck",
        process(LAST),
        launches=[{"hung": True, "exit_code": None, "signal": 9, "no_step": True}],
    )
    assert progress(judged_arm(arm)).message == "attempt 0 made no step for too long and was ended"


def test_an_arm_that_the_user_stopped_blames_nobody(tmp_path: Path) -> None:
    healthy(tmp_path)
    path = tmp_path / "struck" / "arm.json"
    launches = json.loads(path.read_text())["launches"]
    launches[-1] |= {"exit_code": None, "stopped": True}
    path.write_text(json.dumps({"launches": launches}))
    verdict = judge(
        [read_arm(tmp_path / name) for name in ("ref", "ref2")],
        [read_arm(tmp_path / "struck")],
        planned=["struck", "sigterm"],
    )
    told = {
        finding.arm: (finding.status, finding.message)
        for finding in verdict.findings
        if finding.arm in ("struck", "sigterm")
    }
    assert told == {
        name: (UNKNOWN, f"{name} was not run: the audit was stopped before its end")
        for name in ("struck", "sigterm")
    }
    assert verdict.status == "unknown" and verdict.diagnosis == told["struck"][1]


@pytest.mark.parametrize(
    ("name", "status"), [("inside-save", KEPT), ("twice", KEPT), ("struck", UNKNOWN)]
)
def test_of_the_deaths_that_were_drawn_those_that_happened_count(
    tmp_path: Path, name: str, status: str
) -> None:
    """A death that the user has named is due."""
    arm = recorded(tmp_path / name, process(LAST, struck("a", "torn", 4)), launches=[{}])
    planned = {
        0: "kill of rank 0 at step 4 (save: a torn)",
        1: "kill of rank 0 at step 4 (save: b torn)",
    }
    arm = replace(arm, planned=planned)
    finding = progress(judged_arm(arm))
    assert finding.status == status
    if status == KEPT:
        assert finding.message.endswith("; 1 further death was not reached")
        assert finding.evidence == (f"never happened: {planned[1]}",)
    nothing = recorded(tmp_path / "none" / name, process(LAST), launches=[{}])
    finding = progress(judged_arm(replace(nothing, planned=planned)))
    assert finding.status == UNKNOWN and finding.message.endswith(planned[0])


def test_a_valid_answer_says_how_many_deaths_were_not_reached(tmp_path: Path) -> None:
    references, (arm,) = arms_of(healthy(tmp_path))
    arm = replace(arm, name="twice", planned={0: "kill at step 5", 1: "kill at step 9"})
    with mock.patch.object(Arm, "happened", {0}):
        verdict = judge(references, [arm])
    assert (verdict.status, verdict.diagnosis) == (
        "valid",
        "1 run with failures ended bit for bit as the undisturbed one (1 further death was not"
        " reached)",
    )


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("", ""),
        ("all is well\n", "all is well"),
        ("Traceback (most recent call last):\n  File a\nKeyError: 'x'\n", "KeyError: 'x'"),
        (
            (
                "\r 40%|####  | 4/10Traceback (most recent call last):\n  File a\nKeyError:"
                " 'x'\nread the docs\n"
            ),
            "KeyError: 'x'",
        ),
        (
            "Traceback (most recent call last):\n  File a\nValueError: old\ngoing on\n"
            + "step\n" * 50,
            "step",
        ),
        (
            (
                "[rank1]: Traceback (most recent call last):\n[rank1]:   File a\n[rank1]:"
                " a.b.OddError: no\n[rank1]: read this\n"
            ),
            "OddError: no",
        ),
        (
            (
                "Traceback (most recent call last):\n  File a\n_pickle.UnpicklingError: Weights"
                " only load failed.\n\t(1) do\nRead the docs\n"
            ),
            "UnpicklingError: Weights only load failed",
        ),
    ],
)
def test_the_last_words_of_a_job_are_its_error(tmp_path: Path, printed: str, said: str) -> None:
    (tmp_path / "attempt-01").mkdir()
    (tmp_path / "attempt-01" / "output.log").write_text(printed)
    assert last_words(tmp_path, 1) == last_words(tmp_path) == said


def test_what_a_job_read_in_whole_is_not_what_it_died_of(tmp_path: Path) -> None:
    lines = [
        process(1)[0],
        file("read", "last.pt", 0),
        {"type": "load", "path": "/x/last.pt", "after_step": 0},
    ]
    launches: list[Line] = [{}, {"exit_code": 1}, {"exit_code": 1, "chosen": True}]
    launches.append({"exit_code": None, "signal": 9, "hung": True})
    arm = recorded(tmp_path / "struck", process(4), *[lines] * 3, launches=launches)
    assert [how_it_ended(arm, launch) for launch in arm.launches[1:]] == [
        "exit code 1 after it had read last.pt",
        "exit code 1 after it had read last.pt (chosen by {latest:...} of audit.resume)",
        "signal 9, sent by the audit: it hung",
    ]


# -- the runner


def job(**keys: Any) -> Job:
    return Job(("sh", "-c", "true"), AuditKeys(**keys), Path("/nowhere"))


def test_the_newest_match_stands_for_latest_and_without_one_there_is_no_resume(
    tmp_path: Path,
) -> None:
    words = job(resume="--resume {latest:**/checkpoint-*} --strict")
    assert words.command(tmp_path, 1) == ["sh", "-c", "true"]
    for number, name in enumerate(("checkpoint-9", "checkpoint-10", "other")):
        (tmp_path / "work" / "runs" / name).mkdir(parents=True)
        os.utime(tmp_path / "work" / "runs" / name, (1, 1 + number // 2 * 5))
    assert words.command(tmp_path, 1)[3:] == [
        "--resume",
        str(tmp_path / "work" / "runs" / "checkpoint-10"),
        "--strict",
    ]
    assert words.command(tmp_path, 0) == ["sh", "-c", "true"]


def test_a_job_may_make_no_step_for_many_times_its_longest_gap(tmp_path: Path) -> None:
    arm = recorded(tmp_path / "ref", process(LAST), launches=[{"seconds": 24.0}])
    assert longest_gap(arm) == 9.0  # 15 s from the first step to the last
    assert job().beside(arm).no_step_s == 90.0 and job(no_step_s=7.0).beside(arm).no_step_s == 7.0
    assert (
        job()
        .beside(recorded(tmp_path / "ref2", process(LAST), launches=[{"seconds": 15.0}]))
        .no_step_s
        == 60.0
    )


def test_a_step_is_seen_when_its_line_is_whole(tmp_path: Path) -> None:
    (tmp_path / "attempt-00").mkdir()
    record = tmp_path / "attempt-00" / "rank0-1.jsonl"
    record.write_text('{"type":"process"}\n')
    steps = Steps(tmp_path)
    record.write_text('{"type":"process"}\n{"type":"step"')
    steps.seconds_without()
    assert not steps.any
    with record.open("a") as lines:
        lines.write(',"step":1}\n')
    steps.seconds_without()
    assert steps.any


# Writes one step an attempt, and how each attempt ends: at step `died` of attempt 0 by a planned
# failure.
_WRITES = """
import json, os, sys
folder = os.path.join(os.environ["ECRL_RECORD"], "attempt-%02d" % int(os.environ["ECRL_ATTEMPT"]))
first, last = {first}
with open(folder + "/rank0-1.jsonl", "w") as lines:
    def say(**line): print(json.dumps(line, separators=(",", ":")), file=lines)
    say(type="process", format=1, rank=0, world_size=1)
    say(type="start", params="p%d" % first, optimizer="o", entries=1)
    for step in range(first + 1, last + 1):
        say(type="step", step=step - first, params="p%d" % step, optimizer="o")
    if "{strike}" and int(os.environ["ECRL_ATTEMPT"]) == 0:
        say(type="strike", index=0, kind="{strike}", moment="before", step=last)
sys.exit({code})
"""


def attempts_of(folder: Path, last: int, **words: Any) -> list[int | None]:
    from ecrl_cli.audit.plan import PlannedFault

    code = _WRITES.format(first="(0, 4) if os.environ['ECRL_ATTEMPT'] == '0' else (4, 8)", **words)
    asked = Job(("python3", "-c", code), AuditKeys(max_restarts=0), Path("/nowhere"), last=last)
    fault = PlannedFault(0, 0, words["strike"] or "kill", 0, 4, "before")
    return [
        launch.exit_code for launch in run_arm(asked, folder / "arm", (fault,), lambda text: None)
    ]


def test_a_job_that_ends_well_when_asked_to_stop_is_started_again_until_its_last_step(
    tmp_path: Path,
) -> None:
    assert attempts_of(tmp_path, 8, strike="term", code=0) == [0, 0]
    assert attempts_of(tmp_path, 4, strike="term", code=0) == [0]  # it has come to its end
    assert attempts_of(tmp_path, 8, strike="", code=0) == [0]  # nobody asked it


def test_planned_deaths_are_no_restarts_of_the_jobs_own(tmp_path: Path) -> None:
    assert attempts_of(
        tmp_path, 8, strike="kill", code="1 if os.environ['ECRL_ATTEMPT'] == '0' else 0"
    ) == [1, 0]
    assert attempts_of(
        tmp_path, 8, strike="", code="1 if os.environ['ECRL_ATTEMPT'] == '0' else 0"
    ) == [1]


def test_processes_may_take_some_seconds_to_notice_a_death() -> None:
    assert runner._LEAVE_S > 2 * 5.0  # torch's MP_STATUS_CHECK_INTERVAL


# -- secrets and seeds


def test_secrets_of_a_command_line_are_masked() -> None:
    words = (
        "env HF_TOKEN=s1 python t.py --api-key s2 --token=s3 --tokenizer g --wandb.api_key=s4"
        " --max-tokens 5 https://u:s5@h/x --hf-token --out d"
    )
    shown = masked(words.split())
    assert not any(f"s{number}" in word for word in shown for number in range(1, 6))
    kept = "env python t.py --api-key --tokenizer g --max-tokens 5 --hf-token --out d".split()
    assert [word for word in shown if "***" not in word] == kept
    assert masked_text("--resume {dir}/x  --secret  abc") == "--resume {dir}/x  --secret  ***"


def test_every_generator_is_seeded_before_the_jobs_own_code(tmp_path: Path) -> None:
    root = Path(faults.__file__).parents[1]
    path = os.pathsep.join([str(root / "ecrl" / "startup"), str(root)])
    code = (
        "import random, numpy, torch; print(random.random(), numpy.random.rand(),"
        " torch.rand(()).item())"
    )
    recorded = os.environ | {"PYTHONPATH": path, "ECRL_RECORD": str(tmp_path), "ECRL_SEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=recorded,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    drawn_here = (
        random.Random(7).random(),
        numpy.random.RandomState(7).rand(),
        torch.rand((), generator=torch.Generator().manual_seed(7)).item(),
    )
    assert done.stdout.split() == [repr(float(value)) for value in drawn_here]
