"""The input of verification: a run's records, values computed from them, and the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from ecrl_cli.history.lineage import Lineage, lineage
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import Timeline, timeline
from ecrl_cli.records.events import Attempt, CheckpointLine, RankLine
from ecrl_cli.verify.disk_state import Quarantined, StoredCheckpoint, on_disk, quarantined
from ecrl_cli.verify.rank_spans import RankSpans, read_spans
from ecrl_cli.verify.retention import CheckpointHistory, checkpoint_history


@dataclass(frozen=True)
class Case:
    """One run to verify.

    `reference`: the undisturbed run that this one must equal; `floor`: two such runs, whose
    difference is the noise floor. `seal_key`: the key that signed the seals, if given. `others`:
    further references, which must agree with the first. `doubts`: why other runs are no references.
    `disturbed_alike`: runs that must end in the same state but were disturbed too. `rest`: the
    undisturbed run that began with a checkpoint of this one after a recovery that claims no
    trajectory; `rest_doubt`: why one that is there does not count.
    """

    run: RunRecords
    reference: RunRecords | None = None
    floor: tuple[RunRecords, RunRecords] | None = None
    seal_key: bytes = b""
    others: tuple[RunRecords, ...] = ()
    doubts: tuple[str, ...] = ()
    disturbed_alike: tuple[str, ...] = ()
    rest: RunRecords | None = None
    rest_doubt: str = ""

    def beside(self, **others: Any) -> Case:
        """The same run with a reference and the like; what was computed of the run is taken
        over.
        """
        made = replace(self, **others)
        given = {field.name for field in fields(self)}
        made.__dict__.update(
            {name: value for name, value in self.__dict__.items() if name not in given}
        )
        return made

    @cached_property
    def path(self) -> Lineage:
        return lineage(self.run)

    @cached_property
    def timeline(self) -> Timeline:
        """The run's time by what it was spent on."""
        return timeline(self.run)

    @cached_property
    def disk(self) -> tuple[StoredCheckpoint, ...]:
        """The checkpoints on disk, each hashed once."""
        return on_disk(self.run)

    @cached_property
    def spans(self) -> RankSpans:
        """The spans of every rank."""
        return read_spans(self.run)

    @cached_property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """The quarantined checkpoints, each verified again."""
        return quarantined(self.run)

    @cached_property
    def checkpoints(self) -> CheckpointHistory:
        """The checkpoints that each attempt had, by the journals."""
        return checkpoint_history(self.run)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.run.attempts

    @property
    def completed(self) -> bool:
        return (
            self.ended
            and self.run.supervisor is not None
            and self.run.supervisor.terminal_status == "completed"
        )

    @property
    def live(self) -> bool:
        """Whether another command was at work in the run directory when the records were read: all
        are as they were at one instant.
        """
        return self.run.cut is not None

    @property
    def ended(self) -> bool:
        """Whether the supervisor has recorded a terminal status, and no other has begun."""
        return (
            not self.live
            and self.run.supervisor is not None
            and self.run.supervisor.terminal_status != "running"
        )

    def attempt(self, number: int) -> Attempt | None:
        return self._attempts.get(number)

    @cached_property
    def _attempts(self) -> dict[int, Attempt]:
        return {a.attempt: a for a in reversed(self.attempts)}

    @cached_property
    def session_ends(self) -> tuple[float, ...]:
        """When each session was over, on its clock: a killed one when the next one of its boot
        launched an attempt, for which all had to be gone.
        """
        launches: dict[int, float] = {}
        for a in reversed(self.attempts):
            launches[a.session] = a.launched_at
        found, following = list[float](), dict[str, float]()
        for number, session in reversed(list(enumerate(self.run.sessions))):
            found.append(
                following.get(session.boot_id, float("inf"))
                if session.ended_at is None
                else session.ended_at
            )
            if number in launches:
                following[session.boot_id] = launches[number]
        return tuple(reversed(found))

    def committed(self, c: StoredCheckpoint) -> CheckpointLine | None:
        """The first line of a journal with the commit of `c`."""
        return next(
            (
                line
                for line in checkpoint_events(self.run)
                if line.commit_sha256 == c.report.commit_sha256
            ),
            None,
        )


def same_sizes(run: RunRecords, other: RunRecords) -> bool:
    """Whether both are configured with the same world size at every step, or use fixed replicas,
    with which it does not matter.
    """
    ours, theirs = run.stored.config, other.stored.config
    return ours.elastic.replicas > 0 or (ours.world_size, ours.elastic.schedule) == (
        theirs.world_size,
        theirs.elastic.schedule,
    )


def every_line(records: RunRecords) -> Iterator[tuple[int, int, RankLine]]:
    """(attempt, rank, line) of everything any rank logged, committed or not."""
    for a in records.attempt_logs:
        for rank, lines in a.ranks.items():
            for line in lines.events:
                yield a.attempt, rank, line


def saves(lines: Iterable[CheckpointLine]) -> dict[int, dict[str, CheckpointLine]]:
    """By step, sorted, and by event: the first line of it."""
    found: dict[int, dict[str, CheckpointLine]] = {}
    for line in lines:
        found.setdefault(line.global_step, {}).setdefault(line.event, line)
    return dict(sorted(found.items()))


def checkpoint_events(records: RunRecords) -> Iterator[CheckpointLine]:
    """All checkpoint lines, attempt by attempt."""
    for a in records.attempt_logs:
        yield from a.checkpoints.events
