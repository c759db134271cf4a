"""What survivors report alike, and what else recorded the same: deaths, lines, spans, checkpoints,
clocks.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.canonical_json import digest
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.disk_state import on_disk
from ecrl_cli.verify.exactly_once import exactly_once
from ecrl_cli.verify.state_consistent import state_consistent
from ecrl_cli.verify.survivor_reports import _contradictions, _silent_after, survivals
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, FindingBuilder, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.changed import left, reported
from tests.runs.sentence import told
from tests.runs.spoil import at_step, edit_lines
from tests.runs.spoilt import ONCE, TIME, Spoil
from tests.runs.spoilt_clocks import refold, shifted
from tests.runs.survived import ROLLBACK, SKIP, Death, SurvivedBuilder, build_lossy, build_skipped


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of four ranks two outlive the others in step 9 and go on."""
    return build_lossy(tmp_path_factory.mktemp("lossy")).root


@pytest.fixture
def lossy(recorded: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(Path(shutil.copytree(recorded, tmp_path / "lossy", symlinks=True)))


def everyone(**changes: Any) -> Spoil:
    """Both survivors report the same, and it is something else."""
    return lambda run: [
        edit_lines(run.attempt(0).survivor_report(rank), lambda line: line | changes)
        for rank in range(2)
    ]


def redone(**changes: Any) -> Spoil:
    def edit(line: dict[str, Any]) -> dict[str, Any]:
        return line | {"redone": [each | changes for each in line["redone"]]}

    return lambda run: [edit_lines(run.attempt(0).survivor_report(rank), edit) for rank in range(2)]


def before_the_chain(edit: Any) -> Spoil:
    """Lines of the attempt whose lines no chain in a checkpoint vouches for any more, on all
    ranks.
    """
    return lambda run: [edit_lines(run.attempt(0).rank(rank), edit) for rank in range(4)]


def another_state(run: RunLayout) -> None:
    """The survivors' own lines of step 9 say what they had."""
    for rank in range(2):
        edit_lines(run.attempt(0).rank(rank), at_step(9, state_digest="cd" * 32))


def test_who_reports_was_living_and_who_recorded_nothing_more_was_not(lossy: RunLayout) -> None:
    case = Case(load(lossy))
    first = case.attempts[0]
    last = max(lines.events[-1].at for lines in case.run.logs(0).ranks.values())
    assert [_silent_after(case, first, rank, last) for rank in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not _silent_after(case, first, 3, case.run.logs(0).ranks[3].events[-1].at - 0.001)


def test_whom_a_report_names_as_left_were_ranks_of_the_attempt_and_all_of_them_may_be(
    lossy: RunLayout,
) -> None:
    records = load(lossy)
    report = replace(records.logs(0).survivor_reports[0].events[0], redone=())
    said = {
        alive: _contradictions(records.attempts[0], 0, replace(report, alive=alive))
        for alive in ((0, 1, 2, 3), (0, 1, 4), (1, 2))
    }
    assert [any("as left" in text for text in texts) for texts in said.values()] == [
        False,
        True,
        True,
    ]


def goes_further(run: RunLayout) -> None:
    """The logs of both go past the step that they report."""
    for rank in range(2):
        edit_lines(
            run.attempt(0).survivor_report(rank),
            lambda line: line | {"global_step": 8, "redone": [], "layers": []},
        )
        run.attempt(0).lost_samples(rank).unlink()


SPOILT: dict[str, tuple[Spoil, str, str, str]] = {
    "the dead reported as living": (
        everyone(alive=[0, 1, 2, 3]),
        ONCE,
        INVALID,
        "reports ranks [2, 3] as living, whose deaths are on record",
    ),
    "more waiting than step": (
        redone(seconds=1.0),
        ONCE,
        INVALID,
        "reports 2.000000 s of doing again in step 9, which took 0.030000 s",
    ),
    "a report before the end": (
        everyone(at=1001.0),
        ONCE,
        INVALID,
        "before the end of its own spans",
    ),
    "another state than was logged": (
        another_state,
        ONCE,
        INVALID,
        "reports another state after step 9 than it logged",
    ),
    "layers that the model has not": (
        everyone(layers=[["weight"], ["bias", "skale"]]),
        ONCE,
        INVALID,
        "'skale', which is no parameter",
    ),
    "a layer in two buckets": (
        everyone(layers=[["weight"], ["bias", "weight"]]),
        ONCE,
        INVALID,
        "name weight in 2 buckets",
    ),
    "a log that goes past the report": (
        goes_further,
        ONCE,
        INVALID,
        "claims step 8, its log ends at step 9",
    ),
    "seconds before the chain": (
        before_the_chain(at_step(4, seconds=0.0001)),
        TIME,
        INVALID,
        "step 4 of attempt 0 rank 0 took 0.000100 s",
    ),
    "instants before the chain": (
        before_the_chain(shifted(-0.01, "at")),
        TIME,
        INVALID,
        "part of that is booked as load",
    ),
    "wall times before the chain": (
        before_the_chain(shifted(-7200.0, "time")),
        TIME,
        INVALID,
        "s early, which no clock showed",
    ),
    "the spans of a survivor removed": (
        lambda run: run.attempt(0).spans(1).unlink(),
        TIME,
        UNKNOWN,
        "attempt 0 left no spans of rank 1",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_survivors_say_alike_is_held_against_the_rest(lossy: RunLayout, name: str) -> None:
    spoil, promise, status, words = SPOILT[name]
    spoil(lossy)
    refold(lossy)
    verdict = verify_run(lossy.root)
    finding = found(verdict, promise)
    assert finding.status == status, render(verdict)
    assert told(finding, words), render(verdict)


def state_of(run: RunLayout, step: int) -> str:
    """The digest of parameters, buffers and optimizer in a checkpoint."""
    (checkpoint,) = (c for c in on_disk(load(run)) if c.step == step)
    assert checkpoint.report.manifest is not None
    tensors = {
        name: entry.digest
        for part in checkpoint.report.manifest.parts.values()
        for name, entry in part.tensors.items()
    }
    return digest(
        sorted([name, sha] for name, sha in tensors.items() if not name.startswith("rng."))
    )


@pytest.mark.parametrize("right", [True, False])
def test_a_checkpoint_of_the_same_step_knows_the_state_that_they_took_along(
    tmp_path: Path, right: bool
) -> None:
    """Rank 1 dies in step 19, right after the checkpoint of step 18; step 19 is given up."""
    run = SurvivedBuilder(tmp_path / "run", ROLLBACK, (Death(19, spares=1),)).build()
    state = state_of(run, 18) if right else "ab" * 32
    edit_lines(
        run.attempt(0).survivor_report(0),
        lambda line: line | {"state_digest": state, "time": line["time"] + 1e-3},
    )
    finding = found(verify_run(run.root), ONCE)
    assert finding.status == (VALID if right else INVALID), finding
    assert (
        right
        or "survivors of attempt 0 report another state than the checkpoint of step 18 holds"
        in finding.message
    )


def test_a_survivor_need_not_know_of_all_who_died_at_once(lossy: RunLayout) -> None:
    """Ranks 2 and 3 died; who knew of rank 3 alone when it left has said nothing wrong."""
    everyone(alive=[0, 1, 2])(lossy)
    finding = found(verify_run(lossy.root), ONCE)
    assert not told(finding, "as living"), finding


def test_without_the_size_of_the_data_set_nothing_is_known_of_samples(lossy: RunLayout) -> None:
    notes = FindingBuilder(ONCE)
    assert survivals(Case(replace(load(lossy), dataset=None)), notes) and notes.clean


def test_of_a_step_that_was_dropped_only_the_dead_lost_samples(tmp_path: Path) -> None:
    """Nobody's samples were applied; those of the living are blamed on the dead."""
    records = load(build_skipped(tmp_path))
    assert exactly_once(Case(records)).status == VALID
    blamed = {
        rank: replace(lines, events=tuple(replace(line, ranks=(0, 1)) for line in lines.events))
        for rank, lines in records.logs(0).lost_sample_records.items()
    }
    finding = exactly_once(Case(left(records, 0, lost_sample_records=blamed)))
    words = "the lost-samples record of attempt 0 names rank 0, which was left"
    assert finding.status == INVALID and told(finding, words), finding


@pytest.mark.parametrize(
    ("attempts", "before", "words", "status"),
    [
        ((), "", "", VALID),
        ((0,), "cd" * 32, "with another state than it had before it", INVALID),
        ((2,), "ab" * 32, "with another state than it had before a step that it did not", INVALID),
        ((0,), "", "does not say which state it had before the step", UNKNOWN),
        ((0, 1), "", "", VALID),  # nor does any, as in older records
    ],
)
def test_a_step_that_is_dropped_leaves_the_state_as_it_was(
    tmp_path: Path, attempts: tuple[int, ...], before: str, words: str, status: str
) -> None:
    """Steps 9 and 11 are dropped, step 15 is finished: rank 1 had given all when it died."""
    deaths = (Death(9, spares=1), Death(11, spares=1), Death(15, (1,), (2,), spares=1))
    records = load(SurvivedBuilder(tmp_path / "skipped", SKIP, deaths).build())
    for attempt in attempts:
        records = reported(records, attempt, 0, state_before=before)
    finding = state_consistent(Case(records))
    assert finding.status == status and words in finding.message, finding
