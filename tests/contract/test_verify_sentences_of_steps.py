"""As test_verify_sentences, of steps and final records; and what disturbs a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import Hang, InjectedFault, Rejected, SkippedSnapshot
from ecrl_cli.records.state_digests import Unloadable
from ecrl_cli.verify.checkpoints import no_bad_checkpoint
from ecrl_cli.verify.consistency import records_consistent, target_reached
from ecrl_cli.verify.disturbance import disturbance, uninterrupted
from ecrl_cli.verify.exactly_once import exactly_once
from tests.runs.builder import WALL
from tests.runs.changed import (
    Records,
    attempts,
    event,
    fired,
    left,
    logged,
    ordered,
    rank_line,
    reported,
    supervised,
)
from tests.runs.sentence import Judged, Row


def refuses(layer: str, reason: str) -> Records:
    """Attempt 2 refused the checkpoint of step 18."""
    return lambda found: attempts(
        found, 2, rejected=(Rejected("checkpoints/step_00000018", layer, reason),)
    )


NEVER_SAID = (
    "attempt 2 refused checkpoints/step_00000018, which no rank is on record to have failed to load"
)


def unloadable(
    number: int = 1, path: str = "checkpoints/step_00000018", reason: str = "cut"
) -> Records:
    """Attempt 2 refused the checkpoint of step 18 because a rank could not load it; what rank 1 of
    attempt `number` says of it.
    """

    def change(found: RunRecords) -> RunRecords:
        return left(
            refuses("loader", "cut")(found),
            number,
            unloadable={1: Unloadable(number, 1, path, "0" * 64, reason)},
        )

    return change


def ended(**changes: object) -> Records:
    """With another final record."""

    def change(found: RunRecords) -> RunRecords:
        assert found.final is not None
        return left(found, 2, final=replace(found.final, **changes))  # type: ignore[arg-type]

    return change


NUMBERS: dict[str, tuple[Callable[[float], Records], str]] = {
    "the end of an attempt": (
        lambda value: lambda found: attempts(found, 1, ended_at=value),
        "supervisor.json: ended_at is",
    ),
    "a fault": (lambda value: lambda found: fired(found, 1, at=value), "fired/001.json: at is"),
    "a checkpoint": (
        lambda value: lambda found: event(found, 1, "committed", 12, write_s=value),
        "logs/attempt-01/checkpoint_rank0.jsonl: write_s is",
    ),
    "an order": (
        lambda value: lambda found: ordered(found, 1, at=value),
        "logs/attempt-01/launch.json: at is",
    ),
    "a final record": (lambda value: ended(at=value), "logs/attempt-02/final.json: at is"),
}


ROWS: dict[str, Row] = {
    **{
        f"{name} at {value}": Row(
            records_consistent, "blk", change(value), f"{words} {value}", None, right=(change(0.0),)
        )
        for name, (change, words) in NUMBERS.items()
        for value in (-1e-9, math.inf, math.nan)
    },
    "a loss beyond all numbers": Row(
        records_consistent,
        "blk",
        ended(loss=math.inf),
        "logs/attempt-02/final.json: loss is inf",
        None,
        right=(ended(loss=math.nan), ended(loss=-1.0)),
    ),
    "a survivor at no time": Row(
        records_consistent,
        "lossy",
        lambda found: reported(found, 0, 1, time=math.nan),
        "logs/attempt-00/recovery_rank1.jsonl: time is nan",
        None,
    ),
    "a checkpoint that nobody failed to load": Row(
        no_bad_checkpoint,
        "blk",
        refuses("loader", "cut"),
        NEVER_SAID,
        right=(unloadable(), unloadable(0), refuses("hash", "cut")),
    ),
    **{
        f"a checkpoint that could not be loaded, {name}": Row(
            no_bad_checkpoint, "blk", wrong, NEVER_SAID
        )
        for name, wrong in {
            "for another reason": unloadable(reason="torn"),
            "another one": unloadable(path="checkpoints/step_00000012"),
            "by the attempt itself": unloadable(2),
        }.items()
    },
    **{
        f"step {step} of 24": Row(
            exactly_once,
            "blk",
            lambda found, step=step: rank_line(found, 2, 1, 24, global_step=step),
            f"step {step} rank 1 (attempt 2) does not exist: the run has steps 1 to 24",
        )
        for step in (0, 25)
    },
    **{
        words: Row(
            records_consistent,
            "blk",
            refuses(layer, reason),
            f"supervisor.json: {words}",
            right=tuple(
                refuses(right, "cut")
                for right in (
                    "file",
                    "commit",
                    "manifest",
                    "parts",
                    "hash",
                    "schema",
                    "tensors",
                    "finite",
                    "loader",
                )
            ),
        )
        for layer, reason, words in (
            ("tea", "cut", "'tea' is not a layer of the integrity check"),
            ("hash", "", "attempt 2 refused 'checkpoints/step_00000018' for no reason"),
        )
    },
    "another cursor": Row(
        exactly_once,
        "blk",
        lambda found: rank_line(found, 2, 1, 24, cursor_step=4),
        "step 24 rank 1 (attempt 2) is at epoch 2 cursor 4, the step is epoch 2 cursor 3",
    ),
    "another epoch": Row(
        exactly_once,
        "blk",
        lambda found: rank_line(found, 2, 1, 24, epoch=1),
        "step 24 rank 1 (attempt 2) is at epoch 1 cursor 3",
    ),
    "another count of samples": Row(
        exactly_once,
        "blk",
        lambda found: rank_line(found, 2, 1, 24, sample_ids_count=5),
        "step 24 rank 1 (attempt 2) consumed 5 samples",
    ),
    "losses of replicas": Row(
        exactly_once,
        "blk",
        lambda found: rank_line(found, 2, 1, 24, loss=(1.0,)),
        "step 24 rank 1 (attempt 2) logged the losses of replicas",
    ),
    "a first step too late": Row(
        exactly_once,
        "blk",
        lambda found: logged(
            found, lambda line: None if (line.global_step, line.rank) == (7, 1) else line, 1
        ),
        "attempt 1 rank 1 began with step 8, the attempt resumed after step 6",
    ),
    "a step that nobody could have seen": Row(
        records_consistent,
        "blk",
        lambda found: ordered(found, 2, max_step_seen=21),
        "attempt 2 was ordered as if step 21 had been done, the attempts before it came to step 20",
        right=(lambda found: ordered(found, 2, max_step_seen=20),),
    ),
    "a step that was overlooked": Row(
        records_consistent,
        "blk",
        lambda found: ordered(found, 2, max_step_seen=19),
        "attempt 2 was ordered as if no step after 19 had been done, supervisor.json says step 20",
    ),
    "an order of another attempt": Row(
        records_consistent,
        "blk",
        lambda found: ordered(found, 1, attempt=2),
        "launch.json of attempt 1 is of attempt 2",
    ),
    "an order to resume elsewhere": Row(
        records_consistent,
        "blk",
        lambda found: ordered(found, 2, resume_step=12),
        "attempt 2 was told to resume after step 12, supervisor.json says step 18",
    ),
    "a first step that was another": Row(
        records_consistent,
        "blk",
        lambda found: attempts(found, 1, first_step=8),
        "attempt 1 did steps 8 to 20 by supervisor.json, 7 to 20",
    ),
    "a last step too early": Row(
        records_consistent,
        "blk",
        lambda found: attempts(found, 1, last_step=19),
        "attempt 1 did steps 7 to 19 by supervisor.json, 7 to 20",
    ),
    "a last step that is not on record": Row(
        records_consistent,
        "blk",
        lambda found: attempts(found, 1, last_step=21),
        "attempt 1 reached step 21, its log",
        None,
    ),
    "an order of another size": Row(
        records_consistent,
        "blk",
        lambda found: ordered(found, 1, world_size=1),
        "attempt 1 was ordered 1 rank up to step None, the configuration says 2 up to None",
    ),
    "a final accuracy": Row(
        records_consistent,
        "blk",
        lambda found: left(found, 2, final=replace(found.final, accuracy=0.5)),  # type: ignore[type-var]
        "final.json has an accuracy of 0.5, no evaluation of that step is on record",
    ),
    "another final step": Row(
        target_reached,
        "blk",
        lambda found: left(found, 2, final=replace(found.final, global_step=23)),  # type: ignore[type-var]
        "final.json is of step 23, the target is step 24",
    ),
    **{
        f"a final digest of other {name}": Row(
            target_reached,
            "blk",
            lambda found, name=name: left(
                found, 2, final=replace(found.final, **{f"{name}_digest": "0" * 64})
            ),  # type: ignore[type-var]
            f"the {name} of checkpoints/step_00000024 are not those of final.json",
        )
        for name in ("parameters", "buffers", "optimizer", "rng")
    },
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_is_told_and_what_is_right_is_not(judged: Judged, name: str) -> None:
    judged.hold(ROWS[name])


FAULT = InjectedFault(0, "slow_rank", 1, 5, 2, 1001.0, 1001.0 + WALL)
# By name: what is changed of an undisturbed run, what disturbed it by then, and whether it can
# still be a reference.
DISTURBED: dict[str, tuple[Records, str, bool]] = {
    "nothing": (lambda found: found, "", True),
    "an attempt that died": (
        lambda found: attempts(found, 0, outcome="died"),
        "attempt 0 died",
        False,
    ),
    "an attempt that was stopped": (
        lambda found: attempts(found, 0, outcome="stopped"),
        "attempt 0 stopped",
        False,
    ),
    "an attempt that still runs": (
        lambda found: attempts(found, 0, outcome="running", exit_code=None),
        "",
        True,
    ),
    "an exit code": (
        lambda found: attempts(found, 0, exit_code=1),
        "attempt 0 completed with exit code 1, signal None",
        False,
    ),
    "a signal": (
        lambda found: attempts(found, 0, exit_code=None, signal=9),
        "attempt 0 completed with exit code None, signal 9",
        False,
    ),
    "a hang": (
        lambda found: attempts(found, 0, hang=Hang((), "training", 9, 2.0, 1.0, "it")),
        "attempt 0 hung",
        False,
    ),
    "a refusal": (
        lambda found: attempts(
            found, 0, rejected=(Rejected("checkpoints/step_00000006", "hash", "x"),)
        ),
        "attempt 0 refused a checkpoint or a snapshot",
        False,
    ),
    "a snapshot refused": (
        lambda found: attempts(found, 0, forgone=(SkippedSnapshot(6, 0, "torn"),)),
        "attempt 0 refused a checkpoint or a snapshot",
        False,
    ),
    "another attempt's state": (
        lambda found: attempts(found, 0, continues=0),
        "attempt 0 went on from memory",
        False,
    ),
    "a memory": (
        lambda found: attempts(found, 0, memory="snapshot"),
        "attempt 0 went on from memory",
        False,
    ),
    "a fault": (
        lambda found: replace(found, fired=(FAULT,)),
        "1 failure fired, the first in attempt 2",
        False,
    ),
    "a log of no attempt": (
        lambda found: replace(
            found, attempt_logs=(*found.attempt_logs, replace(found.logs(0), attempt=1))
        ),
        "attempt 1 left logs and is not in supervisor.json",
        True,
    ),
    "a first attempt that nothing began": (
        lambda found: supervised(
            found,
            attempts=(
                replace(found.attempts[0], resumed_from_step=6),
                replace(found.attempts[0], attempt=1),
            ),
        ),
        "attempt 0 began after step 6",
        True,
    ),
    "no attempt": (lambda found: supervised(found, attempts=()), "no attempt is on record", False),
    "a log that skips a step": (
        lambda found: logged(
            found, lambda line: None if (line.global_step, line.rank) == (5, 1) else line
        ),
        "the log of rank 1 in attempt 0 does not go from step to step",
        False,
    ),
    "a log that begins late": (
        lambda found: logged(
            found, lambda line: None if (line.global_step, line.rank) == (1, 1) else line
        ),
        "the log of rank 1 in attempt 0 does not go from step to step",
        False,
    ),
}


@pytest.mark.parametrize("name", DISTURBED)
def test_what_disturbed_a_run_is_named(judged: Judged, name: str) -> None:
    change, words, usable = DISTURBED[name]
    found = change(judged.runs["ref"])
    assert disturbance(found) == words and uninterrupted(found) == usable
