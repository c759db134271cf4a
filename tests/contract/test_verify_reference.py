"""Who may vouch for a struck run's trajectory: an undisturbed run, shown to be so by its records,
valid itself, counted once.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.cli.verify import side_by_side
from ecrl_cli.errors import RunDirectoryError
from ecrl_cli.failures.fault_log import claim
from ecrl_cli.history.load import load
from ecrl_cli.records.digests import file_states
from ecrl_cli.records.events import InjectedFault
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.verify import reference
from ecrl_cli.verify.disturbance import disturbance, uninterrupted
from ecrl_cli.verify.reference import References, bounded, origin
from ecrl_cli.verify.registry import checks_alone
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import RunBuilder, build_blk, build_clean, build_ref, config_of
from tests.runs.changed import supervised
from tests.runs.spoil import at_step, edit_json, edit_lines, line_at, without
from tests.runs.spoilt import TRAJECTORY, Spoil, attempts


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with and one without checkpoints, and a struck one."""
    folder = tmp_path_factory.mktemp("sweep")
    for build in (build_ref, build_clean, build_blk):
        build(folder)
    return folder


def test_a_struck_run_that_nobody_vouches_for_is_not_proven(tmp_path: Path) -> None:
    """Every other promise is kept, and the recovery was wrong."""
    verdict = verify_run(build_blk(tmp_path, bug_from=12).root)
    finding = found(verdict, TRAJECTORY)
    assert (verdict.status, finding.status) == (UNKNOWN, UNKNOWN), render(verdict)
    assert (
        "not proven: no undisturbed run to compare with; `ecrl verify --with-reference blk`"
        " runs one" in finding.message
    )
    assert any(
        text.startswith("disturbed: 2 failures fired, the first in attempt 0")
        for text in finding.evidence
    )
    build_ref(tmp_path)
    assert found(verify_run(tmp_path / "blk"), TRAJECTORY).status == INVALID


def test_runs_that_share_the_reference_id_are_named_where_none_is_undisturbed(
    tmp_path: Path,
) -> None:
    for name in ("blk", "ovl", "mem"):
        build_blk(tmp_path, name)
    assert (
        "not proven: mem and 1 more share its reference_id, and none of them is undisturbed"
        in found(verify_run(tmp_path / "blk"), TRAJECTORY).message
    )


def test_a_death_exactly_on_a_checkpoint_proves_no_more(tmp_path: Path) -> None:
    """Nothing is replayed: no step was done twice."""
    run = RunBuilder(tmp_path / "blk", config_of("blk", "kill", (12,), 1), bug_from=13).build()
    verdict = verify_run(run.root)
    assert verdict.status == UNKNOWN and "not proven" in found(verdict, TRAJECTORY).message


def test_a_copy_from_before_the_run_went_on_is_a_copy_all_the_same(recorded: Path) -> None:
    """It has fewer sessions and attempts; another run has another first session or launch."""
    found = load(RunLayout(recorded / "blk"))
    (session,), (first, *more) = found.sessions, found.attempts
    later = replace(session, started_at=session.started_at + 1.0)
    assert (
        origin(supervised(found, sessions=(session, later), attempts=(first, *more)))
        == origin(supervised(found, attempts=(first,)))
        == origin(found)
    )
    assert origin(supervised(found, sessions=(later,))) != origin(found)
    assert origin(supervised(found, sessions=(replace(session, boot_id="another"),))) != origin(
        found
    )
    assert origin(
        supervised(found, attempts=(replace(first, launched_at=first.launched_at + 1.0), *more))
    ) != origin(found)


def test_a_given_reference_that_was_disturbed_vouches_for_nobody(sweep: Path) -> None:
    RunBuilder(sweep / "mem", config_of("mem", "kill", (12,), 1)).build()
    verdict = verify_run(sweep / "blk", sweep / "mem")
    assert verdict.status == UNKNOWN and verdict.reference == "", render(verdict)
    assert "the reference mem was disturbed itself" in found(verdict, TRAJECTORY).message
    assert verify_run(sweep / "blk", sweep / "ref").reference == "ref"


