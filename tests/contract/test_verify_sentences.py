"""What the judge says of an attempt or of the supervisor's record where one thing is wrong in it,
and that it does not say so of the right one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import Hang, SkippedSnapshot, Straggler
from ecrl_cli.supervision.watch.hang_detector import HangTimeouts
from ecrl_cli.verify.consistency import records_consistent
from tests.runs.changed import attempts, configured, fired, ordered, rank_line, sessions, supervised
from tests.runs.sentence import Judged, Row

SHA, OTHER = "a" * 64, "b" * 64


def strategy(found: RunRecords, name: str) -> RunRecords:
    return configured(
        found, checkpoint=replace(found.stored.config.checkpoint, strategy=name, max_inflight=2)
    )


def from_snapshot(found: RunRecords, **changes: Any) -> RunRecords:
    """Attempt 1 went on from a snapshot in memory of step 6."""
    told: dict[str, Any] = {"continues": 0, "memory": "snapshot", "resumed_from": None}
    state = next(
        line.state_digest for line in found.logs(0).ranks[0].events if line.global_step == 6
    )
    return attempts(
        strategy(found, "in_memory"),
        1,
        **told | {"snapshot_sha256": SHA, "snapshot_state": state} | changes,
    )


def hang(found: RunRecords, **changes: Any) -> RunRecords:
    """Attempt 0 hung in step 10: rank 1 did not move for 30 s."""
    text = "rank 1 is in training of step 10; nothing moved for 30.0 s (limit 30.0 s)"
    own = replace(Hang((1,), "training", 10, 30.0, 30.0, text), **changes)
    limits = replace(found.stored.config.supervision, hang_timeout_s=30.0, start_timeout_s=60.0)
    return attempts(configured(found, supervision=limits), 0, outcome="hung", hang=own)


def slowest(found: RunRecords, beyond: float) -> RunRecords:
    """As `hang`; step 9 came 20 s after step 8 on rank 1, and the limit is so much beyond what that
    allows.
    """
    before = {line.global_step: line for line in found.logs(0).ranks[1].events}
    late = rank_line(hang(found), 0, 1, 9, at=before[8].at + 20.0)
    limits = HangTimeouts.of(late.stored.config.supervision)
    limit = limits.factor * (20.0 + 2 * limits.check_every_s) + beyond
    return hang(late, limit_s=limit, waited_s=limit + 1.0)


def slow(
    found: RunRecords, others: float = 0.1, own: float = 0.5, took: float = 0.6, **changes: Any
) -> RunRecords:
    """In step 9 rank 1 worked for so long, rank 0 for `others`; both took `took` for it."""
    found = rank_line(rank_line(found, 0, 0, 9, seconds=took), 0, 1, 9, seconds=took)
    return attempts(found, 0, stragglers=(replace(Straggler(1, 10, own, others), **changes),))


def held_up(
    found: RunRecords,
    rank: int,
    seconds: float,
    planned: int = 7,
    at_step: int = 7,
    attempt: int = 1,
) -> RunRecords:
    """In attempt 1 rank 1 was taken for a straggler in step 17: in step 16 it had worked for 0.5 s
    and rank 0 for 0.1 s. A fault was planned to hold up `rank` in ten steps from `planned` on, for
    so many seconds each, and fired at `at_step`.
    """
    found = rank_line(rank_line(found, 1, 0, 16, seconds=0.6), 1, 1, 16, seconds=0.6)
    found = attempts(found, 1, stragglers=(Straggler(1, 17, 0.5, 0.1),))
    assert found.plan is not None
    plan = (
        replace(found.plan[0], kind="slow_rank", rank=rank, global_step=planned, seconds=seconds),
        *found.plan[1:],
    )
    return fired(
        replace(found, plan=plan),
        0,
        kind="slow_rank",
        rank=rank,
        global_step=planned,
        at_step=at_step,
        attempt=attempt,
    )


ATTEMPTS: dict[str, Row] = {
    **{
        f"another {name} than ordered": Row(
            records_consistent,
            "rollback",
            lambda found, name=name, value=value: ordered(found, 1, **{name: value}),
            f"attempt 1 was ordered {name} {value!r}, supervisor.json says",
        )
        for name, value in {
            "continues": None,
            "memory": "",
            "origins": (1, 0),
            "joined": (0,),
        }.items()
    },
    "survivors that nobody goes on with": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, continues=None, memory=""),
        "attempt 0 survived its dead, and attempt 1 does not go on with it",
        # the supervisor was killed in between
        right=(lambda found: attempts(found, 1, continues=None, memory="", session=1),),
    ),
    "one origin of two ranks": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, origins=(0,)),
        "attempt 1 of 2 ranks names the origins of 1, and [1] as those that joined",
    ),
    "a newcomer that is no rank": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, joined=(2,)),
        "attempt 1 of 2 ranks names the origins of 2, and [2] as those that joined",
    ),
    "a newcomer twice": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, joined=(1, 1)),
        "attempt 1 of 2 ranks names the origins of 2, and [1, 1] as those",
    ),
    "ranks of a session that had ended": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 0, session=1),
        "attempt 1 took over ranks, nobody was there to be taken over",
    ),
    "newcomers without spares": Row(
        records_consistent,
        "rollback",
        lambda found: configured(
            found, supervision=replace(found.stored.config.supervision, spares=0)
        ),
        "attempt 1: ranks [1] joined, the configuration has no spares",
    ),
    "newcomers alone": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, joined=(0, 1)),
        "attempt 1 took over ranks, and all of its own are newcomers",
    ),
    "a survivor twice": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, origins=(0, 0), joined=()),
        "attempt 1 says that its ranks were [0, 0] of the 2 ranks of attempt 0",
    ),
    "a survivor that was no rank": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, origins=(2, 1)),
        "attempt 1 says that its ranks were [2] of the 2 ranks of attempt 0",
    ),
    "a newcomer in the place of a living rank": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, origins=(0, 0)),
        "attempt 1 says that newcomers took the places [0], and that ranks [0] stayed",
        right=(lambda found: attempts(found, 1, origins=(0, -1)),),
    ),
    "a newcomer in the place of no rank": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 1, origins=(0, 2)),
        "attempt 1 says that newcomers took the places [2], and that ranks [0] stayed",
    ),
    "the state of ranks that died": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 0, outcome="died"),
        "attempt 1 goes on with the state of attempt 0, attempt 0 died under immediate_rollback",
    ),
    "the state of another attempt": Row(
        records_consistent,
        "rollback",
        lambda found: attempts(found, 2, continues=0),
        "attempt 2 goes on with the state of attempt 0, attempt 1 survived under"
        " immediate_rollback",
    ),
    "a snapshot of another hash than ordered": Row(
        records_consistent,
        "states",
        lambda found: ordered(found, 1, snapshot_sha256=OTHER),
        "attempt 1 was ordered to load a snapshot that hashes to bbbbbbbb",
    ),
    "the hash of no snapshot": Row(
        records_consistent,
        "states",
        lambda found: attempts(found, 1, snapshot_sha256=SHA),
        "attempt 1 says what a snapshot held, and went on from none",
    ),
    "the state of no snapshot": Row(
        records_consistent,
        "states",
        lambda found: attempts(found, 1, snapshot_state=SHA),
        "attempt 1 says what a snapshot held, and went on from none",
        right=(from_snapshot,),
    ),
    **{
        f"a snapshot without its {name}": Row(
            records_consistent,
            "states",
            lambda found, name=name: from_snapshot(found, **{name: ""}),
            "attempt 1 went on from a snapshot, and supervisor.json lacks a digest of what it held",
            right=(
                from_snapshot,
                lambda found, name=name: from_snapshot(replace(found), **{name: SHA}),
            ),
        )
        for name in ("snapshot_sha256", "snapshot_state")
    },
    "a snapshot where none is taken": Row(
        records_consistent,
        "states",
        lambda found: strategy(from_snapshot(found), "overlapped"),
        "attempt 1 went on from a snapshot in memory, its configuration takes none",
        right=(from_snapshot,),
    ),
    "a snapshot that went down with its supervisor": Row(
        records_consistent,
        "states",
        lambda found: attempts(
            supervised(from_snapshot(found), sessions=found.sessions * 2), 0, session=1
        ),
        "attempt 1 went on from a snapshot of attempt 0, which went down with its supervisor",
        right=(from_snapshot,),
    ),
    "a snapshot of a step that a rank did not do": Row(
        records_consistent,
        "states",
        lambda found: from_snapshot(rank_line(found, 0, 1, 6, global_step=5)),
        "attempt 1 went on from a snapshot of step 6 of attempt 0, and rank 1 has no line of it",
        None,
        right=(from_snapshot,),
    ),
    "a snapshot of another state": Row(
        records_consistent,
        "states",
        lambda found: from_snapshot(found, snapshot_state=SHA),
        "attempt 1 went on from a snapshot of step 6 of attempt 0 that holds another state than"
        " rank 0 logged",
        right=(from_snapshot,),
    ),
    "a newer snapshot that was passed over": Row(
        records_consistent,
        "states",
        lambda found: attempts(strategy(found, "in_memory"), 1, resumed_from_step=5),
        "attempt 1 went on after step 5: attempt 0 had taken a snapshot of step 6, and no refusal"
        " of it is on record",
        right=(
            lambda found: strategy(found, "in_memory"),
            lambda found: attempts(
                strategy(found, "in_memory"),
                1,
                resumed_from_step=5,
                forgone=(SkippedSnapshot(6, 0, "torn"),),
            ),
        ),
    ),
    "a refused snapshot of another attempt excuses none": Row(
        records_consistent,
        "states",
        lambda found: attempts(
            strategy(found, "in_memory"),
            2,
            resumed_from_step=17,
            forgone=(SkippedSnapshot(18, 0, "torn"),),
        ),
        "attempt 2 went on after step 17: attempt 1 had taken a snapshot of step 18, and no refusal"
        " of it is on record",
    ),
}

SUPERVISOR: dict[str, Row] = {
    "code that is no digest": Row(
        records_consistent,
        "states",
        lambda found: sessions(found, 0, code="x"),
        "session 0 ran the code 'x', which is no SHA-256",
    ),
    **{
        f"no {name} of a session that ended": Row(
            records_consistent,
            "states",
            lambda found, name=name: sessions(found, 0, **{name: None}),
            f"session 0 came to its end, and does not say its {name}",
            right=(lambda found, name=name: sessions(found, 0, ended_at=None, **{name: None}),),
        )
        for name in ("ended_time", "signals", "writer_deaths")
    },
    **{
        f"{name} of a session that has not ended": Row(
            records_consistent,
            "states",
            lambda found, name=name, value=value: sessions(
                found,
                0,
                **{
                    "ended_at": None,
                    "ended_time": None,
                    "signals": None,
                    "writer_deaths": None,
                    name: value,
                },
            ),
            "session 0 has no end, and says what is only known then",
            right=(
                lambda found: sessions(
                    found, 0, ended_at=None, ended_time=None, signals=None, writer_deaths=None
                ),
            ),
        )
        for name, value in {"ended_time": 1.0, "signals": (), "writer_deaths": 0}.items()
    },
    "a signal that stops no run": Row(
        records_consistent,
        "blk",
        lambda found: sessions(found, 0, signals=(9,)),
        "session 0 received signal 9, which stops no run",
        right=tuple(
            lambda found, number=number: sessions(found, 0, signals=(number,))
            for number in (1, 2, 15)
        ),
    ),
    "a stop without a signal": Row(
        records_consistent,
        "blk",
        lambda found: sessions(attempts(found, 1, outcome="stopped"), 0, signals=()),
        "attempt 1 was stopped, and its session received no signal",
        right=(
            lambda found: sessions(attempts(found, 1, outcome="stopped"), 0, signals=(15,)),
            lambda found: sessions(attempts(found, 1, outcome="stopped"), 0, signals=None),
        ),
    ),
    "a reason that names no signal": Row(
        records_consistent,
        "blk",
        lambda found: sessions(
            supervised(found, terminal_status="stopped", reason="stopped by SIGINT"),
            0,
            signals=(15,),
        ),
        "the run was stopped, its last session received SIGTERM, and the reason names none of them",
        right=(
            lambda found: sessions(
                supervised(found, terminal_status="stopped", reason="stopped by SIGTERM"),
                0,
                signals=(2, 15),
            ),
        ),
    ),
    "a rank that ended it by nothing": Row(
        records_consistent,
        "blk",
        lambda found: attempts(found, 0, signal=None, exit_code=None),
        "attempt 0 names rank 1 as the one that ended it, and neither an exit code nor a signal",
        right=(
            lambda found: attempts(found, 0, signal=None, exit_code=1),
            lambda found: attempts(found, 0, signal=None, exit_code=None, rank=None),
        ),
    ),
    "the end of a death that nobody saw": Row(
        records_consistent,
        "blk",
        lambda found: sessions(
            attempts(found, 0, signal=None, exit_code=None, rank=None), 0, ended_at=None
        ),
        "attempt 0 died, its supervisor did not live to see how, and says when",
        right=(
            lambda found: sessions(
                attempts(found, 0, signal=None, exit_code=None, rank=None, ended_at=None),
                0,
                ended_at=None,
            ),
        ),
    ),
    "no exit code of what completed": Row(
        records_consistent,
        "blk",
        lambda found: attempts(found, 2, exit_code=None),
        "attempt 2 completed, its supervisor lived to see it, and no exit code is on record",
        right=(
            lambda found: sessions(attempts(found, 2, exit_code=None), 0, ended_at=None),
            # a launcher that stands, ended after the grace time
            lambda found: sessions(attempts(found, 2, exit_code=None), 0, signals=(15,)),
        ),
    ),
    **{
        f"{outcome} with exit code 0": Row(
            records_consistent,
            "blk",
            lambda found, outcome=outcome: attempts(
                found, 1, outcome=outcome, signal=None, exit_code=0
            ),
            f"attempt 1 {outcome} and has exit code 0, which only ranks have that came to their end"
            " by themselves",
            right=(
                lambda found, outcome=outcome: attempts(
                    found, 1, outcome=outcome, signal=None, exit_code=1
                ),
            ),
        )
        for outcome in ("stopped", "hung", "survived")
    },
    "an end that has not come": Row(
        records_consistent,
        "blk",
        lambda found: sessions(found, 0, ended_at=None),
        "the run is completed, and its last session has no end",
        right=(
            lambda found: sessions(supervised(found, terminal_status="running"), 0, ended_at=None),
        ),
    ),
    "a run that still runs after its end": Row(
        records_consistent,
        "blk",
        lambda found: supervised(found, terminal_status="running"),
        "the run is running, and its last session has ended",
    ),
    "completed for another reason": Row(
        records_consistent,
        "blk",
        lambda found: supervised(found, reason="enough"),
        "the run is completed, and the reason on record is another one than that",
    ),
    "sessions out of order": Row(
        records_consistent,
        "blk",
        lambda found: attempts(supervised(found, sessions=found.sessions * 2), 1, session=1),
        "attempt 2 is of session 0, attempt 1 of session 1",
        right=(
            lambda found: attempts(supervised(found, sessions=found.sessions * 2), 2, session=1),
        ),
    ),
    "a refused snapshot where none is taken": Row(
        records_consistent,
        "states",
        lambda found: attempts(found, 1, forgone=(SkippedSnapshot(7, 0, "torn"),)),
        "attempt 1 refused a snapshot of step 7 of attempt 0, its configuration takes none",
    ),
    **{
        words: Row(
            records_consistent,
            "states",
            lambda found, step=step, number=number, memory=memory: attempts(
                strategy(found, "in_memory"),
                2,
                forgone=(SkippedSnapshot(step, number, "torn"),),
                **memory,
            ),
            f"attempt 2 refused a snapshot of step {step} of attempt {number}, {words}",
            right=(
                lambda found: attempts(
                    strategy(found, "in_memory"), 2, forgone=(SkippedSnapshot(19, 1, "torn"),)
                ),
                lambda found: attempts(
                    strategy(found, "in_memory"),
                    2,
                    forgone=(SkippedSnapshot(19, 1, "torn"),),
                    memory="survivors",
                    continues=2,
                ),
                lambda found: attempts(
                    strategy(found, "in_memory"),
                    2,
                    forgone=(SkippedSnapshot(19, 1, "torn"),),
                    memory="snapshot",
                    continues=1,
                ),
            ),
        )
        for words, step, number, memory in (
            ("which was not before it under the same supervisor", 19, 2, {}),
            ("which went on after step 18 and had come to step 9", 19, 0, {}),
            ("which went on after step 18 and had come to step 20", 18, 1, {}),
            ("and went on with one of attempt 2", 19, 1, {"memory": "snapshot", "continues": 2}),
        )
    },
    "a refused snapshot that rank 0 did not take": Row(
        records_consistent,
        "states",
        lambda found: attempts(
            strategy(found, "in_memory"), 2, forgone=(SkippedSnapshot(19, 1, "torn"),)
        ),
        "attempt 2 refused a snapshot of step 19 of attempt 1, and rank 0 has booked none in that"
        " step",
        right=(
            lambda found: attempts(
                strategy(found, "in_memory"),
                2,
                resumed_from_step=12,
                forgone=(SkippedSnapshot(18, 1, "torn"),),
            ),
        ),
    ),
    "ranks to blame out of order": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, ranks=(1, 0)),
        "attempt 0 names [1, 0] as the ranks to blame",
        right=(hang,),
    ),
    "a rank to blame twice": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, ranks=(1, 1)),
        "attempt 0 names [1, 1] as the ranks to blame",
    ),
    "ranks blamed in words alone": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, ranks=()),
        "attempt 0 blames ranks in words, and names none",
        right=(hang,),
    ),
    "another rank blamed in words": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, ranks=(0,)),
        "attempt 0 does not say in words that rank 0 is to blame",
        right=(hang,),
    ),
    "another place in words": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, phase="saving"),
        "attempt 0 does not say in words that it was in saving of step 10",
        right=(hang,),
    ),
    "another wait in words": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, waited_s=30.06),
        "attempt 0 says in words for how long nothing moved, which are not its numbers",
        right=(
            hang,
            lambda found: hang(found, waited_s=30.05),
            lambda found: hang(found, waited_s=29.95),
        ),
    ),
    "another limit in words": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, limit_s=29.94),
        "attempt 0 says in words for how long nothing moved, which are not its numbers",
        right=(lambda found: hang(found, limit_s=29.95),),
    ),
    "a limit that nothing sets": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, limit_s=29.0),
        "attempt 0 was allowed 29.000 s of silence, the configuration says 30 s, for a start or a"
        " save 60 s",
        right=(
            hang,
            lambda found: hang(found, limit_s=60.0, waited_s=60.0),
            lambda found: hang(found, limit_s=30.0 + 0.5e-6),
        ),
    ),
    "a limit longer than any step has room for": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, limit_s=59.0),
        "attempt 0 was allowed 59.000 s of silence, the configuration says 30 s, for a start or a"
        " save 60 s",
    ),
    "a hang in a step long past": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, global_step=8),
        "attempt 0 says that ranks [1] stood still in step 8, their logs end at step 9",
        right=(
            hang,
            lambda found: hang(found, global_step=9),
            lambda found: hang(found, global_step=0),
        ),
    ),
    "a hang in a step to come": Row(
        records_consistent,
        "blk",
        lambda found: hang(found, global_step=11),
        "attempt 0 says that ranks [1] stood still in step 11, their logs end at step 9",
    ),
    "a limit beyond what its slowest step allows": Row(
        records_consistent,
        "blk",
        lambda found: slowest(found, 1e-3),
        "s of silence, the configuration says 30 s, for a start or a save 60 s",
        None,
        right=(lambda found: slowest(found, -1e-3),),
    ),
    "a straggler that worked for longer than its step": Row(
        records_consistent,
        "blk",
        lambda found: slow(found, own=0.6 + 2e-6),
        "attempt 0 has rank 1 as a straggler in step 10, in which it had worked for 0.600002 s,"
        " step 9 took it 0.600000 s",
        right=(slow, lambda found: slow(found, own=0.6 + 0.5e-6)),
    ),
    "others that worked for longer than their step": Row(
        records_consistent,
        "blk",
        lambda found: rank_line(slow(found), 0, 0, 9, seconds=0.1 - 2e-6),
        "attempt 0 has rank 1 as a straggler in step 10, to 0.100000 s of the others, step 9 took"
        " them 0.099998 s",
        right=(lambda found: rank_line(slow(found), 0, 0, 9, seconds=0.1 - 0.5e-6),),
    ),
    "a straggler that is not slow": Row(
        records_consistent,
        "blk",
        lambda found: slow(found, own=0.22),
        "attempt 0 has rank 1 as a straggler in step 10, with 0.220000 s to 0.100000 s, which is"
        " not slow",
        right=(slow, lambda found: slow(found, own=0.2201)),
    ),
    "a straggler that worked for less than its fault": Row(
        records_consistent,
        "blk",
        lambda found: held_up(found, 1, 0.5 + 2e-6),
        "attempt 1 has rank 1 as a straggler in step 17, with 0.500000 s of work, a fault alone"
        " held it up for 0.500002 s",
        right=(
            lambda found: held_up(found, 1, 0.5 + 0.5e-6),
            lambda found: held_up(found, 1, 0.6, planned=6),  # over by then
            lambda found: held_up(found, 1, 0.6, at_step=17),  # it had not begun
            lambda found: held_up(found, 1, 0.6, attempt=0),
            lambda found: fired(held_up(found, 1, 0.6), 0, kind="kill"),
        ),
    ),
    "a fault that began in the step before": Row(
        records_consistent,
        "blk",
        lambda found: held_up(found, 1, 0.6, at_step=16),
        "a fault alone held it up for 0.6 s",
    ),
    "a straggler whose other was held up": Row(
        records_consistent,
        "blk",
        lambda found: held_up(found, 0, 0.1 + 2e-6),
        "attempt 1 has rank 1 as a straggler in step 17, to 0.100000 s of the other, which a fault"
        " held up for 0.100002 s",
        right=(
            lambda found: held_up(found, 0, 0.1 + 0.5e-6),
            lambda found: held_up(found, 1, 0.2),
            lambda found: held_up(found, 0, 0.6, planned=6),
        ),
    ),
}

ROWS = {**ATTEMPTS, **SUPERVISOR}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_is_told_and_what_is_right_is_not(judged: Judged, name: str) -> None:
    judged.hold(ROWS[name])
