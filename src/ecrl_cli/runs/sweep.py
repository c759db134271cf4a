"""Many runs one after the other: their order, a manifest of their status that is updated at every
change, and progress for people.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ecrl_cli.config.codec import encode, flat
from ecrl_cli.config.estimates import human_seconds
from ecrl_cli.config.identity import suite_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import STOPPED, EcrlError, RecordError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.records.safe_read import read_whole
from ecrl_cli.runs.run import FINISHED, RunResult, finished
from ecrl_cli.runs.run_plan import RunPlan
from ecrl_cli.storage.files import write_whole
from ecrl_cli.supervision.run_lock import run_lock


@dataclass(frozen=True)
class ManifestRow:
    """One line of manifest.csv. `status`: pending, running, completed, completed_prev, failed."""

    run: str
    run_id: str
    suite: str
    variant: str
    seed: str
    status: str = "pending"
    reason: str = ""


def row(name: str, run: RunPlan) -> ManifestRow:
    """The manifest line of a run that has not started."""
    return ManifestRow(
        name, run.run_id, suite_of(run.config), run.config.variant.name, str(run.config.seed)
    )


class SweepManifest:
    """manifest.csv, rewritten after every change. Lines of runs of earlier sweeps in the same
    folder are kept.

    Only the holder of the sweep's lock may create one: a run that an earlier sweep left as
    `running` was killed, and becomes `pending`.
    """

    def __init__(self, path: Path, rows: Sequence[ManifestRow]) -> None:
        self._path = path
        kept = {
            old.run: replace(old, status="pending") if old.status == "running" else old
            for old in read_manifest(path)
        }
        self._rows = {**kept, **{new.run: new for new in rows}}
        self._write()

    def record(self, run: str, status: str, reason: str = "") -> None:
        """Set the status of `run`; on disk when this returns."""
        self._rows[run] = replace(self._rows[run], status=status, reason=reason)
        self._write()

    def _write(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([getattr(row, name) for name in _COLUMNS] for row in self._rows.values())
        write_whole(self._path, text.getvalue().encode())


_COLUMNS = tuple(column.name for column in fields(ManifestRow))


def read_manifest(path: Path) -> list[ManifestRow]:
    """The lines of manifest.csv, none if it is missing. RecordError if it is damaged."""
    if not path.exists():
        return []
    try:
        return [
            ManifestRow(**line)
            for line in csv.DictReader(io.StringIO(read_whole(path).decode()), strict=True)
        ]
    except (csv.Error, TypeError, ValueError) as error:
        raise RecordError(
            "manifest.csv",
            f"not a manifest ({error})",
            "restore the file or choose another run_dir",
        ) from error


def fair_order(runs: Mapping[str, RunPlan]) -> list[str]:
    """The names in an order that is fair to the compared variants.

    Runs that differ only in the variant form a block. The variant that goes first rotates from
    block to block, so that drift of the machine affects all variants alike.
    """
    groups: dict[tuple[str, str, str, int], dict[str, RunConfig]] = {}
    for name, config in ((name, run.config) for name, run in runs.items()):
        groups.setdefault(
            (config.suite_name, config.dataset.name, config.model.name, config.seed), {}
        )[name] = config
    blocks = [block for members in groups.values() for block in _blocks(members)]
    return [
        name
        for turn, block in enumerate(blocks)
        for name in (*block[turn % len(block) :], *block[: turn % len(block)])
    ]


def _blocks(configs: Mapping[str, RunConfig]) -> list[list[str]]:
    """Blocks of one suite and seed: runs that agree in every other swept key. A variant with a
    single run, which no other key varies, is in the first block.
    """
    values = {name: dict(flat(encode(config))) for name, config in configs.items()}
    arms: dict[str, list[str]] = {}
    for name, config in configs.items():
        arms.setdefault(config.variant.name, []).append(name)
    axes = [
        key
        for key in dict.fromkeys(k for v in values.values() for k in v)
        if any(len({str(values[n].get(key)) for n in names}) > 1 for names in arms.values())
    ]
    blocks: dict[tuple[Any, ...], list[str]] = {}
    for name, config in configs.items():
        alone = len(arms[config.variant.name]) == 1
        blocks.setdefault(
            () if alone else tuple(str(values[name].get(key)) for key in axes), []
        ).append(name)
    first = blocks.pop((), [])
    found = list(blocks.values()) or [[]]
    return [[*first, *found[0]], *found[1:]]


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep by name, in starting order, and which of them are finished, with nothing
    left for `ecrl train` to do.

    `notes`: by name, how an existing run differs from what is started now.
    """

    runs: Mapping[str, RunPlan]
    finished: frozenset[str] = frozenset()
    notes: Mapping[str, str] = field(default_factory=dict)


def todo(runs: Mapping[str, RunPlan], notes: Mapping[str, str]) -> SweepPlan:
    """The plan of a sweep, its runs in fair order."""
    ordered = {name: runs[name] for name in fair_order(runs)}
    return SweepPlan(
        ordered, frozenset(name for name, run in runs.items() if is_finished(run.layout)), notes
    )


def is_finished(run: RunLayout) -> bool:
    """Whether the run is finished. False for damaged records: starting the run reports the
    error.
    """
    try:
        return finished(run)
    except EcrlError:
        return False


