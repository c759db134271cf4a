"""Selects reference runs for a run's trajectory: runs that must end in the same state, undisturbed,
valid themselves, each counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ecrl_cli.config.elastic import fits
from ecrl_cli.config.identity import reference_id
from ecrl_cli.errors import EcrlError, RecordError, plural
from ecrl_cli.failures.plan import plan
from ecrl_cli.history.lineage import lineage, steps_of
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.rest_start import rest_reference_id, rest_starts
from ecrl_cli.records.cut import Cut, MovedOn, take_cut
from ecrl_cli.records.digests import file_states
from ecrl_cli.records.extent import check_file_counts
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.records.run_config import StoredConfig, read_run_config
from ecrl_cli.supervision.run_lock import held
from ecrl_cli.verify.disturbance import uninterrupted
from ecrl_cli.verify.line_columns import world_sizes_of
from ecrl_cli.verify.registry import checks_alone, run_checks
from ecrl_cli.verify.verdict import VALID, Finding, worst
from ecrl_cli.verify.verification_input import Case, same_sizes

T = TypeVar("T")
PREFERRED = ("ref", "clean")  # variants, best reference first
_MOST = 4  # references that one run is compared with
# to read a run that is still running before it has removed a checkpoint, or replaced a record, that
# is being read
TRIES = 20
# runs whose records stay in memory: those that a suite's arms and seeds have beside each other, not
# a whole sweep
KEPT = 12


@dataclass
class _Known:
    """Cached facts about one run. `files`: their sizes and times when it was read. `case`: the run
    without a reference; None where its records were dropped again. `alone`: the findings that no
    other run has a part in. `doubt`: why it is no reference.
    """

    files: object
    case: Case | None = None
    alone: dict[str, Finding] | None = None
    doubt: str | None = None


@dataclass
class References:
    """A cache for all runs that one command verifies: what is checked of a run alone is checked
    once, as itself and as a reference, and the records read last are kept.

    `seal_key`: the key under which a run must be sealed; empty: the one that its configuration
    names, if available.
    """

    seal_key: bytes = b""
    _stored: dict[Path, StoredConfig | None] = field(default_factory=dict)
    _runs: dict[Path, _Known] = field(default_factory=dict)  # those read last stand last

    def stored(self, layout: RunLayout) -> StoredConfig | None:
        """The configuration of the run at `layout`; None if there is no readable one."""
        if layout.root not in self._stored:
            try:
                self._stored[layout.root] = (
                    read_run_config(layout) if layout.config.exists() else None
                )
            except (EcrlError, OSError):
                # no evidence against this run: the other run's own verdict reports it
                self._stored[layout.root] = None
        return self._stored[layout.root]

    def records(self, layout: RunLayout) -> RunRecords:
        """Like `bounded`, from the cache where the run is among the KEPT read last and its files
        are as they were: siblings share references.
        """
        check_file_counts(layout)
        files, known = file_states(layout), self._runs.pop(layout.root, None)
        if known is None or known.files != files:
            known = _Known(files)
        case = known.case = known.case or read_case(layout, self.seal_key)
        self._runs[layout.root] = known
        for older in [each for each in self._runs.values() if each.case][:-KEPT]:
            older.case = None
        return case.run

    def findings(self, records: RunRecords, **beside: Any) -> tuple[Finding, ...]:
        """One per promise, of a run read by `records`. `beside`: its reference and the like, as
        fields of `Case`.
        """
        known = self._runs[records.layout.root]
        case = known.case or Case(records, seal_key=self.seal_key)
        if known.alone is None:
            known.alone = checks_alone(case)
        return run_checks(case.beside(**beside), known.alone)

    def doubt(self, records: RunRecords) -> str:
        """Why the run cannot serve as a reference because it is not valid itself; empty if it can.
        Verified without a reference, to avoid cycles.
        """
        known = self._runs[records.layout.root]
        if known.doubt is None:
            findings = self.findings(records)
            status = worst(finding.status for finding in findings)
            first = next(finding.message for finding in findings if finding.status == status)
            known.doubt = (
                ""
                if status == VALID
                else f"the reference {records.layout.root.name} is {status}: {first}"
            )
        return known.doubt


# Limits of the work that a run's records claim, in proportion to the log lines that exist. An
# honest run has a line for every step and rank. Records that claim a hundred million steps but hold
# fifty lines would cost hours and all memory, so they are rejected before anything loops over the
# claimed range. An honest run with missing logs stays far below these limits.
FREE = 300_000  # rank-steps that may be claimed without any line
# rank-steps per existing line: an honest run has one line each, apart from replayed ones, and is
# checked for every world size it had
PER_LINE = 32
SAMPLES_FREE, SAMPLES_PER_LINE = 2**27, 2**16


def read_case(layout: RunLayout, seal_key: bytes) -> Case:
    """The run as it lies there; one that is still running as it lay there at one instant, its
    checkpoints too. MovedOn if that does not succeed.
    """

    def at_one_instant(cut: Cut) -> Case:
        # Checkpoints first: a fast run removes them within fractions of a second, while its logs
        # only grow.
        nothing = RunRecords(
            layout, read_run_config(layout), None, None, None, (), (), (), None, cut
        )
        case = Case(nothing, seal_key=seal_key)
        assert case.disk is not None and case.quarantined is not None  # read here, and kept
        return case.beside(run=bounded(layout, cut))

    return _steadily(layout, lambda: Case(bounded(layout), seal_key=seal_key), at_one_instant)


def read_records(layout: RunLayout) -> RunRecords:
    """Like `read_case`, without the checkpoints."""
    return _steadily(layout, lambda: bounded(layout), lambda cut: bounded(layout, cut))


def _steadily(layout: RunLayout, at_rest: Callable[[], T], at_one_instant: Callable[[Cut], T]) -> T:
    check_file_counts(layout)
    tries = 0
    while True:
        if not held(layout):
            before = _identity(layout.supervisor)
            read = at_rest()
            if not held(layout) and before == _identity(layout.supervisor):
                return read
        tries += 1
        try:
            return at_one_instant(take_cut(layout))
        except MovedOn:
            if tries == TRIES:
                raise


def _identity(path: Path) -> tuple[int, int] | None:
    """Identity of the file that lies there now: whoever takes up a run replaces its
    supervisor.json.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def bounded(layout: RunLayout, cut: Cut | None = None) -> RunRecords:
    """The records under `layout`, at the instant of `cut`; RecordError if verifying them would cost
    far more than they hold.
    """
    records = load(layout, cut)
    check_extent(records)
    return records


