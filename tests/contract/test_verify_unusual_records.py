"""Records as no ordinary run leaves them, each unusual in one way: what the verdict says of them,
promise by promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ecrl_cli.config.schema import SupervisionConfig
from ecrl_cli.history.load import NOTHING, AttemptRecords, RunRecords, load
from ecrl_cli.records.events import FOUND, Hang, InjectedFault, Rejected, Straggler
from ecrl_cli.records.journal import Lines
from ecrl_cli.verify.checkpoints import (
    NO_LOSS,
    _check_predecessor,
    checkpoints_accounted,
    no_acknowledged_loss,
)
from ecrl_cli.verify.consistency import records_consistent, target_reached
from ecrl_cli.verify.exactly_once import exactly_once
from ecrl_cli.verify.registry import CHECKS
from ecrl_cli.verify.same_input import same_input
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case, checkpoint_events
from tests.runs.builder import WALL, build_blk, build_elastic
from tests.runs.changed import (
    Records,
    attempts,
    configured,
    event,
    kept,
    left,
    logged,
    ordered,
    rank_line,
    sessions,
    supervised,
)
from tests.runs.faulted import build_bereft
from tests.runs.sentence import assert_said, told

Check = Callable[[Case], Finding]


@pytest.fixture(scope="module")
def blk(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    """Killed after steps 9 and 20, resumed from 6 and from 18."""
    return load(build_blk(tmp_path_factory.mktemp("blk")))


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    """Killed after steps 8 and 15, 2 -> 1 -> 2 ranks after steps 10 and 20."""
    return load(build_elastic(tmp_path_factory.mktemp("elastic")))


@pytest.fixture(scope="module")
def bereft(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    """The supervisor was killed in attempt 0, whose end nobody saw, and after attempt 1: three
    sessions.
    """
    return load(build_bereft(tmp_path_factory.mktemp("bereft")))


def restarted(found: RunRecords) -> RunRecords:
    """A launch.json of an attempt that the supervisor did not live to enter, and nothing
    besides.
    """
    order = found.logs(2).order
    assert order is not None
    return replace(
        found,
        attempt_logs=(
            *found.attempt_logs,
            AttemptRecords(3, {}, NOTHING, NOTHING, None, replace(order, attempt=3)),
        ),
    )


def ended_late(at: float) -> Records:
    """Rank 1 is killed so many seconds after the final record, and the entry that did it says
    when.
    """

    def change(found: RunRecords) -> RunRecords:
        assert found.final is not None
        fault = InjectedFault(7, "kill", 1, 24, 2, found.final.at + at, found.final.at + at + WALL)
        return replace(
            attempts(found, 2, signal=9, exit_code=None, rank=1), fired=(*found.fired, fault)
        )

    return change


def hung(
    waited_s: float = 0.2, limit_s: float = 0.1, ranks: tuple[int, ...] = (), **changes: object
) -> Records:
    hang = Hang(ranks, "training", 9, waited_s, limit_s, "it")
    return lambda found: attempts(
        found, 0, **{"outcome": "hung", "signal": 9, "hang": hang} | changes
    )


def slow(**changes: object) -> Records:
    each = replace(Straggler(1, 10, 0.5, 0.1), **changes)  # type: ignore[arg-type]
    return lambda found: attempts(found, 0, stragglers=(each,))


def after_a_long_step(change: Records) -> Records:
    """Step 9 took all ranks 0.6 s."""
    return lambda found: change(
        logged(found, lambda line: replace(line, seconds=0.6) if line.global_step == 9 else line)
    )


def with_part(name: str) -> Records:
    """Of the stall of step 6 a millisecond is booked as `name`, which its parts already make up."""

    def change(found: RunRecords) -> RunRecords:
        line = next(
            line
            for line in found.logs(0).checkpoints.events
            if (line.event, line.global_step) == ("released", 6)
        )
        most = max(line.stall_parts, key=lambda part: line.stall_parts[part])
        return event(
            found,
            0,
            "released",
            6,
            stall_parts=line.stall_parts | {most: line.stall_parts[most] - 0.001, name: 0.001},
        )

    return change


# By name: what is unusual, whether it is broken, and the words.
CONTRADICTED: dict[str, tuple[Check, Records, str]] = {
    "from memory and from a checkpoint": (
        records_consistent,
        lambda found: attempts(found, 1, continues=0, memory="survivors"),
        "attempt 1 goes on from memory and resumed from checkpoints/step_00000006",
    ),
    "memory of nobody": (
        records_consistent,
        lambda found: attempts(found, 1, memory="snapshot"),
        "attempt 1 continues attempt None from snapshot memory",
    ),
    "somebody's no memory": (
        records_consistent,
        lambda found: attempts(found, 1, continues=0),
        "attempt 1 continues attempt 0 from no memory",
    ),
    "a memory of no kind": (
        records_consistent,
        lambda found: attempts(found, 1, continues=0, memory="disk"),
        "attempt 1 continues attempt 0 from disk memory",
    ),
    "ranks taken over where none stay": (
        records_consistent,
        lambda found: attempts(found, 1, origins=(0, 1)),
        "attempt 1 took over ranks, its configuration keeps none",
    ),
    "ranks taken over from nobody": (
        records_consistent,
        lambda found: attempts(found, 0, origins=(0, 1)),
        "attempt 0 took over ranks, nobody was there to be taken over",
    ),
    "a resize that ends a completed run": (
        records_consistent,
        lambda found: attempts(found, 2, outcome="resized"),
        "attempt 2 was resized and none follows it",
    ),
    "given up after a stop": (
        records_consistent,
        lambda found: supervised(attempts(found, 2, outcome="stopped"), terminal_status="gave_up"),
        "the last attempt was stopped, and the run gave_up",
    ),
    "refused after a stop": (
        records_consistent,
        lambda found: supervised(attempts(found, 2, outcome="stopped"), terminal_status="refused"),
        "the last attempt was stopped, and the run refused",
    ),
    "given up with the target reached": (
        records_consistent,
        lambda found: supervised(found, terminal_status="gave_up"),
        "the last attempt completed, and the run gave_up",
    ),
    "an attempt after one that still runs": (
        records_consistent,
        lambda found: attempts(found, 0, outcome="running"),
        "attempt 0 is still running, and attempt 1 follows it in the same session",
    ),
    "an exit code and a signal": (
        records_consistent,
        lambda found: attempts(found, 0, exit_code=1),
        "attempt 0 has both exit code 1 and signal 9",
    ),
    "a signal of no number": (
        records_consistent,
        lambda found: attempts(found, 0, signal=65),
        "attempt 0 ended by signal 65, which there is none of",
    ),
    "no signal": (
        records_consistent,
        lambda found: attempts(found, 0, signal=0),
        "attempt 0 ended by signal 0, which there is none of",
    ),
    "a rank that was not there": (
        records_consistent,
        lambda found: attempts(found, 0, rank=2),
        "attempt 0 of 2 ranks names rank 2 as the one that ended it",
    ),
    "a rank that ended well": (
        records_consistent,
        lambda found: attempts(found, 2, rank=0),
        "attempt 2 of 2 ranks names rank 0 as the one that ended it",
    ),
    "a resize with an exit code": (
        records_consistent,
        lambda found: attempts(found, 1, outcome="resized", exit_code=1, signal=None),
        "attempt 1 ended well to be resized, with exit code 1 and signal None",
    ),
    "a death that nothing says": (
        records_consistent,
        lambda found: attempts(found, 0, exit_code=None, signal=None, rank=None),
        "attempt 0 died, nothing says of what, and its supervisor lived to see it",
    ),
    "a death without an end": (
        records_consistent,
        lambda found: attempts(found, 0, ended_at=None),
        "attempt 0 died and has no end, and its supervisor lived",
    ),
    "a hang that nothing says": (
        records_consistent,
        hung(hang=None),
        "attempt 0 hung, and nothing says how",
    ),
    "a hang of one that died": (
        records_consistent,
        hung(outcome="died"),
        "attempt 0 died, and has a hang on record",
    ),
    "a hang within its limit": (
        records_consistent,
        hung(limit_s=0.3),
        "attempt 0 was taken for hung after 0.200 s of silence, 0.300 s were allowed",
    ),
    "a hang without a limit": (
        records_consistent,
        hung(limit_s=0.0),
        "attempt 0 was taken for hung after 0.200 s of silence, 0.000 s were allowed",
    ),
    "a hang of a rank that was not there": (
        records_consistent,
        hung(ranks=(2,)),
        "attempt 0 of 2 ranks hung because of ranks [2]",
    ),
    "a hang longer than its attempt": (
        records_consistent,
        hung(waited_s=900.0),
        "attempt 0 was silent for 900.000 s and lasted for",
    ),
    "steps in a silence": (
        records_consistent,
        hung(waited_s=0.3),
        "attempt 0 hung: nothing moved in its last 0.300 s, in which rank 0 logged",
    ),
    "a straggler that was not there": (
        records_consistent,
        slow(rank=2),
        "attempt 0 has a straggler that cannot be: rank 2 in step 10",
    ),
    "a straggler faster than the others": (
        records_consistent,
        slow(own_s=0.1),
        "a straggler that cannot be: rank 1 in step 10, 0.100 s to the others' 0.100 s",
    ),
    "a straggler to less than nothing": (
        records_consistent,
        slow(others_s=-0.1),
        "a straggler that cannot be: rank 1 in step 10",
    ),
    "a straggler two steps on": (
        records_consistent,
        slow(global_step=11),
        "a straggler that cannot be: rank 1 in step 11",
    ),
    "a straggler before the first step": (
        records_consistent,
        slow(global_step=0),
        "a straggler that cannot be: rank 1 in step 0",
    ),
    "a launch before its session": (
        time_conserved,
        lambda found: attempts(found, 0, launched_at=found.sessions[0].started_at - 0.25),
        "attempt 0 was launched 0.250 s before its session began",
    ),
    "an end after its session": (
        time_conserved,
        lambda found: attempts(found, 2, ended_at=(found.sessions[0].ended_at or 0.0) + 0.25),
        "attempt 2 ended 0.250 s after its session",
    ),
    "a session that ended before it began": (
        time_conserved,
        lambda found: sessions(found, 0, ended_at=found.sessions[0].started_at),
        "session 0 began at 1000.000 s and ended at 1000.000 s",
    ),
    "an end before its launch": (
        time_conserved,
        lambda found: attempts(found, 1, ended_at=found.attempts[1].launched_at - 0.25),
        "attempt 1 ended 0.250 s before it was launched",
    ),
    "a launch before the end of the one before": (
        time_conserved,
        lambda found: attempts(found, 0, ended_at=found.attempts[1].launched_at + 0.25),
        "attempt 1 was launched 0.250 s before attempt 0 ended",
    ),
    "an order after its launch": (
        time_conserved,
        lambda found: ordered(found, 1, at=found.attempts[1].launched_at + 0.25),
        "launch.json of attempt 1 was written 0.250 s after the launch",
    ),
    "an order before the end of the one before": (
        time_conserved,
        lambda found: ordered(found, 1, at=(found.attempts[0].ended_at or 0.0) - 0.25),
        "launch.json of attempt 1 was written 0.250 s before attempt 0 ended",
    ),
    "an order of another boot": (
        time_conserved,
        lambda found: ordered(found, 1, boot_id="another"),
        "attempt 1 was ordered in boot another, its session is of boot boot",
    ),
    "an order before its session": (
        time_conserved,
        lambda found: ordered(found, 0, at=found.sessions[0].started_at - 0.25),
        "launch.json of attempt 0 was written before its session began",
    ),
    "two sessions at once": (
        time_conserved,
        lambda found: supervised(
            found,
            sessions=(
                *found.sessions,
                replace(found.sessions[0], started_at=1000.5, time=1000.5 + WALL),
            ),
        ),
        "before session 0 was over",
    ),
    "two boots at one instant": (
        time_conserved,
        lambda found: supervised(
            found, sessions=(*found.sessions, replace(found.sessions[0], boot_id="another"))
        ),
        "sessions 0 and 1 name two boots, and their clocks began at the same instant",
    ),
    **{
        f"a stall with a part of another strategy, {name}": (
            time_conserved,
            with_part(name),
            f"has 0.001000 s of {name}, which this strategy does not spend",
        )
        for name in ("enqueue", "copy_wait")
    },
    "a step logged twice": (
        exactly_once,
        lambda found: logged(
            found,
            lambda line: (
                replace(line, global_step=4, cursor_step=3) if line.global_step == 5 else line
            ),
        ),
        "step 4 was logged 2 times by attempt 0 rank 0: duplicates",
    ),
    "a log of a rank that was not there": (
        exactly_once,
        lambda found: left(found, 0, ranks=found.logs(0).ranks | {2: found.logs(0).ranks[1]}),
        "attempt 0 rank 2 left a log, the attempt had 2 ranks",
    ),
    "the final record of another attempt": (
        target_reached,
        lambda found: left(found, 1, final=found.final),
        "attempt 1 left the final record of attempt 2, the last attempt is 2",
    ),
    "completed with another end": (
        target_reached,
        lambda found: attempts(found, 2, outcome="died"),
        "the run is said to be completed, its last attempt died",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_what_contradicts_itself_is_invalid(blk: RunRecords, name: str) -> None:
    check, change, words = CONTRADICTED[name]
    assert not told(check(Case(blk)), words)
    finding = check(Case(change(blk)))
    assert finding.status == INVALID and told(finding, words), finding


UNUSUAL: dict[str, tuple[Check, Records, str, str]] = {
    "a launch that nobody entered": (records_consistent, restarted, VALID, ""),
    "one step beyond the last is the straggler's": (
        records_consistent,
        after_a_long_step(slow()),
        VALID,
        "",
    ),
    "a hang whose end nobody saw": (
        records_consistent,
        hung(ended_at=None),
        INVALID,
        "attempt 0 hung and has no end",
    ),
    "no launch.json": (
        records_consistent,
        lambda found: left(found, 1, order=None),
        UNKNOWN,
        "attempt 1 has no launch.json",
    ),
    "no launch.json where nodes may be lost": (
        records_consistent,
        lambda found: left(
            configured(found, supervision=SupervisionConfig(nodes=2, on_node_loss="shrink")),
            1,
            order=None,
        ),
        UNKNOWN,
        "attempt 1 has no launch.json",
    ),
    "no phases in the supervisor's record": (
        records_consistent,
        lambda found: attempts(found, 1, phases={}),
        VALID,
        "",
    ),
    "an attempt that left nothing": (
        records_consistent,
        lambda found: replace(
            found, attempt_logs=tuple(a for a in found.attempt_logs if a.attempt != 1)
        ),
        UNKNOWN,
        "attempt 1 is in supervisor.json and left no logs",
    ),
    "no final record": (
        target_reached,
        lambda found: left(found, 2, final=None),
        UNKNOWN,
        "attempt 2 left no final.json",
    ),
    "a run that was stopped": (
        target_reached,
        lambda found: supervised(found, terminal_status="stopped"),
        UNKNOWN,
        "the run is stopped at step 24 of 24",
    ),
    "no attempt": (
        target_reached,
        lambda found: supervised(found, attempts=()),
        INVALID,
        "its last attempt is not on record",
    ),
    "no data set of images that are made": (
        records_consistent,
        lambda found: configured(
            replace(found, dataset=None), dataset=replace(found.stored.config.dataset, name="fake")
        ),
        UNKNOWN,
        "steps_per_epoch is 10, the records fold to 0 (dataset.json is missing)",
    ),
    "no data set": (
        exactly_once,
        lambda found: replace(found, dataset=None),
        UNKNOWN,
        "dataset.json is missing",
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_has_one_status(blk: RunRecords, name: str) -> None:
    check, change, status, words = UNUSUAL[name]
    finding = check(Case(change(blk)))
    assert finding.status == status and told(finding, words), finding


@pytest.mark.parametrize(("lines", "wrong"), [(1, False), (2, True)])
def test_a_rank_may_log_one_step_in_the_silence_before_it_is_taken_for_hung(
    blk: RunRecords, lines: int, wrong: bool
) -> None:
    """It writes the line after its last heartbeat."""
    ended, silent = blk.attempts[0].ended_at, blk.logs(0).ranks[0].events[-lines]
    assert ended is not None
    found = hung(waited_s=ended - silent.at + 0.001)(blk)
    assert (
        told(records_consistent(Case(found)), "attempt 0 hung: nothing moved in its last") == wrong
    )


@pytest.mark.parametrize(("at", "explained"), [(0.005, True), (-0.005, False)])
def test_a_death_behind_the_target_is_explained_by_a_fault_behind_it(
    blk: RunRecords, at: float, explained: bool
) -> None:
    words = "attempt 2 completed, and rank 1 ended with signal 9: nothing on record explains that"
    assert told(records_consistent(Case(ended_late(at)(blk))), words) != explained


@pytest.mark.parametrize(("status", "wrong"), [("completed", True), ("running", False)])
def test_of_a_run_that_goes_on_the_last_commit_need_not_be_acknowledged_yet(
    blk: RunRecords, status: str, wrong: bool
) -> None:
    finding = no_acknowledged_loss(
        Case(supervised(event(blk, 2, "committed", 24), terminal_status=status))
    )
    assert (
        told(finding, "step_00000024 is committed on disk and no line acknowledges it") == wrong
    ), finding


def test_a_supervisor_that_was_killed_may_leave_a_death_that_nothing_says(
    bereft: RunRecords,
) -> None:
    finding = records_consistent(Case(bereft))
    assert not told(finding, "nothing says of what") and not told(finding, "has no end"), finding
    lived = sessions(bereft, 0, ended_at=bereft.attempts[0].ended_at)
    assert told(
        records_consistent(Case(lived)),
        "attempt 0 died, nothing says of what, and its supervisor lived to see it",
    )


@pytest.mark.parametrize("lost", ["this run", "the reference"])
def test_inputs_without_a_hash_cannot_be_compared_across_world_sizes(
    elastic: RunRecords, blk: RunRecords, lost: str
) -> None:
    """Epoch 1 cursor 4 is step 15: one rank here, two in the reference."""

    def without(line):  # type: ignore[no-untyped-def]
        return replace(line, inputs_hash=None) if line.global_step == 15 else line

    ours, theirs = (
        (logged(elastic, without, 2), blk)
        if lost == "this run"
        else (elastic, logged(blk, without, 1))
    )
    if lost == "this run":
        ours = logged(ours, without, 3)
    finding = same_input(Case(ours, theirs))
    assert_said(finding, UNKNOWN, f"epoch 1 cursor 4: no hash of the inputs in {lost}")


def test_a_remote_rank_without_a_line_says_nothing_of_its_clock(blk: RunRecords) -> None:
    """Of two nodes with a rank each, the second shares no clock with the supervisor, and rank 1
    left an empty log.
    """
    remote = ordered(blk, 0, nodes=("a", "b"))
    silent = left(remote, 0, ranks=remote.logs(0).ranks | {1: Lines((), (), 0)})
    assert time_conserved(Case(remote)).status == VALID
    assert time_conserved(Case(silent)).status == VALID


def test_steps_of_a_remote_rank_do_not_overlap_by_its_own_clock(blk: RunRecords) -> None:
    """A step takes 0.02 s, 0.005 s after the one before."""
    overlapping = rank_line(ordered(blk, 0, nodes=("a", "b")), 0, 1, 5, seconds=0.125)
    finding = time_conserved(Case(overlapping))
    words = (
        "step 5 of attempt 0 rank 1 began 0.100000 s before what came before it was over, by its"
        " own 0.125000 s"
    )
    assert finding.status == INVALID and told(finding, words), finding


@pytest.mark.parametrize(("reboots", "wrong"), [(False, True), (True, False)])
def test_spans_may_go_on_behind_the_last_line_where_the_machine_lost_power(
    blk: RunRecords, reboots: bool, wrong: bool
) -> None:
    """The lines of rank 1 after step 5 are gone."""
    cut = logged(blk, lambda line: line if line.rank == 0 or line.global_step <= 5 else None)
    if reboots:
        cut = supervised(
            cut,
            sessions=(
                *cut.sessions,
                replace(cut.sessions[0], boot_id="another", started_at=5000.0),
            ),
        )
    words = (
        "attempt 0 rank 1 has a span of compute of step 7, when step 5 was the last that the rank"
        " had logged"
    )
    assert told(time_conserved(Case(cut)), words) == wrong, time_conserved(Case(cut))


def test_a_new_rank_that_replaces_none_has_an_origin_below_zero_and_nothing_else_has(
    blk: RunRecords,
) -> None:
    words = "supervisor.json: origins is"
    assert not told(records_consistent(Case(attempts(blk, 1, origins=(0, -1), joined=(1,)))), words)
    finding = records_consistent(Case(attempts(blk, 1, joined=(-1,))))
    assert finding.status == INVALID and told(finding, "supervisor.json: joined is"), finding


def test_an_event_that_no_checkpoint_has_is_told(blk: RunRecords) -> None:
    unknown = left(
        blk,
        0,
        checkpoints=kept(
            blk.logs(0).checkpoints,
            lambda line: replace(line, event="moved") if line.event == "received" else line,
        ),
    )
    finding = records_consistent(Case(unknown))
    assert finding.status == INVALID and told(finding, "'moved' is not an event"), finding


LESS: dict[str, tuple[Records, dict[str, str]]] = {
    "no supervisor.json": (
        lambda found: replace(found, supervisor=None),
        {
            "once": UNKNOWN,
            "time": UNKNOWN,
            "bad": NOT_CHECKED,
            "loss": UNKNOWN,
            "account": NOT_CHECKED,
            "failures": UNKNOWN,
        }
        | {"records": UNKNOWN, "target": UNKNOWN},
    ),
    "no attempt in it": (
        lambda found: supervised(found, attempts=(), sessions=()),
        {
            "once": INVALID,
            "time": UNKNOWN,
            "bad": NOT_CHECKED,
            "account": INVALID,
            "failures": INVALID,
            "records": INVALID,
            "target": INVALID,
        },
    ),
    "no logs": (
        lambda found: replace(found, attempt_logs=()),
        {
            "once": INVALID,
            "input": NOT_CHECKED,
            "time": UNKNOWN,
            "bad": INVALID,
            "loss": INVALID,
            "account": NOT_CHECKED,
            "failures": UNKNOWN,
        }
        | {"records": UNKNOWN, "target": INVALID},
    ),
    "no spans of rank 0 at the end": (
        lambda found: left(found, 2, spans=NOTHING),
        {"time": UNKNOWN, "records": UNKNOWN},
    ),
    "no journal of checkpoints": (
        lambda found: left(found, 0, checkpoints=NOTHING),
        {"once": INVALID, "bad": INVALID, "loss": INVALID, "account": INVALID, "records": UNKNOWN},
    ),
    "no plan": (lambda found: replace(found, plan=None), {"failures": UNKNOWN}),
}
NAMES = "once input trajectory state restored time bad loss account failures records target sealed"
PROMISES = dict(zip(NAMES.split(), CHECKS, strict=True))
ALONE = dict.fromkeys(PROMISES, VALID) | {
    "trajectory": UNKNOWN,
    "restored": NOT_CHECKED,
    "sealed": NOT_CHECKED,
}


@pytest.mark.parametrize("name", LESS)
def test_what_is_left_of_a_run_has_a_status_for_every_promise(blk: RunRecords, name: str) -> None:
    """None is kept by evidence that is not there."""
    change, others = LESS[name]
    case = Case(change(blk))
    assert {
        word: CHECKS[promise](case).status for word, promise in PROMISES.items()
    } == ALONE | others


@pytest.mark.parametrize(("session", "ended_at", "bounded"), [(0, 2000.0, True), (1, None, False)])
def test_ranks_may_outlive_a_supervisor_that_was_killed_but_not_the_next_launch_of_one(
    blk: RunRecords, session: int, ended_at: float | None, bounded: bool
) -> None:
    """Rank 1 of attempt 0 logs its last step when attempt 1 has been launched."""
    (only,) = blk.sessions
    launched = blk.attempts[1].launched_at
    second = replace(only, started_at=launched - 0.02, time=launched - 0.02 + WALL)
    found = supervised(blk, sessions=(replace(only, ended_at=ended_at), second))
    for number in (1, 2):
        found = attempts(found, number, session=session)
    late = logged(
        found,
        lambda line: (
            replace(line, at=launched + 0.05) if (line.global_step, line.rank) == (9, 1) else line
        ),
    )
    assert (
        told(
            time_conserved(Case(late)),
            "step 9 of attempt 0 rank 1 is dated 0.050 s after the attempt was over",
        )
        == bounded
    )


@pytest.mark.parametrize(("final", "due"), [(True, True), (False, False)])
def test_a_last_checkpoint_is_due_where_the_configuration_asks_for_it(
    blk: RunRecords, final: bool, due: bool
) -> None:
    """One every 18 steps: that of step 24 is the last one's alone."""
    found = configured(blk, checkpoint=replace(blk.stored.config.checkpoint, every=18, final=final))
    found = left(
        found,
        2,
        checkpoints=kept(
            found.logs(2).checkpoints, lambda line: None if line.global_step == 24 else line
        ),
    )
    finding = checkpoints_accounted(Case(found))
    assert told(finding, "step 24 of attempt 2 was due and no checkpoint was submitted") == due, (
        finding
    )


