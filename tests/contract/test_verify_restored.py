"""What each rank held once it had restored is held against what was saved or handed over: no
reference is needed to see that state was lost.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.schema import ElasticConfig
from ecrl_cli.history.load import AttemptRecords, RunRecords, load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import RANK_COMPONENTS, RankState, RestoredState
from ecrl_cli.records.survivor_records import SurvivorReport
from ecrl_cli.verify.state_restored import PROMISE, state_restored
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Finding, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import build_blk, config_of, flip
from tests.runs.sentence import told
from tests.runs.spoil import edit_json
from tests.runs.spoilt import attempts
from tests.runs.spoilt_states import OTHER, StateBuilder, build_states

Spoil = Callable[[RunLayout], Any]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed twice, alone; and one that goes 2 -> 1 -> 2 and is killed in
    between.
    """
    folder = tmp_path_factory.mktemp("restored")
    build_states(folder / "alone", "blk")
    elastic = replace(
        config_of("elastic", "kill", (8, 15)),
        state_digests="true",
        elastic=ElasticConfig(schedule={10: 1, 20: 2}),
    )
    StateBuilder(folder / "resized" / "elastic", elastic).build()
    return folder


@pytest.fixture
def alone(recorded: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(
        Path(shutil.copytree(recorded / "alone" / "blk", tmp_path / "blk", symlinks=True))
    )


@pytest.fixture
def resized(recorded: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(
        Path(shutil.copytree(recorded / "resized" / "elastic", tmp_path / "elastic", symlinks=True))
    )


def restored(attempt: int, rank: int, **changes: str) -> Spoil:
    return lambda run: edit_json(
        run.attempt(attempt).restored(rank), lambda held: held["state"].update(changes)
    )


def every_rank(attempt: int, **changes: str) -> Spoil:
    def spoil(run: RunLayout) -> None:
        for rank in range(2):
            restored(attempt, rank, **changes)(run)

    return spoil


def saved(attempt: int, **changes: str) -> Spoil:
    return lambda run: attempts(run, lambda found: found[attempt]["resumed_state"].update(changes))


def lost_where_it_is_gone(run: RunLayout) -> None:
    """Momentum dropped by all ranks; the checkpoint that had it was retired long ago: only the
    supervisor's record and the lines know.
    """
    every_rank(1, optimizer=OTHER)(run)
    shutil.rmtree(run.checkpoints / "step_00000006", ignore_errors=True)


def told_of_another_checkpoint(run: RunLayout) -> None:
    """Ranks and supervisor agree, and the checkpoint that is there does not."""
    every_rank(2, optimizer=OTHER)(run)
    saved(2, optimizer=OTHER)(run)


def told_of_a_checkpoint_that_is_gone(run: RunLayout) -> None:
    """As above, of a checkpoint that was retired: the lines after its step do not."""
    every_rank(1, optimizer=OTHER)(run)
    saved(1, optimizer=OTHER)(run)
    shutil.rmtree(run.checkpoints / "step_00000006", ignore_errors=True)


def without_the_supervisors(run: RunLayout) -> None:
    attempts(run, lambda found: found[1].update(resumed_state={}))


SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "momentum lost on all ranks": (
        every_rank(2, optimizer=OTHER),
        INVALID,
        "attempt 2 rank 0 began with other optimizer than checkpoints/step_00000018 held",
    ),
    "momentum lost on one": (
        restored(2, 1, optimizer=OTHER),
        INVALID,
        "attempt 2 rank 1 began with other optimizer than checkpoints/step_00000018",
    ),
    "other parameters": (
        restored(1, 0, parameters=OTHER),
        INVALID,
        "attempt 1 rank 0 began with other parameters than checkpoints/step_00000006",
    ),
    "other buffers": (
        restored(1, 1, buffers=OTHER),
        INVALID,
        "attempt 1 rank 1 began with other buffers than",
    ),
    "other generators": (
        restored(1, 1, rng=OTHER),
        INVALID,
        "attempt 1 rank 1 began with other rng than",
    ),
    "another schedule": (
        restored(1, 1, train=OTHER),
        INVALID,
        "attempt 1 rank 1 began with other train than",
    ),
    "lost where the checkpoint is gone": (
        lost_where_it_is_gone,
        INVALID,
        "attempt 1 rank 0 began with other optimizer than",
    ),
    "of another checkpoint": (
        told_of_another_checkpoint,
        INVALID,
        "attempt 2 resumed from other optimizer by supervisor.json than",
    ),
    "of another checkpoint that is gone": (
        told_of_a_checkpoint_that_is_gone,
        INVALID,
        "attempt 1 resumed from other optimizer than rank 0 logged after step 6 of attempt 0",
    ),
    "the record of another rank": (
        lambda run: shutil.copy(run.attempt(1).restored(0), run.attempt(1).restored(1)),
        INVALID,
        "restored_rank1.json of attempt 1 is of attempt 1, step 6, rank 0",
    ),
    "the record of another attempt": (
        lambda run: shutil.copy(run.attempt(1).restored(1), run.attempt(2).restored(1)),
        INVALID,
        "restored_rank1.json of attempt 2 is of attempt 1, step 6, rank 1",
    ),
    "a record where nothing was restored": (
        lambda run: shutil.copy(run.attempt(1).restored(1), run.attempt(0).restored(1)),
        INVALID,
        "attempt 0 began with nothing, and ranks of it say what they restored",
    ),
    "no record of one rank": (
        lambda run: run.attempt(1).restored(1).unlink(),
        UNKNOWN,
        "attempt 1: ranks [1] did steps, and nothing says what",
    ),
    "no record of the supervisor": (
        without_the_supervisors,
        UNKNOWN,
        "attempt 1: supervisor.json does not say what the state resumed from holds",
    ),
}


def test_untouched_it_is_kept_by_a_lone_run(recorded: Path) -> None:
    verdict = verify_run(recorded / "alone" / "blk")
    assert found(verdict, PROMISE).status == VALID and found(verdict, PROMISE).message.startswith(
        "4 times a rank held"
    ), render(verdict)
    assert {f.promise for f in verdict.findings if f.status != VALID} <= {
        "same-trajectory",
        "records-sealed",
        "no-acknowledged-loss",
    }, render(verdict)


@pytest.mark.parametrize("name", SPOILT)
def test_a_state_lost_at_a_restore_is_named_without_a_reference(
    alone: RunLayout, name: str
) -> None:
    spoil, status, words = SPOILT[name]
    spoil(alone)
    finding = found(verify_run(alone.root), PROMISE)
    assert finding.status == status and told(finding, words), finding


def test_damage_to_the_checkpoint_since_says_nothing_of_what_was_restored(alone: RunLayout) -> None:
    flip(alone.checkpoints / "step_00000018" / "model.safetensors", -1)
    finding = found(verify_run(alone.root), PROMISE)
    assert finding.status == VALID and finding.message.startswith("4 times a rank held"), finding


def test_a_run_that_was_resized_keeps_it(recorded: Path) -> None:
    verdict = verify_run(recorded / "resized" / "elastic")
    assert found(verdict, PROMISE).status == VALID and found(verdict, PROMISE).message.startswith(
        "6 times"
    ), render(verdict)


@pytest.mark.parametrize(("attempt", "component"), [(2, "optimizer"), (4, "train"), (4, "rng")])
def test_a_state_lost_at_a_resize_is_named(
    resized: RunLayout, attempt: int, component: str
) -> None:
    """2 -> 1 at step 10, 1 -> 2 at step 20."""
    restored(attempt, 0, **{component: OTHER})(resized)
    finding = found(verify_run(resized.root), PROMISE)
    assert (
        finding.status == INVALID
        and f"attempt {attempt} rank 0 began with other {component} than" in finding.message
    ), finding


def test_a_rank_that_was_not_there_when_the_state_was_saved_has_generators_of_its_own(
    resized: RunLayout,
) -> None:
    attempts(resized, lambda found: found[4]["resumed_state"].pop("rng.rank1"))
    edit_json(resized.attempt(4).restored(1), lambda held: held["state"].update(rng=OTHER))
    shutil.rmtree(resized.checkpoints / "step_00000020")
    finding = found(verify_run(resized.root), PROMISE)
    assert finding.status == VALID, finding


def test_a_run_of_an_earlier_version_is_not_checked(tmp_path: Path) -> None:
    assert found(verify_run(build_blk(tmp_path).root), PROMISE).status == NOT_CHECKED


# Attempts that go on with memory: attempt 1 of the run above, told as one that went on from a
# snapshot, or with ranks that outlived others.


def attempt_1(records: RunRecords, **changes: Any) -> RunRecords:
    assert records.supervisor is not None
    made = tuple(
        replace(a, **changes) if a.attempt == 1 else a for a in records.supervisor.attempts
    )
    return replace(records, supervisor=replace(records.supervisor, attempts=made))


def logs_of(
    records: RunRecords, attempt: int, change: Callable[[AttemptRecords], AttemptRecords]
) -> RunRecords:
    return replace(
        records,
        attempt_logs=tuple(change(a) if a.attempt == attempt else a for a in records.attempt_logs),
    )


def held_by(records: RunRecords, rank: int, **changes: str) -> RunRecords:
    """With another state that `rank` of attempt 1 held."""

    def change(logs: AttemptRecords) -> AttemptRecords:
        held = logs.restored[rank]
        whole = changes.get("state_digest", held.state_digest)
        state = replace(
            held.state,
            **{name: value for name, value in changes.items() if name in RANK_COMPONENTS},
        )
        return replace(
            logs, restored=logs.restored | {rank: replace(held, state=state, state_digest=whole)}
        )

    return logs_of(records, 1, change)


def verdict_on(records: RunRecords) -> Finding:
    return state_restored(Case(records))


@pytest.fixture(scope="module")
def snapshot(recorded: Path) -> RunRecords:
    records = load(RunLayout(recorded / "alone" / "blk"))
    state = records.logs(1).restored[0].state_digest
    return attempt_1(
        records,
        resumed_from=None,
        continues=0,
        memory="snapshot",
        snapshot_sha256="a" * 64,
        snapshot_state=state,
    )


@pytest.fixture(scope="module")
def survivors(recorded: Path) -> RunRecords:
    """Rank 0 outlived rank 1, and a newcomer takes the place of the dead."""
    records = load(RunLayout(recorded / "alone" / "blk"))
    told = SurvivorReport(6, 0, 0, (0,), (), (), records.logs(1).restored[0].state_digest, 1.0, 2.0)
    records = logs_of(
        records,
        0,
        lambda logs: replace(
            logs, survivor_reports={0: replace(logs.spans, events=(told,), raw=(b"",))}
        ),
    )  # type: ignore[arg-type]
    gone_on: dict[str, Any] = {
        "resumed_from": None,
        "resumed_state": {},
        "continues": 0,
        "memory": "survivors",
    }
    return attempt_1(records, **gone_on, origins=(0, 1), joined=(1,))


def test_what_goes_on_from_memory_keeps_it(snapshot: RunRecords, survivors: RunRecords) -> None:
    assert verdict_on(snapshot).status == VALID and verdict_on(survivors).status == VALID
    assert verdict_on(survivors).message.startswith("4 times")


@pytest.mark.parametrize(
    ("rank", "changes", "words"),
    [
        (
            1,
            {"optimizer": OTHER},
            "attempt 1 rank 1 began with other optimizer than the snapshot of attempt 0 held",
        ),
        (
            0,
            {"rng": OTHER},
            "attempt 1 rank 0 began with other rng than the snapshot of attempt 0 held",
        ),
        (
            0,
            {"state_digest": OTHER},
            "attempt 1 rank 0 began with another state than the snapshot of attempt 0 held",
        ),
    ],
)
def test_a_state_lost_from_a_snapshot_is_named(
    snapshot: RunRecords, rank: int, changes: dict[str, str], words: str
) -> None:
    finding = verdict_on(held_by(snapshot, rank, **changes))
    assert finding.status == INVALID and words in (
        text := "\n".join((finding.message, *finding.evidence))
    ), text


@pytest.mark.parametrize(
    ("rank", "changes", "words"),
    [
        (
            1,
            {"optimizer": OTHER},
            (
                "attempt 1 rank 1 began with other optimizer than the ranks that outlived attempt 0"
                " held"
            ),
        ),
        (
            1,
            {"train": OTHER},
            "attempt 1 rank 1 began with other train than the ranks that outlived attempt 0 held",
        ),
        (
            1,
            {"rng": OTHER},
            "attempt 1 rank 1 began with other rng than the ranks that outlived attempt 0 held",
        ),
        (
            0,
            {"state_digest": OTHER},
            "attempt 1 rank 0 began with another state than it left attempt 0 with",
        ),
        (0, {"rng": OTHER}, "attempt 1 rank 0 began with other rng than"),
    ],
)
def test_what_a_newcomer_or_a_survivor_loses_is_named(
    survivors: RunRecords, rank: int, changes: dict[str, str], words: str
) -> None:
    finding = verdict_on(held_by(survivors, rank, **changes))
    assert finding.status == INVALID and words in (
        text := "\n".join((finding.message, *finding.evidence))
    ), text


def test_the_record_says_what_it_is(recorded: Path) -> None:
    held = load(RunLayout(recorded / "alone" / "blk")).logs(1).restored[1]
    assert (
        isinstance(held, RestoredState)
        and isinstance(held.state, RankState)
        and (held.attempt, held.global_step, held.state.rank) == (1, 6, 1)
    )
    assert (
        json.loads(
            (recorded / "alone" / "blk" / "logs" / "attempt-01" / "launch.json").read_text()
        )["restored_digests"]
        is True
    )
