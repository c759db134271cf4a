"""One run as the report shows it: metrics, verdict, timeline and records. A run that cannot be read
is kept with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.identity import suite_of
from ecrl_cli.errors import EcrlError, RecordError
from ecrl_cli.history.load import RunRecords, load_disk, load_environment
from ecrl_cli.history.timeline import Timeline, timeline
from ecrl_cli.linux.parallel import parallel_map
from ecrl_cli.metrics.cache import NewerMetrics, differences
from ecrl_cli.metrics.checkpoints import CheckpointOutcome, SaveLatency, save_latency
from ecrl_cli.metrics.checkpoints import account as checkpoint_account
from ecrl_cli.metrics.divergence import divergence_document
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.metrics.recoveries import Restart, restarts
from ecrl_cli.records.events import (
    CHECKPOINT_ENDS,
    COPY_WAIT,
    CheckpointLine,
    DiskLine,
    InjectedFault,
    SupervisorRecord,
)
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.records.verdict_file import divergence_of, read_verdict
from ecrl_cli.report.model.inputs import RunInput
from ecrl_cli.report.model.recording import RecordingId, recording_of
from ecrl_cli.report.model.settings import settings_of
from ecrl_cli.report.model.timeline_view import TimelineView, timeline_view
from ecrl_cli.report.palette import CATEGORY_COLOURS
from ecrl_cli.verify.reference import References, read_records
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, worst
from ecrl_cli.verify.verify_run import named, verify_run

T = TypeVar("T")
CHECKPOINT_TIMES = (
    "snapshot_s",
    "serialize_s",
    "enqueue_s",
    "backpressure_s",
    "write_s",
    "stall_s",
)
_LARGEST = 1e150  # of a held-out loss or perplexity that is averaged: a diverged model has any
MOST_NAMED = 1000  # ranks of an attempt whose logs are checked for existence
CHECKPOINT_KEYS = ("submitted", *CHECKPOINT_ENDS, "bytes", *CHECKPOINT_TIMES)


@dataclass(frozen=True)
class Metrics:
    """The fields of `metrics_document` that the report shows."""

    schema_version: int
    run_id: str
    reference_id: str
    suite: str
    variant: str
    seed: int
    scale: str
    dataset_size: int
    steps_per_epoch: int
    global_batch: int
    target_steps: int
    committed_steps: int
    replayed_steps: int
    restarts: int
    wall_s: float
    goodput: float
    goodput_published_clock: float | None
    seconds: dict[str, float]
    checkpoints: dict[str, float]
    final: dict[str, Any] | None
    absent_s: float = 0.0
    mean_loss: dict[int, float | None] = field(default_factory=dict)
    survivals: int = 0
    lost_samples: int = 0
    recoveries: tuple[dict[str, Any], ...] = ()
    snapshots: dict[str, float] = field(default_factory=dict)
    terminal_status: str = "unknown"
    evaluations: tuple[dict[str, Any], ...] = ()
    legs: tuple[dict[str, Any], ...] = ()

    def held_out(self, measure: str) -> float | None:
        """Quality on held-out data at the target; None if nothing was measured, or it is not finite
        or too large to be squared.
        """
        last = self.evaluations[-1] if self.evaluations else {}
        value = last.get(measure) if last.get("global_step") == self.target_steps else None
        return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else None

    @property
    def wall_published_clock_s(self) -> float | None:
        """Seconds from rank 0's first line to its last (the published clock); None if there is no
        goodput on that clock.
        """
        return (
            self.committed_steps / self.goodput_published_clock
            if self.goodput_published_clock
            else None
        )

    @property
    def stall_per_checkpoint_s(self) -> float | None:
        """Stall seconds per submitted checkpoint; None if none was submitted."""
        return self._per_checkpoint(self.checkpoints["stall_s"])

    @property
    def write_per_checkpoint_s(self) -> float | None:
        """Write seconds per submitted checkpoint, whatever its end; None if none was submitted."""
        return self._per_checkpoint(self.checkpoints["write_s"])

    @property
    def durable_write_s(self) -> float:
        """Write time as in the published experiments: from the start of serialising until the
        checkpoint is durable, on any thread or process. Excludes the pointer updates and retention
        that follow.
        """
        return math.fsum(
            self.checkpoints.get(key, 0.0)
            for key in ("serialize_s", "write_s", "hash_s", "commit_s")
        )

    @property
    def durable_write_per_checkpoint_s(self) -> float | None:
        return self._per_checkpoint(self.durable_write_s)

    def stalled(self, part: str) -> float | None:
        """Seconds of this part of all stalls; None in records without the parts."""
        found = self.checkpoints.get(f"stalled_{part}_s")
        return (
            0.0
            if found is None and part == COPY_WAIT and "stalled_barrier_s" in self.checkpoints
            else found
        )

    def _per_checkpoint(self, seconds: float) -> float | None:
        submitted = self.checkpoints["submitted"]
        return seconds / submitted if submitted else None


@dataclass(frozen=True)
class RunFinding:
    promise: str
    status: str
    message: str
    evidence: Any = None


@dataclass(frozen=True)
class RunVerdict:
    """A verdict; `missing` if the run was not verified, or has changed since: `why`. `reference`:
    the run it was compared with, or empty.
    `problem`: why the distances to it, written with the verdict, are not shown; empty if they are
    or there are none.
    """

    status: str
    findings: tuple[RunFinding, ...] = ()
    reference: str = ""
    why: str = ""
    problem: str = ""


# with the distances to its reference, if there is one
Judged = tuple[RunVerdict, dict[str, Any] | None]
NOT_JUDGED: Judged = (RunVerdict(UNKNOWN), None)


@dataclass(frozen=True, eq=False)
class Run:
    """One run. `reason`: why it is excluded from comparisons; empty if it is not. `saves`: every
    submitted checkpoint, once.

    `missing`: expected records that do not exist. `problems`: records that could not be read, and
    contradictions in metrics.json.
    """

    input: RunInput
    suite: str
    variant: str
    seed: str
    reason: str
    metrics: Metrics | None
    document: dict[str, Any] | None
    verdict: RunVerdict
    supervisor: SupervisorRecord | None
    checkpoints: tuple[CheckpointLine, ...]
    fired: tuple[InjectedFault, ...]
    config: dict[str, Any]
    environment: dict[str, Any]
    view: TimelineView | None
    divergence: dict[str, Any] | None = None
    problems: tuple[str, ...] = ()
    saves: tuple[CheckpointOutcome, ...] = ()
    restarts: tuple[Restart, ...] = ()
    missing: tuple[str, ...] = ()
    recording: RecordingId | None = None

    @property
    def name(self) -> str:
        return self.input.name

    @cached_property
    def sweep(self) -> Path:
        """The folder of the run's sweep, for a reference the one above its own: runs are paired
        within it, and apart from other sweeps.
        """
        return self._folder.parent if self.is_reference else self._folder

    @cached_property
    def is_reference(self) -> bool:
        """Whether it was trained to compare other runs with: it lies in references/ beside them,
        and saves one checkpoint, at its end.
        """
        return self._folder.name == REFERENCES

    @cached_property
    def _folder(self) -> Path:
        """Where it lies; of a run on other storage, where the link to it lies."""
        return self.input.layout.root.absolute().parent.resolve()

    @cached_property
    def settings(self) -> dict[str, str]:
        """The configuration as dotted keys, by which it differs from others."""
        return settings_of(self.config, self.suite)

    @property
    def counted(self) -> Metrics | None:
        """The run's metrics if it may be compared."""
        return None if self.reason else self.metrics

    @cached_property
    def save_latency(self) -> SaveLatency:
        """How long a save takes until it is durable, beside the time between two checkpoints."""
        return save_latency(self.checkpoints)

    @property
    def failing(self) -> bool:
        """Whether it broke a promise or did not reach its target: what a page shows first."""
        return bool(self.reason) or self.verdict.status == INVALID

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The steps of a counted run with their losses, mean over ranks; steps whose loss is not on
        record or not finite are left out.
        """
        recorded = self.counted.mean_loss if self.counted else {}
        return [(step, loss) for step, loss in sorted(recorded.items()) if loss is not None]


@dataclass(frozen=True)
class Judging:
    """Where verdicts come from. `anew`: every run is verified now, and what is on file ignored.
    `missing`: called with the folders of ended runs that have no verdict on file that holds, to
    verify them as `ecrl verify` does; None: they stay without.
    """

    anew: bool = False
    missing: Callable[[list[Path]], object] | None = None


ON_FILE = Judging()


def read_runs(
    places: Sequence[RunInput],
    judging: Judging = ON_FILE,
    meanwhile: Callable[[], object] | None = None,
) -> list[Run]:
    """The runs at `places`, in order, read in several processes; `meanwhile` is called once beside
    that.
    """
    runs = parallel_map(partial(read_run, judge_anew=judging.anew), places, meanwhile=meanwhile)
    due = [
        number
        for number, run in enumerate(runs)
        if run.supervisor
        and run.supervisor.terminal_status != "running"
        and run.verdict.status == "missing"
    ]
    if judging.missing and due:
        # one may be named twice
        judging.missing(
            list({(root := places[number].layout.root).resolve(): root for number in due}.values())
        )
        for number, run in zip(
            due, parallel_map(read_run, [places[number] for number in due]), strict=True
        ):
            runs[number] = run
    return runs


def read_run(place: RunInput, judge_anew: bool = False) -> Run:
    """Reads the run at `place`; missing or damaged records never raise. `judge_anew`: verify now
    and ignore the verdict and divergence on file.
    """
    return _Reader(place, judge_anew).run()


class _Reader:
    """Reads one run directory; unreadable records and contradictions are collected in
    `troubles`.
    """

    def __init__(self, place: RunInput, judge_anew: bool) -> None:
        self.place, self.layout, self.judge_anew = place, place.layout, judge_anew
        self.troubles: list[str] = []

    def attempt(self, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except Exception as error:  # whatever is wrong with one run's records, the others are shown
            self.troubles.append(
                error.line() if isinstance(error, EcrlError) else f"{type(error).__name__}: {error}"
            )
            return otherwise

    def run(self) -> Run:
        place, layout = self.place, self.layout
        records = self.attempt(
            lambda: read_records(layout) if layout.config.exists() else None, None
        )
        self.troubles += (
            [f"{file.path}: {file.reason}" for file in records.unread] if records else []
        )
        supervised = records if records and records.supervisor else None
        account = self.attempt(lambda: timeline(supervised) if supervised else None, None)
        document = self.attempt(
            lambda: (
                metrics_from_records(supervised, account)
                if supervised and not supervised.unread
                else None
            ),
            None,
        )
        metrics = self.attempt(lambda: _metrics(document) if document else None, None)
        if document:
            self.troubles += self.attempt(lambda: _file_differs(layout, document, supervised), [])
        supervisor = supervised.supervisor if supervised else None
        verdict, divergence = self.attempt(
            lambda: judge_again(layout) if self.judge_anew else verdict_on_file(layout), NOT_JUDGED
        )
        self.troubles += [verdict.problem] if verdict.problem else []
        suite, variant, seed = _names(place, metrics, records)
        reason = _reason(
            place,
            metrics,
            supervisor,
            self.troubles,
            live=records is not None and records.cut is not None,
        )
        disk: tuple[DiskLine, ...] = (
            self.attempt(lambda: load_disk(layout), ()) if supervised and account else ()
        )
        view = self.attempt(
            lambda: timeline_view(supervised, disk, account) if supervised and account else None,
            None,
        )
        return Run(
            input=place,
            suite=suite,
            variant=variant,
            seed=seed,
            reason=reason,
            metrics=metrics,
            document=document if metrics else None,
            verdict=verdict,
            supervisor=supervisor,
            checkpoints=(
                tuple(line for a in records.attempt_logs for line in a.checkpoints.events)
                if records
                else ()
            ),
            fired=records.fired if records else (),
            config=encode(records.stored.config) if records else {},
            environment=self.attempt(lambda: load_environment(layout), {}),
            view=view,
            divergence=divergence,
            saves=self.attempt(
                lambda: checkpoint_account(records).checkpoints if records else (), ()
            ),
            restarts=self.attempt(
                lambda: restarts(supervised, account) if supervised and account else (), ()
            ),
            missing=tuple(_missing(layout, supervisor)),
            recording=self.attempt(lambda: recording_of(supervised) if supervised else None, None),
            problems=tuple(self.troubles),  # last: reading any of the above may add to them
        )


def metrics_from_records(records: RunRecords, account: Timeline | None = None) -> dict[str, Any]:
    """The metrics of a run, computed from its records without metrics.json; `account`: its
    timeline, if known.
    """
    document: dict[str, Any] = json.loads(json.dumps(metrics_document(records, account)))
    return document


def _file_differs(
    layout: RunLayout, document: dict[str, Any], records: RunRecords | None
) -> list[str]:
    """Differences between metrics.json and the records; the report shows the records' numbers."""
    if not layout.metrics.exists():
        completed = (
            records and records.supervisor and records.supervisor.terminal_status == "completed"
        )
        return ["metrics.json is missing"] if completed else []
    try:
        wrong = differences(read_json(layout.metrics), document)
    except NewerMetrics as error:
        return [f"metrics.json cannot be compared: {error}"]
    more = [f"and {len(wrong) - 3} more fields of metrics.json"] if len(wrong) > 3 else []
    return [f"in metrics.json {text}" for text in wrong[:3]] + more


