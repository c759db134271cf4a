"""Accounts by hand: checkpoints, gates, caches, rates and distances where no two numbers are alike,
so that none can stand for another.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ecrl_cli.history.lineage import Lineage, lineage
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.timeline import PHASES, Timeline, TimelineSlice, phases, timeline
from ecrl_cli.metrics import recoveries as recovery_times
from ecrl_cli.metrics.cache import NewerMetrics, differences
from ecrl_cli.metrics.checkpoints import TIMES, CheckpointAccount, account
from ecrl_cli.metrics.disk import DiskRate, rates
from ecrl_cli.metrics.divergence import divergence_document
from ecrl_cli.metrics.document import (
    METRICS_VERSION,
    goodput,
    goodput_published_clock,
    metrics_document,
)
from ecrl_cli.metrics.gates import quality_gates
from ecrl_cli.metrics.overlap import RunCosts, overlap
from ecrl_cli.metrics.recoveries import Restart, recoveries
from ecrl_cli.metrics.statistics import paired, signs
from ecrl_cli.records.events import STALL_PARTS, Attempt, CheckpointLine, DiskLine
from tests.runs.builder import build_blk, build_ref
from tests.runs.changed import left
from tests.runs.continued import build_evaluated_ref
from tests.runs.spoil import edit_json, edit_lines

# Checkpoints

PARTS = {part: 1.0 + place / 8 for place, part in enumerate(STALL_PARTS) if part != "copy_wait"}


def logs(*attempts: list[CheckpointLine]) -> RunRecords:
    """A run of which nothing but these checkpoint logs is looked at."""
    made = [SimpleNamespace(checkpoints=SimpleNamespace(events=tuple(lines))) for lines in attempts]
    return cast("RunRecords", SimpleNamespace(attempt_logs=tuple(made)))


def saved(step: int, attempt: int, end: str, by: float, **more: Any) -> list[CheckpointLine]:
    """The lines of one checkpoint; every time of it is `by` times a number of its own."""
    at: dict[str, Any] = {"global_step": step, "attempt": attempt, "at": 0.0, "time": 0.0}
    parts = {part: by * seconds for part, seconds in PARTS.items()}
    return [
        CheckpointLine(
            "submitted",
            snapshot_s=by,
            serialize_s=2 * by,
            backpressure_s=3 * by,
            bytes=int(100 * by),
            inflight=int(by),
            **at,
        ),
        CheckpointLine("received", **at),
        CheckpointLine(
            "released",
            enqueue_s=5 * by,
            stall_s=7 * by,
            stall_parts=parts | more.get("parts", {}),
            **at,
        ),
        CheckpointLine(
            end, write_s=11 * by, hash_s=13 * by, commit_s=17 * by, bytes=int(100 * by), **at
        ),
    ]


def test_each_time_of_a_checkpoint_is_added_up_under_its_own_name() -> None:
    found = account(
        logs(
            saved(6, 0, "committed", 1.0) + saved(12, 0, "failed", 2.0),
            saved(12, 1, "committed", 4.0) + saved(18, 1, "lost", 8.0),
        )
    )
    numbers = dict(zip(TIMES, (1.0, 2.0, 5.0, 3.0, 11.0, 13.0, 17.0, 7.0), strict=True))
    assert found.document() == {
        "submitted": 4,
        "committed": 2,
        "failed": 1,
        "lost": 1,
        "bytes": 1500,
        "max_inflight": 8,
        **{name: 15 * seconds for name, seconds in numbers.items()},
        **{f"stalled_{part}_s": 15 * seconds for part, seconds in PARTS.items()},
    }
    assert [
        (one.attempt, one.global_step, one.end, one.bytes, one.inflight)
        for one in found.checkpoints
    ] == [
        (0, 6, "committed", 100, 1),
        (0, 12, "failed", 200, 2),
        (1, 12, "committed", 400, 4),
        (1, 18, "lost", 800, 8),
    ]


def test_a_stall_in_two_pieces_is_one_stall_with_the_parts_of_both() -> None:
    waited = CheckpointLine("waited", 6, 0, 0.0, 0.0, stall_s=0.5, stall_parts={"copy_wait": 0.5})
    (one,) = account(logs([*saved(6, 0, "committed", 1.0), waited])).checkpoints
    assert one.seconds["stall_s"] == 7.5 and one.stall_parts == PARTS | {"copy_wait": 0.5}
    both = account(logs([*saved(6, 0, "committed", 1.0), waited, *saved(12, 0, "committed", 2.0)]))
    assert (
        both.document()["stalled_copy_wait_s"] == 0.5
        and both.stall_parts()["stalled_barrier_s"] == 3 * PARTS["barrier"]
    )


def test_what_was_never_submitted_is_no_checkpoint_and_what_has_no_end_has_none() -> None:
    lines = saved(6, 0, "committed", 1.0)
    found = account(logs(lines[1:], lines[:2]))
    assert [
        (one.end, one.seconds["stall_s"], one.seconds["snapshot_s"]) for one in found.checkpoints
    ] == [("", 0.0, 1.0)]
    assert found.stall_parts() == {} and CheckpointAccount(()).document()["max_inflight"] == 0


# Gates


def run_of(**changes: Any) -> dict[str, Any]:
    checkpoints = {"submitted": 6, "committed": 3, "failed": 2, "lost": 1}
    good = {
        "target_steps": 24,
        "committed_steps": 24,
        "final": {"global_step": 24},
        "wall_s": 100.0,
        "seconds": {"residual": 0.0},
    }
    return {**good, "checkpoints": checkpoints, **changes}


def test_gates_name_each_run_that_fails_them_in_order_and_say_what_holds_where_none_does() -> None:
    short, unbalanced = (
        run_of(committed_steps=20),
        run_of(checkpoints={"submitted": 6, "committed": 3, "failed": 1, "lost": 1}),
    )
    late = run_of(wall_s=10.0, seconds={"residual": 0.3})
    documents = {"a": run_of(), "b": short, "c": None, "d": unbalanced, "e": late, "f": short}
    verdicts = dict.fromkeys(documents, "valid") | {"b": "unknown", "e": "invalid"}
    found = {gate.name: (gate.passed, gate.message) for gate in quality_gates(documents, verdicts)}
    assert found == {
        "target": (
            False,
            "c has no metrics; b committed 20 of 24 steps; f committed 20 of 24 steps",
        ),
        "verified": (False, "b is unknown; e is invalid"),
        "checkpoints": (False, "c has no metrics; d submitted 6, ended 5"),
        "time": (False, "c has no metrics; e has 0.300 s of 10.000 s on no account"),
    }
    kept = [
        (gate.name, gate.passed, gate.message)
        for gate in quality_gates({"a": run_of(), "b": run_of()}, {"a": "valid", "b": "valid"})
    ]
    assert kept == [
        ("target", True, "every arm is at its target"),
        ("verified", True, "every arm is valid"),
        ("checkpoints", True, "every submitted checkpoint is accounted for"),
        ("time", True, "at most 2% of any wall time is residual"),
    ]


# metrics.json

FOLDED: dict[str, Any] = {
    "metrics_version": METRICS_VERSION,
    "wall_s": 10.0,
    "steps": 24,
    "name": "run",
    "flag": True,
    "none": None,
    "loss": {"1": 0.5, "2": math.nan},
    "list": [{"a": 1.0}, {"a": 2.0}],
    "evaluations": [],
    "seconds": {"compute": 1.0, "evaluate": 0.0},
}
VERSION = f"metrics_version is {{}}, the records fold to {METRICS_VERSION}"
RECORDED: dict[str, tuple[object, list[str]]] = {
    "the same": (FOLDED, []),
    "a list": ([FOLDED], ["it is no JSON object"]),
    "version 0": (FOLDED | {"metrics_version": 0}, [VERSION.format(0)]),
    "a version that is a truth": (FOLDED | {"metrics_version": True}, [VERSION.format(True)]),
    "a version that is text": (FOLDED | {"metrics_version": "2"}, [VERSION.format("'2'")]),
    "an integer for a float": (FOLDED | {"wall_s": 10}, ["wall_s is 10, the records fold to 10.0"]),
    "a float for an integer": (FOLDED | {"steps": 24.0}, ["steps is 24.0, the records fold to 24"]),
    "a truth for a number": (FOLDED | {"flag": 1}, ["flag is 1, the records fold to True"]),
    "the last bit": (
        FOLDED | {"wall_s": math.nextafter(10.0, 11)},
        [f"wall_s is {math.nextafter(10.0, 11)}, the records fold to 10.0"],
    ),
    "two places": (
        FOLDED | {"loss": {"1": 0.25, "2": math.nan}, "list": [{"a": 1.0}, {"a": 3.0}]},
        ["loss.1 is 0.25, the records fold to 0.5", "list[1].a is 3.0, the records fold to 2.0"],
    ),
    "a number for none": (
        FOLDED | {"loss": {"1": 0.5, "2": 1.0}},
        ["loss.2 is 1.0, the records fold to nan"],
    ),
    "none for a number": (
        FOLDED | {"loss": {"1": math.nan, "2": math.nan}},
        ["loss.1 is nan, the records fold to 0.5"],
    ),
    "an object for a number": (FOLDED | {"wall_s": {}}, ["wall_s is {}, the records fold to 10.0"]),
}
BEFORE = {
    name: value
    for name, value in FOLDED.items()
    if name not in ("metrics_version", "flag", "evaluations")
} | {"seconds": {"compute": 1.0}}
SECOND = {name: value for name, value in FOLDED.items() if name != "evaluations"} | {
    "metrics_version": 2,
    "seconds": {"compute": 1.0},
}
EARLIER: dict[str, tuple[object, list[str]]] = {
    "with fields less": (BEFORE, []),
    "with a version": (BEFORE | {"metrics_version": 1}, []),
    "with a field more": (BEFORE | {"more": 1}, ["more is 1, the records fold to missing"]),
    "rounded": (BEFORE | {"wall_s": 10.0 + 5e-7}, []),
    "rounded by more": (
        BEFORE | {"wall_s": 10.0 + 5e-6},
        ["wall_s is 10.000005, the records fold to 10.0"],
    ),
    "with an integer for a float": (BEFORE | {"wall_s": 10}, []),
    "with another integer": (BEFORE | {"steps": 25}, ["steps is 25, the records fold to 24"]),
    "with a float for an integer": (
        BEFORE | {"steps": 24.0},
        ["steps is 24.0, the records fold to 24"],
    ),
    "with a number for none": (
        BEFORE | {"loss": {"1": 0.5, "2": 1.0}},
        ["loss.2 is 1.0, the records fold to nan"],
    ),
    "with text for a number": (
        BEFORE | {"wall_s": "10"},
        ["wall_s is '10', the records fold to 10.0"],
    ),
    "the second": (SECOND, []),
    "the second with a field less": (
        SECOND | {"seconds": {}},
        ["seconds.compute is missing, the records fold to 1.0"],
    ),
    "the second, rounded": (
        SECOND | {"wall_s": 10.0 + 5e-7},
        ["wall_s is 10.0000005, the records fold to 10.0"],
    ),
    "the second with evaluations": (
        SECOND | {"evaluations": [1]},
        ["evaluations is [1], the records fold to []"],
    ),
    "the second with seconds of them": (
        SECOND | {"seconds": {"compute": 1.0, "evaluate": 0.5}},
        ["seconds.evaluate is 0.5, the records fold to 0.0"],
    ),
}


@pytest.mark.parametrize(
    ("recorded", "said"),
    [*RECORDED.values(), *EARLIER.values()],
    ids=[*RECORDED, *(f"earlier, {name}" for name in EARLIER)],
)
def test_metrics_on_file_are_held_against_the_fold_field_by_field(
    recorded: object, said: list[str]
) -> None:
    before = json.dumps([recorded, FOLDED])
    assert differences(recorded, FOLDED) == said
    assert json.dumps([recorded, FOLDED]) == before, "comparing changes neither"


def test_metrics_that_are_equal_but_for_the_type_of_a_number_differ() -> None:
    folded = {"metrics_version": METRICS_VERSION, "seconds": {"evaluate": 0.0}}
    recorded = folded | {"seconds": {"evaluate": 0}}
    assert recorded == folded
    assert differences(recorded, folded) == ["seconds.evaluate is 0, the records fold to 0.0"]


def test_what_was_evaluated_is_missed_in_a_file_of_an_earlier_version_too() -> None:
    folded = FOLDED | {
        "evaluations": [{"global_step": 6}],
        "seconds": {"compute": 1.0, "evaluate": 0.5},
    }
    assert differences(SECOND, folded) == [
        "evaluations is missing, the records fold to [{'global_step': 6}]",
        "seconds.evaluate is missing, the records fold to 0.5",
    ]


def test_metrics_of_a_later_version_are_not_judged() -> None:
    with pytest.raises(
        NewerMetrics,
        match=f"version {METRICS_VERSION + 1}, this ECRL folds version {METRICS_VERSION}",
    ):
        differences(FOLDED | {"metrics_version": METRICS_VERSION + 1}, FOLDED)


# Rates and costs


def test_every_rate_is_of_its_own_counter() -> None:
    lines = [DiskLine(10.0, 0.0, 1, 10, 100, 1000, 5), DiskLine(12.0, 0.0, 5, 16, 140, 1600, 1005)]
    assert rates(lines) == [
        DiskRate(start=10.0, end=12.0, tps=5.0, written=300.0, read=20.0, busy=0.5)
    ]
    assert rates([*lines, replace(lines[1], writes=20)]) == rates(lines), (
        "two samples of one instant have no rate"
    )
    assert rates(lines[:1]) == rates([]) == []


def test_what_is_saved_is_blocking_less_overlapped_and_a_write_costs_its_share() -> None:
    fast = [
        RunCosts(wall_s=10.0 + n, stall_s=1.0, serialize_s=2.0, write_s=8.0, submitted=4)
        for n in range(3)
    ]
    slow = [
        RunCosts(wall_s=20.0 + 3 * n, stall_s=11.0 + n, serialize_s=3.0, write_s=6.0, submitted=2)
        for n in range(3)
    ]
    found = overlap(fast, slow)
    assert (found.pairs, found.stall_saved_s.mean, found.wall_saved_s.mean) == (3, 11.0, 12.0)
    assert (
        found.efficiency == pytest.approx(12 / 11)
        and found.efficiency_low is not None
        and found.efficiency_high is not None
    )
    assert found.efficiency_low < found.efficiency < found.efficiency_high
    assert (
        found.overlapped.submitted,
        found.overlapped.stall_s,
        found.overlapped.serialize_s,
        found.overlapped.write_s,
    ) == (12, 0.25, 0.5, 2.0)
    assert (
        found.blocking.submitted,
        found.blocking.stall_s,
        found.blocking.serialize_s,
        found.blocking.write_s,
    ) == (6, 6.0, 1.5, 3.0)
    nothing = overlap(slow, slow)
    assert (nothing.efficiency, nothing.efficiency_low, nothing.efficiency_high) == (
        None,
        None,
        None,
    )
    none = RunCosts(wall_s=1.0, stall_s=0.0, serialize_s=0.0, write_s=0.0, submitted=0)
    assert (
        overlap([none], [none]).overlapped.write_s,
        overlap([none], [none]).blocking.submitted,
    ) == (0.0, 0)
    with pytest.raises(ValueError):
        overlap(fast, slow[:2])


def test_a_pair_is_its_first_against_its_second() -> None:
    found = paired([1.0, 2.0, 6.0], [2.0, 2.0, 2.0])
    assert (found.n, found.ratio_of_means, found.difference.mean) == (3, 0.5, 1.0)
    assert found.mean_of_ratios is not None and found.mean_of_ratios.mean == 0.5
    assert (found.signs.positive, found.signs.negative, found.signs.ties) == (1, 1, 1)
    assert (
        found.ratio_low is not None
        and found.ratio_high is not None
        and -1 < found.ratio_low < 0.5 < found.ratio_high
    )
    with pytest.raises(ValueError, match="2 values against 1"):
        paired([1.0, 2.0], [1.0])
    assert (
        signs([0.0, 1.0]).p is None and signs([1.0, 1.0]).p == 0.5 and signs([1.0, -1.0]).p == 1.0
    )


# The document of a run


def test_the_document_takes_each_number_from_its_own_place(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    records = load(layout)
    document, config = metrics_document(records), records.stored.config
    assert (
        records.supervisor is not None and records.dataset is not None and records.final is not None
    )
    assert {
        name: document[name] for name in ("run_id", "reference_id", "variant", "seed", "scale")
    } == {
        "run_id": records.stored.run_id,
        "reference_id": records.stored.reference_id,
        "variant": config.variant.name,
        "seed": config.seed,
        "scale": config.scale.name,
    }
    assert {
        name: document[name]
        for name in ("dataset_size", "global_batch", "world_size", "target_steps")
    } == {
        "dataset_size": records.dataset.size,
        "global_batch": config.global_batch,
        "world_size": config.world_size,
        "target_steps": config.target_steps,
    }
    assert (document["metrics_version"], document["terminal_status"], document["restarts"]) == (
        METRICS_VERSION,
        "completed",
        2,
    )
    assert (document["survivals"], document["lost_samples"], document["absent_s"]) == (0, 0, 0.0)
    final = {name: getattr(records.final, name) for name in ("global_step", "loss")}
    digests = {
        f"{name}_digest": getattr(records.final, f"{name}_digest")
        for name in ("parameters", "buffers", "optimizer", "rng")
    }
    assert {
        name: value for name, value in document["final"].items() if name != "accuracy"
    } == digests | final
    times = timeline(records)
    assert document["wall_s"] == times.wall_s and document["seconds"] == times.seconds | {
        "residual": times.residual_s
    }
    assert list(document["mean_loss"]) == [str(step) for step in range(1, 25)]
    assert [entry["attempt"] for entry in document["restart_phases"]] == [0, 1, 2]
    assert [entry["attempt"] for entry in document["recoveries"]] == [1, 2]
    for entry, (number, seconds) in zip(
        document["restart_phases"], phases(records, times).items(), strict=True
    ):
        assert {name: value for name, value in entry.items() if name != "replay"} == {
            "attempt": number,
            **{name: seconds[name] for name in PHASES},
        }


def test_the_mean_loss_of_a_step_is_over_its_ranks_and_null_where_one_has_none(
    tmp_path: Path,
) -> None:
    layout = build_ref(tmp_path)

    def edited(rank: int, loss: float) -> None:
        edit_lines(
            layout.attempt(0).rank(rank),
            lambda line: line | {"loss": loss} if line["global_step"] == 3 else line,
        )

    edited(0, 1.0), edited(1, 4.0)
    found = metrics_document(load(layout))["mean_loss"]
    assert found["3"] == 2.5
    edited(1, math.inf)
    found = metrics_document(load(layout))["mean_loss"]
    assert found["3"] is None and found["4"] is not None


def test_accuracy_is_in_the_document_where_it_was_measured(tmp_path: Path) -> None:
    layout = build_ref(tmp_path)
    for accuracy in (0.25, 0.0):
        edit_json(
            layout.attempt(0).final, lambda final, accuracy=accuracy: final | {"accuracy": accuracy}
        )
        assert metrics_document(load(layout))["final"]["accuracy"] == accuracy
    edit_json(
        layout.attempt(0).final,
        lambda final: {name: value for name, value in final.items() if name != "accuracy"},
    )
    assert "accuracy" not in metrics_document(load(layout))["final"]


def test_goodput_is_nothing_without_time_and_the_published_clock_needs_two_lines(
    tmp_path: Path,
) -> None:
    records = load(build_ref(tmp_path))
    path, nowhere = lineage(records), Timeline((), (), 0.0)
    assert (
        goodput(path, nowhere) == 0.0
        and goodput(path, replace(nowhere, windows=((1.0, 9.0),))) == 3.0
    )
    (only,) = records.attempt_logs

    def with_lines(count: int, rank: int = 0) -> RunRecords:
        lines = replace(only.ranks[0], events=only.ranks[0].events[:count])
        return replace(records, attempt_logs=(replace(only, ranks={rank: lines}),))

    first, second = (line.at for line in only.ranks[0].events[:2])
    assert goodput_published_clock(with_lines(2), path) == pytest.approx(24 / (second - first))
    assert (
        goodput_published_clock(with_lines(1), path) is None
        and goodput_published_clock(with_lines(24, rank=1), path) is None
    )
    assert goodput_published_clock(records, cast("Lineage", SimpleNamespace(segments=()))) == 0.0


# Recoveries


def piece(category: str, start: float, attempt: int, step: int = 0) -> TimelineSlice:
    return TimelineSlice(category, start, start + 1, attempt, 0, step)


def test_the_seconds_of_a_recovery_end_with_the_first_new_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = (
        Attempt(0, 2, launched_at=1.0, ended_at=90.0),
        Attempt(1, 2, launched_at=100.0, ended_at=200.0),
    )
    monkeypatch.setattr(recovery_times, "seen_before", lambda records: {1: 7})
    monkeypatch.setattr(recovery_times, "fatal_fault_instants", lambda records, attempt: faults)
    begun, faults, nothing = Timeline((), (), 0.0), list[float](), cast("Any", None)
    fault, working = recovery_times._fault_instant, recovery_times._working_again
    assert (
        fault(nothing, begun, before) == 90.0
        and fault(nothing, begun, replace(before, ended_at=None)) == 1.0
    )
    assert (
        working(nothing, begun, after) == 200.0
        and working(nothing, begun, replace(after, ended_at=None)) == 100.0
    )
    again = [
        piece("load", 110, 1),
        piece("compute", 120, 1, 7),
        piece("replay", 130, 1, 8),
        piece("warm_up", 145, 1, 8),
        piece("compute", 150, 1, 8),
    ]
    noticed = [
        piece("detect", 85, 0),
        piece("detect", 80, 0),
        piece("detect", 20, 1),
        piece("compute", 10, 0),
    ]
    begun = Timeline((*again, *noticed, piece("compute", 105, 0, 9)), (), 0.0)
    assert working(nothing, begun, after) == 145.0, "what warms up is new work"
    assert fault(nothing, begun, before) == 80.0
    faults += [70.0, 60.0]
    assert fault(nothing, begun, before) == 60.0


def test_how_a_recovery_began_is_told_from_what_the_attempt_resumed_from(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    edit_json(layout.supervisor, lambda s: s["attempts"][1].update(resumed_from=None))
    edit_json(
        layout.supervisor,
        lambda s: s["attempts"][2].update(memory="snapshot", joined=[1], world_size=3),
    )
    records = load(layout)
    found = recoveries(records, timeline(records))
    assert [(each.way, each.ranks, each.joined, each.lost_samples) for each in found] == [
        ("nothing", (2, 2), 0, 0),
        ("snapshot", (2, 3), 1, 0),
    ]
    edit_json(layout.supervisor, lambda s: s["attempts"][0].update(outcome="hung"))
    edit_json(layout.supervisor, lambda s: s["attempts"][1].update(outcome="resized"))
    records = load(layout)
    assert [each.attempt for each in recoveries(records, timeline(records))] == [1]
    assert Restart(1, "died", 6, 3, {"load": 1.5, "replay": 2.0}).total_s == 3.5


# Distances


def test_the_model_to_measure_by_is_in_a_folder_or_in_a_file_of_its_own(tmp_path: Path) -> None:
    run, ref = build_blk(tmp_path, "buggy", bug_from=22), build_ref(tmp_path)
    documents = [divergence_document(load(run), load(ref))]
    for layout in (run, ref):
        folder = layout.checkpoints / "step_00000024"
        shutil.copy(folder / "model.safetensors", layout.checkpoints / "step_00000030.safetensors")
        for name in (
            "step_00000099.pt",
            "step_42.safetensors",
            "step_x.safetensors",
            "step_00000098.json",
        ):
            (layout.checkpoints / name).write_bytes(b"")
        (layout.checkpoints / "step_00000097.safetensors").mkdir()
    documents.append(divergence_document(load(run), load(ref)))
    assert [document["state_step"] for document in documents] == [24, 30] and documents[0][
        "state"
    ] == documents[1]["state"]
    (ref.checkpoints / "step_00000030.safetensors").unlink()
    assert divergence_document(load(run), load(ref))["state_step"] == 24, "both must have it"
    shutil.rmtree(ref.checkpoints)
    gone = divergence_document(load(run), load(ref))
    assert (gone["state_step"], gone["state"]) == (None, None) and (
        gone["reference"],
        gone["schema_version"],
    ) == (ref.root.name, 1)


def test_ends_that_agree_need_no_files_and_each_component_is_compared_by_itself(
    tmp_path: Path,
) -> None:
    run, ref = load(build_blk(tmp_path)), load(build_ref(tmp_path))
    assert run.final is not None
    zero = {
        name: {"l2": 0.0, "relative_l2": 0.0, "differing": 0} for name in ("parameters", "buffers")
    }
    assert (found := divergence_document(run, ref))["state"] == zero and found["state_step"] == 24
    assert found["reference_run_id"] == ref.stored.run_id
    for name in ("parameters", "buffers", "optimizer", "rng"):
        last = replace(
            run.attempt_logs[-1], final=replace(run.final, **{f"{name}_digest": "0" * 64})
        )
        other = replace(run, attempt_logs=(*run.attempt_logs[:-1], last))
        document = divergence_document(other, ref)
        assert [key for key, equal in document["final_equal"].items() if not equal] == [name]
        assert document["state"] == zero, "the files are alike, whatever was recorded"


def test_what_a_diverged_model_measures_is_null_in_a_file_that_is_json(tmp_path: Path) -> None:
    records = load(build_evaluated_ref(tmp_path))
    measured = records.logs(0).evaluations
    events = tuple(
        replace(each, measures=each.measures | {"loss": math.nan, "accuracy": 0.5})
        for each in measured.events
    )
    document = metrics_document(left(records, 0, evaluations=replace(measured, events=events)))
    assert [(each["loss"], each["accuracy"]) for each in document["evaluations"]] == [
        (None, 0.5)
    ] * 6
    json.dumps(document, allow_nan=False)
