"""As test_verify_sentences, of the states and of where time went."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import COPY_WAIT
from ecrl_cli.records.state_digests import RANK_COMPONENTS
from ecrl_cli.verify.state_consistent import state_consistent
from ecrl_cli.verify.state_restored import state_restored
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.verdict import UNKNOWN
from tests.runs.changed import (
    Records,
    appended,
    attempts,
    configured,
    event,
    left,
    ordered,
    rank_line,
    restored,
    span,
)
from tests.runs.sentence import Judged, Row

OTHER = "b" * 64
APART = "step 21: ranks [0, 1] do not hold the same state (1 such steps)"


def of(number: int, name: str, step: int, **changes: Any) -> Records:
    return lambda found: event(found, number, name, step, **changes)


def components(number: int, rank: int, step: int, name: str, value: str | None) -> Records:
    """Another digest of a component on a line; None: none."""

    def change(found: RunRecords) -> RunRecords:
        line = next(
            line for line in found.logs(number).ranks[rank].events if line.global_step == step
        )
        held = (line.components or {}) | {name: value}
        return rank_line(
            found,
            number,
            rank,
            step,
            components={key: each for key, each in held.items() if each is not None},
        )

    return change


def saved(number: int, **changes: str | None) -> Records:
    """Other digests in what supervisor.json says of the state resumed from; None: none."""
    return lambda found: attempts(
        found,
        number,
        resumed_state={
            key: each
            for key, each in (found.attempts[number].resumed_state | changes).items()
            if each is not None
        },
    )


def held(found: RunRecords, number: int, rank: int, **changes: str) -> RunRecords:
    return restored(
        found, number, rank, state=replace(found.logs(number).restored[rank].state, **changes)
    )


def ends(rank: int, **changes: str) -> Records:
    """Another end of a rank in final.json."""

    def change(found: RunRecords) -> RunRecords:
        assert found.final is not None
        ranks = tuple(
            replace(state, **changes) if state.rank == rank else state
            for state in found.final.ranks
        )
        return left(found, 2, final=replace(found.final, ranks=ranks))

    return change


STATES: dict[str, Row] = {
    "a scaler in fp32": Row(
        state_consistent,
        "states",
        lambda found: configured(found, precision="fp32"),
        "step 1 of attempt 0 rank 0: a gradient scaler is on record, precision=fp32 has none",
        None,
    ),
    **{
        f"a line without its digest of {name}": Row(
            state_consistent,
            "states",
            components(1, 1, 8, name, None),
            f"step 8 of attempt 1 rank 1 has digests of {len(RANK_COMPONENTS) - 1} components, a"
            f" state has {len(RANK_COMPONENTS)}",
        )
        for name in RANK_COMPONENTS
    },
    **{
        f"a digest of {name} that is none": Row(
            state_consistent,
            "states",
            components(1, 1, 8, name, "x"),
            f"step 8 of attempt 1 rank 1 has a digest of {name} that is none",
        )
        for name in RANK_COMPONENTS
    },
    "a digest of the state that is none": Row(
        state_consistent,
        "states",
        lambda found: rank_line(found, 1, 1, 8, state_digest="x"),
        "step 8 of attempt 1 rank 1 has a digest of the state that is none",
    ),
    "the state alone": Row(
        state_consistent,
        "states",
        lambda found: rank_line(found, 1, 1, 8, components=None),
        "step 8 of attempt 1 rank 1 has a digest of the state, and none by component",
        UNKNOWN,
    ),
    "another digest of the same state": Row(
        state_consistent,
        "states",
        lambda found: rank_line(found, 1, 1, 8, state_digest=OTHER),
        "step 8 of attempt 1 rank 1 has the digests by component of step 8 of attempt 0 rank 0, and"
        " another digest of the state",
    ),
    **{
        f"other {name} under the digest of the same state": Row(
            state_consistent,
            "states",
            components(2, 1, 21, name, OTHER),
            "step 21 of attempt 2 rank 1 has the digest of the state of step 21 of attempt 2 rank"
            " 0, and other digests by component",
        )
        for name in ("parameters", "buffers", "optimizer")
    },
    **{
        f"ranks of other {name}": Row(
            state_consistent,
            "states",
            components(2, 1, 21, name, OTHER),
            f"{APART}: rank 1 differs in {name}",
        )
        for name in ("parameters", "optimizer", "train")
    },
    **{
        f"a rank of another {name}": Row(
            state_consistent,
            "states",
            lambda found, field=field: rank_line(found, 2, 1, 21, **{field: 1.5}),
            f"{APART}: rank 1 differs in {name}",
        )
        for name, field in (
            ("learning rate", "lr"),
            ("loss scale", "loss_scale"),
            ("growth tracker", "growth_tracker"),
        )
    },
    **{
        f"an end of other {name}": Row(
            state_consistent,
            "states",
            ends(1, **{name: OTHER}),
            f"the end of rank 1 differs in {name} from what it logged after step 24",
        )
        for name in RANK_COMPONENTS
    },
    **{
        f"two ends of rank 0 by its {name}": Row(
            state_consistent,
            "states",
            ends(0, **{name: OTHER}),
            f"final.json names two ends of rank 0, which differ in {name}",
        )
        for name in ("parameters", "buffers", "optimizer")
    },
    **{
        f"ranks that end with other {name}": Row(
            state_consistent,
            "states",
            ends(1, **{name: OTHER}),
            f"the end of rank 1 differs from that of rank 0 in {name}",
        )
        for name in ("parameters", "optimizer", "train")
    },
    "a checkpoint of other generators than logged": Row(
        state_consistent,
        "states",
        components(1, 1, 12, "rng", OTHER),
        "checkpoints/step_00000012 differs in rng from what rank 1 logged after step 12",
    ),
    "an end of one rank": Row(
        state_consistent,
        "states",
        lambda found: left(found, 2, final=replace(found.final, ranks=found.final.ranks[:1])),  # type: ignore[type-var,union-attr]
        "final.json has the end of ranks [0], attempt 2 had 2 ranks",
    ),
    "no digest where one is due": Row(
        state_consistent,
        "states",
        lambda found: rank_line(found, 1, 1, 8, components=None, state_digest=None),
        "attempt 1 rank 1: no digest of the state after step 8, where it is due (1 such)",
        UNKNOWN,
    ),
    "no learning rate": Row(
        state_consistent,
        "states",
        lambda found: rank_line(found, 1, 1, 8, lr=None),
        "attempt 1 rank 1: no digest of the state after step 8, where it is due (1 such)",
        UNKNOWN,
    ),
    "restored by who began with nothing": Row(
        state_restored,
        "states",
        lambda found: left(found, 0, restored=found.logs(1).restored),
        "attempt 0 began with nothing, and ranks of it say what they restored",
    ),
    "no digests ordered": Row(
        state_restored,
        "states",
        lambda found: ordered(found, 1, restored_digests=False),
        "launch.json of attempt 1 asks the ranks for no digest of what they restored, which every"
        " launch does",
    ),
    "a state of what was not resumed from": Row(
        state_restored,
        "states",
        lambda found: attempts(found, 0, resumed_state=found.attempts[1].resumed_state),
        "attempt 0 resumed from no checkpoint and no snapshot, and supervisor.json says what that"
        " held",
    ),
    **{
        f"a resumed state without {name}": Row(
            state_restored,
            "states",
            saved(1, **{name: None}),
            "attempt 1 resumed from what 2 ranks saved, and supervisor.json lacks the digest of"
            f" {name}",
        )
        for name in ("parameters", "buffers", "optimizer", "train", "rng.rank0", "rng.rank1")
    },
    "a resumed state with a digest that is none": Row(
        state_restored,
        "states",
        saved(1, buffers="x"),
        "attempt 1 resumed from 'buffers' with the digest 'x' by supervisor.json",
    ),
    **{
        f"another {name} than the checkpoint holds": Row(
            state_restored,
            "states",
            saved(2, **{name: OTHER}),
            f"attempt 2 resumed from other {name} by supervisor.json than checkpoints/step_00000018"
            " holds",
        )
        for name in ("parameters", "buffers", "optimizer", "rng.rank1")
    },
    **{
        f"another {name} than was logged": Row(
            state_restored,
            "states",
            saved(1, **{name: OTHER}),
            f"attempt 1 resumed from other {name} than rank 0 logged after step 6 of attempt 0",
        )
        for name in ("parameters", "buffers", "optimizer", "train")
    },
    **{
        f"other {name} than were saved": Row(
            state_restored,
            "states",
            lambda found, name=name: held(found, 1, 1, **{name: OTHER}),
            f"attempt 1 rank 1 began with other {name} than checkpoints/step_00000006 held",
        )
        for name in RANK_COMPONENTS
    },
    **{
        f"ranks that began with other {name}": Row(
            state_restored,
            "states",
            lambda found, name=name: held(found, 1, 1, **{name: OTHER}),
            f"attempt 1 rank 1 began with other {name} than rank 0",
        )
        for name in ("parameters", "optimizer", "train")
    },
    "a restored digest that is none": Row(
        state_restored,
        "states",
        lambda found: held(found, 1, 1, rng="x"),
        "restored_rank1.json of attempt 1 has the digest 'x' of rng, which is none",
    ),
    **{
        f"restored of another {name}": Row(
            state_restored,
            "states",
            lambda found, changes=changes: restored(found, 1, 1, **changes),
            f"restored_rank1.json of attempt 1 is of attempt {place[0]}, step {place[1]}, rank 1",
        )
        for name, changes, place in (
            ("attempt", {"attempt": 0}, (0, 6)),
            ("step", {"global_step": 7}, (1, 7)),
        )
    },
    "restored by another rank": Row(
        state_restored,
        "states",
        lambda found: left(
            found, 1, restored={0: found.logs(1).restored[0], 1: found.logs(1).restored[0]}
        ),
        "restored_rank1.json of attempt 1 is of attempt 1, step 6, rank 0",
    ),
    "nothing restored by a rank": Row(
        state_restored,
        "states",
        lambda found: left(found, 1, restored={0: found.logs(1).restored[0]}),
        "attempt 1: ranks [1] did steps, and nothing says what they had restored",
        UNKNOWN,
    ),
    "nothing said of what was resumed from": Row(
        state_restored,
        "states",
        lambda found: attempts(found, 1, resumed_state={}),
        "attempt 1: supervisor.json does not say what the state resumed from holds",
        UNKNOWN,
    ),
}


def waited(found: RunRecords, **changes: Any) -> RunRecords:
    """Rank 0 waited for the copy of step 18, for the first 5 ms of its 20 ms of computing after the
    save.
    """
    spans = found.logs(1).spans.events
    place = next(
        n for n, each in enumerate(spans) if each.category == "compute" and each.global_step == 19
    )
    start, own = spans[place].start, spans[place]
    cut = (
        *spans[:place],
        replace(own, category="write_wait", end=start + 0.005),
        replace(own, start=start + 0.005),
        *spans[place + 1 :],
    )
    found = left(found, 1, spans=replace(found.logs(1).spans, events=cut))
    stall = {
        "event": "waited",
        "stall_s": 0.005,
        "stall_parts": {COPY_WAIT: 0.005},
        "at": start + 0.006,
    } | changes
    return appended(found, 1, "released", 18, **stall)


SECONDS: dict[str, Row] = {
    "a wait of other parts": Row(
        time_conserved,
        "blk",
        lambda found: waited(found, stall_parts={"barrier": 0.005}),
        "the stall of step 18 in attempt 1 has ['barrier'] as what was waited for after it, not"
        " copy_wait",
        None,
    ),
    "a wait that its part does not add up to": Row(
        time_conserved,
        "blk",
        lambda found: waited(found, stall_parts={COPY_WAIT: 0.004}),
        "the stall of step 18 in attempt 1 is 0.005000 s, its parts add up to 0.004000 s",
        None,
        right=(waited,),
    ),
    "a part that does not exist": Row(
        time_conserved,
        "blk",
        of(1, "released", 12, stall_parts={"sleep": 0.036}),
        "the stall of step 12 in attempt 1 has a part 'sleep', which does not exist",
    ),
    "a part of less than nothing": Row(
        time_conserved,
        "blk",
        of(1, "released", 12, stall_parts={"barrier": -2e-6}),
        "the stall of step 12 in attempt 1 has -2e-06 s of barrier",
        right=(of(1, "released", 12, stall_parts={"barrier": -0.5e-6}),),
    ),
    "some stalls in parts, some not": Row(
        time_conserved,
        "blk",
        of(1, "released", 12, stall_parts={}),
        "the stalls of 1 of 4 checkpoints are not split into parts, those of the others are",
    ),
    "a span of another attempt": Row(
        time_conserved,
        "blk",
        lambda found: span(found, 1, 3, attempt=0),
        "attempt 1 rank 0 has a span that cannot be: compute of attempt 0",
    ),
    "a span of no category": Row(
        time_conserved,
        "blk",
        lambda found: span(found, 1, 3, category="sleep"),
        "attempt 1 rank 0 has a span that cannot be: sleep of attempt 1",
    ),
    "a span of no length": Row(
        time_conserved,
        "blk",
        lambda found: span(found, 1, 3, end=found.logs(1).spans.events[3].start),
        "attempt 1 rank 0 has a span that cannot be: compute of attempt 1",
    ),
    "spans that do not begin with the import": Row(
        time_conserved,
        "blk",
        lambda found: span(found, 1, 0, category="load"),
        "the spans of attempt 1 rank 0 begin with load of step 0",
    ),
    "spans of survivors that import": Row(
        time_conserved,
        "rollback",
        lambda found: span(found, 1, 0, category="import"),
        "the spans of attempt 1 rank 0 begin with import of step 0",
    ),
    "a step booked after the next": Row(
        time_conserved,
        "blk",
        lambda found: span(found, 1, 3, global_step=9),
        "attempt 1 rank 0 books step 7 after step 9",
    ),
    "computing ahead of the load": Row(
        time_conserved,
        "blk",
        lambda found: span(found, 1, 1, category="compute"),
        "attempt 1 rank 0 computes before its first step, and ahead of load",
    ),
    "a step logged in what is no computing": Row(
        time_conserved,
        "blk",
        lambda found: span(found, 1, 3, category="idle"),
        "step 7 of attempt 1 rank 0 was logged at an instant that is booked as sync of step 7",
    ),
    "a last span that is not idle": Row(
        time_conserved,
        "states",
        lambda found: span(found, 2, -1, category="sync"),
        "attempt 2 completed, and the spans of rank 0 end with sync",
        right=(lambda found: span(found, 0, -1, category="load"),),
    ),
    "an order without its time": Row(
        time_conserved,
        "states",
        lambda found: ordered(found, 1, at=0.0),
        "launch.json of attempt 1 does not say when it was written",
    ),
}
ROWS = {**STATES, **SECONDS}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_is_told_and_what_is_right_is_not(judged: Judged, name: str) -> None:
    judged.hold(ROWS[name])
