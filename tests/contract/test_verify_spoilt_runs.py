"""A good recorded run is spoilt in one way at a time, and the verdict names the promise that it
broke.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ecrl_cli.errors import EvidenceMissing, RecordError, RunDirectoryError
from ecrl_cli.records.events import FOUND, GONE
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.reference import References
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Finding, Verdict, render
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import build_blk, build_clean, build_ref, build_refused
from tests.runs.said import SAID
from tests.runs.spoil import append, at_step, edit_json, edit_lines, line_at
from tests.runs.spoilt import (
    ALONE,
    ALSO_BROKEN,
    ONCE,
    SPOILT,
    TIME,
    TRAJECTORY,
    WORDS,
    Spoil,
    attempts,
    never_committed,
    two_states,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four good runs of one sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    for build in (build_ref, build_clean, build_blk, build_refused):
        build(folder)
    return folder


@pytest.fixture(scope="module")
def verdict_on(
    recorded: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Verdict]:
    """The verdict on the struck run spoilt in the way of that name: each is judged once, beside
    good runs that stay and are judged once too.
    """
    sweep = tmp_path_factory.mktemp("spoilt") / "sweep"
    shutil.copytree(recorded, sweep, symlinks=True)
    beside, known = ("ref", "clean", "refused"), References()
    untouched = stamps(sweep, beside)

    @cache
    def verdict(name: str) -> Verdict:
        for left in (path for path in sweep.iterdir() if path.name not in beside):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        shutil.copytree(recorded / "blk", sweep / "blk", symlinks=True)
        SPOILT[name][0](RunLayout(sweep / "blk"))
        made = verify_run(sweep / "blk", known=known)
        assert stamps(sweep, beside) == untouched, (
            "a run that every verdict here relies on was spoilt"
        )
        return made

    return verdict


def stamps(sweep: Path, runs: tuple[str, ...]) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change of every file."""
    return {
        path: (path.lstat().st_size, path.lstat().st_mtime_ns)
        for name in runs
        for path in (sweep / name).rglob("*")
    }


def found(verdict: Verdict, promise: str) -> Finding:
    return next(finding for finding in verdict.findings if finding.promise == promise)


@pytest.mark.parametrize("name", ["ref", "clean", "blk", "refused"])
@pytest.mark.parametrize("alone", [False, True])
def test_an_untouched_run_is_valid(sweep: Path, name: str, alone: bool) -> None:
    run = sweep / name
    if alone:
        run = Path(shutil.move(run, sweep.parent / "moved"))
    verdict = verify_run(run)
    struck = name in ("blk", "refused")
    assert verdict.status == (UNKNOWN if alone and struck else VALID), render(verdict)
    assert verdict.reference == ("" if alone else "clean" if name == "ref" else "ref")
    assert found(verdict, TRAJECTORY).status == (
        VALID if not alone else UNKNOWN if struck else NOT_CHECKED
    )
    assert {f.status for f in verdict.findings if f.promise != TRAJECTORY} <= {VALID, NOT_CHECKED}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_run_is_caught_by_the_promise_it_broke(
    verdict_on: Callable[[str], Verdict], name: str
) -> None:
    _, promise, status = SPOILT[name]
    verdict = verdict_on(name)
    finding = found(verdict, promise)
    assert finding.status == status, render(verdict)
    assert verdict.status == (INVALID if name in ALSO_BROKEN else status), render(verdict)
    opening = "Broke promise: " if status == INVALID else ""
    assert finding.message.startswith(f"{opening}{promise} - "), render(verdict)
    assert finding.message in render(verdict)
    assert render(verdict).splitlines()[1].lstrip().startswith(verdict.status), (
        "what decided comes first"
    )
    assert any(WORDS.get(name, "") in text for text in (finding.message, *finding.evidence)), (
        render(verdict)
    )


