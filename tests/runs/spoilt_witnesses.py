"""Recorded runs with the state of each rank, in which one of two places that tell the same fact is
changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, UNKNOWN
from tests.runs.spoil import edit_json, edit_lines
from tests.runs.spoilt_clocks import folded
from tests.runs.spoilt_states import OTHER, STATE, Spoil

RECORDS, TIME, FAILURES = "records-consistent", "time-conserved", "failures-once"
State = dict[str, str]


def committed(step: int, attempt: int, edit: Callable[[State], State]) -> Spoil:
    """Another `saved_state` on the `committed` line of a step."""

    def spoil(run: RunLayout) -> None:
        edit_lines(
            run.attempt(attempt).checkpoints,
            lambda line: (
                line | {"saved_state": edit(line["saved_state"])}
                if line["event"] == "committed" and line["global_step"] == step
                else line
            ),
        )

    return spoil


def without_any(state: State) -> State:
    return {}


def without_optimizer(state: State) -> State:
    return {name: sha256 for name, sha256 in state.items() if name != "optimizer"}


def supervisor(edit: Callable[[dict[str, Any]], object]) -> Spoil:
    return lambda run: edit_json(run.supervisor, edit)


def launched_later(record: dict[str, Any]) -> None:
    record["attempts"][1]["launched_at"] += 0.2


def ends_last(run: RunLayout, span: dict[str, Any]) -> bool:
    """Whether the span is the last one of rank 1 in attempt 0."""
    last = json.loads(run.attempt(0).spans(1).read_text().splitlines()[-1])
    return bool(span == last)


# By name: what is done to the run, the promise, the status of the finding on it, and what it says.
# Step 6 of attempt 0 is retired by the end of the run, step 12 of attempt 1 is still there.
SPOILT_WITNESSES: dict[str, tuple[Spoil, str, str, str]] = {
    "a checkpoint that retention removed had another optimizer": (
        committed(6, 0, lambda state: state | {"optimizer": OTHER}),
        STATE,
        INVALID,
        "attempt 0 committed step 6 with other optimizer than rank 0 logged after it",
    ),
    "it was resumed from with another optimizer": (
        committed(6, 0, lambda state: state | {"optimizer": OTHER}),
        STATE,
        INVALID,
        "attempt 0 committed step 6 with other optimizer than attempt 1 resumed from",
    ),
    "a removed checkpoint had the generators of another": (
        committed(6, 0, lambda state: state | {"rng.rank1": state["rng.rank0"]}),
        STATE,
        INVALID,
        "attempt 0 committed step 6 with other rng than rank 1 logged after it",
    ),
    "a checkpoint that is there was committed as another": (
        committed(12, 1, lambda state: state | {"parameters": OTHER}),
        STATE,
        INVALID,
        "committed step 12 with other parameters than checkpoints/step_00000012 holds",
    ),
    "a save does not say what it committed": (
        committed(6, 0, without_any),
        STATE,
        INVALID,
        "attempt 0 committed step 6 and does not say with which state",
    ),
    "a save leaves a component out": (
        committed(6, 0, without_optimizer),
        STATE,
        INVALID,
        "attempt 0 committed step 6 without a digest of 'optimizer', 2 ranks saved it",
    ),
    "a save has the generators of a rank that is none": (
        committed(6, 0, lambda state: state | {"rng.rank2": OTHER}),
        STATE,
        INVALID,
        "attempt 0 committed step 6 with a digest of 'rng.rank2', 2 ranks saved it",
    ),
    "a digest of what was saved is none": (
        committed(6, 0, lambda state: state | {"train": "none"}),
        STATE,
        INVALID,
        "attempt 0 committed step 6 with a digest of train that is none",
    ),
    "launched later than its order says": (
        folded(supervisor(launched_later)),
        TIME,
        INVALID,
        "by launch.json, which was written at",
    ),
    "an order written earlier than it was dated": (
        lambda run: edit_json(
            run.attempt(1).launch,
            lambda order: order | {"at": order["at"] - 0.01, "time": order["time"] - 0.01},
        ),
        TIME,
        INVALID,
        "by launch.json, which was written at",
    ),
    "the environment of other code": (
        lambda run: edit_json(run.environment, lambda found: found | {"source_sha256": OTHER}),
        RECORDS,
        UNKNOWN,
        "environment.json has the code '000000000000', the first session",
    ),
    "a session of other code": (
        supervisor(lambda record: record["sessions"][0].update(code=OTHER)),
        RECORDS,
        UNKNOWN,
        "of supervisor.json ran '000000000000'",
    ),
    "a killed rank that went on": (
        lambda run: edit_lines(
            run.attempt(0).spans(1),
            lambda span: span | {"end": span["end"] + 0.05} if ends_last(run, span) else span,
        ),
        FAILURES,
        INVALID,
        "entry 0 (kill) ended rank 1 of attempt 0, which recorded more 0.050 s after it had fired",
    ),
}