def _missing(layout: RunLayout, supervisor: SupervisorRecord | None) -> list[str]:
    """The expected records of a finished run that do not exist, relative to its folder."""
    wanted = [layout.config, layout.environment, layout.dataset, layout.failures, layout.supervisor]
    for a in supervisor.attempts if supervisor else ():
        logs = layout.attempt(a.attempt)
        wanted += (
            [logs.rank(rank) for rank in range(min(a.world_size, MOST_NAMED))]
            if a.last_step
            else []
        )
    return [layout.relative(path) for path in wanted if not path.exists()]


def _metrics(document: dict[str, Any]) -> Metrics:
    known = {f.name for f in fields(Metrics)}
    metrics = decode(Metrics, {key: item for key, item in document.items() if key in known})
    lacking = [f"checkpoints.{key}" for key in CHECKPOINT_KEYS if key not in metrics.checkpoints]
    lacking += [f"seconds.{key}" for key in CATEGORY_COLOURS if key not in metrics.seconds]
    if lacking:
        raise RecordError("metrics.json", f"lacks {lacking[0]}", "restore the file")
    return metrics


def _names(
    place: RunInput, metrics: Metrics | None, records: RunRecords | None
) -> tuple[str, str, str]:
    """Suite, variant and seed: from the metrics, else from the configuration, else from the sweep's
    manifest.
    """
    if metrics:
        return metrics.suite, metrics.variant, str(metrics.seed)
    if records:
        config = records.stored.config
        return suite_of(config), config.variant.name, str(config.seed)
    row = place.manifest_row
    return row.get("suite", ""), row.get("variant", ""), row.get("seed", "")