def sweep(
    layout: SweepLayout, do: SweepPlan, start: Callable[[str], RunResult], progress: SweepProgress
) -> dict[str, RunResult]:
    """Start each unfinished run in order and record how it ended. A failed run does not end the
    sweep; a stop signal does.

    RunHeld (exit 8) if another sweep holds the folder's lock.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    with run_lock(layout):
        record = SweepRecord(layout, do, progress)
        if len(record.results) == len(do.runs):
            progress.say(progress.line())
        for name in do.runs:
            if name in record.results:
                continue
            record.began(name)
            result = start(name)
            record.ended(name, result)
            if result.stopped:
                break
        return record.in_order()


class SweepRecord:
    """The state of a sweep's runs: `results` by name; the manifest, rewritten at every change; the
    progress.

    Only the holder of the sweep's lock may create one.
    """

    def __init__(self, layout: SweepLayout, do: SweepPlan, progress: SweepProgress) -> None:
        self._do, self._progress = do, progress
        self.results = {name: FINISHED for name in do.runs if name in do.finished}
        noted = [
            replace(row(name, run), reason=do.notes.get(name, "")) for name, run in do.runs.items()
        ]
        self._manifest = SweepManifest(
            layout.manifest,
            [replace(r, status="completed_prev") if r.run in self.results else r for r in noted],
        )

    def began(self, name: str) -> None:
        self._manifest.record(name, "running", self._do.notes.get(name, ""))
        self._progress.began(name)

    def ended(self, name: str, result: RunResult) -> None:
        self.results[name] = result
        self._manifest.record(
            name,
            status(result),
            self._do.notes.get(name, "") if result.exit_code == 0 else result.reason,
        )
        self._progress.ended(name, status(result))

    def in_order(self) -> dict[str, RunResult]:
        """The results in the order of the plan."""
        return {name: self.results[name] for name in self._do.runs if name in self.results}


def status(result: RunResult) -> str:
    """The manifest status of `result`. A stopped run can be resumed, so it is pending."""
    if result.stopped:
        return "pending"
    if result.exit_code:
        return "failed"
    return "completed_prev" if result.status == "completed_prev" else "completed"


def exit_code(results: dict[str, RunResult]) -> int:
    """0 if every run ended well, else that of the first that did not; a stop (130, 143) comes
    before all others.
    """
    codes = [result.exit_code for result in results.values()]
    return next(
        (code for code in codes if code in STOPPED), next((code for code in codes if code), 0)
    )


KINDS = ("done", "running", "failed", "left")
_KIND = {
    "completed": "done",
    "completed_prev": "done",
    "running": "running",
    "failed": "failed",
    "pending": "left",
}


class SweepProgress:
    """Counts runs by status, and says a line after each. The time left is the estimate for the
    remaining runs, scaled by how the finished runs compare with theirs, and shared by
    `runs_at_once`.
    """

    def __init__(
        self,
        do: SweepPlan,
        say: Callable[[str], None],
        now: Callable[[], float] = monotonic,
        runs_at_once: int = 1,
    ) -> None:
        self._runs, self.say, self._now, self._runs_at_once = do.runs, say, now, runs_at_once
        self._status = {
            name: "completed_prev" if name in do.finished else "pending" for name in do.runs
        }
        self._began: dict[str, float] = {}  # the runs at work
        self._expected = self._spent = 0.0

    def began(self, name: str) -> None:
        self._status[name], self._began[name] = "running", self._now()

    def ended(self, name: str, status: str) -> None:
        self._status[name] = status
        spent = self._now() - self._began.pop(name)
        if status == "completed":
            self._spent += spent
            self._expected += self._runs[name].estimate_s
        self.say(self.line())

    def counts(self, suite: str | None = None) -> dict[str, int]:
        """Number of runs of each of KINDS, in one suite or in all."""
        states = [
            _KIND[s]
            for name, s in self._status.items()
            if suite in (None, self._runs[name].config.suite_name)
        ]
        return {kind: states.count(kind) for kind in KINDS}

    def seconds_left(self) -> float | None:
        """Estimated seconds left; None until a first run has completed."""
        if not self._expected:
            return None
        ahead = sum(
            self._runs[name].estimate_s
            for name, s in self._status.items()
            if s in ("pending", "running")
        )
        since = sum(self._now() - began for began in self._began.values())
        return max(0.0, ahead * self._spent / self._expected - since) / self._runs_at_once

    def line(self) -> str:
        """`sweep: 12 of 72 done, 1 failed, about 9 min left`."""
        counts, left = self.counts(), self.seconds_left()
        rest = (
            ""
            if left is None or counts["done"] + counts["failed"] == len(self._runs)
            else f", about {human_seconds(left)} left"
        )
        return f"sweep: {counts['done']} of {len(self._runs)} done, {counts['failed']} failed{rest}"

    def table(self) -> RenderableType:
        """The line, and a table with one row per suite."""
        made = Table("suite", *KINDS, box=None, pad_edge=False)
        for suite in dict.fromkeys(run.config.suite_name for run in self._runs.values()):
            made.add_row(
                suite or "(no suite)",
                *(str(count) if count else "" for count in self.counts(suite).values()),
            )
        return Group(Text(self.line(), style="bold"), made)
