"""Failures by the clock, while an attempt starts, and two in one attempt: what must be on record of
them, and what must not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.schema import FailureConfig
from ecrl_cli.failures.plan import plan
from ecrl_cli.history.load import NOTHING, RunRecords, load
from ecrl_cli.history.timeline import timeline
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.fault_plan import failures_once
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, Finding
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import WALL, build_blk
from tests.runs.changed import attempts, configured, left, logged, ordered, sessions, supervised
from tests.runs.faulted import FAILED, FULL, build_faulted
from tests.runs.sentence import assert_said, told

Faults = Callable[[RunRecords], RunRecords]


@pytest.fixture(scope="module")
def blk(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    """Rank 1 is killed after steps 9 and 20, in attempts 0 and 1."""
    return load(build_blk(tmp_path_factory.mktemp("blk")))


def planned(found: RunRecords, *entries: str) -> RunRecords:
    """With these entries in the plan, each pending until it fired."""
    found = configured(found, failure=FailureConfig("listed", entries=entries))
    made = plan(found.stored.config)
    found = replace(found, plan=made)
    for a in found.attempts:
        spent = {fired.index for fired in found.fired if fired.attempt < a.attempt}
        found = ordered(
            found, a.attempt, pending=tuple(entry for entry in made if entry.index not in spent)
        )
    return found


def fault_fired(found: RunRecords, index: int, **changes: object) -> RunRecords:
    """With another record of the fault `index`."""
    return replace(
        found,
        fired=tuple(
            replace(each, **changes) if each.index == index else each for each in found.fired
        ),
    )  # type: ignore[arg-type]


def judged(found: RunRecords) -> Finding:
    return failures_once(Case(found))


def by_the_clock(found: RunRecords, early_s: float) -> RunRecords:
    """The first kill was due at a wall time, and came so much earlier."""
    lived = found.fired[0].at - timeline(found).windows[0][0]
    return fault_fired(
        planned(
            fault_fired(found, 0, global_step=0), f"kill@{lived + early_s:.6f}s:1", "kill@20:1"
        ),
        0,
        global_step=0,
    )


@pytest.mark.parametrize(
    ("early_s", "status"),
    [(-0.5, VALID), (0.0, VALID), (0.09, VALID), (0.11, INVALID), (5.0, INVALID)],
)
def test_a_failure_by_the_clock_does_not_come_before_its_time(
    blk: RunRecords, early_s: float, status: str
) -> None:
    words = (
        "s of supervised time, it was due after"
        f" {blk.fired[0].at - timeline(blk).windows[0][0] + early_s:.3f} s"
    )
    assert_said(
        judged(by_the_clock(blk, early_s)),
        status,
        words if status == INVALID else "2 of 2 planned failures fired",
    )


@pytest.mark.parametrize(
    ("before", "status"), [((1200.0, 1201.5), VALID), ((1200.0, 1201.0), INVALID)]
)
def test_its_time_is_that_of_all_sessions(
    blk: RunRecords, before: tuple[float, float], status: str
) -> None:
    """The second kill came in a second session: what counts is the first one's time and its own."""
    lived = blk.fired[1].at - blk.attempts[1].launched_at
    assert blk.supervisor is not None
    (only,) = blk.sessions
    started, ended = before[0] - 1200.0 + only.started_at, before[1] - 1200.0 + only.started_at
    first = replace(only, started_at=started, ended_at=ended)
    second = replace(
        only,
        started_at=blk.attempts[1].launched_at,
        time=only.time + blk.attempts[1].launched_at - only.started_at,
    )
    found = supervised(blk, sessions=(first, second))
    for number in (1, 2):
        found = attempts(found, number, session=1)
    found = planned(fault_fired(found, 1, global_step=0), "kill@9:1", f"kill@{lived + 1.5:.6f}s:1")
    words = "entry 1 (kill) fired after" if status == INVALID else "2 of 2 planned failures fired"
    assert_said(judged(found), status, words)


@pytest.mark.parametrize(("late_s", "status"), [(0.001, VALID), (0.0, VALID), (-0.001, INVALID)])
def test_a_failure_by_the_clock_behind_the_final_record_ends_nothing(
    blk: RunRecords, late_s: float, status: str
) -> None:
    assert blk.final is not None
    at = blk.final.at + late_s
    finding = judged(
        planned(
            fault_fired(blk, 1, global_step=0, attempt=2, at=at, time=at + WALL),
            "kill@9:1",
            "kill@0.5s:1",
        )
    )
    assert_said(
        finding,
        status,
        (
            "attempt 1 died unplanned"
            if status == VALID
            else "entry 1 fired in attempt 2, which completed"
        ),
    )