def test_a_reference_that_is_itself_not_valid_vouches_for_nobody(sweep: Path) -> None:
    """Its losses forged to those of a buggy run: its own chain knows."""
    shutil.rmtree(sweep / "clean")
    build_blk(sweep, "buggy", bug_from=22)
    for step in (22, 23, 24):
        for rank in range(2):
            wrong = line_at(RunLayout(sweep / "buggy").attempt(2).rank(rank), step)
            edit_lines(
                RunLayout(sweep / "ref").attempt(0).rank(rank), at_step(step, loss=wrong["loss"])
            )
    final = json.loads(RunLayout(sweep / "buggy").attempt(2).final.read_text())
    edit_json(
        RunLayout(sweep / "ref").attempt(0).final,
        lambda there: there | {k: v for k, v in final.items() if "digest" in k or k == "loss"},
    )
    verdict = verify_run(sweep / "buggy")
    assert verdict.status == UNKNOWN and verdict.reference == "", render(verdict)
    assert "the reference ref is invalid: Broke promise: " in found(verdict, TRAJECTORY).message
    assert verify_run(sweep / "buggy", sweep / "ref").status == UNKNOWN


def test_another_seed_under_this_ones_id_is_no_reference(sweep: Path, tmp_path: Path) -> None:
    for name in ("ref", "clean"):
        shutil.rmtree(sweep / name)
    wanted = json.loads((sweep / "blk" / "config.json").read_text())["reference_id"]
    other = RunBuilder(sweep / "ref", replace(config_of("ref"), seed=8)).build()
    edit_json(other.config, lambda c: c | {"reference_id": wanted})
    finding = found(verify_run(sweep / "blk"), TRAJECTORY)
    assert finding.status == UNKNOWN and "the reference ref is invalid" in finding.message


def test_two_references_that_disagree_prove_nothing_for_a_run_that_equals_one(sweep: Path) -> None:
    clean = RunLayout(sweep / "clean")  # with no checkpoint to contradict it
    edit_json(clean.attempt(0).final, lambda final: final | {"parameters_digest": "0" * 64})
    edit_json(clean.metrics, lambda m: m | {"final": m["final"] | {"parameters_digest": "0" * 64}})
    finding = found(verify_run(sweep / "blk"), TRAJECTORY)
    assert (
        finding.status == UNKNOWN
        and "the references ref and clean disagree: the final parameters differ" in finding.message
    )
    build_blk(sweep, "buggy", bug_from=22)
    finding = found(verify_run(sweep / "buggy"), TRAJECTORY)
    assert (
        finding.status == INVALID
        and "the references ref and clean disagree: the final parameters differ" in finding.evidence
    )


@pytest.mark.parametrize(
    "made",
    [lambda ref, copy: shutil.copytree(ref, copy), lambda ref, copy: copy.symlink_to(ref)],
    ids=["copy", "link"],
)
def test_a_copy_of_a_reference_is_no_second_run(
    sweep: Path, made: Callable[[Path, Path], object]
) -> None:
    shutil.rmtree(sweep / "clean")
    made(sweep / "ref", sweep / "again")
    build_blk(sweep, "buggy", bug_from=22)
    finding = found(verify_run(sweep / "buggy"), TRAJECTORY)
    assert (
        "noise floor: not known, it takes two undisturbed runs beside this one" in finding.evidence
    )
    assert any(
        text.endswith("is a copy of a run that was counted: no second reference")
        for text in finding.evidence
    )


def test_a_copy_of_the_run_itself_vouches_for_nothing(sweep: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(sweep / "ref", tmp_path / "alone" / "ref"))
    shutil.copytree(alone, alone.parent / "twin")
    assert found(verify_run(alone), TRAJECTORY).status == NOT_CHECKED
    with pytest.raises(RunDirectoryError):
        verify_run(alone, alone.parent / "twin")


