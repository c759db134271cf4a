"""What a run cost: the document, the account of the checkpoints and of the restarts, gates."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.errors import RecordError
from ecrl_cli.history.lineage import lineage
from ecrl_cli.history.load import load
from ecrl_cli.history.timeline import timeline
from ecrl_cli.metrics.cache import differences
from ecrl_cli.metrics.checkpoints import SaveLatency, account, save_latency, snapshots
from ecrl_cli.metrics.divergence import divergence_document
from ecrl_cli.metrics.document import goodput_published_clock, metrics_document
from ecrl_cli.metrics.gates import quality_gates
from ecrl_cli.metrics.recoveries import RESTART_COSTS, recoveries, restarts
from ecrl_cli.records.events import CATEGORIES, CheckpointLine, Span
from ecrl_cli.records.journal import Lines
from tests.runs.builder import build_blk, build_ref, flip
from tests.runs.spoil import append, edit_json, edit_lines, line_at, without
from tests.runs.survived import build_lossy, build_rollback

CONTRACT = [
    *(
        "schema_version",
        "run_id",
        "reference_id",
        "suite",
        "variant",
        "seed",
        "scale",
        "dataset_size",
        "steps_per_epoch",
        "global_batch",
    ),
    *(
        "target_steps",
        "committed_steps",
        "replayed_steps",
        "restarts",
        "wall_s",
        "goodput",
        "goodput_published_clock",
    ),
    *("seconds", "checkpoints", "final"),
]


def test_the_document_keeps_the_contract(tmp_path: Path) -> None:
    document = metrics_document(load(build_blk(tmp_path)))
    assert set(CONTRACT) <= set(document)
    assert set(document["seconds"]) == {*CATEGORIES, "residual"}
    times = {"snapshot_s", "serialize_s", "enqueue_s", "backpressure_s", "write_s", "stall_s"}
    assert {"submitted", "committed", "failed", "lost", "bytes", *times} <= set(
        document["checkpoints"]
    )
    assert {
        "global_step",
        "parameters_digest",
        "buffers_digest",
        "optimizer_digest",
        "loss",
    } <= set(document["final"])
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_replayed_steps_cost_time_and_count_once(tmp_path: Path) -> None:
    ref, blk = (
        metrics_document(load(build_ref(tmp_path))),
        metrics_document(load(build_blk(tmp_path))),
    )
    assert (ref["committed_steps"], ref["replayed_steps"], ref["restarts"]) == (24, 0, 0)
    assert (blk["committed_steps"], blk["replayed_steps"], blk["restarts"]) == (24, 3 + 2, 2)
    assert blk["seconds"]["compute"] == pytest.approx(ref["seconds"]["compute"])
    assert blk["seconds"]["replay"] == pytest.approx(5 * 0.025)
    assert blk["goodput"] == pytest.approx(24 / blk["wall_s"]) and blk["goodput"] < ref["goodput"]
    assert blk["goodput_published_clock"] > blk["goodput"]
    assert blk["final"] == ref["final"]
    assert [entry["detect"] for entry in blk["restart_phases"]] == pytest.approx([0.0, 0.2, 0.2])


def test_a_list_of_another_length_is_no_fold_of_the_records(tmp_path: Path) -> None:
    folded = metrics_document(load(build_blk(tmp_path)))
    said = folded | {"restart_phases": folded["restart_phases"][:-1]}
    (text,) = differences(said, folded)
    assert text.startswith("restart_phases is [")


@pytest.mark.parametrize(("more", "count"), [(5e-7, 0), (5e-6, 1)])
def test_metrics_of_an_earlier_version_may_differ_in_rounding_alone(
    tmp_path: Path, more: float, count: int
) -> None:
    folded = metrics_document(load(build_blk(tmp_path)))
    said = {name: value for name, value in folded.items() if name != "metrics_version"} | {
        "wall_s": folded["wall_s"] + more
    }
    assert len(differences(said, folded)) == count


def test_the_published_clock_does_not_reach_over_a_boot(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    run = load(layout)
    assert goodput_published_clock(run, lineage(run)) is not None
    edit_json(
        layout.supervisor, lambda s: s["sessions"].append(s["sessions"][0] | {"boot_id": "other"})
    )
    run = load(layout)
    assert goodput_published_clock(run, lineage(run)) is None


def test_a_run_without_its_end_has_no_final_state(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    layout.attempt(2).final.unlink()
    assert metrics_document(load(layout))["final"] is None


def test_a_damaged_record_gives_no_numbers(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    flip(layout.attempt(1).rank(0), 1)
    with pytest.raises(RecordError, match="rank0"):
        metrics_document(load(layout))


def test_every_submitted_checkpoint_counts_however_it_ended(tmp_path: Path) -> None:
    """Totals are over what was submitted: one that failed, one that is lost and one without an end
    keep their share.
    """
    layout = build_blk(tmp_path)
    whole = account(load(layout))
    assert (whole.submitted, whole.count("committed")) == (4, 4)
    edit_lines(
        layout.attempt(0).checkpoints,
        lambda line: line | {"event": "lost"} if line["event"] == "committed" else line,
    )
    edit_lines(layout.attempt(1).checkpoints, without(event="committed", global_step=12))
    spoilt = account(load(layout))
    assert (
        spoilt.submitted,
        spoilt.count("committed"),
        spoilt.count("lost"),
        spoilt.count("failed"),
    ) == (4, 2, 1, 0)
    assert (
        spoilt.total("stall_s") == pytest.approx(whole.total("stall_s")) == pytest.approx(4 * 0.036)
    )
    assert spoilt.document()["bytes"] == whole.document()["bytes"] > 0


def test_a_checkpoint_ends_by_its_first_line_that_says_so(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    log = layout.attempt(1).checkpoints
    append(log, line_at(log, 12) | {"event": "lost"})
    found = account(load(layout))
    assert (found.count("committed"), found.count("lost")) == (4, 0)
    assert found.document()["stalled_barrier_s"] == pytest.approx(4 * 0.002), (
        "the stall is that of the released line"
    )


def test_no_parts_are_added_up_where_one_stall_has_none(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    assert account(load(layout)).document()["stalled_barrier_s"] == pytest.approx(4 * 0.002)
    edit_lines(
        layout.attempt(2).checkpoints,
        lambda line: line | {"stall_parts": {}} if line["event"] == "released" else line,
    )
    assert "stalled_barrier_s" not in account(load(layout)).document()


def test_an_attempt_of_another_session_is_no_recovery(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    edit_json(layout.supervisor, lambda s: s["sessions"].append(s["sessions"][0]))
    edit_json(layout.supervisor, lambda s: s["attempts"][2].update(session=1))
    records = load(layout)
    assert [each.attempt for each in recoveries(records, timeline(records))] == [1]


def test_an_epoch_has_whole_batches_alone(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    edit_json(layout.dataset, lambda record: record | {"size": 87})
    assert metrics_document(load(layout))["steps_per_epoch"] == 10


def test_each_restart_has_its_cost_and_the_launch_is_none(tmp_path: Path) -> None:
    records = load(build_blk(tmp_path))
    found, document = restarts(records, timeline(records)), metrics_document(records)
    assert [(r.attempt, r.after, r.resumed_from_step, r.replayed) for r in found] == [
        (1, "died", 6, 3),
        (2, "died", 18, 2),
    ]
    assert [r.seconds["detect"] for r in found] == pytest.approx([0.2, 0.2])
    assert (
        sum(r.seconds["replay"] for r in found)
        == pytest.approx(document["seconds"]["replay"])
        == pytest.approx(5 * 0.025)
    )
    assert [entry["replay"] for entry in document["restart_phases"]] == pytest.approx(
        [0.0, *(r.seconds["replay"] for r in found)]
    )
    assert all(r.total_s == pytest.approx(sum(r.seconds.values())) for r in found) and set(
        found[0].seconds
    ) == set(RESTART_COSTS)


def test_going_on_after_a_stop_is_no_restart(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    edit_json(layout.supervisor, lambda s: s["attempts"][0].update(outcome="stopped"))
    records = load(layout)
    assert [r.attempt for r in restarts(records, timeline(records))] == [2]


def test_divergence_from_the_reference(tmp_path: Path) -> None:
    ref = load(build_ref(tmp_path))
    same = divergence_document(load(build_blk(tmp_path)), ref)
    other = divergence_document(load(build_blk(tmp_path, "buggy", bug_from=12)), ref)
    assert (
        same["loss"]["first_differing_step"] is None
        and same["loss"]["maximum"] == 0.0
        and all(same["final_equal"].values())
    )
    assert (
        other["loss"]["first_differing_step"] == 12
        and other["loss"]["auc"] > 0
        and not any(other["final_equal"].values())
    )
    assert same["state"] == {
        name: {"l2": 0.0, "relative_l2": 0.0, "differing": 0} for name in ("parameters", "buffers")
    }
    assert (
        other["state_step"] == 24
        and other["state"]["parameters"]["l2"] > 0
        and other["state"]["parameters"]["differing"] > 0
    )


def test_the_distance_is_that_of_the_newest_checkpoints(tmp_path: Path) -> None:
    """At step 18 the two are equal still."""
    state = divergence_document(
        load(build_blk(tmp_path, "buggy", bug_from=22)), load(build_ref(tmp_path))
    )["state"]
    assert state["parameters"]["l2"] > 0 and state["parameters"]["differing"] == 3


def test_only_tensors_that_differ_are_counted(tmp_path: Path) -> None:
    """The two newest model files are alike but for the last byte, which is of parameters.weight."""
    ref, run = build_ref(tmp_path), build_blk(tmp_path, "buggy", bug_from=22)
    ours, theirs = (
        layout.checkpoints / "step_00000024" / "model.safetensors" for layout in (run, ref)
    )
    shutil.copy(theirs, ours)
    flip(ours, -1)
    state = divergence_document(load(run), load(ref))["state"]
    assert (state["parameters"]["differing"], state["buffers"]["differing"]) == (1, 0)


GOOD: dict[str, Any] = {
    "target_steps": 24,
    "committed_steps": 24,
    "final": {"global_step": 24},
    "wall_s": 100.0,
    "seconds": {"residual": 0.0},
    "checkpoints": {"submitted": 6, "committed": 3, "failed": 2, "lost": 1},
}


def failing(document: dict[str, Any] | None, verdict: str = "valid") -> dict[str, str]:
    """The gates that fail for one run, with what they say."""
    return {
        gate.name: gate.message
        for gate in quality_gates({"run": document}, {"run": verdict})
        if not gate.passed
    }


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, {}),
        ({"committed_steps": 23}, {"target": "run committed 23 of 24 steps"}),
        ({"committed_steps": 25}, {"target": "run committed 25 of 24 steps"}),
        ({"final": None}, {"target": "run committed 24 of 24 steps, no final record"}),
        ({"final": {"global_step": 23}}, {"target": "run committed 24 of 24 steps"}),
        (
            {"checkpoints": GOOD["checkpoints"] | {"submitted": 7}},
            {"checkpoints": "run submitted 7, ended 6"},
        ),
        (
            {"checkpoints": GOOD["checkpoints"] | {"submitted": 5}},
            {"checkpoints": "run submitted 5, ended 6"},
        ),
        (
            {"checkpoints": GOOD["checkpoints"] | {"committed": 2}},
            {"checkpoints": "run submitted 6, ended 5"},
        ),
        (
            {"checkpoints": GOOD["checkpoints"] | {"failed": 1}},
            {"checkpoints": "run submitted 6, ended 5"},
        ),
        (
            {"checkpoints": GOOD["checkpoints"] | {"lost": 0}},
            {"checkpoints": "run submitted 6, ended 5"},
        ),
        ({"seconds": {"residual": 2.0}}, {}),
        ({"seconds": {"residual": -2.0}}, {}),
        ({"seconds": {"residual": 2.001}}, {"time": "run has 2.001 s of 100.000 s on no account"}),
        (
            {"seconds": {"residual": -2.001}},
            {"time": "run has -2.001 s of 100.000 s on no account"},
        ),
    ],
)
def test_each_condition_of_a_gate_fails_it_alone(
    changes: dict[str, Any], failed: dict[str, str]
) -> None:
    assert failing(GOOD | changes) == failed


@pytest.mark.parametrize("verdict", ["unknown", "invalid", "not judged (records changed since)"])
def test_a_run_that_is_not_valid_fails_its_gate_alone(verdict: str) -> None:
    assert failing(GOOD, verdict) == {"verified": f"run is {verdict}"}


def test_a_run_without_numbers_or_verdict_passes_no_gate_by_that() -> None:
    assert failing(None) == dict.fromkeys(("target", "checkpoints", "time"), "run has no metrics")
    gates = quality_gates({"run": GOOD}, {})
    assert {gate.name for gate in gates if not gate.passed} >= {"verified"}
    assert next(gate.message for gate in gates if gate.name == "verified") == "run is not verified"


def test_snapshots_are_counted_by_themselves_and_priced_by_rank_0s_own_account(
    tmp_path: Path,
) -> None:
    """After step 6 a checkpoint was submitted, too: what it cost is on the checkpoint's account."""
    found = load(build_blk(tmp_path))
    checkpoint = replace(found.stored.config.checkpoint, strategy="in_memory")
    taken = replace(
        found,
        stored=replace(found.stored, config=replace(found.stored.config, checkpoint=checkpoint)),
    )
    spent = [
        ("compute", 0, 4, 5),
        ("sync", 4, 5, 5),
        ("snapshot", 5, 7, 5),
        ("sync", 7, 9, 6),
        ("snapshot", 9, 20, 6),
        ("snapshot", 20, 22, 7),
    ]
    spent += [("compute", 22, 30, 7), ("snapshot", 30, 31, 7)]  # a copy in two pieces
    spans = Lines(
        tuple(Span(category, start, end, 0, step) for category, start, end, step in spent), (), 0
    )
    taken = replace(taken, attempt_logs=(replace(taken.attempt_logs[0], spans=spans),))
    assert any(line.global_step == 6 for line in taken.attempt_logs[0].checkpoints.events)
    logs = taken.attempt_logs[0]
    uncommitted = replace(
        logs.checkpoints,
        events=tuple(line for line in logs.checkpoints.events if line.event != "committed"),
    )
    assert (
        snapshots(replace(taken, attempt_logs=(replace(logs, checkpoints=uncommitted),)))["taken"]
        == 2
    ), "what was submitted counts, not its end"
    assert snapshots(taken) == {"taken": 2, "copy_s": 5.0, "sync_s": 1.0, "per_snapshot_s": 3.0}
    assert snapshots(found) == {"taken": 0, "copy_s": 0.0, "sync_s": 0.0, "per_snapshot_s": 0.0}


