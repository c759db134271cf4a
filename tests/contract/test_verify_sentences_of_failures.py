"""As test_verify_sentences, of failures and of those who outlived them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ecrl_cli.history.load import RunRecords
from ecrl_cli.verify.consistency import records_consistent
from ecrl_cli.verify.exactly_once import exactly_once
from ecrl_cli.verify.fault_plan import failures_once
from ecrl_cli.verify.verdict import UNKNOWN
from tests.runs.changed import (
    attempts,
    configured,
    fired,
    left,
    logged,
    ordered,
    rank_line,
    reported,
    sessions,
    supervised,
)
from tests.runs.sentence import Judged, Row


def both_entries(found: RunRecords) -> tuple[Any, ...]:
    assert found.plan is not None and len(found.plan) == 2
    return found.plan


def more_steps(found: RunRecords) -> RunRecords:
    """Rank 1 of attempt 0 logged one step more than the one after which it was killed."""
    lines = found.logs(0).ranks[1]
    last = lines.events[-1]
    more = replace(last, global_step=10, cursor_step=9, at=last.at + 0.02, time=last.time + 0.02)
    return left(
        found, 0, ranks=found.logs(0).ranks | {1: replace(lines, events=(*lines.events, more))}
    )


def all_reported(found: RunRecords, number: int, **changes: Any) -> RunRecords:
    for rank in found.logs(number).survivor_reports:
        found = reported(found, number, rank, **changes)
    return found


def swapped(found: RunRecords) -> RunRecords:
    """The report of rank 0 in the place of that of rank 1."""
    reports = found.logs(0).survivor_reports
    return left(found, 0, survivor_reports=reports | {1: reports[0]})


def lost_line(found: RunRecords, place: int, **changes: Any) -> RunRecords:
    """With another line at that place of every survivor's lost-samples record."""
    records = {}
    for rank, lines in found.logs(0).lost_sample_records.items():
        events = list(lines.events)
        events[place] = replace(events[place], **changes)
        records[rank] = replace(lines, events=tuple(events))
    return left(found, 0, lost_sample_records=records)


def redone(found: RunRecords, **changes: Any) -> RunRecords:
    """All survivors say something else of what was done again last."""
    *earlier, last = found.logs(0).survivor_reports[0].events[0].redone
    return all_reported(found, 0, redone=(*earlier, replace(last, **changes)))


