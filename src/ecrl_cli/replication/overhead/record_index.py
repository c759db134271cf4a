"""Measured parts read from recorded runs, each recorded failure predicted from the others; and the
study's records by arm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.errors import EvidenceMissing, RecordError, shown
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.timeline import Timeline, phases, timeline
from ecrl_cli.metrics.checkpoints import account
from ecrl_cli.metrics.recoveries import Restart, restarts
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.replication.overhead.strategies import FailureScenario, Parts
from ecrl_cli.studies.frame.study import Record

# Which recorded phases make up which part.
INIT = ("launch", "import", "rendezvous")
RESTART = ("idle", "load", "warm_up")
_STEP = ("compute", "sync")


@dataclass(frozen=True)
class Failure:
    """One recorded failure. `since`: mini-batches that the failed attempt had committed after the
    checkpoint resumed from; the other fields are seconds.

    A repeated first step counts as replay in the record, with its warm-up; here its time beyond a
    mini-batch belongs to `restart`.
    """

    attempt: int
    since: int
    detect: float
    init: float
    restart: float
    replay: float

    @property
    def total(self) -> float:
        return math.fsum((self.detect, self.init, self.restart, self.replay))


@dataclass(frozen=True)
class RecordedRecovery:
    """One recovery in which ranks went on with the state in their memory. Seconds; `join`: None
    where nobody joined.
    """

    attempt: int
    detect: float
    regroup: float
    join: float | None


@dataclass(frozen=True)
class RunTimings:
    """One run. Seconds: `mini_batch` (mean of steps done for the first time, without warm-up
    steps), `checkpoint` (mean stall), `begin` (from the run's launch to its first step), `wall`.
    `steps`: the target; `complete`: whether it was reached.
    """

    name: str
    strategy: str
    workers: int
    mini_batch: float
    checkpoint: float
    begin: float
    every: int
    steps: int
    checkpoints: int
    wall: float
    complete: bool
    failures: tuple[Failure, ...] = field(default=())
    live: tuple[RecordedRecovery, ...] = field(default=())


def recordings(folder: Path) -> list[RunTimings]:
    """The recordings of the run `folder`, or of every run in it. Errors name what is missing or
    damaged.
    """
    runs = (
        [folder]
        if _is_run(folder)
        else sorted(path for path in folder.iterdir() if is_folder(path) and _is_run(path))
    )
    found = [recording for run in runs if (recording := _recording(run)) is not None]
    if not found:
        raise EvidenceMissing(
            "study.source",
            f"no run with a recorded step at {shown(str(folder))}",
            "name a run directory or a sweep folder",
        )
    return found


def _is_run(folder: Path) -> bool:
    return RunLayout(folder).config.exists()


def _recording(folder: Path) -> RunTimings | None:
    """The recording of a run; None if no step was timed."""
    records = load(RunLayout(folder))
    if records.unread:
        raise RecordError(
            f"{folder.name}/{records.unread[0].path}", records.unread[0].reason, "restore the file"
        )
    times = timeline(records)
    steps = _mini_batches(times, _barriers(records))
    if records.supervisor is None or not steps:
        return None
    config, checkpoints = records.stored.config, account(records)
    starts = phases(records, times)
    return RunTimings(
        name=folder.resolve().name,
        strategy=config.recovery.name,
        workers=config.world_size,
        mini_batch=_mean(steps),
        checkpoint=(
            checkpoints.total("stall_s") / checkpoints.submitted if checkpoints.submitted else 0.0
        ),
        begin=math.fsum(starts[0][name] for name in (*INIT, *RESTART)),
        every=config.checkpoint.every,
        steps=config.target_steps,
        checkpoints=checkpoints.submitted,
        wall=times.wall_s,
        complete=records.final is not None,
        failures=tuple(_failures(records, times, _mean(steps))),
        live=tuple(
            RecordedRecovery(
                a.attempt, start["detect"], start["rendezvous"], start["load"] if a.joined else None
            )
            for a in records.attempts
            if a.memory == SURVIVORS
            for start in (starts[a.attempt],)
        ),
    )


def _barriers(records: RunRecords) -> dict[tuple[int, int], float]:
    """By attempt and step, the seconds that ranks waited for each other after a checkpoint: part of
    the stall, although recorded in the step's sync span.
    """
    return {
        (line.attempt, line.global_step): line.stall_parts.get("barrier", 0.0)
        for a in records.attempt_logs
        for line in a.checkpoints.events
        if line.event == "released" and line.stall_parts
    }


def _mini_batches(
    times: Timeline, barriers: Mapping[tuple[int, int], float] = MappingProxyType({})
) -> list[float]:
    """Seconds of each step done for the first time, without warm-up steps and without the
    `barriers` of a checkpoint.
    """
    steps: dict[tuple[int, int], dict[str, float]] = {}
    for piece in times.pieces:
        if piece.step > 0:
            spent = steps.setdefault((piece.attempt, piece.step), {})
            spent[piece.category] = spent.get(piece.category, 0.0) + piece.end - piece.start
    timed = (
        (key, spent)
        for key, spent in steps.items()
        if "compute" in spent and "warm_up" not in spent
    )
    return [
        math.fsum((*(spent.get(name, 0.0) for name in _STEP), -barriers.get(key, 0.0)))
        for key, spent in timed
    ]


def _failures(records: RunRecords, times: Timeline, mini_batch: float) -> Iterable[Failure]:
    before = {later.attempt: earlier for earlier, later in pairwise(records.attempts)}
    for restart in restarts(records, times):
        reached = before[restart.attempt].last_step or before[restart.attempt].resumed_from_step
        yield _failure(
            restart,
            max(0, reached - restart.resumed_from_step),
            _warm_up(times, restart.attempt, mini_batch),
        )


def _warm_up(times: Timeline, attempt: int, mini_batch: float) -> float:
    """Seconds beyond `mini_batch` that the first repeated step of `attempt` took."""
    again = [
        piece for piece in times.pieces if piece.category == "replay" and piece.attempt == attempt
    ]
    first = min((piece.step for piece in again), default=0)
    return max(
        0.0,
        math.fsum(piece.end - piece.start for piece in again if piece.step == first) - mini_batch,
    )


def _failure(restart: Restart, since: int, warm_up: float) -> Failure:
    spent = restart.seconds
    init, again = (math.fsum(spent[name] for name in names) for names in (INIT, RESTART))
    return Failure(
        restart.attempt, since, spent["detect"], init, again + warm_up, spent["replay"] - warm_up
    )


def measured_parts(found: Sequence[RunTimings]) -> Parts:
    """The mean parts of all recordings, each failure and each run counting once. Raises
    EvidenceMissing without a failure or a checkpoint.

    Where ranks went on live, what it took them to regroup and to take newcomers in is theirs, and
    they noticed failures too; else it is assumed.
    """
    failures = [failure for recording in found for failure in recording.failures]
    if not failures:
        raise EvidenceMissing(
            "study.source",
            "none of its runs had a failure: nothing says what a restart costs",
            "name runs with failures",
        )
    stalls = [recording.checkpoint for recording in found if recording.checkpoint > 0]
    if not stalls:
        raise EvidenceMissing(
            "study.source",
            "none of its runs stood still for a checkpoint",
            "name runs with checkpoints",
        )
    parts = _parts(
        found, failures, _mean(stalls), _mean([recording.mini_batch for recording in found])
    )
    live = [each for recording in found for each in recording.live]
    if not live:
        return parts
    joins = [each.join for each in live if each.join is not None]
    detect = _mean([*(each.detect for each in failures), *(each.detect for each in live)])
    return replace(
        parts,
        detect=detect,
        regroup=_mean([each.regroup for each in live]),
        join=_mean(joins) if joins else parts.join,
    )


def predictable(found: Sequence[RunTimings]) -> bool:
    """Whether every recorded failure has others to predict it from."""
    return sum(len(recording.failures) for recording in found) > 1


def parts_without(
    found: Sequence[RunTimings], recording: RunTimings, failure: Failure
) -> tuple[Parts, int]:
    """The parts that predict `failure`: waits of all other failures (its own, if it is the only
    one) and its run's mini-batch from steps done once; and the number of failures used, 0 if only
    its own.
    """
    others = [f for r in found for f in r.failures if f is not failure]
    return _parts(
        [recording], others or [failure], recording.checkpoint, recording.mini_batch
    ), len(others)


def _parts(
    found: Sequence[RunTimings], failures: Sequence[Failure], checkpoint: float, mini_batch: float
) -> Parts:
    every = [recording.every for recording in found if recording.checkpoints] or [1]
    detect, init, restart = (
        _mean([getattr(f, name) for f in failures]) for name in ("detect", "init", "restart")
    )
    return Parts(mini_batch, checkpoint, init, restart, max(1, round(_mean(every))), detect=detect)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


Row = dict[str, Any]


@dataclass(frozen=True)
class RecordIndex:
    """Indexed access to the records, for findings."""

    config: RecoveryOverhead
    models: dict[str, Parts]
    recordings: list[RunTimings]
    records: Sequence[Record]

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record.facts["kind"] == kind]

    def scenario(self, workers: int) -> FailureScenario:
        return FailureScenario(
            workers, self.config.casualties, self.config.replace_s, self.config.spare_share
        )

    @property
    def least(self) -> int:
        return min(self.config.workers)

    @property
    def most(self) -> int:
        return max(self.config.workers)

    def jobs(self) -> list[Row]:
        """Every strategy in every cell: the cell's facts and its numbers. Fatal is None for
        strategies that roll back at every failure.
        """
        found = []
        for record in self.of("scale"):
            cell = {key: record.facts[key] for key in ("model", "minutes", "workers", "mtbf")}
            found += [{**cell, **row} for row in record.found["rows"]]
        return found

    def pairs(self) -> list[Row]:
        """Every comparison of two strategies in one cell."""
        return [
            {**record.facts, **pair}
            for record in self.of("scale")
            for pair in record.found["pairs"]
        ]

    def optima(self, shape: float = 1.0) -> list[Row]:
        """Every finished search with its cell. `excess`: by formula, how much more its interval
        costs than the best one found, relatively.
        """
        found = [
            {**record.facts, **record.found["optimum"]}
            for record in self.of("optimum")
            if record.found["optimum"]
        ]
        return [
            row
            | {"excess": {key: at / row["at"]["simulated"] - 1 for key, at in row["at"].items()}}
            for row in found
            if row["shape"] == shape
        ]

    def checks(self, planted: bool) -> list[Row]:
        return [
            {"case": r.facts["case"], **r.found}
            for r in self.of("check")
            if r.facts["case"].startswith("planted") == planted
        ]

    def recorded(self) -> list[Row]:
        """Every recorded failure beside its prediction. `error`: relative; of no meaning for a
        failure that is predicted from itself.
        """
        rows = [{**record.facts, **record.found} for record in self.of("recorded")]
        return [row | {"error": row["total"] / row["measured"] - 1} for row in rows]

    def predicted(self) -> list[Row]:
        """Recorded failures predicted from others; a single recorded failure predicts nothing."""
        return [row for row in self.recorded() if row["from"]]


def decided(pairs: Sequence[Row]) -> dict[str, int]:
    """In how many comparisons of two strategies the first costs less (`wins`) or more (`loses`),
    surely, or neither (`open`).
    """
    wins, loses = sum(row["high"] < 0 for row in pairs), sum(row["low"] > 0 for row in pairs)
    return {"cells": len(pairs), "wins": wins, "loses": loses, "open": len(pairs) - wins - loses}


def cell_name(row: Row) -> str:
    return f"{row['model']}, MTBF {row['minutes']} min, {row['workers']} workers"
