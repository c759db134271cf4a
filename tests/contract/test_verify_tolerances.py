"""Every tolerance of the checks from both sides: what lies just within is not told, what lies just
beyond is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.events import CheckpointLine, RankLine, Span
from ecrl_cli.verify.checkpoints import checkpoints_accounted
from ecrl_cli.verify.clocks import EARLIEST, Instant, _check_agreement, _close
from ecrl_cli.verify.consistency import records_consistent
from ecrl_cli.verify.fault_plan import failures_once
from ecrl_cli.verify.rank_spans import ROUNDING_S, SpanAccount
from ecrl_cli.verify.state_consistent import state_consistent
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import BOOT, WALL, build_blk
from tests.runs.changed import (
    attempts,
    fired,
    kept,
    left,
    logged,
    ordered,
    sessions,
    span,
    supervised,
)
from tests.runs.sentence import told
from tests.runs.spoilt_states import build_states
from tests.runs.survived import build_lossy

Shift = Callable[[RunRecords, float], RunRecords]
NEAR, FAR = 0.5e-6, 2e-6  # of clock readings: rounding is 1e-6


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecords]:
    """`blk`: killed after steps 9 and 20, resumed from 6 and from 18. `lossy`: of four ranks two
    die in step 9. `states`: as `blk`, with the state of each rank.
    """
    folder = tmp_path_factory.mktemp("runs")
    return {
        "blk": load(build_blk(folder)),
        "lossy": load(build_lossy(folder)),
        "states": load(build_states(folder / "states", "blk")),
    }


@dataclass(frozen=True)
class Bound:
    """`change` shifts something by so many seconds: by `within` nothing with `words` is told, by
    `beyond` it is.
    """

    check: Callable[[Case], Finding]
    change: Shift
    words: str
    within: float = NEAR
    beyond: float = FAR
    run: str = "blk"


def session_end(found: RunRecords) -> float:
    assert found.sessions[0].ended_at is not None
    return found.sessions[0].ended_at


def ended(found: RunRecords, number: int) -> float:
    at = found.attempts[number].ended_at
    assert at is not None
    return at


def second(
    found: RunRecords, start: float, boot: str = BOOT, offset: float = 0.0, **changes: object
) -> RunRecords:
    """A second session that begins at `start`; the clock of its boot began `offset` later."""
    first = replace(found.sessions[0], **changes)  # type: ignore[arg-type]
    return supervised(
        found,
        sessions=(
            first,
            replace(found.sessions[0], started_at=start, time=start + WALL + offset, boot_id=boot),
        ),
    )


def rank_line(
    step: int, rank: int, number: int, change: Callable[[RankLine], RankLine]
) -> Callable[[RunRecords], RunRecords]:
    return lambda found: logged(
        found,
        lambda line: change(line) if (line.global_step, line.rank) == (step, rank) else line,
        number,
    )


def dated(
    step: int, rank: int, number: int, at: Callable[[RunRecords], float], sign: int = 1
) -> Shift:
    """The line of a rank, at so many seconds after (`sign` -1: before) an instant."""
    return lambda found, by: rank_line(
        step, rank, number, lambda line: replace(line, at=at(found) + sign * by)
    )(found)


def journal(
    event: str, step: int, number: int, change: Callable[[CheckpointLine], CheckpointLine]
) -> Callable[[RunRecords], RunRecords]:
    def changed(found: RunRecords) -> RunRecords:
        lines = found.logs(number).checkpoints
        assert any((line.event, line.global_step) == (event, step) for line in lines.events)
        return left(
            found,
            number,
            checkpoints=kept(
                lines,
                lambda line: (
                    change(line) if (line.event, line.global_step) == (event, step) else line
                ),
            ),
        )

    return changed


def spans(found: RunRecords, number: int) -> tuple[Span, ...]:
    return found.logs(number).spans.events


def line_at(found: RunRecords, step: int, rank: int, number: int) -> RankLine:
    return next(line for line in found.logs(number).ranks[rank].events if line.global_step == step)


def event_at(found: RunRecords, event: str, step: int, number: int) -> CheckpointLine:
    return next(
        line
        for line in found.logs(number).checkpoints.events
        if (line.event, line.global_step) == (event, step)
    )


def own_clock_late(by: float) -> float:
    """The first launch is 0.095 s after the start of the session: of these the wall clock may be
    apart by 0.05 s and a tenth.
    """
    return 0.05 + 0.1 * 0.095 + by


BOUNDS: dict[str, Bound] = {
    "a launch before its session": Bound(
        time_conserved,
        lambda found, by: attempts(found, 0, launched_at=found.sessions[0].started_at - by),
        "attempt 0 was launched 0.000 s before its session began",
    ),
    "an end after its session": Bound(
        time_conserved,
        lambda found, by: attempts(found, 2, ended_at=session_end(found) + by),
        "attempt 2 ended 0.000 s after its session",
    ),
    "a launch after its session, and no end": Bound(
        time_conserved,
        lambda found, by: attempts(found, 2, launched_at=session_end(found) + by, ended_at=None),
        "attempt 2 ended 0.000 s after its session",
    ),
    "a session before the end of the one before": Bound(
        time_conserved,
        lambda found, by: second(found, session_end(found) - by),
        "session 1 began 0.000 s before session 0 was over",
    ),
    "a session before the start of one that was killed": Bound(
        time_conserved,
        lambda found, by: second(found, found.sessions[0].started_at - by, ended_at=None),
        "session 1 began 0.000 s before session 0 was over",
    ),
    "the first launch late by the wall clock": Bound(
        time_conserved,
        lambda found, by: ordered(found, 0, time=found.logs(0).order.time + own_clock_late(by)),  # type: ignore[union-attr]
        "session 0 took 0.095 s to its first launch by the monotonic clock",
        -0.001,
        0.001,
    ),
    "the first launch early by the wall clock": Bound(
        time_conserved,
        lambda found, by: ordered(found, 0, time=found.logs(0).order.time - own_clock_late(by)),  # type: ignore[union-attr]
        "session 0 took 0.095 s to its first launch by the monotonic clock",
        -0.001,
        0.001,
    ),
    "the end of a session late by the wall clock": Bound(
        time_conserved,
        lambda found, by: sessions(found, 0, ended_time=session_end(found) + WALL + by),
        "session 0 ended 0.260 s after",
        0.05,
        0.2,
    ),
    "the end of a session early by the wall clock": Bound(
        time_conserved,
        lambda found, by: sessions(found, 0, ended_time=session_end(found) + WALL - by),
        "session 0 ended 0.260 s after",
        0.05,
        0.2,
    ),
    "two boots at one instant": Bound(
        time_conserved,
        lambda found, by: second(found, session_end(found), "other", 1e-3 - by),
        "sessions 0 and 1 name two boots, and their clocks began at the same instant",
        -1e-4,
        1e-4,
    ),
    "two boots at one instant, the second a bit earlier": Bound(
        time_conserved,
        lambda found, by: second(found, session_end(found), "other", by - 1e-3),
        "sessions 0 and 1 name two boots, and their clocks began at the same instant",
        -1e-4,
        1e-4,
    ),
    "an end before its launch": Bound(
        time_conserved,
        lambda found, by: attempts(found, 1, ended_at=found.attempts[1].launched_at - by),
        "attempt 1 ended 0.000 s before it was launched",
    ),
    "a launch before the end of the one before": Bound(
        time_conserved,
        lambda found, by: attempts(found, 0, ended_at=found.attempts[1].launched_at + by),
        "attempt 1 was launched 0.000 s before attempt 0 ended",
    ),
    "an order after its launch": Bound(
        time_conserved,
        lambda found, by: ordered(found, 1, at=found.attempts[1].launched_at + by),
        "launch.json of attempt 1 was written 0.000 s after the launch",
    ),
    "an order before the end of the one before": Bound(
        time_conserved,
        lambda found, by: ordered(found, 1, at=ended(found, 0) - by),
        "launch.json of attempt 1 was written 0.000 s before attempt 0",
    ),
    "an order before its session": Bound(
        time_conserved,
        lambda found, by: ordered(found, 0, at=found.sessions[0].started_at - by),
        "launch.json of attempt 0 was written before its session began",
    ),
    "a line before the launch": Bound(
        time_conserved,
        dated(7, 1, 1, lambda found: found.attempts[1].launched_at, -1),
        "step 7 of attempt 1 rank 1 is dated 0.000 s before the attempt was launched",
    ),
    "a line after the next launch": Bound(
        time_conserved,
        dated(9, 1, 0, lambda found: found.attempts[1].launched_at),
        "step 9 of attempt 0 rank 1 is dated 0.000 s after the attempt was over",
    ),
    "a line after the end of the session": Bound(
        time_conserved,
        dated(24, 1, 2, session_end),
        "step 24 of attempt 2 rank 1 is dated 0.000 s after the attempt was over",
    ),
    "a checkpoint line after the next launch": Bound(
        time_conserved,
        lambda found, by: journal(
            "released", 6, 0, lambda line: replace(line, at=found.attempts[1].launched_at + by)
        )(found),
        "the released line of step 6 of attempt 0 is dated 0.000 s after the attempt was over",
    ),
    "a committed line after whoever could write it": Bound(
        time_conserved,
        lambda found, by: journal(
            "committed", 6, 0, lambda line: replace(line, at=found.attempts[1].launched_at + by)
        )(found),
        "the committed line of step 6 of attempt 0 is dated 0.000 s after whoever could write it"
        " was over",
    ),
    "a submitted line before the launch": Bound(
        time_conserved,
        lambda found, by: journal(
            "submitted", 12, 1, lambda line: replace(line, at=found.attempts[1].launched_at - by)
        )(found),
        "the submitted line of step 12 of attempt 1 is dated 0.000 s before the attempt was"
        " launched",
    ),
    "a line before the one ahead of it": Bound(
        time_conserved,
        lambda found, by: journal(
            "committed",
            12,
            1,
            lambda line: replace(line, at=event_at(found, "received", 12, 1).at - by),
        )(found),
        "the committed line of step 12 of attempt 1 is dated 0.000002 s before the received line",
    ),
    "a save out of order": Bound(
        time_conserved,
        lambda found, by: journal(
            "committed",
            12,
            1,
            lambda line: replace(line, at=event_at(found, "received", 12, 1).at - by),
        )(found),
        "step 12 of attempt 1 was committed 0.000002 s before it was received",
    ),
    "more writing than there was time for": Bound(
        time_conserved,
        lambda found, by: journal(
            "committed", 12, 1, lambda line: replace(line, write_s=0.03 - line.commit_s + by)
        )(found),
        "step 12 of attempt 1 was saved in 0.030002 s of writing between two instants 0.030000 s"
        " apart",
    ),
    "a survivor report after the next launch": Bound(
        time_conserved,
        lambda found, by: left(
            found,
            0,
            survivor_reports={
                rank: replace(
                    lines,
                    events=(
                        replace(
                            lines.events[0], at=found.attempts[1].launched_at + by * (rank == 1)
                        ),
                    ),
                )
                for rank, lines in found.logs(0).survivor_reports.items()
            },
        ),
        "the survivor report of attempt 0 rank 1 is dated 0.000 s after the attempt was over",
        run="lossy",
    ),
    "a step that began before the one before it was over": Bound(
        time_conserved,
        lambda found, by: rank_line(
            5, 1, 0, lambda line: replace(line, seconds=line.at - line_at(found, 4, 1, 0).at + by)
        )(found),
        "step 5 of attempt 0 rank 1 began 0.000002 s before what came before it was over",
    ),
    "a first step that began before the launch": Bound(
        time_conserved,
        lambda found, by: rank_line(
            7,
            0,
            1,
            lambda line: replace(line, seconds=line.at - found.attempts[1].launched_at + by),
        )(found),
        "step 7 of attempt 1 rank 0 began 0.000002 s before what came before it was over",
    ),
    "a step of less than no time": Bound(
        time_conserved,
        lambda found, by: rank_line(5, 1, 0, lambda line: replace(line, seconds=by))(found),
        "step 5 of attempt 0 rank 1 took 0 s",
        1e-9,
        0.0,
    ),
    "a failure after the last session": Bound(
        time_conserved,
        lambda found, by: fired(found, 1, at=session_end(found) + by),
        "when no supervisor was there",
    ),
    "a failure before the first session": Bound(
        time_conserved,
        lambda found, by: fired(found, 0, at=found.sessions[0].started_at - by),
        "when no supervisor was there",
    ),
    "a step that a rank began when another had ended it": Bound(
        time_conserved,
        lambda found, by: rank_line(
            5,
            1,
            0,
            lambda line: replace(line, seconds=0.01, at=line_at(found, 5, 0, 0).at + 0.01 + by),
        )(found),
        "rank 1 began step 5 of attempt 0 0.000002 s after rank 0 had ended it",
    ),
    "an open second between two spans": Bound(
        time_conserved,
        lambda found, by: span(found, 1, 3, start=spans(found, 1)[2].end + by),
        "attempt 1 rank 0 leaves 0.000002 s open between load and compute (step 7)",
    ),
    "a second in two spans": Bound(
        time_conserved,
        lambda found, by: span(found, 1, 3, start=spans(found, 1)[2].end - by),
        "attempt 1 rank 0 leaves 0.000002 s counted twice between load and compute (step 7)",
    ),
    "spans before the launch": Bound(
        time_conserved,
        lambda found, by: span(found, 1, 0, start=found.attempts[1].launched_at - by),
        "the spans of attempt 1 rank 0 begin before the launch",
    ),
    "spans after the next launch": Bound(
        time_conserved,
        lambda found, by: span(found, 0, -1, end=found.attempts[1].launched_at + by),
        "the spans of attempt 0 rank 0 end 0.000002 s after its process was over",
    ),
    "spans after the end of an attempt that ended well": Bound(
        time_conserved,
        lambda found, by: span(found, 2, -1, end=ended(found, 2) + by),
        "the spans of attempt 2 rank 0 end 0.000002 s after its process was over",
    ),
    "the clock stopped before the last work": Bound(
        time_conserved,
        lambda found, by: left(found, 2, final=replace(found.final, at=found.final.at - by)),  # type: ignore[union-attr,type-var]
        "final.json ends the clock -0.000002 s from where rank 0 of attempt 2 ended its work",
    ),
    "the clock stopped after the last work": Bound(
        time_conserved,
        lambda found, by: left(found, 2, final=replace(found.final, at=found.final.at + by)),  # type: ignore[union-attr,type-var]
        "final.json ends the clock +0.000002 s from where rank 0 of attempt 2 ended its work",
    ),
    "a last line of another rank behind the final record": Bound(
        time_conserved,
        lambda found, by: dated(24, 1, 2, lambda run: run.final.at)(found, by),  # type: ignore[union-attr]
        "rank 1 logged step 24",
        59.0,
        61.0,
    ),
    "a last line of rank 0 after the final record": Bound(
        time_conserved,
        lambda found, by: dated(24, 0, 2, lambda run: run.final.at)(found, by),  # type: ignore[union-attr]
        "rank 0 logged step 24 0.000002 s after the end of final.json",
    ),
    "a stall shorter than its spans": Bound(
        time_conserved,
        lambda found, by: journal(
            "released", 12, 1, lambda line: replace(line, stall_s=line.stall_s - by)
        )(found),
        "is 0.035998 s, its parts add up to 0.036000 s",
    ),
    "a stall longer than its parts": Bound(
        time_conserved,
        lambda found, by: journal(
            "released", 12, 1, lambda line: replace(line, stall_s=line.stall_s + by)
        )(found),
        "is 0.036002 s, its parts add up to 0.036000 s",
    ),
    "a part that another line says otherwise": Bound(
        time_conserved,
        lambda found, by: journal(
            "submitted", 12, 1, lambda line: replace(line, snapshot_s=line.snapshot_s + by)
        )(found),
        "the save of step 12 in attempt 1 has 0.004002 s of snapshot by its line, 0.004000 s by the"
        " spans of rank 0",
    ),
    "a part that the line itself says otherwise": Bound(
        time_conserved,
        lambda found, by: journal("released", 12, 1, lambda line: replace(line, enqueue_s=by))(
            found
        ),
        "the save of step 12 in attempt 1 has 0.000002 s of enqueue by its line, 0.000000 s by the"
        " spans of rank 0",
    ),
    "a part that another line says to be less": Bound(
        time_conserved,
        lambda found, by: journal(
            "committed", 12, 1, lambda line: replace(line, hash_s=line.hash_s - by)
        )(found),
        "has 0.005000 s of hash, the lines of that checkpoint say 0.004998 s",
    ),
    "a write longer than since it was received": Bound(
        checkpoints_accounted,
        lambda found, by: journal(
            "committed",
            12,
            1,
            lambda line: replace(line, write_s=0.03 - line.commit_s - line.hash_s + by),
        )(found),
        "to write and commit, 0.030 s after it was received",
        0.0009,
        0.0011,
    ),
    "a phase that took longer": Bound(
        records_consistent,
        lambda found, by: attempts(
            found,
            1,
            phases=found.attempts[1].phases | {"load": found.attempts[1].phases["load"] + by},
        ),
        "attempt 1 took 0.200002 s for load by supervisor.json, 0.200000 s by the records",
    ),
    "a phase that took less": Bound(
        records_consistent,
        lambda found, by: attempts(
            found,
            1,
            phases=found.attempts[1].phases | {"load": found.attempts[1].phases["load"] - by},
        ),
        "attempt 1 took 0.199998 s for load by supervisor.json, 0.200000 s by the records",
    ),
    "a failure before its attempt": Bound(
        failures_once,
        lambda found, by: fired(found, 0, at=found.attempts[0].launched_at - by),
        "entry 0 (kill) fired 0.001 s before attempt 0 could be hit",
        0.0009,
        0.0011,
    ),
    "a failure after the death that it was": Bound(
        failures_once,
        lambda found, by: fired(found, 0, at=ended(found, 0) + by),
        "entry 0 (kill) fired 0.001 s after attempt 0 was over",
        0.0009,
        0.0011,
    ),
    "a failure before the step it is behind": Bound(
        failures_once,
        lambda found, by: fired(found, 0, at=line_at(found, 9, 1, 0).at - by),
        "entry 0 (kill) fired 0.001 s before its victim had logged step 9",
        0.0009,
        0.0011,
    ),
    "a learning rate above the schedule's": Bound(
        state_consistent,
        lambda found, by: rank_line(
            5,
            1,
            0,
            lambda line: replace(line, lr=(line.lr or 0.0) + by * found.stored.config.optimizer.lr),
        )(found),
        "step 5 of attempt 0 rank 1: the learning rate is",
        0.5e-12,
        2e-12,
        "states",
    ),
    "a learning rate below the schedule's": Bound(
        state_consistent,
        lambda found, by: rank_line(
            5,
            1,
            0,
            lambda line: replace(line, lr=(line.lr or 0.0) - by * found.stored.config.optimizer.lr),
        )(found),
        "step 5 of attempt 0 rank 1: the learning rate is",
        0.5e-12,
        2e-12,
        "states",
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_tolerance_ends_where_it_is_said_to_end(runs: dict[str, RunRecords], name: str) -> None:
    bound = BOUNDS[name]
    found = runs[bound.run]
    far = bound.check(Case(bound.change(found, bound.beyond)))
    assert told(far, bound.words), far
    near = bound.check(Case(bound.change(found, bound.within)))
    assert not told(near, bound.words), near


# The two clocks by themselves


def agreement(instants: list[Instant]) -> Finding:
    notes = FindingBuilder("time-conserved")
    _check_agreement("boot x", instants, notes)
    return notes.finding("")


def every(
    seconds: float, count: int, ahead: Callable[[float], float] = lambda at: 0.0
) -> list[Instant]:
    """Readings of one process, whose wall clock is so much further `ahead` than at first."""
    return [
        Instant(seconds * n, WALL + seconds * n + ahead(seconds * n), (0, 0), f"reading {n}")
        for n in range(count)
    ]


@pytest.mark.parametrize(("early", "status"), [(0.0, VALID), (1.0, UNKNOWN)])
def test_a_wall_clock_that_was_never_set_is_no_evidence(early: float, status: str) -> None:
    readings = [Instant(float(n), EARLIEST - early + n, (0, 0), f"reading {n}") for n in range(3)]
    finding = agreement(readings)
    assert finding.status == status, finding
    assert told(
        finding,
        "reading 0 is dated 1704067199 s after 1970 by the wall clock, which had not been set",
    ) == (status == UNKNOWN)


@pytest.mark.parametrize(
    ("seconds", "steps", "status"),
    [(1.0, 3, VALID), (1.0, 4, INVALID), (30.0, 4, VALID), (30.0, 5, INVALID)],
)
def test_a_clock_is_set_three_times_and_once_more_every_ten_minutes(
    seconds: float, steps: int, status: str
) -> None:
    """23 readings, in 22 s or in eleven minutes; the clock is put on by a minute after every
    fourth.
    """
    finding = agreement(every(seconds, 23, lambda at: 60.0 * min(steps, int(at / seconds / 4))))
    assert finding.status == status, finding
    if status == INVALID:
        words = (
            f"boot x: the wall clock and the monotonic one part {steps} times in {22 * seconds:.3f}"
            " s, the first time at reading 4, by +60.000 s"
        )
        assert told(finding, words), finding


@pytest.mark.parametrize(("step", "status"), [(3500.0, VALID), (3700.0, INVALID)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_that_was_wrong_by_an_hour_does_not_become_wrong_again(
    step: float, sign: int, status: str
) -> None:
    there_and_back = agreement(every(1.0, 12, lambda at: sign * step * (4 <= at < 8)))
    assert there_and_back.status == status, there_and_back
    assert (
        agreement(every(1.0, 12, lambda at: sign * step * ((at >= 4) + (at >= 8)))).status == VALID
    )


@pytest.mark.parametrize(("late", "status"), [(22, VALID), (23, INVALID)])
def test_so_many_readings_may_be_late(late: int, status: str) -> None:
    """Two and one in fifty, of a thousand. Each is read late by less than until its process reads
    again; another process reads in between.
    """
    held_up = {3 * n + 1 for n in range(late)}
    readings = [
        Instant(0.1 * n, WALL + 0.1 * n + 0.19 * (n in held_up), (0, n % 2), f"reading {n}")
        for n in range(1000)
    ]
    finding = agreement(readings)
    assert finding.status == status, finding
    assert told(
        finding,
        f"boot x: {late} of 1000 instants have a wall time that was read late, the first is"
        " reading 1",
    ) == (status == INVALID)


@pytest.mark.parametrize(
    ("apart", "close"), [(0.149, True), (0.151, False), (-0.149, True), (-0.151, False)]
)
def test_two_readings_may_be_apart_by_what_a_clock_is_slewed_in_between(
    apart: float, close: bool
) -> None:
    """A second lies between them: 0.05 s, and a tenth of it."""
    one, other = (
        Instant(5.0, WALL + 5.0, (0, 0), "one"),
        Instant(6.0, WALL + 6.0 + apart, (0, 0), "other"),
    )
    assert _close(one, other) == _close(other, one) == close


# Spans by instant


def account() -> SpanAccount:
    """From 10 to 13, a second each."""
    return SpanAccount(
        tuple(
            Span(name, 10.0 + n, 11.0 + n, 0, n)
            for n, name in enumerate(("load", "compute", "sync"))
        )
    )


@pytest.mark.parametrize(
    ("instant", "index", "covering"),
    [
        (10.0 - FAR, None, []),
        (10.0 - NEAR, 0, ["load"]),
        (10.5, 0, ["load"]),
        (11.0 - FAR, 0, ["load"]),
        (11.0 - NEAR, 1, ["load", "compute"]),
        (11.0 + NEAR, 1, ["load", "compute"]),
        (11.0 + FAR, 1, ["compute"]),
        (13.0 + NEAR, 2, ["sync"]),
        (13.0 + FAR, None, []),
    ],
)
def test_an_instant_lies_in_one_span_or_between_two(
    instant: float, index: int | None, covering: list[str]
) -> None:
    assert account().index_at(instant) == index
    assert [span.category for span in account().covering(instant)] == covering


@pytest.mark.parametrize(
    ("start", "end", "names"),
    [
        (10.0, 13.0, ["load", "compute", "sync"]),
        (11.0, 12.0, ["compute"]),
        (11.0 - NEAR, 12.0 + NEAR, ["compute"]),
        (11.0 - FAR, 12.0 + FAR, ["load", "compute", "sync"]),
        (9.0, 10.0, []),
        (13.0, 14.0, []),
        (9.0, 10.5, ["load"]),
    ],
)
def test_spans_between_two_instants_overlap_by_more_than_rounding(
    start: float, end: float, names: list[str]
) -> None:
    assert ROUNDING_S == 1e-6
    assert [span.category for span in account().between(start, end)] == names


def test_a_step_starts_with_its_first_span() -> None:
    again = SpanAccount((*account().spans, Span("write", 13.0, 14.0, 0, 2)))
    assert again.step_starts == {0: 10.0, 1: 11.0, 2: 12.0} and (again.start, again.end) == (
        10.0,
        14.0,
    )