FAILURES: dict[str, Row] = {
    "entries out of order": Row(
        failures_once,
        "blk",
        lambda found: ordered(found, 0, pending=both_entries(found)[::-1]),
        "attempt 0 was armed with entries [1, 0], which is no order of the plan",
    ),
    "an entry twice": Row(
        failures_once,
        "blk",
        lambda found: ordered(found, 1, pending=both_entries(found)[1:] * 2),
        "attempt 1 was armed with entries [1, 1], which is no order of the plan",
    ),
    "an entry that had fired": Row(
        failures_once,
        "blk",
        lambda found: ordered(found, 1, pending=both_entries(found)),
        "entry 0 fired in attempt 0 and attempt 1 was armed with it again",
    ),
    "an entry too few": Row(
        failures_once,
        "blk",
        lambda found: ordered(found, 1, pending=()),
        "attempt 1 was not armed with entry 1, which had not fired",
    ),
    "an entry of another rank": Row(
        failures_once,
        "blk",
        lambda found: ordered(found, 1, pending=(replace(both_entries(found)[1], rank=0),)),
        "attempt 1 was armed with an entry 1 that is not the plan's",
    ),
    "another plan": Row(
        failures_once,
        "blk",
        lambda found: replace(found, plan=both_entries(found)[:1]),
        "failures.json is not the plan of this configuration",
    ),
    "a failure without its step": Row(
        failures_once,
        "states",
        lambda found: fired(found, 0, at_step=None),
        "entry 0 (kill) fired at boundary, and does not say at which step",
    ),
    "a failure of something": Row(
        failures_once,
        "states",
        lambda found: fired(found, 0, detail="x"),
        "entry 0 (kill) hit 'x': the plan leaves nothing open at boundary",
    ),
    "a failure at another step": Row(
        failures_once,
        "states",
        lambda found: fired(found, 1, at_step=21),
        "entry 1 (kill) fired at step 21, it was planned for step 20 (boundary)",
    ),
    "a failure at an earlier step": Row(
        failures_once,
        "states",
        lambda found: fired(found, 1, at_step=19),
        "entry 1 (kill) fired at step 19, it was planned for step 20 (boundary)",
    ),
    **{
        f"a failure of another {name}": Row(
            failures_once,
            "blk",
            lambda found, name=name, value=value: fired(found, 1, **{name: value}),
            f"entry 1 fired ({words})",
        )
        for name, value, words in (
            ("kind", "exit", "exit, rank 1, step 20"),
            ("rank", 0, "kill, rank 0, step 20"),
            ("global_step", 19, "kill, rank 1, step 19"),
        )
    },
    "a failure of nobody's attempt": Row(
        failures_once,
        "blk",
        lambda found: fired(found, 1, attempt=3),
        "entry 1 fired in attempt 3, which supervisor.json does not know",
    ),
    "one failure twice": Row(
        failures_once,
        "blk",
        lambda found: replace(found, fired=found.fired * 2),
        "entry 0 fired 2 times",
    ),
    "a failure that the other survived": Row(
        failures_once,
        "blk",
        lambda found: attempts(found, 0, signal=15),
        "entry 0 (kill of rank 1) is not how attempt 0 died: rank 1, exit code None, signal 15",
        right=(lambda found: attempts(found, 0, rank=None),),
    ),
    "a failure of the wrong rank": Row(
        failures_once,
        "blk",
        lambda found: attempts(found, 0, rank=0),
        "entry 0 (kill of rank 1) is not how attempt 0 died: rank 0,",
    ),
    "a failure in what completed": Row(
        failures_once,
        "blk",
        lambda found: attempts(found, 1, outcome="completed"),
        "entry 1 fired in attempt 1, which completed",
    ),
    "a failure in what was resized": Row(
        failures_once,
        "blk",
        lambda found: attempts(found, 1, outcome="resized"),
        "entry 1 fired in attempt 1, which ended well to be resized",
    ),
    "a step after the death": Row(
        failures_once, "blk", more_steps, "entry 0 fired after step 9, rank 1 went on to step 10"
    ),
    "a log that ends before the death": Row(
        failures_once,
        "blk",
        lambda found: logged(found, lambda line: line if line.global_step < 9 else None, 0),
        "entry 0 fired after step 9, the log of rank 1 ends at step 8",
        None,
    ),
    "no log of the dead": Row(
        failures_once,
        "blk",
        lambda found: left(found, 0, ranks={0: found.logs(0).ranks[0]}),
        "entry 0 fired in attempt 0 and rank 1 left no log",
        UNKNOWN,
    ),
    "a second death of the same": Row(
        failures_once,
        "blk",
        lambda found: fired(found, 1, attempt=0),
        "entry 1 fired in attempt 0 and attempt 1 died of it again",
        None,
    ),
    "a stop in the middle of its session": Row(
        failures_once,
        "blk",
        lambda found: attempts(found, 0, outcome="stopped", signal=15),
        "entry 0 (kill) fired in attempt 0, which is said to have been stopped, and the same"
        " session went on with attempt 1",
    ),
    "a stop by no signal": Row(
        failures_once,
        "blk",
        lambda found: sessions(
            attempts(
                attempts(
                    supervised(found, sessions=(*found.sessions, found.sessions[0])), 1, session=1
                ),
                0,
                outcome="stopped",
                signal=15,
            ),
            0,
            signals=(),
        ),
        "entry 0 (kill) fired in attempt 0, which is said to have been stopped, and its session"
        " received no signal",
    ),
    "a step passed in spite of its failure": Row(
        failures_once,
        "blk",
        lambda found: fired(more_steps(found), 0, attempt=1),
        "entry 0 (kill at step 9) was not injected into attempt 0, which went past that step",
        right=(more_steps, lambda found: fired(found, 0, attempt=1)),
    ),
    "an entry that never fired": Row(
        failures_once,
        "blk",
        lambda found: replace(found, fired=found.fired[:1]),
        "the run completed and entries [1] never fired",
        None,
    ),
}