def check_extent(records: RunRecords) -> None:
    """RecordError if the committed sequence, or the sample order up to it, is out of proportion to
    the existing lines.
    """
    logs = [lines for a in records.attempt_logs for lines in a.ranks.values()]
    lines, path = sum(len(log.events) for log in logs), lineage(records)
    claimed = sum(len(segment.steps()) * max(segment.world_size, 1) for segment in path.segments)
    reach = min(
        max([path.last_step, 1, *(max(steps_of(log), default=0) for log in logs)]),
        records.stored.config.target_steps,
    )
    claimed = max(claimed, reach * sum(_sizes(records)))
    if claimed > FREE + PER_LINE * lines:
        fact = (
            f"claims {plural(claimed, 'step')} of ranks up to step {reach}, its logs hold"
            f" {plural(lines, 'line')}"
        )
        raise RecordError("supervisor.json", fact, "restore the records")
    if records.dataset and (batch := records.stored.config.global_batch) <= records.dataset.size:
        epochs = (reach - 1) // (records.dataset.size // max(batch, 1)) + 1
        if epochs * records.dataset.size > SAMPLES_FREE + SAMPLES_PER_LINE * lines:
            fact = (
                f"claims {epochs} epochs of {plural(records.dataset.size, 'sample')}, the logs hold"
                f" {plural(lines, 'line')}"
            )
            raise RecordError("dataset.json", fact, "restore the records")


def _sizes(records: RunRecords) -> set[int]:
    """Every world size that the records name and that can share the batch."""
    logs = (lines for a in records.attempt_logs for lines in a.ranks.values())
    named = {a.world_size for a in records.attempts}.union(*map(world_sizes_of, logs))
    return {size for size in named if size > 0 and fits(records.stored.config, size)}


