"""An attempt that went on from a snapshot in memory: what its records say of it is held against the
order, the stays and the ranks' lines.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.schema import CheckpointConfig
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.events import SkippedSnapshot, Span
from ecrl_cli.verify.attempts import check_recalled
from ecrl_cli.verify.consistency import records_consistent
from ecrl_cli.verify.rank_spans import SpanAccount
from ecrl_cli.verify.verdict import INVALID, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import build_blk
from tests.runs.changed import Records, attempts, configured, logged, ordered
from tests.runs.sentence import told

STATE, SHA = "5" * 64, "a" * 64


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    """Attempt 1 went on from a snapshot that attempt 0 had taken after step 6; rank 0 logged its
    state there, rank 1 another one.
    """
    found = load(build_blk(tmp_path_factory.mktemp("sweep")))
    checkpoint = replace(found.stored.config.checkpoint, strategy="in_memory", memory_every=100)
    found = configured(found, checkpoint=checkpoint)
    told: dict[str, Any] = {"continues": 0, "memory": "snapshot", "snapshot_sha256": SHA}
    found = ordered(
        attempts(found, 1, resumed_from=None, snapshot_state=STATE, **told),
        1,
        resume_from=None,
        **told,
    )
    return logged(
        found, lambda line: replace(line, state_digest=STATE if line.rank == 0 else "6" * 64)
    )


def said(records: RunRecords) -> list[str]:
    notes = FindingBuilder("it")
    case = Case(records)
    for a in case.attempts:
        check_recalled(case, a, notes)
    finding = notes.finding("")
    return [] if finding.status == "valid" else [finding.message, *finding.evidence]


def step_of(records: RunRecords) -> int:
    assert records.supervisor is not None
    return records.supervisor.attempts[1].resumed_from_step


def test_as_it_is_recorded_it_is_believed(records: RunRecords, tmp_path: Path) -> None:
    assert said(records) == []
    assert said(logged(records, lambda line: replace(line, state_digest=None))) == [], (
        "most runs do not log their state"
    )
    assert said(load(build_blk(tmp_path))) == []


SPOILT: dict[str, tuple[Records, str]] = {
    "another state": (
        lambda found: attempts(found, 1, snapshot_state="7" * 64),
        "holds another state than rank 0 logged",
    ),
    "another hash than ordered": (
        lambda found: ordered(found, 1, snapshot_sha256="b" * 64),
        "a snapshot that hashes to bbbbbbbb",
    ),
    "of an earlier session": (
        lambda found: attempts(found, 1, session=1),
        "which went down with its supervisor",
    ),
    "nobody takes snapshots": (
        lambda found: configured(found, checkpoint=CheckpointConfig()),
        "its configuration takes none",
    ),
    "a step that rank 1 never did": (
        lambda found: logged(
            found,
            lambda line: None if line.rank == 1 and line.global_step == step_of(found) else line,
        ),
        "rank 1 has no line of it",
    ),
    "from no memory": (
        lambda found: attempts(found, 1, memory=""),
        "says what a snapshot held, and went on from none",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_cannot_be_is_told(records: RunRecords, name: str) -> None:
    spoil, text = SPOILT[name]
    assert any(text in line for line in said(spoil(records)))


def with_snapshots(records: RunRecords, *steps: int) -> Case:
    """Rank 0 of attempt 0 booked snapshots of these steps."""
    spans = tuple(Span("snapshot", 1000.0 + step, 1000.1 + step, 0, step) for step in steps)
    case = Case(records)
    case.__dict__["spans"] = replace(
        case.spans, accounts=case.spans.accounts | {(0, 0): SpanAccount(spans)}
    )
    return case


def newest(case: Case) -> Finding:
    notes = FindingBuilder("it")
    for a in case.attempts:
        check_recalled(case, a, notes)
    return notes.finding("")


def test_the_newest_snapshot_is_gone_on_with_or_its_refusal_is_on_record(
    records: RunRecords,
) -> None:
    assert newest(with_snapshots(records, 5, 6)).status == VALID
    stale = newest(with_snapshots(records, 6, 8))
    assert (
        stale.status == INVALID
        and "attempt 1 went on after step 6: attempt 0 had taken a snapshot of step 8, and no"
        " refusal"
        in stale.message
    )
    refused = attempts(records, 1, forgone=(SkippedSnapshot(8, 0, "holds a NaN"),))
    assert newest(with_snapshots(refused, 6, 8)).status == VALID


@pytest.mark.parametrize(("steps", "wrong"), [((3, 6), False), ((6,), True)])
def test_each_snapshot_that_was_due_before_the_last_step_was_taken(
    records: RunRecords, steps: tuple[int, ...], wrong: bool
) -> None:
    checkpoint = replace(records.stored.config.checkpoint, memory_every=3)
    told = newest(with_snapshots(configured(records, checkpoint=checkpoint), *steps))
    assert ("attempt 0 went past step 3, and no span is of its snapshot" in str(told)) == wrong


def refused(records: RunRecords, step: int, of: int = 0, by: int = 1) -> RunRecords:
    """Attempt `by` refused a snapshot of `step` that attempt `of` had taken; one is due after every
    second step.
    """
    found = configured(
        records, checkpoint=replace(records.stored.config.checkpoint, memory_every=2)
    )
    return attempts(found, by, forgone=(SkippedSnapshot(step, of, "holds a NaN"),))


NEVER_TAKEN: dict[str, tuple[Records, tuple[int, ...], str]] = {
    "by one that takes none": (
        lambda found: configured(refused(found, 8), checkpoint=CheckpointConfig()),
        (6, 8),
        "attempt 1 refused a snapshot of step 8 of attempt 0, its configuration takes none",
    ),
    "by itself": (
        lambda found: refused(found, 8, of=1),
        (6, 8),
        "of attempt 1, which was not before it under the same supervisor",
    ),
    "by nobody": (
        lambda found: refused(found, 8, of=7),
        (6, 8),
        "of attempt 7, which was not before it under the same supervisor",
    ),
    "under another supervisor": (
        lambda found: attempts(refused(found, 8), 0, session=1),
        (6, 8),
        "which was not before it under the same supervisor",
    ),
    "of what it went on with": (
        lambda found: refused(found, 6),
        (6, 8),
        "which went on after step 6 and had come to step 9",
    ),
    "of a step to come": (
        lambda found: refused(found, 10),
        (6, 8),
        "which went on after step 6 and had come to step 9",
    ),
    "of a step in between": (
        lambda found: refused(found, 7),
        (6, 8),
        "attempt 1 refused a snapshot of step 7 of attempt 0, and none is due there",
    ),
    "of an attempt before the one gone on with": (
        lambda found: attempts(refused(found, 20, of=1, by=2), 2, memory="snapshot", continues=2),
        (6, 8),
        "and went on with one of attempt 2",
    ),
    "of a step without one": (
        lambda found: refused(found, 8),
        (6, 9),
        "of attempt 0, and rank 0 has booked none in that step",
    ),
}


@pytest.mark.parametrize("name", NEVER_TAKEN)
def test_a_snapshot_that_was_refused_had_been_taken(records: RunRecords, name: str) -> None:
    change, taken, words = NEVER_TAKEN[name]
    finding = records_consistent(with_snapshots(change(records), *taken))
    assert finding.status == INVALID and told(finding, words), finding


@pytest.mark.parametrize("taken", [(6, 8), (6, 8, 9), (6,)])
def test_a_snapshot_that_was_due_may_have_been_refused(
    records: RunRecords, taken: tuple[int, ...]
) -> None:
    """Also where rank 0 died before it booked it."""
    finding = records_consistent(with_snapshots(refused(records, 8), *taken))
    assert not told(finding, "refused a snapshot"), finding


@pytest.mark.parametrize(("every", "due"), [(3, True), (6, False)])
def test_a_snapshot_is_due_with_each_checkpoint(records: RunRecords, every: int, due: bool) -> None:
    """Of step 9, where one is due after every second step."""
    found = refused(records, 9)
    found = configured(found, checkpoint=replace(found.stored.config.checkpoint, every=every))
    finding = records_consistent(with_snapshots(found, 6, 9))
    words = "attempt 1 refused a snapshot of step 9 of attempt 0, and none is due there"
    assert told(finding, words) != due, finding