@pytest.mark.parametrize(
    ("late_s", "status"), [(5.0, VALID), (0.5, VALID), (-0.9, VALID), (-1.1, INVALID)]
)
def test_a_failure_by_the_clock_is_owed_only_if_the_run_went_on_for_a_second_more(
    blk: RunRecords, late_s: float, status: str
) -> None:
    """While an attempt starts there is no target yet."""
    lived = timeline(blk).wall_s
    finding = judged(planned(blk, "kill@9:1", "kill@20:1", f"kill@{lived + late_s:.6f}s:1"))
    excuse = (
        f"entry 2 (due after {lived + late_s:.3f} s) did not fire: the run was over after"
        f" {lived:.3f} s of supervised time"
    )
    assert_said(
        finding,
        status,
        excuse if status == VALID else "the run completed and entries [2] never fired",
    )


@pytest.mark.parametrize(("step", "status"), [(5, VALID), (6, VALID), (7, INVALID)])
def test_a_failure_of_a_capture_comes_with_the_first_one_from_its_step_on(
    blk: RunRecords, step: int, status: str, tmp_path: Path
) -> None:
    """Rank 1 was killed while the checkpoint of step 6 was captured."""
    found = logged(
        attempts(blk, 0, last_step=6), lambda line: line if line.global_step <= 6 else None
    )
    at = found.logs(0).ranks[1].events[-1].at + 0.001
    found = without_spans(found, tmp_path)  # it recorded nothing after that
    found = planned(
        fault_fired(found, 0, global_step=step, at_step=6, at=at, time=at + WALL),
        f"kill@{step}.capture:1",
        "kill@20:1",
    )
    words = (
        f"entry 0 (kill) fired at step 6, it was planned for step {step} (capture)"
        if status == INVALID
        else "2 of 2 planned failures fired"
    )
    assert_said(judged(found), status, words)


def in_the_start(found: RunRecords, moment: str = "start", **changes: object) -> RunRecords:
    """Rank 1 was killed before attempt 0 did a step."""
    at = found.attempts[0].launched_at + 0.1
    fault = {"global_step": 0, "at_step": 0, "at": at, "time": at + WALL} | changes
    found = planned(fault_fired(found, 0, global_step=0), f"kill@0.{moment}:1", "kill@20:1")
    return fault_fired(found, 0, **fault)


def without_steps(found: RunRecords) -> RunRecords:
    return left(found, 0, ranks={})


def without_spans(found: RunRecords, folder: Path) -> RunRecords:
    """Rank 1 of attempt 0 has recorded no span."""
    layout = RunLayout(Path(shutil.copytree(found.layout.root, folder / found.layout.root.name)))
    layout.attempt(0).spans(1).unlink()
    return replace(found, layout=layout)


@pytest.mark.parametrize("moment", ["start", "rendezvous", "load"])
def test_who_is_hit_in_the_start_does_no_step(blk: RunRecords, moment: str, tmp_path: Path) -> None:
    silent = without_spans(without_steps(in_the_start(blk, moment)), tmp_path)
    assert judged(silent).status == VALID
    steps = judged(in_the_start(blk, moment))
    assert_said(steps, INVALID, f"entry 0 fired at {moment}, and attempt 0 did steps all the same")


def test_the_step_of_a_start_is_the_one_resumed_from(blk: RunRecords) -> None:
    found = without_steps(in_the_start(blk, at_step=3))
    assert_said(
        judged(found), INVALID, "entry 0 (kill) fired at step 3, it was planned for step 0 (start)"
    )


def test_who_is_hit_in_the_start_had_done_no_step_by_then(blk: RunRecords) -> None:
    line = blk.logs(0).ranks[1].events[0]
    found = in_the_start(blk, at=line.at + 0.25, time=line.at + 0.25 + WALL)
    assert_said(
        judged(found), INVALID, "entry 0 (kill) fired 0.250 s after its victim had done a step"
    )


def both_killed(found: RunRecords, **changes: object) -> RunRecords:
    """Both ranks were killed after step 9, and the end of attempt 0 is that of one of them."""
    first, _ = found.fired
    found = replace(found, fired=(first, replace(first, index=1, rank=0)))
    return attempts(planned(found, "kill@9:1", "kill@9:0"), 0, **changes)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_that_are_killed_at_once_either_may_be_noticed_first(
    blk: RunRecords, rank: int
) -> None:
    assert judged(both_killed(blk, rank=rank)).status == VALID


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("supervisor", "entry 1 (supervisor) ended the supervisor session, and no other followed"),
        (
            "term",
            "entry 1 told the supervisor to stop in attempt 0, and its session received no signal",
        ),
    ],
)
@pytest.mark.parametrize(("apart_s", "owed"), [(0.0, False), (0.9, False), (1.1, True)])
def test_who_hits_the_supervisor_may_be_ended_first_by_a_death_at_the_same_time(
    blk: RunRecords, kind: str, words: str, apart_s: float, owed: bool
) -> None:
    """Rank 0 had claimed its failure when rank 1 was killed, and was ended with the attempt before
    it could send the signal.
    """
    first, _ = blk.fired
    beside = replace(first, index=1, rank=0, kind=kind, at=first.at - apart_s)
    finding = judged(
        sessions(
            planned(replace(blk, fired=(first, beside)), "kill@9:1", f"{kind}@9:0"), 0, signals=()
        )
    )
    assert told(finding, words) is owed, finding
    # one of an earlier instant also fired before its step was logged
    assert finding.status == (INVALID if apart_s else VALID)


