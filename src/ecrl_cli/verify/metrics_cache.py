"""Checks metrics.json against the metrics computed from the records.

Those that a promise depends on are counted a second time here, by separate code: otherwise a wrong
computation would confirm itself.
"""

from __future__ import annotations

from typing import Any

from ecrl_cli.errors import EcrlError, RecordError, shown
from ecrl_cli.history.lineage import covered, lines_of
from ecrl_cli.history.load import RunRecords
from ecrl_cli.metrics.cache import NewerMetrics, differences
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.events import CHECKPOINT_ENDS
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.verify.evaluations import unrecorded
from ecrl_cli.verify.survivor_reports import allowed_missing_lines
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

SHOWN = 4  # so many differing fields are named, so that other findings of this promise stay visible


def check_metrics(case: Case, notes: FindingBuilder) -> None:
    """Check metrics.json of a run that has ended. While it runs there may be none: resuming removes
    the one of the earlier end.
    """
    path = case.run.layout.metrics
    if case.run.unread or not case.ended:
        return
    if not path.exists():
        if case.completed:
            notes.missing("the run is completed and metrics.json is missing")
        return
    try:
        recorded = read_json(path)  # first: what is too large to be read need not be folded
        folded = metrics_document(case.run, case.timeline)
        wrong = differences(recorded, folded)
    except NewerMetrics as error:
        notes.missing(f"metrics.json cannot be compared: {error}")
        return
    except (RecordError, OSError) as error:
        notes.missing(
            f"metrics.json cannot be read: {error.fact if isinstance(error, EcrlError) else error}"
        )
        return
    _note(wrong, lacking(case), notes)
    if (
        recorded_by_rank(case.run.stored.config)
        and isinstance(recorded, dict)
        and recorded.get("metrics_version", 1) == 1
    ):
        notes.broken(
            "metrics.json is of version 1, in which no run was counted that recorded the state of"
            " every rank"
        )
    for name, count in _counted_again(case).items():
        if folded[name] != count:
            notes.broken(
                f"the records fold to {name} {shown(folded[name])}, counted again it is"
                f" {shown(count)}"
            )
    for name, count in _checkpoint_counts(case.run).items():
        if folded["checkpoints"][name] != count:
            notes.broken(
                f"the records fold to {folded['checkpoints'][name]} {name} checkpoints, the"
                f" journals have {count}"
            )


def _note(wrong: list[str], lacking: str, notes: FindingBuilder) -> None:
    note = notes.missing if lacking else notes.broken
    beside = f" ({lacking})" if lacking else ""
    for text in wrong[:SHOWN]:
        note(f"in metrics.json {text}{beside}")
    if len(wrong) > SHOWN:
        note(
            f"in metrics.json {len(wrong) - SHOWN} more fields are not what the records fold"
            f" to{beside}"
        )


def lacking(case: Case) -> str:
    """Which records the computation lacks, as text: metrics.json is durable when a run ends, logs
    may lose lines in a power loss.
    """
    if case.run.dataset is None:
        return "dataset.json is missing"
    if case.path.gaps:
        return case.path.gaps[0]
    for a in case.attempts:
        logs = case.run.logs(a.attempt)
        if a.outcome == "completed" and logs.final is None:
            return f"attempt {a.attempt} left no final.json"
        if a.last_step is None:
            continue
        if not logs.spans.events:
            return f"attempt {a.attempt} left no spans of rank 0"
        for rank in range(a.world_size):
            if rank not in logs.ranks or not logs.ranks[rank].events:
                return f"attempt {a.attempt} left no log of rank {rank}"
    allowed = allowed_missing_lines(case)
    for segment in case.path.segments:
        excused = sum(
            attempt == segment.attempt and step in segment.steps() for attempt, _, step in allowed
        )
        if covered(case.run, segment) is not None:
            continue
        if len(lines_of(case.run, segment)) < len(segment.steps()) * segment.world_size - excused:
            return f"lines of attempt {segment.attempt} are missing"
    return "evaluations are missing" if unrecorded(case) else ""


def _counted_again(case: Case) -> dict[str, Any]:
    wall, steps = case.timeline.wall_s, sum(len(segment.steps()) for segment in case.path.segments)
    counted: dict[str, Any] = {
        "committed_steps": steps,
        "wall_s": wall,
        "goodput": steps / wall if wall > 0 else 0.0,
    }
    return counted | ({"restarts": case.run.supervisor.restarts} if case.run.supervisor else {})


def _checkpoint_counts(run: RunRecords) -> dict[str, int]:
    """How many checkpoints were submitted, and how they ended by the first line that records an
    end.
    """
    counts = dict.fromkeys(("submitted", *CHECKPOINT_ENDS), 0)
    for a in run.attempt_logs:
        ends: dict[int, str] = {}
        for line in a.checkpoints.events:
            if line.event in CHECKPOINT_ENDS:
                ends.setdefault(line.global_step, line.event)
        for step in {
            line.global_step for line in a.checkpoints.events if line.event == "submitted"
        }:
            counts["submitted"] += 1
            if step in ends:
                counts[ends[step]] += 1
    return counts
