"""Loads all records of a run directory once; damaged files are listed, never skipped silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from ecrl_cli.config.codec import decode
from ecrl_cli.config.limits import MOST_ATTEMPTS, MOST_FAILURES
from ecrl_cli.errors import RecordError, RecordTooLarge
from ecrl_cli.records.columns import RankColumns, rank_columns, read_log
from ecrl_cli.records.cut import Cut
from ecrl_cli.records.evaluations import Evaluation
from ecrl_cli.records.events import (
    SCHEMA_VERSION,
    Attempt,
    CheckpointLine,
    DatasetRecord,
    DiskLine,
    FinalState,
    InjectedFault,
    PlannedFailure,
    RankLine,
    Span,
    SupervisorRecord,
    SupervisorSession,
)
from ecrl_cli.records.journal import Lines, Log, read_journal, read_json
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.run_config import StoredConfig, journal_bytes, read_run_config
from ecrl_cli.records.state_digests import DigestInterval, RestoredState, Unloadable
from ecrl_cli.records.survivor_records import LostSamples, SurvivorReport

T = TypeVar("T")
L = TypeVar("L")
NOTHING: Lines[Any] = Lines((), (), 0)
MOST_DISK_BYTES = 2**26
# so many logs or claims beyond what the run can have left are still loaded, so that they can be
# named
SPARE_LOGS = SPARE_CLAIMS = 16


@dataclass(frozen=True)
class Unread:
    """A file (relative to the run directory) that exists but cannot be read, and why. `too_large`:
    only because of its size; nothing is known to be wrong with it.
    """

    path: str
    reason: str
    too_large: bool = False


@dataclass(frozen=True)
class AttemptRecords:
    """The logs of one attempt. `ranks` by rank; `spans` of rank 0; `order`: launch.json.

    `survivor_reports`, `lost_sample_records`: by surviving rank. `restored`: by rank, its state
    right after it was restored;
    `unloadable`: the checkpoint that it could not load. `evaluations`: quality on held-out data.
    """

    attempt: int
    ranks: dict[int, Log[RankLine]]
    checkpoints: Lines[CheckpointLine]
    spans: Log[Span]
    final: FinalState | None
    order: AttemptSpec | None
    survivor_reports: dict[int, Lines[SurvivorReport]] = field(default_factory=dict)
    lost_sample_records: dict[int, Lines[LostSamples]] = field(default_factory=dict)
    restored: dict[int, RestoredState] = field(default_factory=dict)
    unloadable: dict[int, Unloadable] = field(default_factory=dict)
    evaluations: Lines[Evaluation] = NOTHING

    @property
    def survivor_report(self) -> SurvivorReport | None:
        """The report of the lowest surviving rank; verify checks that all reports agree."""
        return next(
            (lines.events[0] for _, lines in sorted(self.survivor_reports.items()) if lines.events),
            None,
        )

    @property
    def lost_samples(self) -> tuple[LostSamples, ...]:
        """The lost-sample lines of the lowest rank that has them; each survivor writes all of
        them.
        """
        return next((lines.events for _, lines in sorted(self.lost_sample_records.items())), ())


@dataclass(frozen=True)
class RunRecords:
    """The records of one run directory. `plan` and `supervisor` are None if the file is missing or
    unreadable; `attempt_logs`: the attempt folders found. `cut`: the instant at which they were
    read, of a run that was still running.
    """

    layout: RunLayout
    stored: StoredConfig
    supervisor: SupervisorRecord | None
    dataset: DatasetRecord | None
    plan: tuple[PlannedFailure, ...] | None
    fired: tuple[InjectedFault, ...]
    attempt_logs: tuple[AttemptRecords, ...]
    unread: tuple[Unread, ...]
    digest_interval: DigestInterval | None = None
    cut: Cut | None = None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts that supervisor.json lists; none if it is missing or unreadable."""
        return self.supervisor.attempts if self.supervisor else ()

    @property
    def sessions(self) -> tuple[SupervisorSession, ...]:
        """The supervisor sessions that supervisor.json lists; none if it is missing or
        unreadable.
        """
        return self.supervisor.sessions if self.supervisor else ()

    def session_of(self, attempt: Attempt) -> SupervisorSession | None:
        """The supervisor session that ran `attempt`; None if supervisor.json does not list it."""
        return self.sessions[attempt.session] if 0 <= attempt.session < len(self.sessions) else None

    def logs(self, attempt: int) -> AttemptRecords:
        """The logs of `attempt`; empty ones if it left no folder."""
        return self._logs.get(attempt) or AttemptRecords(attempt, {}, NOTHING, NOTHING, None, None)

    @cached_property
    def _logs(self) -> dict[int, AttemptRecords]:
        return {a.attempt: a for a in reversed(self.attempt_logs)}

    @cached_property
    def columns(self) -> dict[tuple[int, int], RankColumns] | None:
        """By attempt and rank, the columns of each log that has lines, if all of them are plain and
        go from step to step; None if one of them does not: then look at each line.
        """
        found = {
            (a.attempt, rank): rank_columns(lines)
            for a in self.attempt_logs
            for rank, lines in a.ranks.items()
            if len(lines.events)
        }
        plain = {key: each for key, each in found.items() if each and each.consecutive}
        return plain if len(plain) == len(found) else None

    @cached_property
    def successors(self) -> dict[int, Attempt]:
        """By number, the attempt that supervisor.json lists directly after it."""
        return {before.attempt: after for before, after in reversed(list(pairwise(self.attempts)))}

    @property
    def final(self) -> FinalState | None:
        """The final record of the attempt that reached the target; none of a target that was raised
        since.
        """
        before = self.stored.config.continued_at
        return next(
            (
                a.final
                for a in reversed(self.attempt_logs)
                if a.final and a.final.global_step not in before
            ),
            None,
        )

    @property
    def torn(self) -> dict[str, int]:
        """Torn lines by file, relative to the run directory; only files that have one."""
        counted: dict[str, int] = {}
        for a in self.attempt_logs:
            paths = self.layout.attempt(a.attempt)
            files = [(paths.rank(rank), lines.torn) for rank, lines in a.ranks.items()]
            files += [
                (paths.survivor_report(rank), lines.torn)
                for rank, lines in a.survivor_reports.items()
            ]
            files += [
                (paths.lost_samples(rank), lines.torn)
                for rank, lines in a.lost_sample_records.items()
            ]
            files += [
                (paths.checkpoints, a.checkpoints.torn),
                (paths.spans(0), a.spans.torn),
                (paths.evaluations, a.evaluations.torn),
            ]
            counted |= {self.layout.relative(path): torn for path, torn in files if torn}
        return counted