def test_digests_that_were_asked_for_and_that_the_reference_lacks_are_missed(sweep: Path) -> None:
    for name in ("ref", "clean"):
        shutil.rmtree(sweep / name)
    RunBuilder(sweep / "ref", replace(config_of("ref"), state_digests=True)).build()
    finding = found(verify_run(sweep / "blk"), TRAJECTORY)
    assert (
        finding.status == UNKNOWN
        and "the reference was to log digests of its state, and has none" in finding.message
    )


def test_a_reference_in_the_folder_of_references_is_found(sweep: Path) -> None:
    shutil.rmtree(sweep / "clean")
    (sweep / REFERENCES).mkdir()
    shutil.move(sweep / "ref", sweep / REFERENCES / "digits-ref")
    verdict = verify_run(sweep / "blk")
    assert (verdict.status, verdict.reference) == (VALID, "references/digits-ref"), render(verdict)


def test_each_run_is_checked_once_alone_as_itself_and_as_a_reference(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []
    monkeypatch.setattr(
        "ecrl_cli.verify.reference.checks_alone",
        lambda case: judged.append(case.run.layout.root.name) or checks_alone(case),
    )
    known = References()
    for name in ("blk", "blk", "ref"):
        verify_run(sweep / name, None, known)
    assert sorted(judged) == ["blk", "clean", "ref"]


HANG = {
    "ranks": [1],
    "phase": "step",
    "global_step": 3,
    "waited_s": 9.0,
    "limit_s": 5.0,
    "text": "stands still",
}
DISTURBED: dict[str, tuple[Spoil, str]] = {
    "died": (lambda run: attempts(run, lambda a: a[0].update(outcome="died")), "attempt 0 died"),
    "hung": (
        lambda run: attempts(run, lambda a: a[0].update(hang=HANG)),
        "attempt 0 hung",
    ),
    "killed when it had completed": (
        lambda run: attempts(run, lambda a: a[0].update(signal=9)),
        "attempt 0 completed with exit code 0, signal 9",
    ),
    "went on from memory": (
        lambda run: attempts(run, lambda a: a[0].update(memory="snapshot", continues=0)),
        "attempt 0 went on from memory",
    ),
    "a failure fired": (
        lambda run: claim(run, InjectedFault(0, "slow_rank", 0, 3, 0, 1000.5, 1000.5)),
        "1 failure fired, the first in attempt 0",
    ),
    "logs of an attempt on no record": (
        lambda run: shutil.copytree(run.attempt(0).folder, run.attempt(1).folder),
        "attempt 1 left logs",
    ),
    "a gap in a log": (
        lambda run: edit_lines(run.attempt(0).rank(1), without(global_step=4)),
        "the log of rank 1 in attempt 0",
    ),
    "began after a step": (
        lambda run: attempts(run, lambda a: a[0].update(resumed_from_step=6)),
        "attempt 0 began at step 6",
    ),
    "no book": (lambda run: run.supervisor.unlink(), "no attempt is on record"),
}


@pytest.mark.parametrize("name", DISTURBED)
def test_that_nothing_disturbed_a_run_is_shown_by_its_records(sweep: Path, name: str) -> None:
    spoil, why = DISTURBED[name]
    layout = RunLayout(sweep / "clean")
    assert disturbance(load(layout)) == "" and uninterrupted(load(layout))
    spoil(layout)
    assert disturbance(load(layout)).startswith(why)
    assert not uninterrupted(load(layout)) or name == "logs of an attempt on no record"


def test_a_reference_that_began_anew_from_its_first_step_may_vouch(sweep: Path) -> None:
    """Stopped, and trained again from nothing: nothing of the first attempt is in its end."""
    layout = RunLayout(sweep / "clean")
    shutil.copytree(layout.attempt(0).folder, layout.attempt(1).folder)
    attempts(layout, lambda a: a.insert(0, a[0] | {"outcome": "stopped", "exit_code": None}))
    attempts(layout, lambda a: a[1].update(attempt=1))
    assert disturbance(load(layout)) == "attempt 0 stopped" and uninterrupted(load(layout))


def test_a_reference_that_was_stopped_and_began_anew_does_vouch(tmp_path: Path) -> None:
    """As one does that the same command trains again."""
    build_blk(tmp_path)
    RunBuilder(tmp_path / REFERENCES / "digits-ref", config_of("clean"), stops={0: 5}).build()
    verdict = verify_run(tmp_path / "blk")
    assert (verdict.status, verdict.reference) == (VALID, "references/digits-ref"), render(verdict)
    alone = found(verify_run(tmp_path / REFERENCES / "digits-ref"), TRAJECTORY)
    assert alone.status == NOT_CHECKED and alone.message.startswith(
        "undisturbed since it began anew (attempt 0 stopped)"
    )


def test_a_run_is_read_once_as_itself_and_as_a_reference(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are most of what a verdict costs."""
    read: list[str] = []
    monkeypatch.setattr(
        reference, "bounded", lambda layout: read.append(layout.root.name) or bounded(layout)
    )
    known = References()
    statuses = [
        verify_run(recorded / name, known=known).status for name in ("blk", "ref", "clean", "blk")
    ]
    assert statuses == [VALID] * 4 and sorted(read) == ["blk", "clean", "ref"]


def test_records_that_changed_meanwhile_are_read_anew(sweep: Path) -> None:
    """A run is judged by what is on disk now, also where it served as a reference a moment ago."""
    known = References()
    assert verify_run(sweep / "blk", known=known).status == VALID
    edit_lines(RunLayout(sweep / "ref").attempt(0).rank(0), at_step(5, loss=0.125))
    assert verify_run(sweep / "ref", known=known).status == INVALID


def test_runs_judged_side_by_side_are_judged_as_alone_and_in_order(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_lines(RunLayout(sweep / "blk").attempt(0).rank(0), at_step(5, loss=0.125))
    runs = [str(sweep / name) for name in ("ref", "blk", "clean")]
    assert main(["verify", *runs, "--json"]) == 1
    together = json.loads(capsys.readouterr().out)
    alone = {}
    for run in runs:
        main(["verify", run, "--json"])
        alone |= json.loads(capsys.readouterr().out)
    assert (
        list(together) == runs
        and together == alone
        and [answer["status"] for answer in together.values()] == [VALID, INVALID, VALID]
    )


def test_runs_of_one_reference_are_judged_together_and_answered_in_the_order_asked(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on one processor: two groups are enough to fill it."""
    RunBuilder(sweep / "other", replace(config_of("ref"), seed=2027)).build()
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    asked, judged, told = ["blk", "other", "ref"], list[str](), list[str]()

    def judge(run: Path) -> str:
        judged.append(run.name)
        return f"answer of {run.name}"

    answers = side_by_side(judge, [sweep / name for name in asked], References(), told.append)
    assert judged == ["blk", "ref", "other"] and told == [f"answer of {name}" for name in judged]
    assert answers == [f"answer of {name}" for name in asked]


@pytest.mark.parametrize(("kept", "read"), [(2, ["ref", "clean"]), (1, ["ref", "clean", "ref"])])
def test_only_so_many_records_stay_in_memory(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, kept: int, read: list[str]
) -> None:
    found: list[str] = []
    monkeypatch.setattr(reference, "KEPT", kept)
    monkeypatch.setattr(
        reference, "bounded", lambda layout: found.append(layout.root.name) or bounded(layout)
    )
    known = References()
    for name in ("ref", "clean", "ref"):
        known.records(RunLayout(recorded / name))
    assert found == read


def test_a_run_is_as_it_was_until_any_of_its_files_is_written_replaced_or_gone(sweep: Path) -> None:
    layout = RunLayout(sweep / "blk")
    written, states = layout.attempt(0).rank(0), [file_states(layout)]
    layout.verdict.write_text("{}")
    layout.divergence.write_text("{}")
    assert file_states(layout) == states[0]
    os.utime(written, ns=(1, 1))  # as many bytes, written at another time
    states.append(file_states(layout))
    shutil.copy2(written, sweep / "another")
    (sweep / "another").replace(written)  # as many bytes and the same time, another file
    states.append(file_states(layout))
    next(layout.checkpoints.glob("step_*/*")).unlink()
    states.append(file_states(layout))
    assert len(set(states)) == 4