SURVIVORS: dict[str, Row] = {
    "another report than the rank's": Row(
        exactly_once,
        "lossy",
        swapped,
        "the survivor report of attempt 0 rank 1 is that of attempt 0 rank 0",
    ),
    "another attempt's report": Row(
        exactly_once,
        "lossy",
        lambda found: reported(found, 0, 1, attempt=1),
        "the survivor report of attempt 0 rank 1 is that of attempt 1 rank 1",
    ),
    "a report of one that was not left": Row(
        exactly_once,
        "lossy",
        lambda found: reported(found, 0, 1, alive=(0,)),
        "the survivor report of attempt 0 rank 1 names rank 0 as left",
    ),
    "a report of one that was no rank": Row(
        exactly_once,
        "lossy",
        lambda found: reported(found, 0, 1, alive=(0, 1, 4)),
        "the survivor report of attempt 0 rank 1 names ranks [0, 1, 4]",
    ),
    "a report of another step": Row(
        exactly_once,
        "lossy",
        lambda found: reported(found, 0, 1, global_step=8),
        "the survivor report of attempt 0 rank 1 claims step 8, its log",
    ),
    "a report of another step than is gone on with": Row(
        exactly_once,
        "lossy",
        lambda found: attempts(found, 1, resumed_from_step=8),
        "rank 0 of attempt 0 left after step 9, attempt 1 goes on after step 8",
        right=(lambda found: attempts(found, 1, resumed_from_step=8, memory="snapshot"),),
    ),
    "a report of too few layers": Row(
        exactly_once,
        "lossy",
        lambda found: all_reported(
            found, 0, layers=found.logs(0).survivor_reports[0].events[0].layers[:1]
        ),
        "has bucket 0 of 2 done again and names the layers of 1",
    ),
    **{
        f"reports that differ in {words}": Row(
            exactly_once,
            "lossy",
            lambda found, changes=changes: reported(found, 0, 1, **changes),
            f"survivors differ: ranks 0 and 1 of attempt 0 do not report the same in {words}",
        )
        for words, changes in {
            "the state": {"state_digest": "cd" * 32},
            "the layers": {"layers": (("weight",), ("bias", "other"))},
        }.items()
    },
    "a layer in two buckets": Row(
        exactly_once,
        "lossy",
        lambda found: all_reported(found, 0, layers=(("weight",), ("weight", "scale"))),
        "survivors of attempt 0 name weight in 2 buckets",
    ),
    "a layer that is no parameter": Row(
        exactly_once,
        "lossy",
        lambda found: all_reported(found, 0, layers=(("weight",), ("bias", "other"))),
        "survivors of attempt 0 name 'other', which is no parameter of the checkpoints",
    ),
    "a report before the end of the spans": Row(
        exactly_once,
        "lossy",
        lambda found: reported(found, 0, 0, at=found.logs(0).spans.events[-1].end - 2e-6),
        "rank 0 of attempt 0 dates its report 0.000002 s before the end of its own spans",
        right=(
            lambda found: reported(found, 0, 0, at=found.logs(0).spans.events[-1].end - 0.5e-6),
        ),
    ),
    "a step longer than the one it was done again in": Row(
        exactly_once,
        "lossy",
        lambda found: rank_line(found, 0, 1, 9, seconds=0.02 - 2e-6),
        "rank 1 of attempt 0 reports 0.020000 s of doing again in step 9, which took 0.019998 s",
        right=(lambda found: rank_line(found, 0, 1, 9, seconds=0.02 - 0.5e-6),),
    ),
    "another state than was logged": Row(
        exactly_once,
        "lossy",
        lambda found: rank_line(found, 0, 1, 9, state_digest="cd" * 32),
        "rank 1 of attempt 0 reports another state after step 9 than it logged",
        right=(
            lambda found: rank_line(found, 0, 1, 9, state_digest="ab" * 32),
            lambda found: rank_line(found, 0, 1, 8, state_digest="cd" * 32),
        ),
    ),
    "a step dropped where none may be": Row(
        exactly_once,
        "lossy",
        lambda found: redone(found, left=(), first=0, buckets=1),
        "drops step 9, which its recovery does not allow",
    ),
    "a dead rank that is left": Row(
        exactly_once,
        "lossy",
        lambda found: redone(found, lost=(1, 2, 3)),
        "of attempt 0 rank 1 names rank 1 as lost, which it says is left",
    ),
    "a step that not all that are left did": Row(
        exactly_once,
        "lossy",
        lambda found: redone(found, left=(1,)),
        "says that rank 1 did step 9 to its end, and that ranks [0, 1] are left",
        right=(
            lambda found: redone(found, left=(0, 1)),
            lambda found: redone(found, left=(0, 1, 2)),
        ),
    ),
    **{
        f"another step done again, {step}": Row(
            exactly_once,
            "lossy",
            lambda found, step=step: redone(found, global_step=step),
            f"is about step {step}, and it left after step 9",
        )
        for step in (8, 10)
    },
    **{
        f"done again from bucket {first} of {buckets}": Row(
            exactly_once,
            "lossy",
            lambda found, first=first, buckets=buckets: redone(found, first=first, buckets=buckets),
            f"has bucket {first} of {buckets} done again and names the layers of 2",
            right=(lambda found: redone(found, first=2), lambda found: redone(found, first=0)),
        )
        for first, buckets in ((-1, 2), (3, 2), (0, 3), (0, 1))
    },
    **{
        f"a kept state called {digest!r}": Row(
            exactly_once,
            "lossy",
            lambda found, digest=digest: all_reported(
                configured(found, state_digests="rank"), 0, state_digest=digest
            ),
            f"rank 1 of attempt 0 kept its state, and reports {digest!r} as the digest of it",
            None,
            right=(lambda found: configured(found, state_digests="rank"),),
        )
        for digest in ("", "ab", "AB" * 32)
    },
    "a lost rank that is left": Row(
        exactly_once,
        "lossy",
        lambda found: left(
            found,
            0,
            lost_sample_records={
                rank: replace(
                    lines, events=(replace(lines.events[0], ranks=(0,)), *lines.events[1:])
                )
                for rank, lines in found.logs(0).lost_sample_records.items()
            },
        ),
        "the lost-samples record of attempt 0 names rank 0, which was left",
    ),
    "a lost record that one survivor lacks": Row(
        exactly_once,
        "lossy",
        lambda found: left(found, 0, lost_sample_records={0: found.logs(0).lost_sample_records[0]}),
        "the lost-samples record of attempt 0 rank 1 is not there, samples of ranks [2, 3] were"
        " lost in step 9",
        UNKNOWN,
    ),
    "a last lost rank that is left": Row(
        exactly_once,
        "lossy",
        lambda found: lost_line(found, -1, ranks=(0, 1)),
        "the lost-samples record of attempt 0 names rank 0, which was left",
    ),
    "an effect that is none": Row(
        records_consistent,
        "lossy",
        lambda found: lost_line(found, 0, effect="x"),
        "logs/attempt-00/ledger_rank0.jsonl: 'x' is not an effect",
    ),
    "a cause that is another recovery": Row(
        exactly_once,
        "lossy",
        lambda found: lost_line(found, -1, cause="skip"),
        "the lost-samples record of attempt 0 has the cause 'skip', recovery=lossy_forward",
    ),
    "two lost records": Row(
        exactly_once,
        "lossy",
        lambda found: left(
            found,
            0,
            lost_sample_records=found.logs(0).lost_sample_records
            | {
                1: replace(
                    found.logs(0).lost_sample_records[1],
                    events=found.logs(0).lost_sample_records[1].events[:1],
                )
            },
        ),
        "survivors differ: ranks 0 and 1 of attempt 0 do not have the same lost-samples record",
    ),
    "a torn lost record": Row(
        exactly_once,
        "lossy",
        lambda found: left(
            found,
            0,
            lost_sample_records=found.logs(0).lost_sample_records
            | {1: replace(found.logs(0).lost_sample_records[1], torn=1)},
        ),
        "the lost-samples record of attempt 0 rank 1 is torn",
        UNKNOWN,
    ),
    "samples lost where none may be": Row(
        exactly_once,
        "lossy",
        lambda found: configured(
            found, recovery=replace(found.stored.config.recovery, name="immediate_rollback")
        ),
        "attempt 0 went on without the samples of ranks [2, 3] in step 9, which its recovery does"
        " not allow",
    ),
}

ROWS = {**FAILURES, **SURVIVORS}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_is_told_and_what_is_right_is_not(judged: Judged, name: str) -> None:
    judged.hold(ROWS[name])
