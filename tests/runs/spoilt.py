"""The ways in which a recorded run is spoilt, each with the promise that it breaks and the status
that the finding on it must have.

invalid: the records contradict one another or the plan. unknown: what would show it is not there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import digest
from ecrl_cli.checkpoint.format.names import MODEL, TRAIN
from ecrl_cli.data.order import epoch_order, ids_hash, window
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID
from tests.runs.builder import SAMPLES, flip
from tests.runs.spoil import append, at_step, edit_json, edit_lines, line_at, tear, without
from tests.runs.spoilt_clocks import CLOCKS, SPOILT_CLOCKS
from tests.runs.spoilt_metrics import SPOILT_METRICS
from tests.runs.spoilt_record import RECORD, SPOILT_RECORD
from tests.runs.spoilt_redteam import REDTEAM, SPOILT_REDTEAM
from tests.runs.spoilt_stalls import STALLS
from tests.runs.spoilt_store import SPOILT_STORE, attempts

Spoil = Callable[[RunLayout], Any]
ONCE, INPUT, TRAJECTORY, TIME = "exactly-once", "same-input", "same-trajectory", "time-conserved"
NO_BAD, NO_LOSS, ACCOUNT = "no-bad-checkpoint", "no-acknowledged-loss", "checkpoints-accounted"
FAILURES, RECORDS, TARGET = "failures-once", "records-consistent", "target-reached"
STATE = "state-consistent"
NO_INPUTS = "blake3:" + "0" * 64


def swap_lines(
    layout: RunLayout, a: tuple[int, int, int], b: tuple[int, int, int], *fields: str
) -> None:
    """Exchange `fields` of two lines, each given as (attempt, rank, step)."""
    paths = [layout.attempt(attempt).rank(rank) for attempt, rank, _ in (a, b)]
    lines = [line_at(path, step) for path, (_, _, step) in zip(paths, (a, b), strict=True)]
    edit_lines(paths[0], at_step(a[2], **{f: lines[1][f] for f in fields}))
    edit_lines(paths[1], at_step(b[2], **{f: lines[0][f] for f in fields}))


def swap_two_samples(layout: RunLayout) -> None:
    """One sample of rank 0 against one of rank 1 at step 3: each hash is that of no shard."""
    ids = window(epoch_order(7, 0, SAMPLES, 8), 2, 8).copy()
    ids[[0, 4]] = ids[[4, 0]]
    for rank in range(2):
        edit_lines(
            layout.attempt(0).rank(rank),
            at_step(3, sample_ids_hash=ids_hash(ids[rank * 4 : rank * 4 + 4])),
        )


def swap_two_windows(layout: RunLayout) -> None:
    for rank in range(2):
        swap_lines(layout, (0, rank, 3), (0, rank, 4), "sample_ids_hash", "inputs_hash")


def resume_from(layout: RunLayout, attempt: int, step: int, sha: str) -> None:
    """Let supervisor.json and launch.json agree on another checkpoint."""
    where = {"path": f"checkpoints/step_{step:08d}", "commit_sha256": sha}
    attempts(
        layout, lambda found: found[attempt].update(resumed_from=where, resumed_from_step=step)
    )
    edit_json(
        layout.attempt(attempt).launch,
        lambda order: order | {"resume_from": where, "resume_step": step},
    )


def committed(layout: RunLayout, attempt: int, step: int) -> str:
    lines = map(json.loads, layout.attempt(attempt).checkpoints.read_text().splitlines())
    return next(
        str(line["commit_sha256"])
        for line in lines
        if line["event"] == "committed" and line["global_step"] == step
    )


def completed_early(layout: RunLayout) -> None:
    for rank in range(2):
        edit_lines(
            layout.attempt(2).rank(rank), lambda line: line if line["global_step"] <= 22 else None
        )
    edit_json(layout.attempt(2).final, lambda final: final | {"global_step": 22})
    attempts(layout, lambda found: found[2].update(last_step=22))


def count_time_twice(layout: RunLayout) -> None:
    """By less than the residual may be."""
    edit_lines(
        layout.attempt(1).spans(0),
        lambda span: span | {"start": span["start"] - 0.01} if span["category"] == "load" else span,
    )


def hide_time(layout: RunLayout) -> None:
    edit_lines(layout.attempt(1).spans(0), without(category="load"))


def another_runs_checkpoint(layout: RunLayout) -> None:
    target = layout.checkpoints / "step_00000018"
    shutil.rmtree(target)
    shutil.copytree(layout.root.parent / "ref" / "checkpoints" / "step_00000018", target)


def drop_attempt(layout: RunLayout) -> None:
    attempts(layout, lambda found: found.pop(1))


def fires_again(layout: RunLayout) -> None:
    """Attempt 1 dies as attempt 0 did: of the same entry, after the same step."""
    for rank in range(2):
        edit_lines(
            layout.attempt(1).rank(rank), lambda line: line if line["global_step"] <= 9 else None
        )
    layout.fired_entry(1).unlink()


def never_committed(layout: RunLayout) -> None:
    """The refused checkpoint of step 18 is turned into one that was never there."""
    change = {"event": "lost", "commit_sha256": None, "path": None}
    edit_lines(
        layout.attempt(1).checkpoints,
        lambda line: (
            line | change if line["event"] == "committed" and line["global_step"] == 18 else line
        ),
    )
    attempts(layout, lambda found: found[2].update(rejected=[]))


def no_hash(line: dict[str, Any]) -> dict[str, Any]:
    return (
        line | {"commit_sha256": None}
        if line["event"] == "committed" and line["global_step"] == 12
        else line
    )


def forge_the_log_of_step_5(layout: RunLayout) -> None:
    """A whole other line, plausible in itself: only the chain in the checkpoints knows."""
    edit_lines(layout.attempt(0).rank(1), at_step(5, seconds=0.5))


def metrics(**changes: Any) -> Spoil:
    return lambda run: edit_json(run.metrics, lambda document: document | changes)


def miscount(name: str) -> Spoil:
    return lambda run: edit_json(
        run.metrics, lambda m: m["checkpoints"].update({name: m["checkpoints"][name] + 1})
    )


def replayed_state(layout: RunLayout, state: str | None) -> None:
    """Step 8 of rank 1, first done by attempt 0 and again by attempt 1."""
    edit_lines(layout.attempt(0).rank(1), at_step(8, state_digest="a" * 64))
    edit_lines(layout.attempt(1).rank(1), at_step(8, state_digest=state, seconds=0.5))


def two_states(layout: RunLayout, buffers: bool) -> None:
    """Step 22, which is done once."""
    for rank, state in enumerate("ab"):
        edit_lines(layout.attempt(2).rank(rank), at_step(22, state_digest=state * 64))
    if not buffers:
        edit_json(layout.attempt(2).final, lambda final: final | {"buffers_digest": digest([])})


SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "a step dropped": (
        lambda run: edit_lines(run.attempt(0).rank(0), without(global_step=4)),
        ONCE,
        INVALID,
    ),
    "a step dropped on all ranks": (
        lambda run: [edit_lines(run.attempt(2).rank(r), without(global_step=22)) for r in (0, 1)],
        ONCE,
        INVALID,
    ),
    "a step repeated": (
        lambda run: append(run.attempt(2).rank(1), line_at(run.attempt(2).rank(1), 24)),
        ONCE,
        INVALID,
    ),
    "a step repeated as another": (
        lambda run: swap_lines(run, (0, 0, 2), (0, 0, 5), "sample_ids_hash"),
        ONCE,
        INVALID,
    ),
    "two samples swapped between ranks": (swap_two_samples, ONCE, INVALID),
    "two shards swapped between ranks": (
        lambda run: swap_lines(run, (1, 0, 16), (1, 1, 16), "sample_ids_hash"),
        ONCE,
        INVALID,
    ),
    "two windows swapped": (swap_two_windows, ONCE, INVALID),
    "too few samples": (
        lambda run: edit_lines(run.attempt(0).rank(0), at_step(2, sample_ids_count=3)),
        ONCE,
        INVALID,
    ),
    "a cursor shifted": (
        lambda run: edit_lines(run.attempt(0).rank(0), at_step(2, cursor_step=2)),
        ONCE,
        INVALID,
    ),
    "an epoch shifted": (
        lambda run: edit_lines(run.attempt(1).rank(0), at_step(12, epoch=0)),
        ONCE,
        INVALID,
    ),
    "a line of another rank": (
        lambda run: edit_lines(run.attempt(0).rank(1), at_step(2, rank=0)),
        ONCE,
        INVALID,
    ),
    "a line of another world size": (
        lambda run: edit_lines(run.attempt(0).rank(1), at_step(2, world_size=4)),
        ONCE,
        INVALID,
    ),
    "a log of a rank too many": (
        lambda run: shutil.copy(run.attempt(0).rank(1), run.attempt(0).rank(2)),
        ONCE,
        INVALID,
    ),
    "a rank's log removed": (lambda run: run.attempt(1).rank(1).unlink(), ONCE, UNKNOWN),
    "a rank's log emptied": (lambda run: run.attempt(1).rank(1).write_text(""), ONCE, UNKNOWN),
    "a last line torn": (lambda run: tear(run.attempt(2).rank(1)), ONCE, UNKNOWN),
    "the size of the data set changed": (
        lambda run: edit_json(run.dataset, lambda d: d | {"size": 88}),
        ONCE,
        INVALID,
    ),
    "the size of the data set unknown": (lambda run: run.dataset.unlink(), ONCE, UNKNOWN),
    "inputs differ in a replayed step": (
        lambda run: edit_lines(run.attempt(1).rank(0), at_step(8, inputs_hash=NO_INPUTS)),
        INPUT,
        INVALID,
    ),
    "inputs differ from the reference": (
        lambda run: edit_lines(run.attempt(0).rank(0), at_step(3, inputs_hash=NO_INPUTS)),
        INPUT,
        INVALID,
    ),
    "inputs of a replayed step not hashed": (
        lambda run: edit_lines(run.attempt(1).rank(0), at_step(8, inputs_hash=None)),
        INPUT,
        UNKNOWN,
    ),
    "a loss changed": (
        lambda run: edit_lines(run.attempt(2).rank(1), at_step(21, loss=0.1)),
        TRAJECTORY,
        INVALID,
    ),
    "a loss changed in its last bit": (
        lambda run: edit_lines(
            run.attempt(0).rank(0),
            lambda s: s | {"loss": s["loss"] * (1 + 2**-52)} if s["global_step"] == 3 else s,
        ),
        TRAJECTORY,
        INVALID,
    ),
    "a replayed loss changed": (
        lambda run: edit_lines(run.attempt(0).rank(0), at_step(8, loss=0.1)),
        TRAJECTORY,
        INVALID,
    ),
    "a final digest changed": (
        lambda run: edit_json(run.attempt(2).final, lambda f: f | {"optimizer_digest": "0" * 64}),
        TRAJECTORY,
        INVALID,
    ),
    "the final generators changed": (
        lambda run: edit_json(run.attempt(2).final, lambda f: f | {"rng_digest": "0" * 64}),
        TRAJECTORY,
        INVALID,
    ),
    "time counted twice": (count_time_twice, TIME, INVALID),
    "time hidden": (hide_time, TIME, INVALID),
    "spans removed": (lambda run: run.attempt(1).spans(0).unlink(), TIME, UNKNOWN),
    "sessions removed": (
        lambda run: edit_json(run.supervisor, lambda s: s | {"sessions": []}),
        TIME,
        UNKNOWN,
    ),
    "a category of its own": (
        lambda run: edit_lines(run.attempt(1).spans(0), at_step(8, category="tea")),
        TIME,
        INVALID,
    ),
    "resumed from nowhere": (lambda run: resume_from(run, 1, 6, "0" * 64), NO_BAD, INVALID),
    "resumed from an older one": (
        lambda run: resume_from(run, 2, 12, committed(run, 1, 12)),
        NO_BAD,
        INVALID,
    ),
    "resumed at another step": (
        lambda run: attempts(run, lambda a: a[2].update(resumed_from_step=12)),
        NO_BAD,
        INVALID,
    ),
    "began anew": (
        lambda run: attempts(run, lambda a: a[1].update(resumed_from=None, resumed_from_step=0)),
        NO_BAD,
        INVALID,
    ),
    "a bit flipped in what was resumed from": (
        lambda run: flip(run.checkpoints / "step_00000018" / MODEL),
        NO_BAD,
        INVALID,
    ),
    "a bit flipped in its text": (
        lambda run: flip(run.checkpoints / "step_00000018" / TRAIN),
        NO_BAD,
        INVALID,
    ),
    "another run's checkpoint": (another_runs_checkpoint, NO_BAD, INVALID),
    "resumed from a retired one": (
        lambda run: append(
            run.attempt(1).checkpoints,
            line_at(run.attempt(1).checkpoints, 18) | {"event": "retired"},
        ),
        NO_BAD,
        INVALID,
    ),
    "a committed checkpoint is gone": (
        lambda run: shutil.rmtree(run.checkpoints / "step_00000024"),
        NO_LOSS,
        INVALID,
    ),
    "a bit flipped in the last checkpoint": (
        lambda run: flip(run.checkpoints / "step_00000024" / MODEL),
        NO_LOSS,
        INVALID,
    ),
    "all checkpoints are gone": (lambda run: shutil.rmtree(run.checkpoints), NO_LOSS, UNKNOWN),
    "a commit that no line acknowledges": (
        lambda run: edit_lines(
            run.attempt(2).checkpoints, without(event="committed", global_step=24)
        ),
        NO_LOSS,
        INVALID,
    ),
    "an end removed": (
        lambda run: edit_lines(
            run.attempt(0).checkpoints, without(event="committed", global_step=6)
        ),
        ACCOUNT,
        INVALID,
    ),
    "a commit without its hash": (
        lambda run: edit_lines(run.attempt(1).checkpoints, no_hash),
        ACCOUNT,
        INVALID,
    ),
    "two ends": (
        lambda run: append(
            run.attempt(1).checkpoints, line_at(run.attempt(1).checkpoints, 12) | {"event": "lost"}
        ),
        ACCOUNT,
        INVALID,
    ),
    "an end without a beginning": (
        lambda run: edit_lines(
            run.attempt(1).checkpoints, without(event="submitted", global_step=12)
        ),
        ACCOUNT,
        INVALID,
    ),
    "a due checkpoint unheard of": (
        lambda run: edit_lines(run.attempt(1).checkpoints, without(global_step=12)),
        ACCOUNT,
        INVALID,
    ),
    "a failure fired again": (fires_again, FAILURES, INVALID),
    "an attempt armed again": (
        lambda run: shutil.copy(run.attempt(0).launch, run.attempt(1).launch),
        FAILURES,
        INVALID,
    ),
    "one entry fired twice": (
        lambda run: edit_json(run.fired_entry(1), lambda f: f | {"index": 0}),
        FAILURES,
        INVALID,
    ),
    "a failure that was not planned": (
        lambda run: edit_json(run.fired_entry(1), lambda f: f | {"global_step": 19}),
        FAILURES,
        INVALID,
    ),
    "a failure that never fired": (lambda run: run.fired_entry(1).unlink(), FAILURES, INVALID),
    "a plan changed": (
        lambda run: edit_json(run.failures, lambda plan: plan[:1]),
        FAILURES,
        INVALID,
    ),
    "a plan gone": (lambda run: run.failures.unlink(), FAILURES, UNKNOWN),
    "another death": (
        lambda run: attempts(run, lambda a: a[0].update(exit_code=1, signal=None)),
        FAILURES,
        INVALID,
    ),
    "another casualty": (
        lambda run: attempts(run, lambda a: a[0].update(rank=0)),
        FAILURES,
        INVALID,
    ),
    "the seed changed": (
        lambda run: edit_json(run.config, lambda c: c["config"].update(seed=8)),
        RECORDS,
        INVALID,
    ),
    "the learning rate changed": (
        lambda run: edit_json(run.config, lambda c: c["config"]["optimizer"].update(lr=0.2)),
        RECORDS,
        INVALID,
    ),
    "a line forged": (forge_the_log_of_step_5, RECORDS, INVALID),
    "an attempt dropped": (drop_attempt, RECORDS, INVALID),
    "an attempt's logs dropped": (
        lambda run: shutil.rmtree(run.attempt(1).folder),
        RECORDS,
        UNKNOWN,
    ),
    "another target": (
        lambda run: edit_json(run.supervisor, lambda s: s | {"target_steps": 30}),
        RECORDS,
        INVALID,
    ),
    "an attempt of no session": (
        lambda run: attempts(run, lambda a: a[1].update(session=3)),
        RECORDS,
        INVALID,
    ),
    "an attempt of three ranks": (
        lambda run: attempts(run, lambda a: a[1].update(world_size=3)),
        RECORDS,
        INVALID,
    ),
    "an attempt that completed too soon": (
        lambda run: attempts(run, lambda a: a[1].update(outcome="completed")),
        RECORDS,
        INVALID,
    ),
    "a restart not counted": (
        lambda run: edit_json(run.supervisor, lambda s: s | {"restarts": 1}),
        RECORDS,
        INVALID,
    ),
    "another last step": (
        lambda run: attempts(run, lambda a: a[1].update(last_step=19)),
        RECORDS,
        INVALID,
    ),
    "another run's supervisor": (
        lambda run: edit_json(run.supervisor, lambda s: s | {"run_id": "0" * 64}),
        RECORDS,
        INVALID,
    ),
    "supervisor.json gone": (lambda run: run.supervisor.unlink(), RECORDS, UNKNOWN),
    "launch.json gone": (lambda run: run.attempt(1).launch.unlink(), RECORDS, UNKNOWN),
    "a line damaged in the middle": (lambda run: flip(run.attempt(1).rank(0), 1), RECORDS, UNKNOWN),
    "seconds moved to another account": (
        lambda run: edit_lines(run.attempt(1).spans(0), without(category="import")),
        RECORDS,
        INVALID,
    ),
    "metrics that flatter": (
        lambda run: edit_json(run.metrics, lambda m: m | {"wall_s": m["wall_s"] / 2}),
        RECORDS,
        INVALID,
    ),
    "metrics of another goodput": (metrics(goodput=9.0), RECORDS, INVALID),
    "metrics without a restart": (metrics(restarts=0), RECORDS, INVALID),
    "metrics of another target": (metrics(target_steps=30), RECORDS, INVALID),
    "metrics of another variant": (metrics(variant="ref"), RECORDS, INVALID),
    "metrics of another seed": (metrics(seed=8), RECORDS, INVALID),
    "metrics of another run": (metrics(run_id="0" * 64), RECORDS, INVALID),
    "metrics of another reference": (metrics(reference_id="0" * 64), RECORDS, INVALID),
    "metrics of another end": (
        lambda run: edit_json(run.metrics, lambda m: m["final"].update(loss=0.0)),
        RECORDS,
        INVALID,
    ),
    "metrics of another end state": (
        lambda run: edit_json(run.metrics, lambda m: m["final"].update(rng_digest="0" * 64)),
        RECORDS,
        INVALID,
    ),
    "metrics that submit less": (miscount("submitted"), RECORDS, INVALID),
    "metrics that commit more": (miscount("committed"), RECORDS, INVALID),
    "metrics that fail more": (miscount("failed"), RECORDS, INVALID),
    "metrics that lose more": (miscount("lost"), RECORDS, INVALID),
    "metrics that are no object": (lambda run: run.metrics.write_text("[]"), RECORDS, INVALID),
    "metrics.json gone": (lambda run: run.metrics.unlink(), RECORDS, UNKNOWN),
    "a replayed state changed": (lambda run: replayed_state(run, "b" * 64), TRAJECTORY, INVALID),
    "a replayed state not hashed": (lambda run: replayed_state(run, None), TRAJECTORY, UNKNOWN),
    "ranks that hold two states": (lambda run: two_states(run, buffers=False), STATE, INVALID),
    "final.json gone": (lambda run: run.attempt(2).final.unlink(), TARGET, UNKNOWN),
    "a final record too many": (
        lambda run: shutil.copy(run.attempt(2).final, run.attempt(1).final),
        TARGET,
        INVALID,
    ),
    "completed early": (completed_early, TARGET, INVALID),
    "not completed": (
        lambda run: edit_json(run.supervisor, lambda s: s | {"terminal_status": "stopped"}),
        TARGET,
        UNKNOWN,
    ),
    "completed in an attempt that died": (
        lambda run: attempts(run, lambda a: a[2].update(outcome="died")),
        TARGET,
        INVALID,
    ),
    "a final state that no checkpoint holds": (
        lambda run: edit_json(run.attempt(2).final, lambda f: f | {"parameters_digest": "0" * 64}),
        TARGET,
        INVALID,
    ),
}
for more in (STALLS, SPOILT_METRICS, SPOILT_CLOCKS, SPOILT_RECORD, SPOILT_STORE, SPOILT_REDTEAM):
    assert not (twice := SPOILT.keys() & more.keys()), f"two spoilt runs share a name: {twice}"
    SPOILT |= more
# What the finding must say among others.
WORDS = {name: words for name, (_, _, _, words) in (CLOCKS | RECORD | REDTEAM).items()}
# Where evidence of the promise is missing, and what is left contradicts another one: the verdict is
# invalid, the finding unknown.
ALSO_BROKEN = {
    "all wall times in 1970",
    "no inputs hashed",
    "inputs hashed as by earlier versions",
    "not completed",
    "inputs of a replayed step not hashed",
    "sessions removed",
    "a replayed state not hashed",
    "an attempt's logs dropped",
}
# What only a reference can tell: the status of the finding without one. Another promise, or the
# missing reference itself, is seen instead.
ALONE = {
    "a loss changed": UNKNOWN,
    "a loss changed in its last bit": UNKNOWN,
    "a final digest changed": UNKNOWN,
    "the final generators changed": UNKNOWN,
    "inputs differ from the reference": VALID,
}
