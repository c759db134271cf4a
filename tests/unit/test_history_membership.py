"""Where a run that outlived deaths has its steps, its samples and its seconds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.history.lineage import Lineage, Segment, lineage, same_sized
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.membership import (
    _past,
    first_loss,
    given_up,
    lost_samples,
    membership_history,
)
from ecrl_cli.history.timeline import phases, timeline
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec, held_from
from ecrl_cli.verify.verdict import INVALID, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import build_blk, build_ref
from tests.runs.changed import left
from tests.runs.spoil import append, edit_json, edit_lines
from tests.runs.spoilt import TRAJECTORY
from tests.runs.survived import (
    LOSSY,
    Death,
    SurvivedBuilder,
    build_lossy,
    build_redistributed,
    build_rollback,
    build_skipped,
    build_spared,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for build in (build_rollback, build_spared, build_lossy, build_blk):
        build(folder)
    return folder


def run(recorded: Path, name: str) -> RunRecords:
    return load(RunLayout(recorded / name))


def metrics(recorded: Path, name: str) -> dict[str, Any]:
    return metrics_document(run(recorded, name))


def test_the_committed_sequence_goes_through_those_who_outlived_others(recorded: Path) -> None:
    assert [(s.attempt, s.after, s.until) for s in lineage(run(recorded, "rollback")).segments] == [
        (0, 0, 8),
        (1, 8, 15),
        (2, 15, 24),
    ]
    assert [
        (s.attempt, s.world_size, s.until) for s in lineage(run(recorded, "lossy")).segments
    ] == [(0, 4, 9), (1, 2, 24)]
    assert all(lineage(run(recorded, name)).whole for name in ("rollback", "lossy", "spared"))


def test_with_replicas_the_number_of_ranks_is_no_part_of_what_a_step_depends_on(
    recorded: Path, tmp_path: Path
) -> None:
    """So that a step done again by fewer is held against its first pass."""
    assert set(membership_history(load(build_redistributed(tmp_path))).values()) == {()}
    assert len(set(membership_history(run(recorded, "lossy")).values())) == 2


def test_what_was_spent_on_a_step_that_was_dropped_is_no_work_from_the_death_on(
    tmp_path: Path,
) -> None:
    records = load(build_skipped(tmp_path))
    died = {fired.at_step: fired.at for fired in records.fired}
    late = [
        piece
        for piece in timeline(records).pieces
        if piece.start >= died.get(piece.step, piece.end)
    ]
    assert sorted(died) == [9, 10] and late == []


def test_chains_begin_anew_with_the_last_survivors(recorded: Path) -> None:
    assert [s.attempt for s in lineage(run(recorded, "rollback")).chained] == [2]
    assert [s.attempt for s in lineage(run(recorded, "spared")).chained] == [0, 1]


@pytest.mark.parametrize("name", ["rollback", "lossy", "spared"])
def test_every_second_is_on_one_account(recorded: Path, name: str) -> None:
    account = timeline(run(recorded, name))
    assert account.residual_s == pytest.approx(0.0, abs=1e-9) and not account.overlaps()


@pytest.mark.parametrize(
    ("name", "launches"), [("rollback", 0.0), ("lossy", 0.0), ("spared", 0.0), ("blk", 0.5)]
)
def test_who_stays_is_neither_launched_nor_imports(
    recorded: Path, name: str, launches: float
) -> None:
    records = run(recorded, name)
    again = phases(records, timeline(records))[1]
    assert again["import"] == pytest.approx(launches) and bool(again["launch"]) == bool(launches)
    assert again["rendezvous"] > 0 and again["load"] > 0 and again["detect"] > 0


def test_a_step_that_was_given_up_is_detection_from_the_failure_on(recorded: Path) -> None:
    """Rank 0 waits 0.05 s in a step that comes to nothing, then 0.2 s for the end of the attempt
    and 0.01 s for the next one.
    """
    records = run(recorded, "rollback")
    assert phases(records, timeline(records))[1]["detect"] == pytest.approx(0.26)


def test_a_step_that_is_finished_without_the_dead_is_work(recorded: Path) -> None:
    records = run(recorded, "lossy")
    account = timeline(records)
    assert phases(records, account)[1]["detect"] == pytest.approx(0.21)
    assert sum(
        p.end - p.start for p in account.pieces if p.step == 9 and p.category in ("compute", "sync")
    ) == pytest.approx(0.035)


def test_metrics_say_what_a_recovery_cost(recorded: Path) -> None:
    """From the failure to the first new step: 0.05 s in vain, 0.21 s until all had gone on, 0.3 s
    to meet and to load.
    """
    first, second = metrics(recorded, "rollback")["recoveries"]
    assert first["seconds"] == pytest.approx(0.56) and (
        first["way"],
        first["given_up_steps"],
        first["joined"],
    ) == ("survivors", 1, 1)
    assert second["given_up_steps"] == 0 and second["ranks"] == [2, 2]
    lossy = metrics(recorded, "lossy")
    assert (lossy["survivals"], lossy["lost_samples"], lossy["restarts"]) == (1, 4, 0)
    assert lossy["recoveries"][0]["lost_samples"] == 4 and lossy["recoveries"][0]["ranks"] == [4, 2]
    spared = metrics(recorded, "spared")
    assert (spared["survivals"], spared["restarts"], spared["recoveries"][0]["way"]) == (
        0,
        1,
        "checkpoint",
    )


def test_a_restart_is_charged_to_the_first_new_step_too(recorded: Path) -> None:
    """After the loading it does two steps again (7 and 8), in 0.05 s, and their checkpoints
    none.
    """
    (spared,), (blk, _) = (
        metrics(recorded, "spared")["recoveries"],
        metrics(recorded, "blk")["recoveries"],
    )
    assert spared["seconds"] == pytest.approx(0.21 + 0.3 + 0.1, abs=0.06)
    assert blk["seconds"] > spared["seconds"] + 0.5


def test_metrics_that_hide_what_was_lost_are_no_fold_of_the_records(tmp_path: Path) -> None:
    layout = build_lossy(tmp_path)
    layout.metrics.write_text(
        layout.metrics.read_text().replace('"lost_samples": 4', '"lost_samples": 0', 1)
    )
    finding = found(verify_run(layout.root), "records-consistent")
    assert finding.status == INVALID and "in metrics.json lost_samples is 0" in finding.message


def test_a_report_that_a_death_left_empty_speaks_for_nobody(tmp_path: Path) -> None:
    layout = build_lossy(tmp_path)
    layout.attempt(0).survivor_report(0).write_text("")
    told = load(layout).logs(0).survivor_report
    assert told is not None and told.rank == 1
    layout.attempt(0).survivor_report(1).write_text("")
    assert load(layout).logs(0).survivor_report is None


def test_a_sample_that_two_layers_lost_counts_once(tmp_path: Path) -> None:
    """Each layer has a line of its own; one of them lost a sample more."""
    layout = build_lossy(tmp_path)
    before = load(layout)
    assert lost_samples(before, lineage(before)) == 4

    for rank in range(2):
        path = layout.attempt(0).lost_samples(rank)
        line = json.loads(path.read_text().splitlines()[0])
        append(path, line | {"samples": [*line["samples"], 79], "layers": ["scale"]})
    after = load(layout)
    assert lost_samples(after, lineage(after)) == 5


@pytest.mark.parametrize(("step", "more"), [(9, 0), (10, 1), (24, 1), (25, 0)])
def test_samples_are_lost_in_the_steps_of_their_own_attempt_alone(
    tmp_path: Path, step: int, more: int
) -> None:
    """Attempt 1 did steps 10 to 24."""
    layout = build_lossy(tmp_path)
    line = json.loads(layout.attempt(0).lost_samples(0).read_text().splitlines()[0])
    append(layout.attempt(1).lost_samples(0), line | {"global_step": step, "samples": [79]})
    records = load(layout)
    assert lost_samples(records, lineage(records)) == 4 + more


def test_what_was_lost_and_then_done_again_from_a_checkpoint_is_not_lost(tmp_path: Path) -> None:
    """Samples of step 9 are lost; at step 12 all die, and begin anew after step 6: steps 10 and 11
    come out otherwise, and as in the reference.
    """
    build_ref(tmp_path)
    layout = SurvivedBuilder(
        tmp_path / "back", LOSSY, (Death(9, spares=1), Death(12, all_anew=True))
    ).build()
    records, verdict = load(layout), verify_run(layout.root)
    assert (
        lost_samples(records, lineage(records)) == 0
        and first_loss(records, lineage(records)) is None
    )
    assert verdict.status == VALID, render(verdict)
    assert (
        "equal to ref in every loss of 24 steps and in the final state"
        in found(verdict, TRAJECTORY).message
    )
    edit_lines(
        layout.attempt(2).rank(0),
        lambda line: line | {"loss": 0.5} if line["global_step"] == 8 else line,
    )
    assert "step 8 rank 0: loss 0.5 in attempt 2" in "\n".join(
        [
            found(verify_run(layout.root), TRAJECTORY).message,
            *found(verify_run(layout.root), TRAJECTORY).evidence,
        ]
    )


@pytest.mark.parametrize("short", [0, 1])
def test_an_attempt_that_died_came_as_far_as_the_slowest_of_its_ranks(
    recorded: Path, tmp_path: Path, short: int
) -> None:
    """The last attempt of a run that goes on: one rank has logged a step that another has not."""
    layout = RunLayout(Path(shutil.copytree(recorded / "blk", tmp_path / "blk", symlinks=True)))
    layout.attempt(2).final.unlink()
    edit_lines(
        layout.attempt(2).rank(short), lambda line: line if line["global_step"] < 23 else None
    )
    edit_json(
        layout.supervisor,
        lambda record: record["attempts"][2].update(
            outcome="died", exit_code=None, signal=9, rank=1
        ),
    )
    assert lineage(load(layout)).last_step == 22
    edit_json(
        layout.supervisor,
        lambda record: record["attempts"][2].update(
            outcome="completed", exit_code=0, signal=None, rank=None
        ),
    )
    assert lineage(load(layout)).last_step == 24, "one that completed has lost lines, not steps"


def test_a_rank_without_a_log_leaves_nothing_committed(recorded: Path, tmp_path: Path) -> None:
    layout = RunLayout(Path(shutil.copytree(recorded / "blk", tmp_path / "blk", symlinks=True)))
    layout.attempt(2).final.unlink()
    layout.attempt(2).rank(1).unlink()
    edit_json(
        layout.supervisor,
        lambda record: record["attempts"][2].update(
            outcome="died", exit_code=None, signal=9, rank=1
        ),
    )
    assert lineage(load(layout)).last_step == 18


def sizes(*segments: tuple[int, int]) -> Lineage:
    """A lineage of segments, each (world size, last step)."""
    after, made = 0, []
    for number, (ranks, until) in enumerate(segments):
        made.append(Segment(number, ranks, after, until))
        after = until
    return Lineage(tuple(made), ())


@pytest.mark.parametrize(
    ("theirs", "same"),
    [
        (sizes((2, 10), (1, 24)), 24),  # resized at the same step
        (sizes((2, 12), (1, 24)), 10),
        (sizes((2, 8), (1, 24)), 8),
        (sizes((2, 24)), 10),
        (sizes((3, 24)), 0),
        (sizes((2, 10)), 24),  # they say nothing of the rest
    ],
)
def test_runs_are_alike_until_one_has_another_size(theirs: Lineage, same: int) -> None:
    assert same_sized(sizes((2, 10), (1, 20), (1, 24)), theirs) == same


@pytest.mark.parametrize(
    ("fired_in", "fired_at", "spans_to", "given"),
    [
        (0, 9, 8, 1),  # the fault says that step 9 had begun
        (0, 8, 8, 0),
        (0, 8, 9, 1),  # the spans say it
        (1, 9, 8, 0),  # a fault of another attempt says nothing of this one
    ],
)
def test_a_step_is_given_up_where_it_had_begun(
    recorded: Path, fired_in: int, fired_at: int, spans_to: int, given: int
) -> None:
    """The survivors of attempt 0 report step 8 as their last."""
    found = run(recorded, "rollback")
    spans = tuple(
        replace(span, global_step=min(span.global_step, spans_to))
        for span in found.logs(0).spans.events
    )
    found = left(found, 0, spans=replace(found.logs(0).spans, events=spans))
    assert found.logs(0).survivor_report and found.logs(0).survivor_report.global_step == 8
    found = replace(found, fired=(replace(found.fired[0], attempt=fired_in, at_step=fired_at),))
    assert given_up(found, 0) == given


def test_a_return_to_an_earlier_size_is_part_of_what_a_step_depends_on(recorded: Path) -> None:
    found = run(recorded, "lossy")
    a = replace(found.attempts[-1], world_size=2, resumed_from_step=20)
    path = replace(sizes((2, 4), (1, 8), (1, 12), (2, 20)), gaps=())
    empty = left(found, 0, lost_sample_records={})
    assert _past(empty, path, a) == ((0, 2), (4, 1), (12, 2))


def test_a_checkpoint_is_held_behind_the_last_death_that_ranks_survived() -> None:
    survived = {1: 10, 3: 15}  # by attempt, the step after which they went on
    memory = dict.fromkeys(survived, "survivors")
    specs = [
        AttemptSpec(n, 2, survived.get(n, 12), None, 0, (), memory=memory.get(n, ""))
        for n in range(5)
    ]
    held = [held_from(number, specs.__getitem__) for number in range(5)]
    assert held == [None, 11, 11, 16, 16]