# those look at no reference
@pytest.mark.parametrize("name", [name for name in SPOILT if name not in WORDS])
def test_it_is_caught_without_a_reference_too(recorded: Path, tmp_path: Path, name: str) -> None:
    """Some other promise may have to catch it: the chain of lines, the end state in the last
    checkpoint.
    """
    spoil, promise, status = SPOILT[name]
    copied = Path(shutil.copytree(recorded / "blk", tmp_path / "sweep" / "blk", symlinks=True))
    (tmp_path / "sweep" / "ref").symlink_to(recorded / "ref")  # some take a part of another run
    spoil(RunLayout(copied))
    verdict = verify_run(Path(shutil.move(copied, tmp_path / "alone")))
    assert found(verdict, promise).status == ALONE.get(name, status), render(verdict)
    assert verdict.status == (INVALID if name in ALSO_BROKEN else status), render(verdict)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: attempts(run, lambda a: a[2].update(rejected=[])),
        never_committed,
        lambda run: shutil.rmtree(run.checkpoints / "step_00000018"),
    ],
    ids=[
        "a skipped checkpoint on no record",
        "a skipped checkpoint never committed",
        "what replaced it is gone",
    ],
)
def test_a_refused_checkpoint_leaves_a_trace(sweep: Path, spoil: Spoil) -> None:
    spoil(RunLayout(sweep / "refused"))
    assert verify_run(sweep / "refused").status == INVALID


def test_another_checkpoint_of_the_same_run_is_told_apart(sweep: Path, tmp_path: Path) -> None:
    """Whole, of the right run and step, and still not what was committed here."""
    other = build_blk(tmp_path, bug_from=12)
    for step in (18, 24):
        name = f"step_{step:08d}"
        shutil.rmtree(sweep / "blk" / "checkpoints" / name)
        shutil.copytree(other.checkpoints / name, sweep / "blk" / "checkpoints" / name)
    said = "\n".join(
        text for f in verify_run(sweep / "blk").findings for text in (f.message, *f.evidence)
    )
    assert "checkpoints/step_00000018 is not the checkpoint that attempt 2 resumed from" in said
    assert (
        "step 18 was committed as" in said
        and "checkpoints/step_00000024 is committed on disk and no line acknowledges it" in said
    )
    assert "checkpoints/step_00000024 follows the commit" in said


def test_missing_evidence_is_unknown_and_never_valid(sweep: Path) -> None:
    layout = RunLayout(sweep / "blk")
    layout.attempt(2).final.unlink()
    layout.metrics.unlink()
    verdict = verify_run(sweep / "blk")
    assert verdict.status == UNKNOWN, render(verdict)
    assert found(verdict, TRAJECTORY).status == UNKNOWN


def test_time_that_nobody_recorded_is_unknown(sweep: Path) -> None:
    RunLayout(sweep / "blk").attempt(1).spans(0).unlink()
    assert found(verify_run(sweep / "blk"), TIME).status == UNKNOWN


@pytest.mark.parametrize("rank", [0, 1])
def test_a_line_torn_by_the_fault_is_no_broken_promise(sweep: Path, rank: int) -> None:
    with RunLayout(sweep / "blk").attempt(0).rank(rank).open("a") as log:
        log.write('{"global_step":10,"epo')
    assert verify_run(sweep / "blk").status == VALID


@pytest.mark.parametrize(("name", "said"), SAID)
def test_the_verdict_says_what_was_found(
    verdict_on: Callable[[str], Verdict], name: str, said: str
) -> None:
    verdict = verdict_on(name)
    told = [text for finding in verdict.findings for text in (finding.message, *finding.evidence)]
    assert any(said in text for text in told), render(verdict)


