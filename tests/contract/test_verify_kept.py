"""What the judge says of promises that were kept: each count is that of the run, and what was not
compared is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.events import CheckpointLine, InjectedFault, PlannedFailure
from ecrl_cli.verify.checkpoint_lines import _check_fields
from ecrl_cli.verify.checkpoints import checkpoints_accounted, no_acknowledged_loss
from ecrl_cli.verify.clocks import Instant, _check_agreement
from ecrl_cli.verify.composed import NOT_COMPOSED
from ecrl_cli.verify.disk_state import on_disk
from ecrl_cli.verify.exactly_once import exactly_once
from ecrl_cli.verify.fault_instants import _beside_save
from ecrl_cli.verify.labels import other_code
from ecrl_cli.verify.reference import origin
from ecrl_cli.verify.registry import CHECKS
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.trajectory import same_trajectory
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import WALL, build_blk, build_clean, build_elastic, build_ref
from tests.runs.changed import attempts, event, kept, left, logged, ordered, sessions, supervised
from tests.runs.sentence import told
from tests.runs.spoilt_states import build_states
from tests.runs.survived import build_lossy


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecords]:
    folder = tmp_path_factory.mktemp("runs")
    built = (
        build_blk(folder),
        build_ref(folder),
        build_clean(folder),
        build_elastic(folder),
        build_lossy(folder),
    )
    return {layout.root.name: load(layout) for layout in built} | {
        "states": load(build_states(folder / "states", "blk"))
    }


ALL = "24 steps, 192 samples in the committed sequence: duplicates 0, missing 0, extra 0"
# By run (beside `ref`, but for the last two): of each promise its status and what is said.
KEPT: dict[str, dict[str, tuple[str, str]]] = {
    "blk": {
        "exactly-once": (VALID, ALL),
        "same-input": (
            VALID,
            "10 shards computed again look as they did at first, 48 look as in the reference",
        ),
        "state-consistent": (
            VALID,
            (
                "ranks agree after 0 steps; the learning rate on 0 lines is the schedule's; 3"
                " checkpoints hold what the configuration says"
            ),
        ),
        "state-restored": (NOT_CHECKED, "no rank restored a state, or none recorded what it held"),
        "no-bad-checkpoint": (
            VALID,
            "2 resumed from the newest checkpoint that was committed and not refused, 0 refused",
        ),
        "no-acknowledged-loss": (VALID, "3 committed checkpoints are there and whole"),
        "checkpoints-accounted": (VALID, "4 submitted, each ended once"),
        "failures-once": (VALID, "2 of 2 planned failures fired, each once"),
        "records-consistent": (
            VALID,
            "3 attempts agree with their logs; 3 checkpoints vouch for the lines before",
        ),
        "target-reached": (VALID, "step 24 is committed, its final state is on record"),
        "records-sealed": (NOT_CHECKED, "not sealed"),
    },
    "elastic": {
        "exactly-once": (VALID, ALL),
        "same-input": (
            VALID,
            (
                "7 shards computed again look as they did at first, 28 look as in the reference, "
                "10 windows look the same cut for another number of ranks"
            ),
        ),
        "no-bad-checkpoint": (
            VALID,
            "4 resumed from the newest checkpoint that was committed and not refused, 0 refused",
        ),
        "checkpoints-accounted": (VALID, "6 submitted, each ended once"),
    },
    "lossy": {
        "exactly-once": (
            VALID,
            f"{ALL}; 188 applied to every layer, 0 replayed, 4 on record as lost",
        ),
        "same-input": (
            VALID,
            (
                "0 shards computed again look as they did at first, 30 look as in the reference, 8"
                " windows look the same cut for another number of ranks"
            ),
        ),
        "no-bad-checkpoint": (
            VALID,
            "no attempt resumed from a checkpoint, and none had to; 0 refused",
        ),
        "records-consistent": (
            VALID,
            "2 attempts agree with their logs; 3 checkpoints vouch for the lines before",
        ),
    },
    "states": {
        "state-consistent": (
            VALID,
            (
                "ranks agree after 24 steps and at the end; the learning rate on 58 lines is the"
                " schedule's; 3 checkpoints hold what the configuration says, 3 of them what the"
                " ranks logged; 4 saves committed what the ranks logged"
            ),
        ),
        "state-restored": (
            VALID,
            "4 times a rank held what it was to resume from, before its first step",
        ),
    },
    "clean": {
        "same-input": (
            NOT_CHECKED,
            "no shard was computed twice, and there is no reference to compare with",
        ),
        "same-trajectory": (
            NOT_CHECKED,
            (
                "undisturbed, no other such run ended beside it; 0 replayed lines repeated their"
                " losses"
            ),
        ),
        "no-bad-checkpoint": (NOT_CHECKED, "nothing was resumed"),
        "no-acknowledged-loss": (NOT_CHECKED, "0 committed checkpoints are there and whole"),
        "checkpoints-accounted": (NOT_CHECKED, "0 submitted, each ended once"),
        "failures-once": (NOT_CHECKED, "no failure was planned, and none fired"),
    },
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_said_of_a_kept_promise_counts_what_was_looked_at(
    runs: dict[str, RunRecords], name: str
) -> None:
    case = Case(runs[name], None if name in ("states", "clean") else runs["ref"])
    said = {promise: CHECKS[promise](case) for promise in KEPT[name]}
    assert {
        promise: (finding.status, finding.message) for promise, finding in said.items()
    } == KEPT[name]
    assert [text for finding in said.values() for text in finding.evidence] == (
        [NOT_COMPOSED] if "records-sealed" in said else []
    )


def test_what_is_said_of_lost_samples_and_of_other_sizes(runs: dict[str, RunRecords]) -> None:
    finding = same_trajectory(Case(runs["lossy"], runs["ref"]))
    for words in (
        (
            "step 9 (attempt 0): 2 samples of ranks [3] are on record as lost on 3 layers"
            " (lossy_forward)"
        ),
        (
            "step 9 (attempt 0): 2 samples of ranks [2] are on record as lost on 2 layers"
            " (lossy_forward)"
        ),
        (
            "world size 4 from step 1 on, 2 in the reference: in plain DDP gradients are added up"
            " in another order (shards of 2 samples instead of 4)"
        ),
        "of the final state differ: parameters, buffers, optimizer, rng",
        "equal to ref in every loss of the 0 steps with as many ranks; not claimed after them",
    ):
        assert told(finding, words), finding


# The fields of a checkpoint line, by event.
FIELDS: dict[str, set[str]] = {
    "submitted": {
        "snapshot_s",
        "serialize_s",
        "backpressure_s",
        "bytes",
        "inflight",
        "deferred_bytes",
        "reason",
    },
    "received": set(),
    "released": {"enqueue_s", "stall_s", "stall_parts"},
    "waited": {"stall_s", "stall_parts"},
    "committed": {"write_s", "hash_s", "commit_s", "bytes", "path", "commit_sha256", "reason"},
    "failed": {"write_s", "reason"},
    "lost": {"bytes", "reason"},
    "retired": {"path", "commit_sha256"},
    "pointer_failed": {"reason"},
}
TEXTS = {"reason": "x", "path": "x", "commit_sha256": "x", "stall_parts": {"x": 1.0}}
VALUES: dict[str, Any] = {name: TEXTS.get(name, 1) for names in FIELDS.values() for name in names}


@pytest.mark.parametrize("name", FIELDS)
def test_a_line_has_the_fields_of_its_event_and_no_others(name: str) -> None:
    for field, value in VALUES.items():
        notes = FindingBuilder("it")
        _check_fields(0, (CheckpointLine(name, 6, 0, 1.0, 1.0, **{field: value}),), notes)
        assert notes.clean == (field in FIELDS[name]), field
        assert notes.clean or told(
            notes.finding(""), f"{name!r} of step 6 in the journal of attempt 0 has {field} "
        )


# What remains of single conditions


def test_two_saves_without_an_end_are_two_in_flight(runs: dict[str, RunRecords]) -> None:
    words = (
        "step 18 of attempt 1 was submitted with 2 checkpoints in flight by the lines before it,"
        " checkpoint.max_inflight is 1"
    )
    finding = checkpoints_accounted(Case(event(runs["blk"], 1, "committed", 12)))
    assert finding.status == INVALID and told(finding, words), finding


def test_a_folder_in_which_nobody_committed_has_a_holder_all_the_same(
    runs: dict[str, RunRecords],
) -> None:
    found = runs["blk"]
    for number in range(3):
        found = left(
            found, number, checkpoints=kept(found.logs(number).checkpoints, lambda line: None)
        )
    assert not told(checkpoints_accounted(Case(found)), "names attempt")
    assert no_acknowledged_loss(Case(found)).status == INVALID, (
        "what lies on disk is acknowledged by nobody"
    )


def test_samples_of_a_line_that_is_gone_are_not_on_record(runs: dict[str, RunRecords]) -> None:
    found = logged(
        runs["blk"], lambda line: None if (line.global_step, line.rank) == (24, 1) else line, 2
    )
    finding = exactly_once(Case(found))
    assert finding.status == UNKNOWN and told(finding, "epoch 2: 4 samples are not on record"), (
        finding
    )
    assert told(finding, "the log ends before step 24 of attempt 2 rank 1")


def test_a_first_step_without_a_loss_cannot_be_compared(runs: dict[str, RunRecords]) -> None:
    found = logged(
        runs["blk"], lambda line: None if (line.global_step, line.rank) == (1, 1) else line, 0
    )
    assert told(
        same_trajectory(Case(found, runs["ref"])), "step 1: this run lacks the losses of ranks [1]"
    )


def test_an_order_of_an_early_version_has_no_time(runs: dict[str, RunRecords]) -> None:
    assert (
        time_conserved(Case(ordered(runs["blk"], 1, at=0.0, time=0.0, boot_id=""))).status == VALID
    )


def test_the_code_of_each_attempt_is_told_where_it_changed(runs: dict[str, RunRecords]) -> None:
    found = supervised(
        runs["blk"],
        sessions=(
            replace(runs["blk"].sessions[0], code="c" * 64),
            replace(runs["blk"].sessions[0], code="d" * 64),
        ),
    )
    assert other_code(Case(found)) == ()
    assert other_code(Case(attempts(attempts(found, 1, session=1), 2, session=1))) == (
        (
            "the run went on under other code: attempt 0 ran code 'cccccccccccc', attempts 1 to 2"
            " ran code 'dddddddddddd'"
        ),
    )
    none = sessions(attempts(found, 2, session=1), 1, code="")
    assert other_code(Case(none)) == (
        (
            "the run went on under other code: attempts 0 to 1 ran code 'cccccccccccc', attempt 2"
            " ran code that is not on record"
        ),
    )


@pytest.mark.parametrize(
    ("point", "at", "before", "after"),
    [
        ("half_part", 1.0, [1.0, 2.0], [-3.0]),
        ("half_part:model", 5.0, [-3.0, -2.0], [1.0]),
        ("after_root_sync", 5.0, [-3.0, -2.0], [1.0]),
        ("", 5.0, [-3.0, -2.0], [1.0]),
        ("before_pointer", 5.0, [-3.0, -2.0], []),
        ("after_trash", 5.0, [-3.0, -2.0], []),
    ],
)
def test_a_fault_of_the_writer_lies_between_the_lines_of_its_save(
    point: str, at: float, before: list[float], after: list[float]
) -> None:
    """Submitted at 2, received at 3, committed at 4; the save of another step is none of it."""
    instants = {"submitted": 2.0, "received": 3.0, "released": 3.5, "committed": 4.0}
    lines = [
        CheckpointLine(name, step, 0, instant, 0.0)
        for step in (6, 12)
        for name, instant in instants.items()
    ]
    run = SimpleNamespace(
        logs=lambda attempt: SimpleNamespace(checkpoints=SimpleNamespace(events=lines))
    )
    case = cast(Case, SimpleNamespace(run=run))
    entry = PlannedFailure(0, "writer", 0, 6, moment="save", point=point)
    found = _beside_save(case, InjectedFault(0, "writer", 0, 6, 0, at, at, at_step=6), entry)
    assert [by for by, _ in found] == [*before, *after]
    assert [text for _, text in found] == [
        "before step 6 was submitted",
        "before step 6 was received",
        *["after the save of step 6 had ended (committed)" for _ in after],
    ]


def test_a_copy_of_a_run_has_its_origin_and_no_other_run_has(runs: dict[str, RunRecords]) -> None:
    found = runs["blk"]
    own = origin(found)
    assert origin(replace(found, layout=runs["ref"].layout)) == own
    changed = (
        sessions(found, 0, boot_id="x"),
        sessions(found, 0, started_at=1.0),
        attempts(found, 0, launched_at=1.0),
    )
    assert all(
        origin(other) != own
        for other in (*changed, replace(found, stored=replace(found.stored, run_id="x")))
    )
    assert origin(attempts(found, 1, launched_at=1.0)) == own


def test_checkpoints_on_disk_are_by_step(
    runs: dict[str, RunRecords], monkeypatch: pytest.MonkeyPatch
) -> None:
    there: Callable[[Path], Any] = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(there(path), reverse=True)))
    assert [c.step for c in on_disk(runs["blk"])] == [12, 18, 24]


def agreement(readings: list[Instant]) -> Finding:
    notes = FindingBuilder("it")
    _check_agreement("boot x", readings, notes)
    return notes.finding("")


def test_a_reading_that_its_process_cannot_have_made_is_measured_from_those_nearest_to_it() -> None:
    """Of the four beside it two are 0.03 s ahead of the others."""
    ahead = {4: 0.0, 5: 0.0, 7: 0.03, 8: 0.03}
    for off, words in (
        (-1.0, "reading 6 has a wall time 1.000 s early, which no clock showed"),
        (2.0, "reading 6 has a wall time 1.970 s late"),
    ):
        readings = [
            Instant(
                float(n), WALL + n + (off if n == 6 else ahead.get(n, 0.0)), (0, 0), f"reading {n}"
            )
            for n in range(12)
        ]
        finding = agreement(readings)
        assert (
            finding.status == INVALID
            and told(finding, f"boot x: {words}")
            and told(finding, "(1 such)")
        ), finding


@pytest.mark.parametrize(("late", "status"), [(0.24, VALID), (0.26, INVALID)])
def test_a_reading_is_late_by_no_more_than_until_its_process_reads_again(
    late: float, status: str
) -> None:
    """Two processes read in turn, each every 0.2 s; their clocks may be 0.05 s apart."""
    readings = [
        Instant(0.1 * n, WALL + 0.1 * n + (late if n == 6 else 0.0), (0, n % 2), f"reading {n}")
        for n in range(12)
    ]
    assert agreement(readings).status == status