def test_the_final_loss_is_as_recorded_and_null_where_there_is_none(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    loss = json.loads(layout.attempt(2).final.read_text())["loss"]
    assert metrics_document(load(layout))["final"]["loss"] == loss > 0
    edit_json(layout.attempt(2).final, lambda final: final | {"loss": float("nan")})
    assert metrics_document(load(layout))["final"]["loss"] is None


def test_a_checkpoint_whose_stall_has_no_end_has_no_part_in_the_stalls(tmp_path: Path) -> None:
    """Rank 0 died in it: those of the others are added up all the same."""
    layout = build_blk(tmp_path)
    edit_lines(layout.attempt(0).checkpoints, without(event="released"))
    found = account(load(layout)).document()
    assert found["stall_s"] == pytest.approx(3 * 0.036) and found[
        "stalled_barrier_s"
    ] == pytest.approx(3 * 0.002)


def test_a_recovery_takes_from_the_fault_or_else_from_its_detection_to_the_first_new_step(
    tmp_path: Path,
) -> None:
    records = load(build_blk(tmp_path))
    times = timeline(records)
    new = [
        min(
            line.at - line.seconds
            for line in records.logs(a).ranks[0].events
            if line.global_step > seen
        )
        for a, seen in ((1, 9), (2, 20))
    ]
    from_faults = [each.seconds for each in recoveries(records, times)]
    assert from_faults == pytest.approx(
        [at - fired.at for at, fired in zip(new, records.fired, strict=True)]
    )
    unplanned = replace(records, fired=())
    noticed = [records.logs(a).spans.events[-1].end for a in (0, 1)]
    from_detection = [each.seconds for each in recoveries(unplanned, timeline(unplanned))]
    assert from_detection == pytest.approx(
        [at - began for at, began in zip(new, noticed, strict=True)]
    )
    assert [each.way for each in recoveries(records, times)] == ["checkpoint", "checkpoint"]


def test_the_samples_that_a_recovery_lost_are_those_of_its_own_step(tmp_path: Path) -> None:
    """Ranks 3 and 2 of four die in step 9, with two samples each."""
    records = load(build_lossy(tmp_path))
    (found,) = recoveries(records, timeline(records))
    assert (found.way, found.ranks, found.lost_samples, found.given_up_steps) == (
        "survivors",
        (4, 2),
        4,
        0,
    )


def test_a_step_that_was_given_up_is_counted_with_its_recovery(tmp_path: Path) -> None:
    """In step 9 the others give up what they had begun; in step 15 rank 0 dies when it had given
    all it had.
    """
    records = load(build_rollback(tmp_path))
    found = recoveries(records, timeline(records))
    assert [
        (each.resumed_from_step, each.joined, each.given_up_steps, each.lost_samples)
        for each in found
    ] == [(8, 1, 1, 0), (15, 1, 0, 0)]


def test_a_folder_without_a_model_is_no_checkpoint_to_measure_by(tmp_path: Path) -> None:
    run, ref = build_blk(tmp_path, "buggy", bug_from=12), build_ref(tmp_path)
    for step, newest in ((24, 18), (18, 12), (12, None)):
        (run.checkpoints / f"step_{step:08d}" / "model.safetensors").unlink()
        assert divergence_document(load(run), load(ref))["state_step"] == newest
    assert divergence_document(load(run), load(ref))["state"] is None
    run.attempt(2).final.unlink()
    assert divergence_document(load(run), load(ref))["final_equal"] is None


def test_a_run_without_its_supervisor_has_an_unknown_end(tmp_path: Path) -> None:
    document = metrics_document(replace(load(build_blk(tmp_path)), supervisor=None))
    assert (
        document["terminal_status"],
        document["restarts"],
        document["wall_s"],
        document["goodput"],
    ) == ("unknown", 0, 0.0, 0.0)


def test_a_field_that_is_missing_is_told_from_one_that_is_null(tmp_path: Path) -> None:
    folded = metrics_document(load(build_blk(tmp_path)))
    absent = {name: value for name, value in folded.items() if name != "survivals"}
    assert differences(absent, folded) == ["survivals is missing, the records fold to 0"]
    assert differences(folded | {"survivals": None}, folded) == [
        "survivals is None, the records fold to 0"
    ]
    assert differences(folded | {"more": 1}, folded) == ["more is 1, the records fold to missing"]


def test_ends_at_different_steps_are_not_compared(tmp_path: Path) -> None:
    run, ref = load(build_blk(tmp_path)), load(build_ref(tmp_path))
    assert divergence_document(run, ref)["final_equal"] == dict.fromkeys(
        ("parameters", "buffers", "optimizer", "rng"), True
    )
    last = ref.attempt_logs[-1]
    assert last.final is not None
    early = replace(ref, attempt_logs=(replace(last, final=replace(last.final, global_step=23)),))
    assert divergence_document(run, early)["final_equal"] is None


def test_the_latency_of_a_save_is_a_share_of_the_time_between_two() -> None:
    def line(
        event: str, step: int, at: float, attempt: int = 0, reason: str | None = None
    ) -> CheckpointLine:
        return CheckpointLine(event, step, attempt, at, at, reason=reason)

    first = [
        line("submitted", 10, 100.0),
        line("committed", 10, 103.0),
        line("submitted", 20, 110.0),
        line("committed", 20, 115.0),
    ]
    found = save_latency(first)
    assert (found.latency_s, found.interval_s, found.share) == (4.0, 10.0, 0.4)
    second = [
        line("submitted", 30, 900.0, attempt=1),
        line("lost", 30, 901.0, attempt=1),
        line("submitted", 40, 920.0, attempt=1),
    ]
    assert save_latency([*first, *second]).interval_s == 15.0, (
        "a restart between two checkpoints is no interval"
    )
    late = [
        line("submitted", 10, 100.0),
        line("committed", 10, 500.0, reason="found after the death of who wrote it"),
    ]
    assert save_latency(late) == SaveLatency(None, None) and save_latency(late).share is None
