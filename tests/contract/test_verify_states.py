"""The referee compares the state of all ranks, the schedule and train.json, and names what differs.
A run without such records is judged without.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.history.lineage import lineage
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.saved_states import differing_saves
from ecrl_cli.verify.state_consistent import _check_own_generators, state_consistent
from ecrl_cli.verify.verdict import (
    INVALID,
    NOT_CHECKED,
    UNKNOWN,
    VALID,
    Finding,
    FindingBuilder,
    Verdict,
    render,
)
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import build_blk, build_ref, config_of
from tests.runs.changed import configured
from tests.runs.columns import in_columns, in_memory
from tests.runs.sentence import assert_said
from tests.runs.spoil import edit_json, edit_lines, line_at
from tests.runs.spoilt_states import (
    SPOILT_AUTO,
    SPOILT_STATES,
    SPOILT_TRAIN,
    STATE,
    StateBuilder,
    build_states,
    logged,
    without_undue_digests,
)
from tests.runs.spoilt_witnesses import SPOILT_WITNESSES, committed


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    build_states(folder, "ref")
    build_states(folder, "blk")
    build_states(folder, "auto", auto=True)
    return folder


def found(verdict: Verdict, promise: str = STATE) -> Finding:
    return next(finding for finding in verdict.findings if finding.promise == promise)


def told(finding: Finding) -> str:
    return "\n".join((finding.message, *finding.evidence))


@pytest.mark.parametrize("name", ["ref", "blk", "auto"])
def test_an_untouched_run_is_valid(recorded: Path, name: str) -> None:
    verdict = verify_run(
        recorded / name, recorded / ("blk" if name == "ref" else "ref") if name != "ref" else None
    )
    assert verdict.status == VALID and found(verdict).status == VALID, render(verdict)
    assert found(verdict).message.startswith(
        "ranks agree after 24 steps and at the end; the learning rate on"
    ), render(verdict)


@pytest.mark.parametrize("name", [*SPOILT_STATES, *SPOILT_WITNESSES])
def test_a_spoilt_state_is_named(sweep: Path, name: str) -> None:
    """Or a second witness of it contradicts the first."""
    spoil, promise, status, words = (SPOILT_STATES | SPOILT_WITNESSES)[name]
    spoil(RunLayout(sweep / "blk"))
    verdict = verify_run(sweep / "blk", sweep / "ref")
    assert found(verdict, promise).status == status and words in told(found(verdict, promise)), (
        render(verdict)
    )


@pytest.mark.parametrize(
    ("step", "part", "ended_at", "told_of"),
    [
        *((6, "optimizer", (), 6), (18, "optimizer", (12,), 18), (24, "optimizer", (), 0)),
        *((6, "train", (), 6), (6, "train", (12,), 0)),
    ],
)
def test_what_was_committed_is_held_against_the_reference(
    sweep: Path, step: int, part: str, ended_at: tuple[int, ...], told_of: int
) -> None:
    """Up to step 18, after which nothing is claimed here. A reference that was continued after
    `ended_at` has another schedule.
    """
    layout = RunLayout(sweep / "blk")
    committed(step, {6: 0, 18: 1, 24: 2}[step], lambda state: state | {part: "0" * 64})(layout)
    case = Case(load(layout))
    reference = configured(load(RunLayout(sweep / "ref")), continued_at=ended_at)
    text = f"what was committed of step {told_of} differs in {part}" if told_of else ""
    assert differing_saves(case, reference, lineage(reference), 18) == text


@pytest.mark.parametrize("name", SPOILT_TRAIN)
def test_a_wrong_train_json_is_named(tmp_path: Path, name: str) -> None:
    """Wrong as it was committed: every hash is right, and no reference is there."""
    change, words = SPOILT_TRAIN[name]
    finding = found(verify_run(build_states(tmp_path, "blk", change).root))
    assert finding.status == INVALID and words in told(finding), finding


@pytest.mark.parametrize("name", SPOILT_AUTO)
def test_digests_that_are_due_are_asked_for(sweep: Path, name: str) -> None:
    spoil, status, words = SPOILT_AUTO[name]
    spoil(RunLayout(sweep / "auto"))
    finding = found(verify_run(sweep / "auto", sweep / "ref"))
    assert finding.status == status and words in told(finding), finding


def test_digests_that_are_not_due_may_be_left_out(sweep: Path) -> None:
    without_undue_digests(RunLayout(sweep / "auto"))
    finding = found(verify_run(sweep / "auto", sweep / "ref"))
    assert finding.status == VALID and finding.message.startswith(
        "ranks agree after 11 steps and at the end"
    ), finding


def test_a_difference_behind_steps_without_digests_is_told_as_the_latest(sweep: Path) -> None:
    without_undue_digests(RunLayout(sweep / "auto"))
    logged(16, 1, run_attempt=1, rng="0" * 64)(RunLayout(sweep / "auto"))
    finding = found(verify_run(sweep / "auto", sweep / "ref"), "same-trajectory")
    words = "the first differing step is step 16 at the latest, component state (rank 1: rng)"
    assert finding.status == INVALID and words in told(finding), finding


@pytest.mark.parametrize(
    ("decay", "precision", "wrong"),
    [(5e-4, "fp32", True), (0.0, "fp32", False), (5e-4, "fp16", False)],
)
@pytest.mark.parametrize("step", [19, 22])
def test_a_step_that_is_logged_and_not_applied_breaks_it(
    decay: float, precision: str, wrong: bool, step: int, tmp_path: Path
) -> None:
    """On all ranks alike, after the last recovery: nothing repeats the step, and nothing else is
    there to compare with.
    """
    config = replace(
        config_of("blk", "kill", (9, 20), 1), state_digests="true", precision=precision
    )
    run = StateBuilder(
        tmp_path / "blk", replace(config, optimizer=replace(config.optimizer, weight_decay=decay))
    ).build()
    held = line_at(run.attempt(2).rank(0), 21)["components"]["parameters"]
    if step == 19:  # the first of the attempt
        held = json.loads(run.attempt(2).restored(0).read_text())["state"]["parameters"]
    for rank in (0, 1):
        edit_lines(
            run.attempt(2).rank(rank),
            lambda line: repeated(line, held) if line["global_step"] == step else line,
        )
    text = f"rank 0 of attempt 2 holds the same parameters after step {step} as after step"
    for form in (in_memory, in_columns):
        finding = state_consistent(Case(form(load(run))))
        assert (f"{text} {step - 1}: at a learning rate of" in told(finding)) == wrong


def repeated(line: dict[str, Any], held: str) -> dict[str, Any]:
    return line | {"components": line["components"] | {"parameters": held}}


def test_a_run_of_an_earlier_version_is_judged_without(tmp_path: Path) -> None:
    """It has rank 0's end alone, and no settings on its lines; its checkpoints hold train.json as
    ever.
    """
    verdict = verify_run(build_blk(tmp_path).root)
    assert found(verdict).status == VALID and "0 lines" in found(verdict).message, render(verdict)
    layout = RunLayout(tmp_path / "blk")
    shutil.rmtree(layout.checkpoints)
    assert found(verify_run(layout.root)).status == NOT_CHECKED


def test_two_runs_whose_train_json_differ_do_not_end_alike(tmp_path: Path) -> None:
    """In what the configuration does not say: only the reference knows."""
    build_states(tmp_path, "ref")
    run = build_states(tmp_path, "blk", lambda document: document["scheduler"].update(extra=1))
    finding = found(verify_run(run.root, tmp_path / "ref"), "same-trajectory")
    assert (
        finding.status == INVALID
        and "train.json of the checkpoints of step 24 differs in scheduler" in told(finding)
    ), finding


@pytest.mark.parametrize(
    ("text", "promise", "status", "words"),
    [
        (b"[]", "records-consistent", UNKNOWN, "step_00000012 holds no line chain"),
        (b"{", "no-acknowledged-loss", INVALID, "step 12 was committed and the integrity check"),
    ],
)
def test_a_train_json_that_is_no_document_is_told(
    tmp_path: Path, text: bytes, promise: str, status: str, words: str
) -> None:
    """Of an earlier version; its hash is right, and the rest of the checkpoint is compared."""
    build_ref(tmp_path)
    with patch(
        "tests.runs.builder.canonical_json",
        lambda document: text if document["global_step"] == 12 else canonical_json(document),
    ):
        verdict = verify_run(build_blk(tmp_path).root, tmp_path / "ref")
    assert_said(found(verdict, promise), status, words)
    assert found(verdict, "same-trajectory").status == VALID


def test_ranks_whose_buffers_the_strategy_makes_equal_must_end_with_equal_ones(sweep: Path) -> None:
    """With fixed replicas; in stock DDP BatchNorm's are each rank's own until the next forward
    pass.
    """
    layout = RunLayout(sweep / "blk")
    edit_json(layout.attempt(2).final, lambda final: final["ranks"][1].update(buffers="0" * 64))
    assert "differs from that of rank 0" not in told(found(verify_run(layout.root)))
    edit_json(layout.config, lambda stored: stored["config"]["elastic"].update(replicas=2))
    assert "the end of rank 1 differs from that of rank 0 in buffers" in told(
        found(verify_run(layout.root))
    )


def test_an_attempt_without_a_step_of_its_own_ends_with_rank_0s_buffers_on_every_rank(
    tmp_path: Path,
) -> None:
    """Killed after the target's checkpoint. Nobody runs another forward pass, so that rank 1 does
    not get its own statistics back.
    """
    own = {1: "1" * 64}
    keys = {"precision": "fp16", "state_digests": "true"}
    ref = StateBuilder(tmp_path / "ref", replace(config_of("ref"), **keys), own_buffers=own).build()
    run = StateBuilder(
        tmp_path / "blk", replace(config_of("blk", "kill", (24,), 1), **keys), own_buffers=own
    ).build()
    verdict = verify_run(run.root, ref.root)
    assert verdict.status == VALID, render(verdict)
    edit_json(run.attempt(1).final, lambda final: final["ranks"][1].update(buffers=own[1]))
    finding = found(verify_run(run.root, ref.root))
    assert (
        finding.status == INVALID
        and "the end of rank 1 differs from that of rank 0 in buffers" in told(finding)
    ), finding


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scheduler", lambda document: document.pop("scheduler")),
        ("sampler", lambda document: document["sampler"].pop("cursor_step")),
        ("optimizer", lambda document: document["optimizer"].pop("host_keys")),
        ("scaler", lambda document: document.pop("scaler")),
    ],
)
def test_a_whole_checkpoint_that_no_rank_could_restore_is_refused_and_recovery_falls_back(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], Any]
) -> None:
    """Every hash is right. The attempt after the death resumes from the checkpoint before, and the
    judge finds the refusal right.
    """
    config = replace(config_of("blk", "kill", (9, 20), 1), state_digests="true")
    run = StateBuilder(tmp_path / "blk", config, change=change, spoilt_step=18).build()
    refused = json.loads(run.supervisor.read_text())["attempts"][2]
    assert refused["resumed_from_step"] == 12 and refused["rejected"] == [
        {
            "path": "checkpoints/step_00000018",
            "layer": "schema",
            "reason": f"train.json has no {name} that could be restored",
        }
    ]
    verdict = verify_run(run.root)
    assert {f.promise for f in verdict.findings if f.status == INVALID} == set(), render(verdict)
    assert found(verdict, "no-bad-checkpoint").message.endswith("1 refused")


def test_the_first_differing_step_is_named_before_what_replayed_steps_say(sweep: Path) -> None:
    """Twenty replayed steps contradict their first pass: more than are shown."""
    for step in range(7, 10):
        for rank in range(2):
            logged(
                step, rank, run_attempt=0, train="0" * 64, rng=f"{step}" * 64, optimizer="1" * 64
            )(RunLayout(sweep / "blk"))
    for step in range(13, 21):
        logged(step, 0, 1, run_attempt=1, train="0" * 64)(RunLayout(sweep / "blk"))
    logged(8, 1, run_attempt=1, rng="0" * 64)(RunLayout(sweep / "blk"))
    finding = found(verify_run(sweep / "blk", sweep / "ref"), "same-trajectory")
    assert (
        finding.status == INVALID
        and "the first differing step is step 8, component state (rank 1: rng)" in finding.message
    ), finding
    assert any(
        "the state in attempt 1 is not that in attempt 0" in text for text in finding.evidence
    )


def test_a_last_record_whose_second_clock_was_read_late_leaves_the_end_of_the_session_known(
    sweep: Path,
) -> None:
    """A rank that was held up for a tenth of a second between the clocks; the records before it
    agree with the end.
    """
    layout = RunLayout(sweep / "blk")
    edit_json(layout.attempt(2).final, lambda final: final | {"time": final["time"] + 0.1})
    assert found(verify_run(layout.root, sweep / "ref"), "time-conserved").status == VALID


@pytest.mark.parametrize("where", ["a line", "a restored state"])
def test_ranks_with_the_same_generators_are_told(sweep: Path, where: str) -> None:
    """Wherever all ranks were seeded, or restored, alike."""
    run = RunLayout(sweep / "blk")
    if where == "a line":
        rng = line_at(run.attempt(1).rank(0), 8)["components"]["rng"]
        logged(8, 1, run_attempt=1, rng=rng)(run)
    else:
        rng = json.loads(run.attempt(1).restored(0).read_text())["state"]["rng"]
        edit_json(run.attempt(1).restored(1), lambda held: held["state"].update(rng=rng))
    notes = FindingBuilder("state-consistent")
    _check_own_generators(Case(load(run)), notes)
    step = 8 if where == "a line" else 6
    assert (
        f"ranks 0 and 1 of attempt 1 have the same generators after step {step}"
        in notes.finding("").message
    )
