"""The referee watches runs that change their number of ranks as closely as others, and claims no
more for them than plain DDP promises.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.data.order import epoch_order, ids_hash, window
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, Finding, Verdict, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import SAMPLES, build_elastic, build_ref, build_unstruck
from tests.runs.sentence import told
from tests.runs.spoil import at_step, edit_json, edit_lines, line_at
from tests.runs.spoilt import ACCOUNT, FAILURES, INPUT, ONCE, RECORDS, TRAJECTORY, Spoil, attempts


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A constant reference, the schedule undisturbed, the schedule under two kills."""
    folder = tmp_path_factory.mktemp("sweep")
    for build in (build_ref, build_unstruck, build_elastic):
        build(folder)
    return folder


@pytest.fixture
def run(sweep: Path) -> RunLayout:
    return RunLayout(sweep / "elastic")


def said(verdict: Verdict) -> list[str]:
    return [text for finding in verdict.findings for text in (finding.message, *finding.evidence)]


def assert_caught(run: RunLayout, spoil: Spoil, promise: str, words: str, status: str) -> None:
    """What `spoil` does to the run gives the promise that status, and a finding says `words`."""
    spoil(run)
    verdict = verify_run(run.root)
    assert found(verdict, promise).status == status, render(verdict)
    assert any(words in text for text in said(verdict)), render(verdict)


def trajectory(folder: Path) -> Finding:
    return found(verify_run(folder), TRAJECTORY)


def test_a_run_that_changed_its_size_is_valid_and_equal_to_one_with_the_same_sizes(
    sweep: Path,
) -> None:
    verdict = verify_run(sweep / "elastic")
    assert verdict.status == VALID, render(verdict)
    assert verdict.reference == "unstruck"
    assert (
        "equal to unstruck in every loss of 24 steps and in the final state"
        in found(verdict, TRAJECTORY).message
    )
    assert "duplicates 0, missing 0, extra 0" in found(verdict, ONCE).message
    assert "3 checkpoints vouch" in found(verdict, RECORDS).message


def test_against_a_constant_size_the_claim_ends_at_the_change_and_the_distance_is_told(
    sweep: Path,
) -> None:
    shutil.rmtree(sweep / "unstruck")
    verdict = verify_run(sweep / "elastic")
    finding = found(verdict, TRAJECTORY)
    assert verdict.status == finding.status == UNKNOWN and verdict.reference == "ref", render(
        verdict
    )
    unproven = (
        "not proven after step 10: attempt 2 died, attempt 3 went on after step 12, and ref has as"
        " many ranks up to that step only"
    )
    assert unproven in finding.message
    told = "\n".join(finding.evidence)
    assert (
        "absolute difference of the mean loss over 24 steps: max 0." in told
        and "max 0," not in told
    )
    assert (
        "world size 1 from step 11 on, 2 in the reference" in told
        and "BatchNorm" in told
        and "another order (shards of 8 samples" in told
    )
    assert "of the final state differ: parameters" in told
    assert (
        "10 windows look the same cut for another number of ranks" in found(verdict, INPUT).message
    )


def test_a_bug_in_a_recovery_behind_the_change_is_not_called_valid_beside_a_constant_size(
    sweep: Path,
) -> None:
    shutil.rmtree(sweep / "unstruck")
    assert trajectory(build_elastic(sweep, "buggy", bug_from=13).root).status == UNKNOWN


def test_a_line_forged_before_the_size_changed_is_no_missing_line(run: RunLayout) -> None:
    """After step 10 there is no rank 1: no line of it is due there."""
    edit_lines(run.attempt(0).rank(1), at_step(3, seconds=0.5))
    finding = found(verify_run(run.root), RECORDS)
    assert finding.status == INVALID
    assert any(
        "the lines of rank 1 up to step" in text and "are not those that" in text
        for text in (finding.message, *finding.evidence)
    ), finding