def load(layout: RunLayout, cut: Cut | None = None) -> RunRecords:
    """Load the records under `layout`. EvidenceMissing or RecordError if config.json cannot be
    read; other damage goes to `unread`.

    `cut`: as they were at that instant; MovedOn if one of them is not to be had any more.
    """
    return _Loader(layout, cut).load()


# in environment.json where runs of a sweep trained at the same time: how many
RUNS_AT_ONCE = "runs_at_once"


def load_environment(layout: RunLayout) -> dict[str, Any]:
    """The run's machine and versions (environment.json); empty if there is none. RecordError or
    OSError if it is damaged.
    """
    return (
        known_environment(dict(read_json(layout.environment)))
        if layout.environment.exists()
        else {}
    )


def known_environment(value: Any) -> dict[str, Any]:
    """environment.json without fields whose type is not the one ECRL writes."""
    kinds: dict[str, Any] = {
        "cpu": dict,
        "packages": dict,
        "math_kernels": dict,
        "file_system": dict,
        "gpus": list,
    }
    known: dict[str, Any] = {
        key: item
        for key, item in (value if isinstance(value, dict) else {}).items()
        if isinstance(item, kinds.get(key, str | int | None))
    }
    return known | (
        {"gpus": [gpu for gpu in known["gpus"] if isinstance(gpu, dict)]} if "gpus" in known else {}
    )


def load_disk(layout: RunLayout) -> tuple[DiskLine, ...]:
    """The disk samples of a run (disk.jsonl); empty if the disk was not sampled. RecordError or
    OSError if the file is damaged.
    """
    return read_journal(layout.disk, DiskLine, MOST_DISK_BYTES).events


