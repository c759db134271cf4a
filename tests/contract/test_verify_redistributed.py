"""The referee and the two recoveries in which fewer ranks go on: `redistribute`, which owes all,
and `skip`, which drops a mini-batch on record.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.schema import ElasticConfig
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import RankState, RestoredState
from ecrl_cli.verify.state_consistent import as_components
from ecrl_cli.verify.state_restored import state_restored
from ecrl_cli.verify.verdict import INVALID, VALID, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import RunBuilder, config_of
from tests.runs.changed import left, rank_line
from tests.runs.sentence import assert_said, told
from tests.runs.spoil import at_step, edit_lines
from tests.runs.spoilt import FAILURES, ONCE, STATE, TRAJECTORY
from tests.runs.survived import (
    REPLICAS,
    SKIP,
    Death,
    SurvivedBuilder,
    build_redistributed,
    build_skipped,
)

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
OTHER = "cd" * 32


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, replicas in (("replicas", REPLICAS), ("plain", 0)):
        RunBuilder(
            folder / name / "ref",
            replace(config_of("ref"), world_size=4, elastic=ElasticConfig(replicas=replicas)),
        ).build()
    build_redistributed(folder / "replicas")
    build_skipped(folder / "plain")
    return folder


@pytest.fixture
def skipped(recorded: Path, tmp_path: Path) -> RunLayout:
    """Alone, to be spoilt."""
    return RunLayout(
        Path(shutil.copytree(recorded / "plain" / "skipped", tmp_path / "skipped", symlinks=True))
    )


@pytest.fixture
def redistributed(recorded: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(
        Path(
            shutil.copytree(
                recorded / "replicas" / "redistributed", tmp_path / "redistributed", symlinks=True
            )
        )
    )


def test_survivors_that_compute_the_replicas_of_the_dead_owe_the_undisturbed_run_to_the_end(
    recorded: Path,
) -> None:
    """4, 2 and 1 ranks: whose line is missing of the step that all had is made good by the
    reports.
    """
    verdict = verify_run(recorded / "replicas" / "redistributed")
    assert verdict.status == VALID, render(verdict)
    assert (
        "192 applied to every layer, 0 replayed, 0 on record as lost"
        in found(verdict, ONCE).message
    )
    assert (
        "equal to ref in every loss of 24 steps and in the final state"
        in found(verdict, TRAJECTORY).message
    )


def test_one_bit_in_the_step_that_was_done_again_by_fewer_is_seen(
    recorded: Path, redistributed: RunLayout
) -> None:
    edit_lines(redistributed.attempt(1).rank(1), at_step(9, loss=[0.5, 0.25]))
    finding = found(verify_run(redistributed.root, recorded / "replicas" / "ref"), TRAJECTORY)
    assert (
        finding.status == INVALID
        and "the first differing step is step 9 at the latest, component loss (replica 2: 0.5 for"
        in finding.message
    )


def test_the_replicas_of_the_dead_must_have_been_computed(redistributed: RunLayout) -> None:
    """A survivor that computes its own two of the four replicas as before has one too few."""
    edit_lines(redistributed.attempt(1).rank(0), at_step(9, loss=[0.5], sample_ids_count=2))
    finding = found(verify_run(redistributed.root), ONCE)
    assert_said(finding, INVALID, "consumed 2 samples, its shard has 4")
    assert told(finding, "logged the losses of 1 replica, it owns 2")


def test_a_mini_batch_that_was_dropped_is_lost_whole_and_nothing_else_is(recorded: Path) -> None:
    """Step 9 of four ranks, and step 10, the first of the two that went on."""
    verdict = verify_run(recorded / "plain" / "skipped")
    assert verdict.status == VALID, render(verdict)
    assert (
        "176 applied to every layer, 0 replayed, 16 on record as lost"
        in found(verdict, ONCE).message
    )
    told = found(verdict, TRAJECTORY)
    assert (
        "equal to ref in every loss of the 8 steps before samples were lost; not claimed after them"
        in told.message
    )
    assert any(
        "step 9 (attempt 0): 8 samples of ranks [1, 3] are on record as lost on 3 layers (skip)"
        in text
        for text in told.evidence
    )


def test_nothing_is_dropped_where_all_had_the_gradients_of_the_dead(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "ref", config_of("ref")).build()
    verdict = verify_run(
        SurvivedBuilder(tmp_path / "run", SKIP, (Death(9, first=(2,), spares=1),)).build().root
    )
    assert verdict.status == VALID, render(verdict)
    assert (
        "192 applied to every layer, 0 replayed, 0 on record as lost"
        in found(verdict, ONCE).message
    )
    assert (
        "equal to ref in every loss of 24 steps and in the final state"
        in found(verdict, TRAJECTORY).message
    )


def test_a_dropped_step_is_not_booked_as_work(recorded: Path) -> None:
    document = metrics_document(load(RunLayout(recorded / "plain" / "skipped")))
    assert [
        (each["ranks"], each["lost_samples"], each["given_up_steps"])
        for each in document["recoveries"]
    ] == [([4, 2], 8, 0), ([2, 1], 8, 0)]
    assert (document["lost_samples"], document["survivals"], document["restarts"]) == (16, 2, 0)


def test_a_failure_inside_a_step_that_was_dropped_before_is_not_owed(tmp_path: Path) -> None:
    """Rank 0 of those that went on would have died in the backward pass of step 9, which they never
    did again; another, after it, is owed.
    """
    run = SurvivedBuilder(
        tmp_path / "run", SKIP, (Death(9, spares=1),), unmet=("kill@9.backward/0.9:0",)
    ).build()
    finding = found(verify_run(run.root), FAILURES)
    assert finding.status == VALID, finding
    assert told(finding, "entry 1 did not fire: survivors of another failure dropped step 9")
    owed = SurvivedBuilder(
        tmp_path / "owed", SKIP, (Death(9, spares=1),), unmet=("kill@10.backward/0.9:0",)
    ).build()
    finding = found(verify_run(owed.root), FAILURES)
    assert_said(finding, INVALID, "the run completed and entries [1] never fired")


def reports(
    edit: Edit, attempt: int = 0, ranks: tuple[int, ...] = (0, 2)
) -> Callable[[RunLayout], None]:
    return lambda run: (
        [edit_lines(run.attempt(attempt).survivor_report(rank), edit) for rank in ranks] and None
    )


def lost_samples_edited(edit: Edit, ranks: tuple[int, ...] = (0, 2)) -> Callable[[RunLayout], None]:
    return lambda run: (
        [edit_lines(run.attempt(0).lost_samples(rank), edit) for rank in ranks] and None
    )


def redone(**changes: Any) -> Edit:
    return lambda line: line | {"redone": [line["redone"][0] | changes]}


SPOILT: dict[str, tuple[Callable[[RunLayout], None], str]] = {
    "a sample of the dropped mini-batch is not on record": (
        lost_samples_edited(lambda line: line | {"samples": line["samples"][1:]}),
        "count 1 time too seldom on weight and 2 more",
    ),
    "a layer kept the dropped mini-batch": (
        lost_samples_edited(lambda line: line | {"layers": line["layers"][:-1]}),
        "too seldom on scale",
    ),
    "a living rank is blamed": (
        lost_samples_edited(lambda line: line | {"ranks": [0]}),
        "the lost-samples record of attempt 0 names rank 0, which was left",
    ),
    "another step on record": (
        lost_samples_edited(lambda line: line | {"global_step": 8}),
        "step 8 is on record and was never due",
    ),
    "dropped from a bucket on": (reports(redone(first=1)), "drops step 9 from bucket 1 on only"),
    "finished after all": (
        reports(redone(left=[0, 2])),
        "says that ranks [0, 2] did step 9 to its end, which recovery=skip drops",
    ),
    "a survivor that logged the dropped step": (
        lambda run: edit_lines(
            run.attempt(0).rank(0), lambda line: line | {"global_step": line["global_step"] + 1}
        ),
        "claims step 8, its log ends at step 9",
    ),
    "another state than before the dropped step": (
        lambda run: edit_lines(run.attempt(0).rank(2), at_step(8, state_digest=OTHER)),
        "rank 2 of attempt 0 reports another state after step 8 than it logged",
    ),
    "another state where the first step of an attempt is dropped": (
        reports(lambda line: line | {"state_digest": OTHER}, 1, (0,)),
        (
            "rank 0 of attempt 1 dropped step 10 and reports another state than attempt 0 logged"
            " after step 8"
        ),
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_record_of_a_dropped_mini_batch_is_caught(skipped: RunLayout, name: str) -> None:
    spoil, words = SPOILT[name]
    for rank in range(4):
        edit_lines(skipped.attempt(0).rank(rank), at_step(8, state_digest="ab" * 32))
    spoil(skipped)
    finding = found(verify_run(skipped.root), ONCE)
    assert finding.status == INVALID and told(finding, words)


def test_the_state_behind_a_dropped_step_is_held_against_the_one_before_it(
    skipped: RunLayout,
) -> None:
    edit_lines(skipped.attempt(0).rank(2), at_step(8, state_digest=OTHER))
    finding = found(verify_run(skipped.root), STATE)
    words = "rank 2 of attempt 0 left with another state than it logged after step 8"
    assert_said(finding, INVALID, words)


@pytest.mark.parametrize("held", ["a", "b"])
@pytest.mark.parametrize(("number", "rank"), [(1, 1), (2, 0)])
def test_generators_are_taken_back_with_the_step_that_was_dropped(
    skipped: RunLayout, number: int, rank: int, held: str
) -> None:
    """Rank 2 logs them after step 8 and drops step 9; rank 0 drops step 10, its attempt's first."""

    def began(number: int, rank: int, rng: str) -> RestoredState:
        place = str(number)  # in the data, which goes on
        state = RankState(rank, *(digest * 64 for digest in ("c", "d", "e", rng, place)))
        return RestoredState(number, 8 + number, state, "ab" * 32)

    records = rank_line(load(skipped), 0, 2, 8, components=as_components(began(0, 2, "a").state))
    records = left(records, 1, restored={each: began(1, each, "a") for each in (0, 1)})
    there = records.logs(number).restored | {rank: began(number, rank, held)}
    finding = state_restored(Case(left(records, number, restored=there)))
    text = f"attempt {number} rank {rank} began with other rng than the ranks that outlived attempt"
    assert (text in finding.message) == (held == "b"), finding
    assert held == "b" or finding.message.startswith(f"{number + 1} times a rank held"), finding