def _reason(
    place: RunInput,
    metrics: Metrics | None,
    supervisor: SupervisorRecord | None,
    troubles: Sequence[str],
    *,
    live: bool,
) -> str:
    text = ": ".join(
        word
        for word in (place.manifest_row.get("status", ""), place.manifest_row.get("reason", ""))
        if word
    )
    if not place.layout.root.is_dir():
        return f"never started (manifest: {text})"
    if metrics is None:
        return (
            f"its records cannot be read ({troubles[0]})"
            if troubles
            else f"nothing on record ({text or 'the run has not begun'})"
        )
    if metrics.terminal_status == "running":
        return (
            f"{'is still running' if live else 'has not ended'} (step {metrics.committed_steps} of"
            f" {metrics.target_steps})"
        )
    if metrics.committed_steps < metrics.target_steps or metrics.final is None:
        status = (
            ": ".join(filter(None, (supervisor.terminal_status, supervisor.reason)))
            if supervisor
            else ""
        )
        return f"ended at step {metrics.committed_steps} of {metrics.target_steps}" + (
            f" ({status})" if supervisor else ""
        )
    return ""


def verdict_on_file(layout: RunLayout) -> Judged:
    """The verdict on file; a stale one counts as missing, with the reason. RecordError, OSError,
    KeyError or TypeError for an invalid file.
    """
    if not layout.verdict.exists():
        return RunVerdict("missing"), None
    value, stale = read_verdict(layout)
    if stale:
        return (
            RunVerdict(
                "missing",
                (RunFinding("records", UNKNOWN, f"not judged ({stale}); run `ecrl verify` again"),),
                why=stale,
            ),
            None,
        )
    findings = tuple(
        RunFinding(f["promise"], f["status"], f["message"], f.get("evidence"))
        for f in value["findings"]
    )
    divergence, problem = divergence_of(layout, value)
    return (
        RunVerdict(status_of(findings), findings, str(value.get("reference", "")), problem=problem),
        divergence,
    )


def judge_again(layout: RunLayout) -> Judged:
    """Verifies the run, ignoring any verdict on file. Raises what `verify_run` raises."""
    known = References()
    verdict = verify_run(layout.root, known=known)
    findings = tuple(
        RunFinding(f.promise, f.status, f.message, list(f.evidence)) for f in verdict.findings
    )
    judged = RunVerdict(status_of(findings), findings, verdict.reference)
    if not verdict.reference:
        return judged, None
    root = named(layout.root)
    return judged, divergence_document(
        known.records(RunLayout(root)), known.records(RunLayout(root.parent / verdict.reference))
    )


def status_of(findings: Sequence[RunFinding]) -> str:
    """The worst of the findings, whatever overall status the file states; unknown for an unknown
    status.
    """
    known = all(finding.status in (VALID, INVALID, UNKNOWN, NOT_CHECKED) for finding in findings)
    found = worst(finding.status for finding in findings) if findings and known else UNKNOWN
    return UNKNOWN if found == NOT_CHECKED else found
