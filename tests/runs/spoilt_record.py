"""Runs whose supervisor.json, words, numbers or labels were changed: the logs, the plan and the
other documents contradict them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, UNKNOWN
from tests.runs.spoil import at_step, edit_json
from tests.runs.spoilt_clocks import (
    Spoil,
    attempt,
    every_line,
    final,
    folded,
    lines,
    order,
    saved,
    session,
)

INPUT, RECORDS = "same-input", "records-consistent"
HANG = {
    "ranks": [1],
    "phase": "backward",
    "global_step": 10,
    "waited_s": 31.0,
    "limit_s": 30.0,
    "text": "rank 1 is behind; nothing moved for 31.0 s",
}


def record(**changes: Any) -> Spoil:
    return lambda run: edit_json(run.supervisor, lambda document: document | changes)


def hung(number: int, **changes: Any) -> Spoil:
    """An attempt that was killed is told as one that hung."""
    return attempt(
        number, outcome="hung", exit_code=None, signal=None, rank=None, hang=HANG | changes
    )


def told_as_stopped(run: RunLayout) -> None:
    """No death is on record at all."""
    for number in (0, 1):
        attempt(number, outcome="stopped", exit_code=0, signal=None, rank=0)(run)
    record(restarts=0)(run)


def stopped_in_between(run: RunLayout) -> None:
    attempt(0, outcome="stopped", exit_code=None, signal=None, rank=None)(run)
    record(restarts=1)(run)


def straggler(**changes: Any) -> Spoil:
    return attempt(
        1, stragglers=[{"rank": 1, "global_step": 12, "own_s": 0.5, "others_s": 0.01} | changes]
    )


def forgone(**changes: Any) -> Spoil:
    return attempt(
        2,
        forgone=[
            {
                "global_step": 19,
                "attempt": 1,
                "reason": "its state is not the one that rank 0 logged",
            }
            | changes
        ],
    )


def phase(name: str, seconds: float) -> Spoil:
    return lambda run: edit_json(
        run.supervisor, lambda document: document["attempts"][1]["phases"].update({name: seconds})
    )


def composed(**changes: Any) -> Spoil:
    """What Hydra composed, with something else in it. JSON is YAML."""

    def write(run: RunLayout) -> None:
        config = json.loads(run.config.read_text())["config"]
        for key, value in changes.items():
            group, _, name = key.partition("__")
            if name:
                config[group][name] = value
            else:
                config[group] = value
        run.hydra.mkdir()
        (run.hydra / "config.yaml").write_text(json.dumps(config))

    return write


def unlink(name: str) -> Spoil:
    def remove(run: RunLayout) -> None:
        path: Path = getattr(run, name)
        path.unlink()

    return remove


def dataset(**changes: Any) -> Spoil:
    return lambda run: edit_json(run.dataset, lambda document: document | changes)


# As `spoilt_clocks.CLOCKS`.
RECORD: dict[str, tuple[Spoil, str, str, str]] = {
    "an outcome that there is not": (
        attempt(0, outcome="vanished"),
        RECORDS,
        INVALID,
        "supervisor.json: 'vanished' is not an outcome",
    ),
    "a memory that there is not": (
        attempt(1, memory="hearsay"),
        RECORDS,
        INVALID,
        "supervisor.json: 'hearsay' is not a memory",
    ),
    "a status that there is not": (
        record(terminal_status="finished"),
        RECORDS,
        INVALID,
        "supervisor.json: 'finished' is not a terminal status",
    ),
    "an event that there is not": (
        saved(24, "released", event="let go"),
        RECORDS,
        INVALID,
        "logs/attempt-02/checkpoint_rank0.jsonl: 'let go' is not an event",
    ),
    "a phase of a hang that there is not": (
        hung(0, phase="tea"),
        RECORDS,
        INVALID,
        "supervisor.json: 'tea' is not a phase",
    ),
    "an order's memory that there is not": (
        order(1, memory="hearsay"),
        RECORDS,
        INVALID,
        "logs/attempt-01/launch.json: 'hearsay' is not a memory",
    ),
    "a loss without a bound": (
        lines(2, 1, at_step(24, loss=float("inf"))),
        RECORDS,
        INVALID,
        "step 24 has a number that cannot be",
    ),
    "a wall time that is no number": (
        lines(2, 1, at_step(24, time=float("nan"))),
        RECORDS,
        INVALID,
        "step 24 has a number that cannot be",
    ),
    "a negative wait": (
        hung(0, waited_s=-1.0),
        RECORDS,
        INVALID,
        "supervisor.json: waited_s is -1.0, below 0",
    ),
    "a negative write": (
        saved(24, "committed", write_s=-0.02),
        RECORDS,
        INVALID,
        "checkpoint_rank0.jsonl: write_s is -0.02, below 0",
    ),
    "an endless final step": (
        final(time=float("inf")),
        RECORDS,
        INVALID,
        "logs/attempt-02/final.json: time is inf",
    ),
    "both an exit code and a signal": (
        attempt(2, signal=9),
        RECORDS,
        INVALID,
        "attempt 2 has both exit code 0 and signal 9",
    ),
    "completed, and killed": (
        attempt(2, exit_code=None, signal=9, rank=1),
        RECORDS,
        UNKNOWN,
        "attempt 2 completed, and rank 1 ended with signal 9: nothing on record explains that",
    ),
    "completed, and an error": (
        attempt(2, exit_code=1, rank=0),
        RECORDS,
        UNKNOWN,
        "attempt 2 completed, and rank 0 ended with exit code 1",
    ),
    "a rank that ended well to blame": (
        attempt(2, rank=0),
        RECORDS,
        INVALID,
        "names rank 0 as the one that ended it, with exit code 0",
    ),
    "a rank that there is not to blame": (
        attempt(0, rank=5),
        RECORDS,
        INVALID,
        "attempt 0 of 2 ranks names rank 5",
    ),
    "a signal that there is not": (
        attempt(0, signal=99),
        RECORDS,
        INVALID,
        "attempt 0 ended by signal 99",
    ),
    "killed, told as stopped": (
        told_as_stopped,
        RECORDS,
        INVALID,
        "attempt 0 stopped and has exit code 0",
    ),
    "stopped, and went on": (
        stopped_in_between,
        RECORDS,
        INVALID,
        "attempt 0 was stopped, and attempt 1 follows it in the same session",
    ),
    "still running, and went on": (
        attempt(0, outcome="running"),
        RECORDS,
        INVALID,
        "attempt 0 is still running, and attempt 1 follows it",
    ),
    "died of nothing": (
        attempt(0, signal=None, rank=None),
        RECORDS,
        INVALID,
        "attempt 0 died, nothing says of what",
    ),
    "a death without an end": (
        attempt(0, ended_at=None),
        RECORDS,
        INVALID,
        "attempt 0 died and has no end, and its supervisor lived",
    ),
    "resized by a signal": (
        attempt(1, outcome="resized"),
        RECORDS,
        INVALID,
        "attempt 1 ended well to be resized, with exit code None and signal 9",
    ),
    "a hang that never was": (
        hung(0),
        RECORDS,
        INVALID,
        "attempt 0 was silent for 31.000 s and lasted for 1.",
    ),
    "a hang in which steps were done": (
        hung(0, waited_s=1.0, limit_s=0.5),
        RECORDS,
        INVALID,
        "attempt 0 hung: nothing moved in its last 1.000 s, in which rank 0 logged 9 steps",
    ),
    "a hang in which two steps were done": (
        hung(0, waited_s=0.24, limit_s=0.2),
        RECORDS,
        INVALID,
        "attempt 0 hung: nothing moved in its last 0.240 s, in which rank 0 logged 2 steps",
    ),
    "a hang that no time was allowed for": (
        hung(0, waited_s=0.1, limit_s=0.0),
        RECORDS,
        INVALID,
        "after 0.100 s of silence, 0.000 s were allowed",
    ),
    "a hang before its time": (
        hung(0, waited_s=0.1, limit_s=0.2),
        RECORDS,
        INVALID,
        "after 0.100 s of silence, 0.200 s were allowed",
    ),
    "a hang without a word": (
        attempt(0, outcome="hung"),
        RECORDS,
        INVALID,
        "attempt 0 hung, and nothing says how",
    ),
    "a hang of an attempt that died": (
        attempt(0, hang=HANG),
        RECORDS,
        INVALID,
        "attempt 0 died, and has a hang on record",
    ),
    "a hang because of a rank that there is not": (
        hung(0, ranks=[4]),
        RECORDS,
        INVALID,
        "attempt 0 of 2 ranks hung because of ranks [4]",
    ),
    "a straggler that there is not": (
        straggler(rank=7),
        RECORDS,
        INVALID,
        "attempt 1 has a straggler that cannot be: rank 7 in step 12",
    ),
    "a straggler ahead of the others": (
        straggler(own_s=0.001),
        RECORDS,
        INVALID,
        "a straggler that cannot be: rank 1 in step 12, 0.001 s to",
    ),
    "a straggler in a step never done": (
        straggler(global_step=23),
        RECORDS,
        INVALID,
        "a straggler that cannot be: rank 1 in step 23",
    ),
    "a snapshot forgone without any": (
        forgone(),
        RECORDS,
        INVALID,
        "attempt 2 refused a snapshot of step 19 of attempt 1, its configuration takes",
    ),
    "another reason": (
        record(reason="stopped by SIGTERM"),
        RECORDS,
        INVALID,
        "the run is completed, and the reason on record is another one",
    ),
    "a run that goes on, and has ended": (
        record(terminal_status="running"),
        RECORDS,
        INVALID,
        "the run is running, and its last session has ended",
    ),
    "a run that has ended, and goes on": (
        session(ended_at=None),
        RECORDS,
        INVALID,
        "the run is completed, and its last session has no end",
    ),
    "given up at the target": (
        record(terminal_status="gave_up"),
        RECORDS,
        INVALID,
        "the last attempt completed, and the run gave_up",
    ),
    "sessions in another order": (
        lambda run: edit_json(
            run.supervisor,
            lambda document: (
                document
                | {
                    "attempts": [
                        document["attempts"][0] | {"session": 1},
                        *document["attempts"][1:],
                    ]
                }
            ),
        ),
        RECORDS,
        INVALID,
        "attempt 1 is of session 0, attempt 0 of session 1",
    ),
    "a phase made shorter": (
        phase("launch", 0.01),
        RECORDS,
        INVALID,
        "attempt 1 took 0.010000 s for launch by supervisor.json, 0.300000 s by the",
    ),
    "a phase invented": (
        phase("tea", 4.0),
        RECORDS,
        INVALID,
        "attempt 1 took 4.000000 s for tea by supervisor.json, 0.000000 s by the records",
    ),
    "no inputs hashed": (
        every_line(lambda line: line | {"inputs_hash": None}),
        INPUT,
        UNKNOWN,
        "58 lines have no hash of the inputs",
    ),
    "inputs hashed by another digest": (
        lines(1, 0, at_step(8, inputs_hash="sha256:" + "0" * 64)),
        INPUT,
        INVALID,
        "step 8 rank 0 of attempt 1: its inputs are not hashed by blake3, as config.json says",
    ),
    "inputs hashed by a digest that does not exist": (
        lines(1, 0, at_step(8, inputs_hash="crc:" + "0" * 64)),
        INPUT,
        INVALID,
        "' is no hash of inputs",
    ),
    "inputs hashed as by earlier versions": (
        lines(1, 0, at_step(8, inputs_hash="0" * 64)),
        INPUT,
        UNKNOWN,
        "step 8 rank 0: the inputs of attempt 1 are hashed by 'sha256', those of attempt 0 by 'blake3'",
    ),
    "composed with another learning rate": (
        composed(optimizer__lr=0.2),
        RECORDS,
        INVALID,
        "optimizer.lr is '0.1' in config.json, '0.2' in .hydra",
    ),
    "composed with a learning rate that is none": (
        composed(optimizer__lr="fast"),
        RECORDS,
        INVALID,
        "optimizer.lr is '0.1' in config.json, 'fast' in .hydra",
    ),
    "composed with another model": (
        composed(model__name="vit"),
        RECORDS,
        INVALID,
        "in config.json, 'vit' in .hydra/config.yaml",
    ),
    "composed with another precision": (
        composed(precision="bf16"),
        RECORDS,
        INVALID,
        "precision is 'fp32' in config.json, 'bf16' in .hydra",
    ),
    "composed with another target": (
        composed(target_steps=99),
        RECORDS,
        INVALID,
        "target_steps is '24' in config.json, '99' in .hydra",
    ),
    "composed as another suite": (
        composed(suite_name="exp4"),
        RECORDS,
        UNKNOWN,
        "'exp4' in .hydra/config.yaml: which of them the run was made",
    ),
    "composed at another scale": (
        composed(scale={"name": "smoke"}),
        RECORDS,
        UNKNOWN,
        "scale.name is 'paper' in config.json, 'smoke' in .hydra",
    ),
    "composed by nobody": (
        lambda run: (composed()(run), (run.hydra / "config.yaml").write_text("{")),
        RECORDS,
        UNKNOWN,
        ".hydra/config.yaml cannot be read: ",
    ),
    "another data set": (
        dataset(name="cifar10"),
        RECORDS,
        INVALID,
        "dataset.json is of 'cifar10', config.json of 'fake'",
    ),
    "no environment": (
        unlink("environment"),
        RECORDS,
        UNKNOWN,
        "environment.json is missing: what the run ran on is not known",
    ),
    "an environment that says nothing": (
        lambda run: run.environment.write_text("[]"),
        RECORDS,
        UNKNOWN,
        "environment.json is no environment",
    ),
}
# The phases are what these are about, or there is nothing to fold: metrics.json and the phases stay
# as they were.
_AS_IT_IS = {"a phase made shorter", "a phase invented"}
SPOILT_RECORD = {
    name: (spoil if name in _AS_IT_IS else folded(spoil), promise, status)
    for name, (spoil, promise, status, _) in RECORD.items()
}
