"""Before a launch: the newest snapshot in memory that may be gone on with, if it is newer than what is durable."""

from __future__ import annotations

from ecrl_cli.checkpoint.capture.memory_snapshots import InvalidSnapshot, Snapshot, SnapshotContent, SnapshotPair
from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.store.catalog import MemorySnapshotChoice
from ecrl_cli.records.events import RankLine, SkippedSnapshot
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout


def recall(
    layout: RunLayout, snapshots: SnapshotPair, behind: int, finite: str = "all"
) -> tuple[MemorySnapshotChoice | None, tuple[SkippedSnapshot, ...]]:
    """The newest sound snapshot behind a later step than `behind`, and the newer ones that were refused: these are withdrawn.
    `finite`: checkpoint.finite.

    Only while nobody writes: no rank lives.
    """
    forgone: list[SkippedSnapshot] = []
    for snapshot in snapshots.whole():
        if snapshot.global_step <= behind:
            break
        try:
            return MemorySnapshotChoice(snapshot.attempt, snapshot.global_step, _sound(layout, snapshot, finite)), tuple(forgone)
        except InvalidSnapshot as unsound:
            snapshots.withdraw(snapshot.number)
            forgone.append(SkippedSnapshot(snapshot.global_step, snapshot.attempt, str(unsound)))
    return None, tuple(forgone)


def _sound(layout: RunLayout, snapshot: Snapshot, finite: str) -> SnapshotContent:
    """What it holds. Unsound where that is not finite, or not what rank 0 had, where its lines say what it had (`state_digests`)."""
    snapshot.refuse_what_is_not_finite(finite)
    try:
        step = parse(snapshot.train)["global_step"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSnapshot(f"its train.json cannot be read ({error})") from error
    if step != snapshot.global_step:
        raise InvalidSnapshot(f"its train.json is of step {step}")
    content = snapshot.content()
    lines = read_journal(layout.attempt(snapshot.attempt).rank(0), RankLine).events
    line = next((line for line in reversed(lines) if line.global_step == snapshot.global_step), None)
    if line is None:
        raise InvalidSnapshot("rank 0 logged no such step")
    if line.state_digest not in (None, content.state_digest):
        raise InvalidSnapshot("its state is not the one that rank 0 logged")
    return content