def test_an_end_that_neither_of_two_explains_is_told_of_both(blk: RunRecords) -> None:
    finding = judged(both_killed(blk, rank=1, signal=11))
    for words in (
        "entry 0 (kill of rank 1) is not how attempt 0 died",
        "entry 1 (kill of rank 0) is not how attempt 0 died",
    ):
        assert_said(finding, INVALID, words)


def stopped(found: RunRecords, signals: tuple[int, ...] | None, last: bool = True) -> RunRecords:
    """Attempt 1, in which rank 1 was killed, is said to have been stopped."""
    found = attempts(found, 1, outcome="stopped", signal=15, rank=None)
    if last:
        found = supervised(found, attempts=found.attempts[:2], terminal_status="stopped")
    return sessions(found, 0, signals=signals)


@pytest.mark.parametrize(
    ("signals", "last", "words"),
    [
        ((15,), True, ""),
        (None, True, ""),
        (
            (),
            True,
            (
                "entry 1 (kill) fired in attempt 1, which is said to have been stopped, and its"
                " session received no signal"
            ),
        ),
        (
            (15,),
            False,
            (
                "entry 1 (kill) fired in attempt 1, which is said to have been stopped, and the"
                " same session went on with attempt 2"
            ),
        ),
    ],
)
def test_an_attempt_that_was_stopped_before_its_death_was_noticed(
    blk: RunRecords, signals: tuple[int, ...] | None, last: bool, words: str
) -> None:
    finding = judged(stopped(blk, signals, last))
    assert finding.status == (INVALID if words else VALID), finding
    assert told(finding, words), finding


def test_a_victim_without_a_log_is_missed(blk: RunRecords) -> None:
    ranks = {0: blk.logs(0).ranks[0]}
    assert_said(
        judged(left(blk, 0, ranks=ranks)),
        UNKNOWN,
        "entry 0 fired in attempt 0 and rank 1 left no log",
    )
    assert_said(
        judged(left(blk, 0, ranks=ranks | {1: NOTHING})),
        UNKNOWN,
        "entry 0 fired in attempt 0 and rank 1 left no log",
    )


def test_a_fault_that_nobody_planned_is_told_and_explains_nothing(blk: RunRecords) -> None:
    beside = replace(blk.fired[0], index=7, rank=0)
    assert_said(
        judged(replace(blk, fired=(beside, *blk.fired))),
        INVALID,
        "entry 7 fired (kill, rank 0, step 9), which was not planned",
    )
    alone = judged(replace(blk, fired=(beside, blk.fired[1])))
    assert_said(alone, INVALID, "entry 7 (kill of rank 0) is not how attempt 0 died")


@pytest.mark.parametrize(("nodes", "apart"), [(1, True), (2, False)])
def test_instants_of_one_machine_alone_are_compared(
    blk: RunRecords, nodes: int, apart: bool
) -> None:
    shifted = fault_fired(
        configured(blk, supervision=replace(blk.stored.config.supervision, nodes=nodes)),
        0,
        at=blk.fired[0].at + 50.0,
    )
    finding = judged(shifted)
    assert finding.status == (INVALID if apart else VALID), finding
    assert told(finding, "s after attempt 0 was over") == apart, finding


@pytest.mark.parametrize(
    ("changes", "again"),
    [({}, True), ({"signal": 11}, False), ({"rank": 0}, False), ({"exit_code": 1}, False)],
)
def test_an_attempt_that_dies_as_another_did_dies_of_it_again(
    blk: RunRecords, changes: dict[str, int], again: bool
) -> None:
    """Attempt 1 went no further than after step 9, where attempt 0 was killed; no fault fired in
    it.
    """
    found = logged(blk, lambda line: line if line.global_step <= 9 else None, 1)
    found = attempts(planned(replace(found, fired=found.fired[:1]), "kill@9:1"), 1, **changes)
    words = "entry 0 fired in attempt 0 and attempt 1 died of it again"
    finding = judged(found)
    assert told(finding, words) == again, finding
    assert finding.status == (INVALID if again else VALID), finding


def test_a_stop_that_came_behind_the_death_needs_no_explanation_of_its_own(blk: RunRecords) -> None:
    """The end on record is the kill's; what the session received says nothing against it."""
    found = attempts(stopped(blk, ()), 1, signal=9, rank=1)
    assert judged(found).status == VALID


@pytest.mark.parametrize(
    ("shift_s", "words"),
    [
        (0.0, ""),
        (-0.25, "s before its victim had logged step 12"),
        (0.25, "s after its victim had logged step 13"),
    ],
)
def test_a_failure_of_a_save_that_the_ranks_wait_for_lies_between_their_lines(
    tmp_path: Path, shift_s: float, words: str
) -> None:
    run = build_faulted(tmp_path)
    FAILED(run)
    found = load(run)
    finding = judged(fault_fired(found, FULL, at=found.fired[FULL].at + shift_s))
    assert finding.status == (INVALID if words else VALID) and told(finding, words), finding