def found_later(blk: RunRecords, **changes: Any) -> RunRecords:
    """The line of the commit of step 18 stands behind that of step 24."""
    line = next(
        line
        for line in checkpoint_events(blk)
        if (line.event, line.global_step) == ("committed", 18)
    )
    last = blk.logs(2).checkpoints
    last = replace(last, events=(*last.events, replace(line, attempt=2, **changes)))
    return left(event(blk, 1, "committed", 18), 2, checkpoints=last)


def refused_later(blk: RunRecords) -> RunRecords:
    refused = Rejected("checkpoints/step_00000018", "tensors", "other bytes")
    last = replace(blk.attempts[2], attempt=3, rejected=(refused,))
    return supervised(blk, attempts=(*blk.attempts, last))


@pytest.mark.parametrize(
    ("named", "change", "gone", "newest", "status"),
    [
        (18, None, False, 0, VALID),
        (12, None, False, 18, INVALID),
        (0, None, False, 18, INVALID),
        (12, lambda blk: sessions(blk, 0, ended_at=None), False, 18, UNKNOWN),
        (12, None, True, 18, UNKNOWN),  # it may have been damaged
        (12, refused_later, False, 0, VALID),  # it was
        (18, found_later, False, 12, INVALID),
        (18, lambda blk: found_later(blk, reason=FOUND), False, 0, VALID),
    ],
)
def test_a_commit_names_the_newest_older_one(
    blk: RunRecords, named: int, change: Records | None, gone: bool, newest: int, status: str
) -> None:
    """That of step 24, committed in attempt 2, names that of step 18."""
    lines = [line for line in checkpoint_events(blk) if line.event == "committed"]
    commits = {line.global_step: line.commit_sha256 for line in lines}
    case, notes = Case(change(blk) if change else blk), FindingBuilder(NO_LOSS)
    case.__dict__["disk"] = tuple(c for c in case.disk if not gone or c.step != 18)
    last = replace(case.disk[-1], previous=commits.get(named))
    _check_predecessor(case, last, notes)
    finding = notes.finding("")
    assert finding.status == status
    assert told(finding, f"the newest older checkpoint was that of step {newest}") == bool(newest)