@dataclass(frozen=True)
class FoundReferences:
    """`usable`: references, best first. `doubts`: why others are not. `disturbed_alike`: names of
    runs that must end in the same state but were disturbed themselves.
    """

    usable: tuple[RunRecords, ...] = ()
    doubts: tuple[str, ...] = ()
    disturbed_alike: tuple[str, ...] = ()


def find_references(run: RunRecords, known: References) -> FoundReferences:
    """The runs beside `run`, and in the references folder there, that can serve as its
    reference.
    """
    found: dict[tuple[object, ...], RunRecords] = {}
    doubts, disturbed_alike = [], []
    for layout, stored in _alike(run, known):
        try:
            records = None if plan(stored.config) else known.records(layout)
        except (EcrlError, OSError):
            continue
        if records is None or not uninterrupted(records):
            disturbed_alike.append(layout.root.name)
        elif not same_sizes(run, records) and stored.config.elastic.schedule:
            continue  # a run that changed its world size is no reference for one that does not
        elif origin(records) in (origin(run), *found):
            doubts.append(
                f"{layout.root.name} is a copy of a run that was counted: no second reference"
            )
        elif doubt := known.doubt(records):
            doubts.append(doubt)
        else:
            found[origin(records)] = records
    whole = [
        records
        for records in found.values()
        if records.stored.reference_id == run.stored.reference_id
    ]
    best = sorted(
        whole or found.values(),
        key=lambda records: (not same_sizes(run, records), _preference(records)),
    )
    return FoundReferences(tuple(best[:_MOST]), tuple(doubts), tuple(disturbed_alike))


def find_rest(run: RunRecords, known: References) -> tuple[RunRecords | None, str]:
    """The undisturbed run of the rest of `run`, in the references folder beside it: the one that
    starts earliest. Or a text why one that is there does not count; empty if there is none.
    """
    starts = {
        rest_reference_id(run.stored.config, run.stored.run_id, start): start.step
        for start in rest_starts(run)
    }
    parent = run.layout.root.parent / REFERENCES
    beside = [RunLayout(folder) for folder in folders(parent)] if starts else []
    begun = [
        (starts[stored.reference_id], layout)
        for layout in beside
        if (stored := known.stored(layout)) is not None and stored.reference_id in starts
    ]
    doubt = ""
    for _, layout in sorted(begun, key=lambda pair: pair[0]):
        try:
            records = known.records(layout)
        except (EcrlError, OSError):
            doubt = doubt or f"{layout.root.name} cannot be read"
            continue
        if not uninterrupted(records):
            continue  # it has not come to its end: the same command trains it again
        reason = known.doubt(records)
        if not reason:
            return records, ""
        doubt = doubt or reason
    return None, doubt


def _alike(run: RunRecords, known: References) -> Iterator[tuple[RunLayout, StoredConfig]]:
    """Other runs beside `run` with its reference id."""
    root = run.layout.root
    for folder in [*folders(root.parent), *folders(root.parent / REFERENCES)]:
        stored = known.stored(RunLayout(folder)) if folder != root else None
        if stored is not None and stored.reference_id in reference_ids(run):
            yield RunLayout(folder), stored


def reference_ids(run: RunRecords) -> tuple[str, ...]:
    """The reference ids of runs that must do the same: the run's own, and of a run that was
    continued that of its first leg.
    """
    own, before = run.stored, run.stored.config.continued_at
    return (
        own.reference_id,
        *(
            [reference_id(replace(own.config, target_steps=before[0], continued_at=()))]
            if before
            else ()
        ),
    )


def folders(parent: Path) -> list[Path]:
    """The paths in `parent`, sorted by name; none if it is no folder."""
    try:
        return sorted(parent.iterdir())
    except OSError:
        return []


def origin(records: RunRecords) -> tuple[object, ...]:
    """The identity of a run that its copies share under any name: run id, boot and start of its
    first session, and first launch.
    """
    sessions = [(session.boot_id, session.started_at) for session in records.sessions]
    launches = [a.launched_at for a in records.attempts]
    return records.stored.run_id, *sessions[:1], *launches[:1]


def _preference(records: RunRecords) -> tuple[bool, int, str]:
    name = records.stored.config.variant.name
    rank = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
    return records.layout.root.parent.name == REFERENCES, rank, records.layout.root.name
