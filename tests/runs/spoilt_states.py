"""Recorded runs with the state of each rank, and the ways in which what is said of that state is
spoilt.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import worked_out
from ecrl_cli.verify.verdict import INVALID, UNKNOWN
from tests.runs.builder import RunBuilder, config_of
from tests.runs.spoil import at_step, edit_json, edit_lines, line_at

Spoil = Callable[[RunLayout], Any]
STATE, TRAJECTORY = "state-consistent", "same-trajectory"
OTHER = "0" * 64


@dataclass
class StateBuilder(RunBuilder):
    """`change`: made to train.json of `spoilt_step` before it is saved for the first time."""

    change: Callable[[dict[str, Any]], Any] = field(default=lambda document: None)
    spoilt_step: int = 24

    def spoil_train(self, step: int, document: dict[str, Any]) -> dict[str, Any]:
        spoilt: dict[str, Any] = json.loads(json.dumps(document))
        if step == self.spoilt_step:
            self.change(spoilt)
            self.spoilt_step = 0
        return spoilt


def build_states(
    folder: Path,
    name: str,
    change: Callable[[dict[str, Any]], Any] = lambda document: None,
    *,
    auto: bool = False,
) -> RunLayout:
    """`ref`: undisturbed; others: rank 1 is killed after steps 9 and 20. In fp16, so that there is
    a gradient scaler.

    With `auto` digests are due every four steps, as the times in state_digests.json have it.
    """
    config = config_of("ref") if name == "ref" else config_of("blk", "kill", (9, 20), 1)
    config = replace(config, precision="fp16", state_digests="auto" if auto else "true")
    run = StateBuilder(folder / name, config, change=change).build()
    if auto:
        step_s = line_at(run.attempt(0).rank(0), 2)["seconds"]
        run.state_digests.write_text(json.dumps(encode(worked_out(0.02 * step_s - 1e-6, step_s))))
    return run


def end(rank: int, **changes: str) -> Spoil:
    return lambda run: edit_json(
        run.attempt(2).final, lambda final: final["ranks"][rank].update(changes)
    )


def line(step: int, rank: int = 1, attempt: int = 2, **changes: Any) -> Spoil:
    return lambda run: edit_lines(run.attempt(attempt).rank(rank), at_step(step, **changes))


def logged(step: int, *ranks: int, run_attempt: int = 2, **changes: str) -> Spoil:
    """Other digests on the lines of a step."""

    def spoil(run: RunLayout) -> None:
        for rank in ranks:
            path = run.attempt(run_attempt).rank(rank)
            edit_lines(path, at_step(step, components=line_at(path, step)["components"] | changes))

    return spoil


def no_ends(run: RunLayout) -> None:
    edit_json(run.attempt(2).final, lambda final: final | {"ranks": []})


def one_end(run: RunLayout) -> None:
    edit_json(run.attempt(2).final, lambda final: final | {"ranks": final["ranks"][:1]})


def both_end_elsewhere(run: RunLayout) -> None:
    edit_json(
        run.attempt(2).final,
        lambda final: (
            final | {"ranks": [state | {"parameters": OTHER} for state in final["ranks"]]}
        ),
    )


def every_rate(factor: float) -> Spoil:
    def spoil(run: RunLayout) -> None:
        for rank in range(2):
            edit_lines(run.attempt(2).rank(rank), lambda each: each | {"lr": each["lr"] * factor})

    return spoil


# By name: what is done to the run, the promise, the status of the finding on it, and what it says.
SPOILT_STATES: dict[str, tuple[Spoil, str, str, str]] = {
    "rank 1 ends with other parameters": (
        end(1, parameters=OTHER),
        STATE,
        INVALID,
        "the end of rank 1 differs from that of rank 0 in parameters",
    ),
    "rank 1 ends with another optimizer": (
        end(1, optimizer=OTHER),
        STATE,
        INVALID,
        "the end of rank 1 differs from that of rank 0 in optimizer",
    ),
    "rank 1 ends with another schedule": (
        end(1, train=OTHER),
        STATE,
        INVALID,
        "the end of rank 1 differs from that of rank 0 in train",
    ),
    "rank 1 ends with other generators": (
        end(1, rng=OTHER),
        STATE,
        INVALID,
        "the end of rank 1 differs in rng from what it logged after step 24",
    ),
    "rank 1 ends with generators that no checkpoint has": (
        end(1, rng=OTHER),
        STATE,
        INVALID,
        "checkpoints/step_00000024 differs in rng from the end of rank 1",
    ),
    "rank 1 ends with other buffers": (
        end(1, buffers=OTHER),
        STATE,
        INVALID,
        "the end of rank 1 differs in buffers from what it logged",
    ),
    "final.json has two ends of rank 0": (
        both_end_elsewhere,
        STATE,
        INVALID,
        "final.json names two ends of rank 0, which differ in parameters",
    ),
    "the end of the ranks is not on record": (
        no_ends,
        STATE,
        UNKNOWN,
        "final.json does not say what each rank ends in",
    ),
    "the end of rank 1 is not on record": (
        one_end,
        STATE,
        INVALID,
        "final.json has the end of ranks [0], attempt 2 had 2 ranks",
    ),
    "rank 1 logs another optimizer": (
        logged(22, 1, optimizer=OTHER),
        STATE,
        INVALID,
        "step 22: ranks [0, 1] do not hold the same state (1 such",
    ),
    "rank 1 logs another schedule": (
        logged(22, 1, train=OTHER),
        STATE,
        INVALID,
        "rank 1 differs in train",
    ),
    "rank 1 logs the generators of another": (
        logged(18, 1, run_attempt=1, rng=OTHER),
        STATE,
        INVALID,
        "differs in rng from what rank 1",
    ),
    "the checkpoint holds another optimizer": (
        logged(18, 0, 1, run_attempt=1, optimizer=OTHER),
        STATE,
        INVALID,
        "checkpoints/step_00000018 differs in optimizer from what rank 0 logged after step 18",
    ),
    "a learning rate changed": (
        line(22, lr=0.5),
        STATE,
        INVALID,
        "step 22 of attempt 2 rank 1: the learning rate is 0.5",
    ),
    "all learning rates changed": (
        every_rate(1.001),
        STATE,
        INVALID,
        "step 19 of attempt 2 rank 0: the learning rate is",
    ),
    "a loss scale halved": (
        line(22, loss_scale=32768.0),
        STATE,
        INVALID,
        "step 22 of attempt 2 rank 1: loss scale 32768.0",
    ),
    "a growth tracker that begins anew": (
        line(19, growth_tracker=1),
        STATE,
        INVALID,
        "tracker 1 do not follow from 65536.0 and 18 after step 18",
    ),
    "a loss scale not logged": (
        line(22, loss_scale=None),
        STATE,
        UNKNOWN,
        "step 22 of attempt 2 rank 1: nothing is on record of the gradient scaler",
    ),
    "a learning rate not logged": (
        line(22, lr=None),
        STATE,
        UNKNOWN,
        "attempt 2 rank 1: no digest of the state after step 22",
    ),
    "a digest not logged": (
        line(22, components=None),
        STATE,
        UNKNOWN,
        "no digest of the state after step 22, where it is due (1 such)",
    ),
    "a state not hashed": (
        line(22, state_digest=None),
        STATE,
        UNKNOWN,
        "no digest of the state after step 22",
    ),
    "another state than the reference's": (
        logged(22, 1, rng=OTHER),
        TRAJECTORY,
        INVALID,
        "the first differing step is step 22, component state (rank 1: rng)",
    ),
    "another end than the reference's": (
        end(1, rng=OTHER),
        TRAJECTORY,
        INVALID,
        "the end of rank 1 differs from that of the reference's in rng",
    ),
    "a replayed schedule changed": (
        logged(8, 1, run_attempt=0, train=OTHER),
        TRAJECTORY,
        INVALID,
        "step 8 rank 1: the state in attempt 1 is not that in attempt 0 (train)",
    ),
}

# By name: what is done to train.json of the last checkpoint before it is committed, and what the
# verdict says that it has.
SPOILT_TRAIN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "ten times the learning rate": (
        lambda d: d["optimizer"]["param_groups"][0].update(lr=1.0),
        "learning rate 1.0, not 1e-06",
    ),
    "no momentum": (
        lambda d: d["optimizer"]["param_groups"][0].update(momentum=0.0),
        "momentum 0.0, not 0.9",
    ),
    "no weight decay": (
        lambda d: d["optimizer"]["param_groups"][0].update(weight_decay=0.0),
        "weight_decay 0.0, not 0.0005",
    ),
    "another first learning rate": (
        lambda d: d["optimizer"]["param_groups"][0].update(initial_lr=0.2),
        "initial_lr 0.2, not 0.1",
    ),
    "no group": (
        lambda d: d["optimizer"].update(param_groups=[]),
        "differs in train from what rank 0 logged after step 24",
    ),
    "an earlier place on the schedule": (
        lambda d: d["scheduler"].update(last_epoch=20),
        "last_epoch 20, not 24",
    ),
    "a longer schedule": (lambda d: d["scheduler"].update(T_max=48), "T_max 48, not 24"),
    "a schedule that ends elsewhere": (
        lambda d: d["scheduler"].update(eta_min=0.01),
        "eta_min 0.01, not 1e-06",
    ),
    "another rate in the schedule": (
        lambda d: d["scheduler"].update(_last_lr=[0.1]),
        "learning rate 0.1 in its schedule",
    ),
    "the cursor at 0": (lambda d: d["sampler"].update(cursor_step=0), "cursor_step 0, not 4"),
    "an earlier epoch": (lambda d: d["sampler"].update(epoch=1), "epoch 1, not 2"),
    "another seed": (lambda d: d["sampler"].update(seed=8), "seed 8, not 7"),
    "no scaler": (
        lambda d: d.update(scaler={}),
        "differs in train from what rank 0 logged after step 24",
    ),
}


def interval(**changes: Any) -> Spoil:
    return lambda run: edit_json(run.state_digests, lambda found: found | changes)


# As SPOILT_STATES, of a run whose digests are due every four steps and after checkpoints.
SPOILT_AUTO: dict[str, tuple[Spoil, str, str]] = {
    "a digest that is due not logged": (
        line(20, attempt=1, components=None),
        UNKNOWN,
        "no digest of the state after step 20, where it is due",
    ),
    "the digest of a checkpoint's step not logged": (
        line(18, attempt=1, components=None),
        UNKNOWN,
        "after step 18",
    ),
    "the digest of an attempt's first step not logged": (
        line(7, attempt=1, components=None),
        UNKNOWN,
        "after step 7",
    ),
    "the last digest not logged": (line(24, components=None), UNKNOWN, "after step 24"),
    "digests too seldom for their cost": (
        interval(every=1024),
        INVALID,
        "logged every 1024 steps, its times make that 4",
    ),
    "a step that nobody took": (
        interval(step_s=0.5, digest_s=0.01),
        INVALID,
        "state_digests.json rests on a step of rank 0 that no line tells of",
    ),
    "a digest that took longer than until the next step": (
        interval(every=1024, digest_s=1.0),
        INVALID,
        "state_digests.json has a digest that took 1.000000 s, rank 0 of attempt 0 began its next",
    ),
}


def without_undue_digests(run: RunLayout) -> None:
    """What honest ranks leave out."""
    for attempt, steps in (
        (0, (2, 3, 5, 7, 9)),
        (1, (9, 10, 11, 13, 14, 15, 17, 19)),
        (2, (21, 22, 23)),
    ):
        for rank in range(2):
            path = run.attempt(attempt).rank(rank)
            nothing = {"components": None, "state_digest": None}
            edit_lines(
                path,
                lambda each, steps=steps, nothing=nothing: (
                    each | nothing if each["global_step"] in steps else each
                ),
            )  # type: ignore[misc]