def test_a_failure_that_strikes_where_an_attempt_resumes_needs_no_line_of_it(sweep: Path) -> None:
    """Attempt 0 was stopped after step 6 and before the fault; attempt 1 resumed there and was
    struck at once.
    """
    layout = RunLayout(sweep / "blk")
    edit_json(layout.fired_entry(0), lambda fired: fired | {"attempt": 1, "global_step": 6})
    for rank in range(2):
        layout.attempt(1).rank(rank).write_text("")
    texts = [
        text
        for f in verify_run(sweep / "blk").findings
        if f.promise == "failures-once"
        for text in (f.message, *f.evidence)
    ]
    assert not any("entry 0 fired" in text and "log" in text for text in texts), texts


def test_a_failed_save_that_recovery_found_whole_has_one_end(sweep: Path) -> None:
    layout = RunLayout(sweep / "blk")
    log = layout.attempt(1).checkpoints
    late = line_at(log, 18)
    assert late["event"] == "submitted"
    committed = {"reason": FOUND, "write_s": 0.0, "hash_s": 0.0, "commit_s": 0.0}
    edit_lines(
        log,
        lambda line: (
            line | committed if line["event"] == "committed" and line["global_step"] == 18 else line
        ),
    )
    append(
        log,
        {name: late[name] for name in ("global_step", "attempt", "at", "time")}
        | {"event": "failed", "reason": "E-storage checkpoints: fsync"},
    )
    assert found(verify_run(sweep / "blk"), "checkpoints-accounted").status == VALID


@pytest.mark.parametrize(("mode", "status"), [("atomic_dirsync", INVALID), ("unsafe", NOT_CHECKED)])
def test_an_acknowledged_checkpoint_that_recovery_missed_is_a_loss(
    sweep: Path, mode: str, status: str
) -> None:
    layout = RunLayout(sweep / "refused")
    gone = {"path": "checkpoints/step_00000018", "layer": "file", "reason": GONE}
    attempts(layout, lambda found: found[2].update(rejected=[gone]))
    edit_json(layout.config, lambda c: c["config"]["write_mode"].update(name=mode))
    finding = found(verify_run(sweep / "refused"), "no-acknowledged-loss")
    assert finding.status == status, finding
    assert any("was gone when attempt 2" in text for text in (finding.message, *finding.evidence))


def test_duplicates_are_counted_from_what_was_logged(sweep: Path) -> None:
    """Rank 0 consumes step 2's shard again at step 5: four samples twice, four never."""
    layout = RunLayout(sweep / "blk")
    edit_lines(
        layout.attempt(0).rank(0),
        at_step(5, sample_ids_hash=line_at(layout.attempt(0).rank(0), 2)["sample_ids_hash"]),
    )
    finding = found(verify_run(sweep / "blk"), ONCE)
    assert "epoch 0: duplicates 4, missing 4, extra 0" in (finding.message, *finding.evidence)


@pytest.mark.parametrize(("bug_from", "first"), [(7, 7), (12, 12), (22, 22)])
def test_a_recovery_that_changes_the_trajectory_is_named_by_its_first_step(
    sweep: Path, bug_from: int, first: int
) -> None:
    """Every sample id is right, every checkpoint is whole: only the comparison with the reference
    knows, and it says where.
    """
    build_blk(sweep, "buggy", bug_from=bug_from)
    finding = found(verify_run(sweep / "buggy"), TRAJECTORY)
    assert finding.status == INVALID
    said = (finding.message, *finding.evidence)
    assert any(
        f"the first differing step is step {first} at the latest, component loss" in text
        for text in said
    )
    assert any(
        text.startswith("noise floor: ref and clean, both undisturbed, are equal") for text in said
    )


def test_the_state_differs_before_the_loss_does(sweep: Path) -> None:
    """What a recovery lost in an update shows in the state of that step and in the loss of the
    next.
    """
    shutil.rmtree(sweep / "ref")
    logs = [
        RunLayout(sweep / "clean").attempt(0).rank(0),
        RunLayout(sweep / "blk").attempt(1).rank(0),
    ]
    for log, state in zip(logs, ("a", "b"), strict=True):
        edit_lines(log, at_step(11, state_digest=state * 64))
    edit_lines(logs[1], at_step(12, loss=0.5))
    finding = found(verify_run(sweep / "blk"), TRAJECTORY)
    assert (
        "the first differing step is step 11 at the latest, component state (rank 0)"
        in finding.message
    )
    assert any("step 12 at the latest, component loss" in text for text in finding.evidence)


