"""Spoils that were judged valid until somebody who had not written the judge tried them: figures
that one record alone tells.
"""

from __future__ import annotations

from ecrl_cli.verify.verdict import INVALID, UNKNOWN
from tests.runs.spoilt_clocks import Spoil, final, folded, order, saved, session

TIME, ACCOUNT, RECORDS, TRAJECTORY = (
    "time-conserved",
    "checkpoints-accounted",
    "records-consistent",
    "same-trajectory",
)
FAILURES = "failures-once"

# By name: the spoil, with metrics.json folded anew; the promise, its status, and what is said.
REDTEAM: dict[str, tuple[Spoil, str, str, str]] = {
    "a write that only the line of the receipt tells of": (
        saved(24, "received", write_s=0.5),
        ACCOUNT,
        INVALID,
        (
            "'received' of step 24 in the journal of attempt 2 has write_s 0.5, which is of another"
            " event"
        ),
    ),
    "a stall that only the line of the submission tells of": (
        saved(24, "submitted", stall_s=9.0),
        ACCOUNT,
        INVALID,
        "has stall_s 9.0",
    ),
    "more in flight by the line of the commit": (
        saved(24, "committed", inflight=1),
        ACCOUNT,
        INVALID,
        "has inflight 1, which is of another event",
    ),
    "a retired checkpoint of other bytes": (
        saved(6, "committed", 0, bytes=7),
        ACCOUNT,
        INVALID,
        "has 7 bytes, ",
    ),
    "a start an hour earlier by one of two clocks": (
        session(started_at=10.0),
        TIME,
        UNKNOWN,
        "how long the run took is not known",
    ),
    "an order of another attempt": (
        order(1, attempt=0),
        RECORDS,
        INVALID,
        "launch.json of attempt 1 is of attempt 0",
    ),
    "an order that knows of steps never done": (
        order(1, max_step_seen=20),
        RECORDS,
        INVALID,
        "as if step 20 had been done",
    ),
    "an accuracy invented": (
        final(accuracy=1.0),
        TRAJECTORY,
        INVALID,
        "the final accuracy is 1.0, the reference's None",
    ),
    "an accuracy that nothing bears out": (
        final(accuracy=1.0),
        RECORDS,
        INVALID,
        "final.json has an accuracy of 1.0, no evaluation of that step is on record",
    ),
    "the death of a writer where there is none": (
        session(writer_deaths=1),
        FAILURES,
        INVALID,
        "1 background writers are said to have died in session 0",
    ),
    "fewer than no deaths of writers": (
        session(writer_deaths=-1),
        FAILURES,
        INVALID,
        "-1 background writers are said to have died",
    ),
}
SPOILT_REDTEAM = {
    name: (folded(spoil), promise, status) for name, (spoil, promise, status, _) in REDTEAM.items()
}