@pytest.mark.parametrize("outcome", ["stopped", "died"])
@pytest.mark.parametrize(("category", "ranks"), [("idle", 2), ("compute", 2), ("idle", 1)])
def test_a_last_checkpoint_is_due_where_the_ranks_stopped_by_themselves(
    blk: RunRecords, outcome: str, category: str, ranks: int
) -> None:
    """As both do that were asked to stop after step 9, and no rank that is killed: nor one whose
    spans are lost, of which nobody can tell.
    """
    case = Case(attempts(blk, 0, outcome=outcome))
    for rank in (0, 1):
        account = case.spans.of(0, rank)
        assert account is not None
        last = replace(account.spans[-1], category=category, global_step=9)
        case.spans.accounts[0, rank] = replace(account, spans=(*account.spans, last))
    if ranks == 1:
        del case.spans.accounts[0, 1]
    due = told(checkpoints_accounted(case), "step 9 of attempt 0 was due and no checkpoint was")
    assert due == ((outcome, category, ranks) == ("stopped", "idle", 2))


@pytest.mark.parametrize(("boot", "bounded"), [("boot", True), ("another", False)])
def test_what_a_killed_session_recorded_is_dated_before_the_next_launch_of_its_boot(
    bereft: RunRecords, boot: str, bounded: bool
) -> None:
    """A clock of another boot tells nothing of when it was over."""
    late = bereft.attempts[1].launched_at + 0.25
    found = event(bereft, 0, "committed", 6, at=late, time=late + WALL)
    for number in (1, 2):
        found = sessions(found, number, boot_id=boot)
    words = (
        "the committed line of step 6 of attempt 0 is dated 0.250 s after whoever could write it"
        " was over"
    )
    assert told(time_conserved(Case(found)), words) == bounded


def test_faults_of_a_killed_session_fired_in_it_whatever_the_clock_of_the_next_boot_shows(
    bereft: RunRecords,
) -> None:
    """The machine was started anew, and its clock with it; the third session is again one of the
    first boot.
    """
    rebooted = sessions(
        bereft, 1, boot_id="another", started_at=5.0, time=5.0 + WALL, ended_at=50.0
    )
    words = f"entry 0 fired at {bereft.fired[0].at:.3f} s, when no supervisor was there"
    assert not told(time_conserved(Case(rebooted)), words)
    assert told(time_conserved(Case(sessions(rebooted, 1, boot_id="boot"))), words)