def test_undisturbed_behind_the_change_nothing_is_left_to_prove(sweep: Path) -> None:
    finding = trajectory(sweep / "unstruck")
    assert finding.status == VALID
    assert (
        "equal to ref in every loss of the 10 steps with as many ranks; not claimed after them"
        in finding.message
    )


def test_what_changes_its_size_is_no_reference_for_what_does_not(sweep: Path) -> None:
    verdict = verify_run(sweep / "ref")
    assert verdict.status == VALID and verdict.reference == "", render(verdict)
    assert verify_run(sweep / "unstruck").reference == "ref"


def test_a_run_alone_is_still_judged(run: RunLayout, tmp_path: Path) -> None:
    alone = Path(shutil.move(run.root, tmp_path / "alone"))
    assert verify_run(alone).status == UNKNOWN and {
        f.promise for f in verify_run(alone).findings if f.status == UNKNOWN
    } == {TRAJECTORY}
    # of the rank that left: its chain was carried along
    edit_lines(RunLayout(alone).attempt(1).rank(1), at_step(9, loss=0.5))
    assert verify_run(alone).status == INVALID


@pytest.mark.parametrize(("bug_from", "first"), [(9, 9), (13, 13), (22, 22)])
def test_a_recovery_that_changes_the_trajectory_is_caught_at_every_size(
    sweep: Path, bug_from: int, first: int
) -> None:
    finding = trajectory(build_elastic(sweep, "buggy", bug_from=bug_from).root)
    assert finding.status == INVALID
    assert told(finding, f"the first differing step is step {first} at the latest, component loss")


def test_before_the_change_a_constant_reference_is_enough(sweep: Path) -> None:
    shutil.rmtree(sweep / "unstruck")
    buggy = build_elastic(sweep, "buggy", bug_from=9)
    assert "the first differing step is step 9" in trajectory(buggy.root).message


def end_early(run: RunLayout) -> None:
    """The attempt that ends in the first change leaves out its last step, and says so
    consistently.
    """
    for rank in range(2):
        edit_lines(
            run.attempt(1).rank(rank), lambda line: line if line["global_step"] < 10 else None
        )
    attempts(run, lambda found: found[1].update(last_step=9))


def skip_a_step(run: RunLayout) -> None:
    """The attempt after the change begins one step too late, and says so."""
    edit_lines(run.attempt(2).rank(0), lambda line: line if line["global_step"] > 11 else None)
    attempts(run, lambda found: found[2].update(first_step=12))


def repeat_a_step(run: RunLayout) -> None:
    """The attempt after the change does the step of the change again, with its own number of ranks,
    and says so.
    """
    log, before = run.attempt(2).rank(0), line_at(run.attempt(1).rank(0), 10)
    whole = ids_hash(window(epoch_order(7, 0, SAMPLES, 8), 9, 8))
    line = (
        line_at(log, 11)
        | {key: before[key] for key in ("global_step", "epoch", "cursor_step")}
        | {"sample_ids_hash": whole}
    )
    log.write_text(json.dumps(line) + "\n" + log.read_text())
    attempts(run, lambda found: found[2].update(first_step=10))


def went_on(run: RunLayout) -> None:
    """Attempt 1 is said to have gone on with two ranks after the change."""
    attempts(run, lambda found: found[1].update(last_step=11))


def no_commit(line: dict[str, Any]) -> dict[str, Any] | None:
    return (
        line | {"event": "lost", "commit_sha256": None, "path": None}
        if (line["event"], line["global_step"]) == ("committed", 10)
        else line
    )


def size_of_attempt(number: int, size: int) -> Callable[[RunLayout], None]:
    """The attempt, its order and every line of it agree on another number of ranks."""

    def spoil(run: RunLayout) -> None:
        attempts(run, lambda found: found[number].update(world_size=size))
        edit_json(run.attempt(number).launch, lambda order: order | {"world_size": size})
        edit_lines(run.attempt(number).rank(0), lambda line: line | {"world_size": size})

    return spoil


SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "a step skipped at the change": (
        skip_a_step,
        ONCE,
        "rank 0 began with step 12, the attempt resumed after step 10",
    ),
    "a step repeated at the change": (
        repeat_a_step,
        ONCE,
        "rank 0 began with step 10, the attempt resumed after step 10",
    ),
    "a line of another world size": (
        lambda run: edit_lines(run.attempt(2).rank(0), at_step(13, world_size=2)),
        ONCE,
        "attempt 2 rank 0 holds a line of attempt 2 rank 0 of 2 (step 13)",
    ),
    "an attempt of another world size": (
        size_of_attempt(2, 2),
        RECORDS,
        "attempt 2 had 2 ranks, the configuration says 1",
    ),
    "an order of another world size": (
        lambda run: edit_json(run.attempt(2).launch, lambda order: order | {"world_size": 2}),
        RECORDS,
        "attempt 2 was ordered 2 ranks up to step 20, the configuration says 1 up to 20",
    ),
    "an attempt that went on": (
        went_on,
        RECORDS,
        "attempt 1 went on to step 11 with 2 ranks, the world size changes after step 10",
    ),
    "resized at another step": (
        end_early,
        RECORDS,
        "attempt 1 is said to have been resized after step 9",
    ),
    "a resize said to be a death": (
        lambda run: attempts(run, lambda found: found[1].update(outcome="died")),
        RECORDS,
        "3 attempts follow",
    ),
    "a death said to be a resize": (
        lambda run: attempts(run, lambda found: found[0].update(outcome="resized")),
        FAILURES,
        "entry 0 fired in attempt 0, which ended well to be resized",
    ),
    "the change was not committed": (
        lambda run: edit_lines(run.attempt(1).checkpoints, no_commit),
        ACCOUNT,
        "attempt 1 was resized after step 10, which it did not commit",
    ),
    "no checkpoint at the change": (
        lambda run: edit_lines(
            run.attempt(1).checkpoints, lambda line: None if line["global_step"] == 10 else line
        ),
        ACCOUNT,
        "step 10 of attempt 1 was due and no checkpoint was submitted",
    ),
    "a shard of the other size": (
        lambda run: edit_lines(
            run.attempt(2).rank(0),
            at_step(13, sample_ids_hash=line_at(run.attempt(4).rank(1), 22)["sample_ids_hash"]),
        ),
        ONCE,
        "logged the shard of step 22 rank 1",
    ),
    "the schedule changed": (
        lambda run: edit_json(
            run.config, lambda c: c["config"]["elastic"].update(schedule={"11": 1, "20": 2})
        ),
        RECORDS,
        "config.json does not hash to its run_id",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_resize_is_caught_by_the_promise_it_broke(run: RunLayout, name: str) -> None:
    assert_caught(run, *SPOILT[name], INVALID)


def test_inputs_that_differ_are_seen_across_world_sizes(sweep: Path, run: RunLayout) -> None:
    shutil.rmtree(sweep / "unstruck")
    edit_lines(run.attempt(2).rank(0), at_step(11, inputs_hash="blake3:" + "0" * 64))
    finding = found(verify_run(run.root), INPUT)
    assert finding.status == INVALID
    assert (
        "epoch 1 cursor 0: the inputs of 1 rank in this run are not those of 2 ranks in the"
        " reference" in finding.message
    )


def test_inputs_of_two_world_sizes_hashed_by_two_digests_cannot_be_compared(
    sweep: Path, run: RunLayout
) -> None:
    """The one line of step 11 is as an earlier version wrote it, without a digest's name."""
    shutil.rmtree(sweep / "unstruck")
    edit_lines(run.attempt(2).rank(0), at_step(11, inputs_hash="0" * 64))
    finding = found(verify_run(run.root), INPUT)
    assert finding.status == UNKNOWN
    assert (
        "epoch 1 cursor 0: the inputs of this run are hashed by 'sha256', those of the reference by"
        " 'blake3'" in finding.message
    )
