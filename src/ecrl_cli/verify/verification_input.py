"""What is judged: a run's records and what they were folded into, and the run it is held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ecrl_cli.history.lineage import Lineage, lineage
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import Attempt, CheckpointLine, RankLine
from ecrl_cli.verify.disk_state import StoredCheckpoint, on_disk
from ecrl_cli.verify.quarantined import Quarantined, quarantined
from ecrl_cli.verify.rank_spans import RankSpans, read_spans
from ecrl_cli.verify.retention import CheckpointHistory, checkpoint_history


@dataclass(frozen=True)
class Case:
    """`reference`: the undisturbed run that this one must equal; `floor`: two such runs, whose difference is the noise floor.

    `seal_key`: the key that signed the seals, if it was given.
    `others`: further references, which must all say the same. `doubts`: why other runs are none. `kin`: runs that must end in the same state and
    were disturbed too.
    """

    run: RunRecords
    reference: RunRecords | None = None
    floor: tuple[RunRecords, RunRecords] | None = None
    seal_key: bytes = b""
    others: tuple[RunRecords, ...] = ()
    doubts: tuple[str, ...] = ()
    kin: tuple[str, ...] = ()

    @cached_property
    def path(self) -> Lineage:
        return lineage(self.run)

    @cached_property
    def disk(self) -> tuple[StoredCheckpoint, ...]:
        """The checkpoints that are still there, each hashed once."""
        return on_disk(self.run)

    @cached_property
    def spans(self) -> RankSpans:
        """The spans of every rank, not of rank 0 alone."""
        return read_spans(self.run)

    @cached_property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """The checkpoints that lie set aside, each looked at again."""
        return quarantined(self.run)

    @cached_property
    def checkpoints(self) -> CheckpointHistory:
        """What the journals say was there for each attempt."""
        return checkpoint_history(self.run)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.run.supervisor.attempts if self.run.supervisor else ()

    @property
    def completed(self) -> bool:
        return self.run.supervisor is not None and self.run.supervisor.terminal_status == "completed"

    @property
    def ended(self) -> bool:
        """Whether the supervisor has said how it ended."""
        return self.run.supervisor is not None and self.run.supervisor.terminal_status != "running"

    def attempt(self, number: int) -> Attempt | None:
        return next((a for a in self.attempts if a.attempt == number), None)


def same_sizes(run: RunRecords, other: RunRecords) -> bool:
    """Whether both were to have the same number of ranks at every step, or one that fixed replicas make no matter of."""
    ours, theirs = run.stored.config, other.stored.config
    return ours.elastic.replicas > 0 or (ours.world_size, ours.elastic.schedule) == (theirs.world_size, theirs.elastic.schedule)


def every_line(records: RunRecords) -> Iterator[tuple[int, int, RankLine]]:
    """(attempt, rank, line) of everything any rank logged, committed or not."""
    for a in records.attempts:
        for rank, lines in a.ranks.items():
            for line in lines.events:
                yield a.attempt, rank, line


def checkpoint_events(records: RunRecords) -> Iterator[CheckpointLine]:
    """All checkpoint lines, attempt by attempt."""
    for a in records.attempts:
        yield from a.checkpoints.events
