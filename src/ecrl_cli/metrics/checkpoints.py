"""The checkpoint account: every submitted checkpoint counts once and ends once; and the cost of
in-memory snapshots.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.history.load import AttemptRecords, RunRecords
from ecrl_cli.records.events import CHECKPOINT_ENDS, COPY_WAIT, STALL_PARTS, CheckpointLine

TIMES = (
    "snapshot_s",
    "serialize_s",
    "enqueue_s",
    "backpressure_s",
    "write_s",
    "hash_s",
    "commit_s",
    "stall_s",
)


@dataclass(frozen=True)
class CheckpointOutcome:
    """One checkpoint: its step, the attempt that submitted it, how it ended ("" if not on record),
    its costs.
    """

    attempt: int
    global_step: int
    end: str
    bytes: int
    inflight: int
    seconds: dict[str, float]
    stall_parts: dict[str, float]


@dataclass(frozen=True)
class CheckpointAccount:
    """Totals over all submitted checkpoints."""

    checkpoints: tuple[CheckpointOutcome, ...]

    def count(self, end: str) -> int:
        return sum(c.end == end for c in self.checkpoints)

    @property
    def submitted(self) -> int:
        return len(self.checkpoints)

    def total(self, time: str) -> float:
        return math.fsum(c.seconds[time] for c in self.checkpoints)

    def document(self) -> dict[str, float]:
        """The `checkpoints` object of metrics.json. The times are sums over all submitted
        checkpoints, whether or not an end is on record.
        """
        counts = {"submitted": self.submitted} | {end: self.count(end) for end in CHECKPOINT_ENDS}
        sizes = {
            "bytes": sum(c.bytes for c in self.checkpoints),
            "max_inflight": max((c.inflight for c in self.checkpoints), default=0),
        }
        return counts | sizes | {time: self.total(time) for time in TIMES} | self.stall_parts()

    def stall_parts(self) -> dict[str, float]:
        """Seconds of all stalls by part, under `stalled_PART_s`; empty if there are no stalls, or
        one was recorded without its parts.
        """
        stalled = [c for c in self.checkpoints if c.seconds["stall_s"]]
        if not stalled or not all(c.stall_parts for c in stalled):
            return {}
        # a part that runs have only with checkpoint.capture=deferred
        waited = any(COPY_WAIT in c.stall_parts for c in stalled)
        parts = [part for part in STALL_PARTS if waited or part != COPY_WAIT]
        return {
            f"stalled_{part}_s": math.fsum(c.stall_parts.get(part, 0.0) for c in stalled)
            for part in parts
        }


@dataclass(frozen=True)
class SaveLatency:
    """Mean save times of a run in seconds: `latency_s` from handing a checkpoint over until it is
    durable, over the committed ones; `interval_s` between handing over two checkpoints, one after
    the other in one attempt. None without any.
    """

    latency_s: float | None
    interval_s: float | None

    @property
    def share(self) -> float | None:
        """The latency as a share of the interval; above 1, checkpoints come faster than they can be
        written.
        """
        return (
            self.latency_s / self.interval_s
            if self.latency_s is not None and self.interval_s
            else None
        )


def save_latency(lines: Iterable[CheckpointLine]) -> SaveLatency:
    """Save latency from the checkpoint lines of all attempts; a checkpoint that was only found
    committed after its writer had died is not timed.
    """
    submitted: dict[tuple[int, int], float] = {}
    durable: dict[tuple[int, int], float] = {}
    for line in lines:
        key = line.attempt, line.global_step
        if line.event == "submitted":
            submitted[key] = line.at
        elif line.event == "committed" and line.reason is None and key in submitted:
            durable[key] = line.at - submitted[key]
    ordered = sorted(submitted.items())
    between = [
        late - early
        for ((a, _), early), ((b, _), late) in pairwise(ordered)
        if a == b and late > early
    ]
    return SaveLatency(_mean(durable.values()), _mean(between))


def _mean(values: Collection[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def account(records: RunRecords) -> CheckpointAccount:
    """One entry per `submitted` line, in order."""
    found = []
    for a in records.attempt_logs:
        by_step: dict[int, list[CheckpointLine]] = {}
        for line in a.checkpoints.events:
            by_step.setdefault(line.global_step, []).append(line)
        submitted = dict.fromkeys(
            line.global_step for line in a.checkpoints.events if line.event == "submitted"
        )
        found += [_checkpoint(by_step[step]) for step in submitted]
    return CheckpointAccount(tuple(found))


def _checkpoint(lines: list[CheckpointLine]) -> CheckpointOutcome:
    """Merge the lines of one checkpoint; values repeated on several lines count once. A stall may
    be in two pieces: at the checkpoint, and where the next update waited for a deferred copy.
    """
    stalls = {line.event: line for line in lines if line.event in ("released", "waited")}.values()
    seconds = {time: max(float(getattr(line, time)) for line in lines) for time in TIMES}
    return CheckpointOutcome(
        attempt=lines[0].attempt,
        global_step=lines[0].global_step,
        end=next((line.event for line in lines if line.event in CHECKPOINT_ENDS), ""),
        bytes=_largest(line.bytes for line in lines),
        inflight=_largest(line.inflight for line in lines),
        seconds=seconds | {"stall_s": math.fsum(line.stall_s for line in stalls)},
        stall_parts={name: part for line in stalls for name, part in line.stall_parts.items()},
    )


def _largest(values: Iterable[int]) -> int:
    return max(values, default=0)


def snapshots(records: RunRecords) -> dict[str, float]:
    """The `snapshots` object of metrics.json: how many steps had a snapshot and no checkpoint, and
    rank 0's seconds for them.

    `copy_s`: in the copy; `sync_s`: in the collective before it, mostly waiting for slower ranks,
    which the next step would wait for otherwise. Steps with both a snapshot and a submitted
    checkpoint are excluded: their costs cannot be separated.
    """
    taken, copy_s, sync_s = 0, 0.0, 0.0
    for attempt in records.attempt_logs if strategy_of(records.stored.config).snapshots else ():
        for copy, sync in _by_step(attempt).values():
            taken, copy_s, sync_s = taken + 1, copy_s + copy, sync_s + sync
    return {
        "taken": taken,
        "copy_s": copy_s,
        "sync_s": sync_s,
        "per_snapshot_s": (copy_s + sync_s) / taken if taken else 0.0,
    }


def _by_step(attempt: AttemptRecords) -> dict[int, tuple[float, float]]:
    """Seconds of the copy and of the collective, by step."""
    saved = {line.global_step for line in attempt.checkpoints.events}
    spent: dict[int, dict[str, float]] = {}
    for span in attempt.spans.events:
        of_step = spent.setdefault(span.global_step, {})
        of_step[span.category] = of_step.get(span.category, 0.0) + span.end - span.start
    return {
        step: (of["snapshot"], of.get("sync", 0.0))
        for step, of in spent.items()
        if "snapshot" in of and step not in saved
    }