def test_equal_states_before_it_make_the_first_differing_step_certain(sweep: Path) -> None:
    shutil.rmtree(sweep / "ref")
    logs = [
        RunLayout(sweep / "clean").attempt(0).rank(0),
        RunLayout(sweep / "blk").attempt(1).rank(0),
    ]
    for log, state in zip(logs, ("a", "b"), strict=True):
        for rank in (0, 1):
            edit_lines(log.with_name(f"rank{rank}.jsonl"), at_step(10, state_digest="c" * 64))
        edit_lines(log, at_step(11, state_digest=state * 64))
    assert (
        "the first differing step is step 11, component state (rank 0)"
        in found(verify_run(sweep / "blk"), TRAJECTORY).message
    )


def test_a_replay_that_goes_another_way_needs_no_reference(tmp_path: Path) -> None:
    finding = found(verify_run(build_blk(tmp_path, bug_from=8).root), TRAJECTORY)
    assert finding.status == INVALID and "step 8 rank 0" in finding.message


def test_a_reference_without_its_end_leaves_the_trajectory_unknown(sweep: Path) -> None:
    for name in ("ref", "clean"):
        RunLayout(sweep / name).attempt(0).final.unlink()
    assert found(verify_run(sweep / "blk"), TRAJECTORY).status == UNKNOWN


def test_ranks_with_buffers_of_their_own_may_differ_after_a_step(sweep: Path) -> None:
    two_states(RunLayout(sweep / "blk"), buffers=True)
    assert found(verify_run(sweep / "blk"), TRAJECTORY).status == VALID


def test_an_undisturbed_run_that_ends_elsewhere_does_not_pass(sweep: Path) -> None:
    edit_json(
        RunLayout(sweep / "clean").attempt(0).final,
        lambda final: final | {"parameters_digest": "0" * 64},
    )
    finding = found(verify_run(sweep / "clean"), TRAJECTORY)
    assert finding.status == INVALID and "the final parameters differ" in finding.message


def test_an_undisturbed_run_does_not_wait_for_another(sweep: Path) -> None:
    RunLayout(sweep / "clean").attempt(0).final.unlink()
    verdict = verify_run(sweep / "ref")
    assert verdict.status == VALID and verdict.reference == "", render(verdict)


def test_an_unfinished_run_in_another_role_is_no_reference(sweep: Path) -> None:
    shutil.rmtree(sweep / "clean")
    layout = RunLayout(sweep / "ref")
    edit_json(layout.config, lambda c: c["config"]["variant"].update(name="warm"))
    layout.attempt(0).final.unlink()
    verdict = verify_run(sweep / "blk")
    assert verdict.status == UNKNOWN and verdict.reference == "", render(verdict)
    assert "the reference ref is invalid: " in found(verdict, TRAJECTORY).message


def test_only_a_run_that_must_end_alike_is_a_reference(sweep: Path, tmp_path: Path) -> None:
    edit_json(sweep / "ref" / "config.json", lambda c: c | {"reference_id": "0" * 64})
    assert verify_run(sweep / "blk").reference == "clean"
    for folder in (sweep / "ref", sweep / "blk"):
        with pytest.raises(RunDirectoryError):
            verify_run(sweep / "blk", folder)
    with pytest.raises(RunDirectoryError):
        verify_run(sweep / "blk", tmp_path)


def test_what_is_no_run_is_refused(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(EvidenceMissing):
        verify_run(tmp_path)
    edit_json(sweep / "blk" / "config.json", lambda c: c | {"schema_version": 99})
    with pytest.raises(RecordError):
        verify_run(sweep / "blk")
