"""The ways in which a recorded run is spoilt, each with the promise that it breaks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from ecrl_cli.checkpoint.canonical import digest
from ecrl_cli.checkpoint.protocol import MODEL, TRAIN
from ecrl_cli.data.order import epoch_order, ids_hash, window
from ecrl_cli.records.layout import RunLayout
from tests.runs.builder import SAMPLES, flip
from tests.runs.spoil import append, at_step, edit_json, edit_lines, line_at, tear, without

Spoil = Callable[[RunLayout], Any]
ONCE, INPUT, TRAJECTORY, TIME = "exactly-once", "same-input", "same-trajectory", "time-conserved"
NO_BAD, NO_LOSS, ACCOUNT = "no-bad-checkpoint", "no-acknowledged-loss", "checkpoints-accounted"
FAILURES, RECORDS, TARGET = "failures-once", "records-consistent", "target-reached"


def swap_lines(layout: RunLayout, a: tuple[int, int, int], b: tuple[int, int, int], *fields: str) -> None:
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
        edit_lines(layout.attempt(0).rank(rank), at_step(3, sample_ids_hash=ids_hash(ids[rank * 4 : rank * 4 + 4])))


def swap_two_windows(layout: RunLayout) -> None:
    for rank in range(2):
        swap_lines(layout, (0, rank, 3), (0, rank, 4), "sample_ids_hash", "inputs_hash")


def attempts(layout: RunLayout, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    def apply(document: dict[str, Any]) -> None:
        edit(document["attempts"])

    edit_json(layout.supervisor, apply)


def resume_from(layout: RunLayout, attempt: int, step: int, sha: str) -> None:
    """Let supervisor.json and launch.json agree on another checkpoint."""
    where = {"path": f"checkpoints/step_{step:08d}", "commit_sha256": sha}
    attempts(layout, lambda found: found[attempt].update(resumed_from=where, resumed_from_step=step))
    edit_json(layout.attempt(attempt).launch, lambda order: order | {"resume_from": where, "resume_step": step})


def committed(layout: RunLayout, attempt: int, step: int) -> str:
    lines = map(json.loads, layout.attempt(attempt).checkpoints.read_text().splitlines())
    return next(str(line["commit_sha256"]) for line in lines if line["event"] == "committed" and line["global_step"] == step)


def completed_early(layout: RunLayout) -> None:
    for rank in range(2):
        edit_lines(layout.attempt(2).rank(rank), lambda line: line if line["global_step"] <= 22 else None)
    edit_json(layout.attempt(2).final, lambda final: final | {"global_step": 22})
    attempts(layout, lambda found: found[2].update(last_step=22))


def count_time_twice(layout: RunLayout) -> None:
    """By less than the residual may be."""
    edit_lines(layout.attempt(1).spans(0), lambda span: span | {"start": span["start"] - 0.01} if span["category"] == "load" else span)


def hide_time(layout: RunLayout) -> None:
    edit_lines(layout.attempt(1).spans(0), without(category="load"))


def another_runs_checkpoint(layout: RunLayout) -> None:
    target = layout.checkpoints / "step_00000018"
    shutil.rmtree(target)
    shutil.copytree(layout.root.parent / "ref" / "checkpoints" / "step_00000018", target)


def drop_attempt(layout: RunLayout) -> None:
    attempts(layout, lambda found: found.pop(1))


def fires_again(layout: RunLayout) -> None:
    """Attempt 1 dies as attempt 0 did: of the same entry, behind the same step."""
    for rank in range(2):
        edit_lines(layout.attempt(1).rank(rank), lambda line: line if line["global_step"] <= 9 else None)
    layout.fired_entry(1).unlink()


def never_committed(layout: RunLayout) -> None:
    """The refused checkpoint of step 18 is turned into one that was never there."""
    change = {"event": "lost", "commit_sha256": None, "path": None}
    edit_lines(layout.attempt(1).checkpoints, lambda line: line | change if line["event"] == "committed" and line["global_step"] == 18 else line)
    attempts(layout, lambda found: found[2].update(rejected=[]))


def no_hash(line: dict[str, Any]) -> dict[str, Any]:
    return line | {"commit_sha256": None} if line["event"] == "committed" and line["global_step"] == 12 else line


def retired_before(layout: RunLayout) -> None:
    log = layout.attempt(1).checkpoints
    append(log, line_at(log, 18) | {"event": "retired"})


def forge_the_log_of_step_5(layout: RunLayout) -> None:
    """A whole other line, plausible in itself: only the chain in the checkpoints knows."""
    edit_lines(layout.attempt(0).rank(1), at_step(5, seconds=0.5))


def metrics(**changes: Any) -> Spoil:
    return lambda run: edit_json(run.metrics, lambda document: document | changes)


def miscount(name: str) -> Spoil:
    return lambda run: edit_json(run.metrics, lambda m: m["checkpoints"].update({name: m["checkpoints"][name] + 1}))


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


SPOILT: dict[str, tuple[Spoil, str]] = {
    "a step dropped": (lambda run: edit_lines(run.attempt(0).rank(0), without(global_step=4)), ONCE),
    "a step dropped on all ranks": (lambda run: [edit_lines(run.attempt(2).rank(r), without(global_step=22)) for r in (0, 1)], ONCE),
    "a step repeated": (lambda run: append(run.attempt(2).rank(1), line_at(run.attempt(2).rank(1), 24)), ONCE),
    "a step repeated as another": (lambda run: swap_lines(run, (0, 0, 2), (0, 0, 5), "sample_ids_hash"), ONCE),
    "two samples swapped between ranks": (swap_two_samples, ONCE),
    "two shards swapped between ranks": (lambda run: swap_lines(run, (1, 0, 16), (1, 1, 16), "sample_ids_hash"), ONCE),
    "two windows swapped": (swap_two_windows, ONCE),
    "too few samples": (lambda run: edit_lines(run.attempt(0).rank(0), at_step(2, sample_ids_count=3)), ONCE),
    "a cursor shifted": (lambda run: edit_lines(run.attempt(0).rank(0), at_step(2, cursor_step=2)), ONCE),
    "an epoch shifted": (lambda run: edit_lines(run.attempt(1).rank(0), at_step(12, epoch=0)), ONCE),
    "a line of another rank": (lambda run: edit_lines(run.attempt(0).rank(1), at_step(2, rank=0)), ONCE),
    "a line of another world size": (lambda run: edit_lines(run.attempt(0).rank(1), at_step(2, world_size=4)), ONCE),
    "a log of a rank too many": (lambda run: shutil.copy(run.attempt(0).rank(1), run.attempt(0).rank(2)), ONCE),
    "a rank's log removed": (lambda run: run.attempt(1).rank(1).unlink(), ONCE),
    "a rank's log emptied": (lambda run: run.attempt(1).rank(1).write_text(""), ONCE),
    "a last line torn": (lambda run: tear(run.attempt(2).rank(1)), ONCE),
    "the size of the data set changed": (lambda run: edit_json(run.dataset, lambda d: d | {"size": 88}), ONCE),
    "the size of the data set unknown": (lambda run: run.dataset.unlink(), ONCE),
    "inputs differ in a replayed step": (lambda run: edit_lines(run.attempt(1).rank(0), at_step(8, inputs_hash="0" * 64)), INPUT),
    "inputs differ from the reference": (lambda run: edit_lines(run.attempt(0).rank(0), at_step(3, inputs_hash="0" * 64)), INPUT),
    "inputs of a replayed step not hashed": (lambda run: edit_lines(run.attempt(1).rank(0), at_step(8, inputs_hash=None)), INPUT),
    "a loss changed": (lambda run: edit_lines(run.attempt(2).rank(1), at_step(21, loss=0.1)), TRAJECTORY),
    "a loss changed in its last bit": (
        lambda run: edit_lines(run.attempt(0).rank(0), lambda s: s | {"loss": s["loss"] * (1 + 2**-52)} if s["global_step"] == 3 else s),
        TRAJECTORY,
    ),
    "a replayed loss changed": (lambda run: edit_lines(run.attempt(0).rank(0), at_step(8, loss=0.1)), TRAJECTORY),
    "a final digest changed": (lambda run: edit_json(run.attempt(2).final, lambda f: f | {"optimizer_digest": "0" * 64}), TRAJECTORY),
    "the final generators changed": (lambda run: edit_json(run.attempt(2).final, lambda f: f | {"rng_digest": "0" * 64}), TRAJECTORY),
    "time counted twice": (count_time_twice, TIME),
    "time hidden": (hide_time, TIME),
    "spans removed": (lambda run: run.attempt(1).spans(0).unlink(), TIME),
    "sessions removed": (lambda run: edit_json(run.supervisor, lambda s: s | {"sessions": []}), TIME),
    "a category of its own": (lambda run: edit_lines(run.attempt(1).spans(0), at_step(8, category="tea")), TIME),
    "resumed from nowhere": (lambda run: resume_from(run, 1, 6, "0" * 64), NO_BAD),
    "resumed from an older one": (lambda run: resume_from(run, 2, 12, committed(run, 1, 12)), NO_BAD),
    "resumed at another step": (lambda run: attempts(run, lambda a: a[2].update(resumed_from_step=12)), NO_BAD),
    "began anew": (lambda run: attempts(run, lambda a: a[1].update(resumed_from=None, resumed_from_step=0)), NO_BAD),
    "a bit flipped in what was resumed from": (lambda run: flip(run.checkpoints / "step_00000018" / MODEL), NO_BAD),
    "a bit flipped in its text": (lambda run: flip(run.checkpoints / "step_00000018" / TRAIN), NO_BAD),
    "another run's checkpoint": (another_runs_checkpoint, NO_BAD),
    "resumed from a retired one": (
        lambda run: append(run.attempt(1).checkpoints, line_at(run.attempt(1).checkpoints, 18) | {"event": "retired"}),
        NO_BAD,
    ),
    "a committed checkpoint is gone": (lambda run: shutil.rmtree(run.checkpoints / "step_00000024"), NO_LOSS),
    "a bit flipped in the last checkpoint": (lambda run: flip(run.checkpoints / "step_00000024" / MODEL), NO_LOSS),
    "all checkpoints are gone": (lambda run: shutil.rmtree(run.checkpoints), NO_LOSS),
    "a commit that no line acknowledges": (lambda run: edit_lines(run.attempt(2).checkpoints, without(event="committed", global_step=24)), NO_LOSS),
    "an end removed": (lambda run: edit_lines(run.attempt(0).checkpoints, without(event="committed", global_step=6)), ACCOUNT),
    "a commit without its hash": (lambda run: edit_lines(run.attempt(1).checkpoints, no_hash), ACCOUNT),
    "two ends": (lambda run: append(run.attempt(1).checkpoints, line_at(run.attempt(1).checkpoints, 12) | {"event": "lost"}), ACCOUNT),
    "an end without a beginning": (lambda run: edit_lines(run.attempt(1).checkpoints, without(event="submitted", global_step=12)), ACCOUNT),
    "a due checkpoint unheard of": (lambda run: edit_lines(run.attempt(1).checkpoints, without(global_step=12)), ACCOUNT),
    "a failure fired again": (fires_again, FAILURES),
    "an attempt armed again": (lambda run: shutil.copy(run.attempt(0).launch, run.attempt(1).launch), FAILURES),
    "one entry fired twice": (lambda run: edit_json(run.fired_entry(1), lambda f: f | {"index": 0}), FAILURES),
    "a failure that was not planned": (lambda run: edit_json(run.fired_entry(1), lambda f: f | {"global_step": 19}), FAILURES),
    "a failure that never fired": (lambda run: run.fired_entry(1).unlink(), FAILURES),
    "a plan changed": (lambda run: edit_json(run.failures, lambda plan: plan[:1]), FAILURES),
    "a plan gone": (lambda run: run.failures.unlink(), FAILURES),
    "another death": (lambda run: attempts(run, lambda a: a[0].update(exit_code=1, signal=None)), FAILURES),
    "another casualty": (lambda run: attempts(run, lambda a: a[0].update(rank=0)), FAILURES),
    "the seed changed": (lambda run: edit_json(run.config, lambda c: c["config"].update(seed=8)), RECORDS),
    "the learning rate changed": (lambda run: edit_json(run.config, lambda c: c["config"]["optimizer"].update(lr=0.2)), RECORDS),
    "a line forged": (forge_the_log_of_step_5, RECORDS),
    "an attempt dropped": (drop_attempt, RECORDS),
    "an attempt's logs dropped": (lambda run: shutil.rmtree(run.attempt(1).folder), RECORDS),
    "another target": (lambda run: edit_json(run.supervisor, lambda s: s | {"target_steps": 30}), RECORDS),
    "an attempt of no session": (lambda run: attempts(run, lambda a: a[1].update(session=3)), RECORDS),
    "an attempt of three ranks": (lambda run: attempts(run, lambda a: a[1].update(world_size=3)), RECORDS),
    "an attempt that completed too soon": (lambda run: attempts(run, lambda a: a[1].update(outcome="completed")), RECORDS),
    "a restart not counted": (lambda run: edit_json(run.supervisor, lambda s: s | {"restarts": 1}), RECORDS),
    "another last step": (lambda run: attempts(run, lambda a: a[1].update(last_step=19)), RECORDS),
    "another run's supervisor": (lambda run: edit_json(run.supervisor, lambda s: s | {"run_id": "0" * 64}), RECORDS),
    "supervisor.json gone": (lambda run: run.supervisor.unlink(), RECORDS),
    "launch.json gone": (lambda run: run.attempt(1).launch.unlink(), RECORDS),
    "a line damaged in the middle": (lambda run: flip(run.attempt(1).rank(0), 1), RECORDS),
    "seconds moved to another account": (lambda run: edit_lines(run.attempt(1).spans(0), without(category="import")), RECORDS),
    "metrics that flatter": (lambda run: edit_json(run.metrics, lambda m: m | {"wall_s": m["wall_s"] / 2}), RECORDS),
    "metrics of another goodput": (metrics(goodput=9.0), RECORDS),
    "metrics without a restart": (metrics(restarts=0), RECORDS),
    "metrics of another target": (metrics(target_steps=30), RECORDS),
    "metrics of another variant": (metrics(variant="ref"), RECORDS),
    "metrics of another seed": (metrics(seed=8), RECORDS),
    "metrics of another run": (metrics(run_id="0" * 64), RECORDS),
    "metrics of another reference": (metrics(reference_id="0" * 64), RECORDS),
    "metrics of another end": (lambda run: edit_json(run.metrics, lambda m: m["final"].update(loss=0.0)), RECORDS),
    "metrics of another end state": (lambda run: edit_json(run.metrics, lambda m: m["final"].update(rng_digest="0" * 64)), RECORDS),
    "metrics that submit less": (miscount("submitted"), RECORDS),
    "metrics that commit more": (miscount("committed"), RECORDS),
    "metrics that fail more": (miscount("failed"), RECORDS),
    "metrics that lose more": (miscount("lost"), RECORDS),
    "metrics that are no object": (lambda run: run.metrics.write_text("[]"), RECORDS),
    "metrics.json gone": (lambda run: run.metrics.unlink(), RECORDS),
    "a replayed state changed": (lambda run: replayed_state(run, "b" * 64), TRAJECTORY),
    "a replayed state not hashed": (lambda run: replayed_state(run, None), TRAJECTORY),
    "ranks that hold two states": (lambda run: two_states(run, buffers=False), TRAJECTORY),
    "final.json gone": (lambda run: run.attempt(2).final.unlink(), TARGET),
    "a final record too many": (lambda run: shutil.copy(run.attempt(2).final, run.attempt(1).final), TARGET),
    "completed early": (completed_early, TARGET),
    "not completed": (lambda run: edit_json(run.supervisor, lambda s: s | {"terminal_status": "stopped"}), TARGET),
    "completed in an attempt that died": (lambda run: attempts(run, lambda a: a[2].update(outcome="died")), TARGET),
    "a final state that no checkpoint holds": (lambda run: edit_json(run.attempt(2).final, lambda f: f | {"parameters_digest": "0" * 64}), TARGET),
}
# What only a reference can tell: without one these leave the run valid or are seen by another promise.
NEEDS_REFERENCE = {
    "a loss changed",
    "a loss changed in its last bit",
    "a final digest changed",
    "the final generators changed",
    "inputs differ from the reference",
}