class _Loader:
    def __init__(self, layout: RunLayout, cut: Cut | None) -> None:
        self.layout, self.cut = layout, cut
        self.unread: list[Unread] = []

    def load(self) -> RunRecords:
        stored = read_run_config(self.layout)
        self.limit = journal_bytes(stored.config)
        self.most_ranks = (
            max([stored.config.world_size, *stored.config.elastic.schedule.values()]) + SPARE_LOGS
        )
        supervisor = self.document(self.layout.supervisor, _supervisor)
        dataset = self.document(self.layout.dataset, lambda value: decode(DatasetRecord, value))
        plan = self.document(self.layout.failures, _plan)
        numbers = [n for n in self.layout.attempts() if self.there(self.layout.attempt(n).folder)]
        attempts = tuple(
            self.attempt(n) for n in self.first(numbers, MOST_ATTEMPTS, self.layout.logs)
        )
        fired = self.fired(len(plan or ()) + SPARE_CLAIMS)
        interval = self.document(
            self.layout.state_digests, lambda value: decode(DigestInterval, value)
        )
        if self.cut:
            self.cut.check_unchanged(self.layout.config)
        return RunRecords(
            self.layout,
            stored,
            supervisor,
            dataset,
            plan,
            fired,
            attempts,
            tuple(self.unread),
            interval,
            self.cut,
        )

    def attempt(self, number: int) -> AttemptRecords:
        paths = self.layout.attempt(number)
        return AttemptRecords(
            attempt=number,
            ranks={
                rank: self.log(paths.rank(rank), RankLine)
                for rank in self.first(
                    self.ranks(paths.ranks(), paths.rank), self.most_ranks, paths.folder
                )
            },
            checkpoints=self.journal(paths.checkpoints, CheckpointLine),
            spans=self.log(paths.spans(0), Span),
            final=self.document(paths.final, lambda value: decode(FinalState, value)),
            order=self.document(paths.launch, lambda value: decode(AttemptSpec, value)),
            survivor_reports={
                rank: self.journal(paths.survivor_report(rank), SurvivorReport)
                for rank in self.first(
                    self.ranks(paths.with_survivor_report(), paths.survivor_report),
                    self.most_ranks,
                    paths.folder,
                )
            },
            lost_sample_records={
                rank: self.journal(paths.lost_samples(rank), LostSamples)
                for rank in self.first(
                    self.ranks(paths.with_lost_samples(), paths.lost_samples),
                    self.most_ranks,
                    paths.folder,
                )
            },
            restored={
                rank: state
                for rank in self.first(
                    self.ranks(paths.with_restored(), paths.restored), self.most_ranks, paths.folder
                )
                if (
                    state := self.document(
                        paths.restored(rank), lambda value: decode(RestoredState, value)
                    )
                )
            },
            evaluations=self.journal(paths.evaluations, Evaluation),
            unloadable={
                rank: found
                for rank in self.first(
                    self.ranks(paths.with_unloadable(), paths.unloadable),
                    self.most_ranks,
                    paths.folder,
                )
                if (
                    found := self.document(
                        paths.unloadable(rank), lambda value: decode(Unloadable, value)
                    )
                )
            },
        )

    def fired(self, most: int) -> tuple[InjectedFault, ...]:
        files = sorted(self.layout.fired.glob("*.json")) if is_folder(self.layout.fired) else []
        files = self.first([path for path in files if self.there(path)], most, self.layout.fired)
        entries = (
            self.document(path, lambda value: decode(InjectedFault, value)) for path in files
        )
        return tuple(entry for entry in entries if entry is not None)

    def there(self, path: Path) -> bool:
        """Whether `path` is to be read: whatever exists, or what did at the instant of the cut."""
        return self.cut is None or path in self.cut

    def ranks(self, numbers: list[int], path: Callable[[int], Path]) -> list[int]:
        return [rank for rank in numbers if self.there(path(rank))]

    def first(self, there: list[T], most: int, folder: Path) -> list[T]:
        """The first `most` entries of `folder`, as many as the run can have left; more are reported
        as unread.
        """
        if len(there) > most:
            self.unread.append(
                Unread(
                    self.layout.relative(folder),
                    f"holds {len(there)} entries of one kind, this run leaves at most {most}",
                )
            )
        return there[:most]

    def journal(self, path: Path, kind: type[T]) -> Lines[T]:
        return self.read(read_journal, path, kind)

    def log(self, path: Path, kind: type[T]) -> Log[T]:
        return self.read(read_log, path, kind)

    def read(self, read: Callable[..., L], path: Path, kind: type) -> L | Lines[Any]:
        if self.cut and path not in self.cut:
            return NOTHING
        try:
            return read(path, kind, self.limit, self.cut.size(path) if self.cut else None)
        except (RecordError, OSError) as error:
            self.damaged(path, error)
            return NOTHING
        finally:
            if self.cut:
                self.cut.check_grown(path)

    def document(self, path: Path, parse: Callable[[Any], T]) -> T | None:
        if not path.exists() or not self.there(path):
            return None
        try:
            return parse(read_json(path))
        except (RecordError, KeyError, TypeError, ValueError, OSError) as error:
            self.damaged(path, error)
            return None
        finally:
            if self.cut:
                self.cut.check_unchanged(path)

    def damaged(self, path: Path, error: Exception) -> None:
        reason = (
            error.fact
            if isinstance(error, RecordError)
            else str(error.strerror)
            if isinstance(error, OSError)
            else str(error)
        )
        too_large = isinstance(error, RecordTooLarge)
        self.unread.append(Unread(self.layout.relative(path), reason, too_large))


def _plan(value: Any) -> tuple[PlannedFailure, ...]:
    if not isinstance(value, list) or len(value) > MOST_FAILURES:
        raise RecordError("failures.json", f"is no list of at most {MOST_FAILURES} entries")
    return tuple(decode(PlannedFailure, entry) for entry in value)


def _supervisor(value: Any) -> SupervisorRecord:
    if isinstance(value, dict) and len(value.get("attempts") or ()) > MOST_ATTEMPTS:
        raise RecordError("supervisor.json", f"names more than {MOST_ATTEMPTS} attempts")
    record = decode(SupervisorRecord, value)
    if record.schema_version != SCHEMA_VERSION:
        raise RecordError(
            "supervisor.json",
            f"schema version {record.schema_version}, this ECRL reads {SCHEMA_VERSION}",
        )
    return record
