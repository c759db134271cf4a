"""What one run left behind, read for showing. A run that cannot be read is kept with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.limits import MOST_ATTEMPTS, MOST_FAILURES
from ecrl_cli.errors import EcrlError, RecordError
from ecrl_cli.history.extent import check_extent
from ecrl_cli.history.load import NOTHING, AttemptRecords, RunRecords
from ecrl_cli.history.timeline import timeline
from ecrl_cli.metrics.checkpoints import Checkpoint
from ecrl_cli.metrics.checkpoints import account as checkpoint_account
from ecrl_cli.metrics.disk import DiskLine
from ecrl_cli.metrics.restarts import Restart, restarts
from ecrl_cli.records.events import CHECKPOINT_ENDS, SCHEMA_VERSION, CheckpointLine, Final, Fired, RankLine, Span, SupervisorRecord
from ecrl_cli.records.fingerprint import fingerprint
from ecrl_cli.records.journal import Lines, read_journal, read_json
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.recovery import Testimony
from ecrl_cli.records.run_config import StoredConfig, journal_bytes, read_run_config
from ecrl_cli.report.find import Place
from ecrl_cli.report.palette import CATEGORY_COLOURS
from ecrl_cli.report.view import View, view

T = TypeVar("T")
CHECKPOINT_TIMES = ("snapshot_s", "serialize_s", "enqueue_s", "backpressure_s", "write_s", "stall_s")
MOST_NAMED = 1000  # ranks of an attempt whose logs are looked for
CHECKPOINT_KEYS = ("submitted", *CHECKPOINT_ENDS, "bytes", *CHECKPOINT_TIMES)


@dataclass(frozen=True)
class Metrics:
    """The keys of metrics.json that a report shows."""

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

    @property
    def wall_published_clock_s(self) -> float | None:
        """Seconds from rank 0's first line to its last, as the published clock has them; None where that clock has no goodput."""
        return self.committed_steps / self.goodput_published_clock if self.goodput_published_clock else None

    @property
    def stall_per_checkpoint_s(self) -> float | None:
        """Stall over all submitted checkpoints, by checkpoint; None where none was submitted."""
        return self._per_checkpoint("stall_s")

    @property
    def write_per_checkpoint_s(self) -> float | None:
        """Seconds of writing over all submitted checkpoints, whatever became of them, by checkpoint; None where none was submitted."""
        return self._per_checkpoint("write_s")

    def _per_checkpoint(self, key: str) -> float | None:
        submitted = self.checkpoints["submitted"]
        return self.checkpoints[key] / submitted if submitted else None


@dataclass(frozen=True)
class Finding:
    promise: str
    status: str
    message: str
    evidence: Any = None


@dataclass(frozen=True)
class Verdict:
    """verdict.json; `missing` where the run was not verified. `reference`: the run that it was compared with, or empty."""

    status: str
    findings: tuple[Finding, ...] = ()
    reference: str = ""


@dataclass(frozen=True, eq=False)
class Run:
    """One run. `reason`: why it takes part in no comparison; empty if it does. `saves`: every submitted checkpoint, once.

    `missing`: records that a run leaves and this one lacks. `troubles`: records that could not be read.
    """

    place: Place
    suite: str
    variant: str
    seed: str
    reason: str
    metrics: Metrics | None
    document: dict[str, Any] | None
    verdict: Verdict
    supervisor: SupervisorRecord | None
    checkpoints: tuple[CheckpointLine, ...]
    fired: tuple[Fired, ...]
    config: dict[str, Any]
    environment: dict[str, Any]
    view: View | None
    divergence: dict[str, Any] | None = None
    troubles: tuple[str, ...] = ()
    saves: tuple[Checkpoint, ...] = ()
    restarts: tuple[Restart, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.place.name

    @cached_property
    def sweep(self) -> Path:
        """The folder that the run lies in: with its pairs, and apart from those of another sweep of the same matrix."""
        return self.place.layout.root.resolve().parent

    @property
    def counted(self) -> Metrics | None:
        """The run's numbers if it may be compared."""
        return None if self.reason else self.metrics


def known_environment(value: Any) -> dict[str, Any]:
    """environment.json without what is not of the type that this ECRL writes: nothing depends on it, so it fails nothing."""
    kinds: dict[str, Any] = {"cpu": dict, "packages": dict, "file_system": dict, "gpus": list}
    known: dict[str, Any] = {
        key: item for key, item in (value if isinstance(value, dict) else {}).items() if isinstance(item, kinds.get(key, str | int | None))
    }
    return known | ({"gpus": [gpu for gpu in known["gpus"] if isinstance(gpu, dict)]} if "gpus" in known else {})


def read_run(place: Place) -> Run:
    """The run at `place`; never raises for what its records lack."""
    return _Reader(place).run()


class _Reader:
    """Reads one run directory; what cannot be read is noted in `troubles`."""

    def __init__(self, place: Place) -> None:
        self.place, self.layout = place, place.layout
        self.troubles: list[str] = []

    def attempt(self, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except Exception as error:  # whatever one run's records do, the others are shown
            self.troubles.append(error.line() if isinstance(error, EcrlError) else f"{type(error).__name__}: {error}")
            return otherwise

    def run(self) -> Run:
        place, layout = self.place, self.layout
        document = self.attempt(lambda: _document(place), None)
        metrics = self.attempt(lambda: _metrics(document) if document else None, None)
        stored = self.attempt(lambda: read_run_config(layout) if layout.config.exists() else None, None)
        supervisor = self.attempt(lambda: decode(SupervisorRecord, read_json(layout.supervisor)) if layout.supervisor.exists() else None, None)
        config = encode(stored.config) if stored else {}
        records = self.attempt(lambda: self.records(stored, supervisor), None)
        told = records if records and supervisor else None
        account = self.attempt(lambda: timeline(told) if told else None, None)
        return Run(
            place,
            *_names(place, metrics, config),
            _reason(place, metrics, supervisor),
            metrics,
            document if metrics else None,
            self.attempt(lambda: _verdict(place), Verdict("unknown")),
            supervisor,
            tuple(line for a in records.attempts for line in a.checkpoints.events) if records else (),
            records.fired if records else (),
            config,
            self.attempt(lambda: known_environment(dict(read_json(layout.environment))) if layout.environment.exists() else {}, {}),
            self.attempt(
                lambda: (
                    view(told, self.attempt(lambda: read_journal(layout.disk, DiskLine, 2**26), NOTHING).events, account)
                    if told and account
                    else None
                ),
                None,
            ),
            self.attempt(lambda: dict(read_json(layout.divergence)) if layout.divergence.exists() else None, None),
            tuple(self.troubles),
            self.attempt(lambda: checkpoint_account(records).checkpoints if records else (), ()),
            self.attempt(lambda: restarts(told, account) if told and account else (), ()),
            tuple(_missing(layout, supervisor)),
        )

    def records(self, stored: StoredConfig | None, supervisor: SupervisorRecord | None) -> RunRecords | None:
        """What the time line needs: rank 0's logs, not those of the other ranks, which would be most of the reading."""
        if stored is None:
            return None
        self.limit = journal_bytes(stored.config)
        attempts = tuple(self.logs(number) for number in self.layout.attempts()[:MOST_ATTEMPTS])
        check_extent(found := RunRecords(self.layout, stored, supervisor, None, None, self.attempt(self.fired, ()), attempts, ()))
        return found

    def logs(self, number: int) -> AttemptRecords:
        paths = self.layout.attempt(number)
        lines: Lines[RankLine] = self.attempt(lambda: read_journal(paths.rank(0), RankLine, self.limit), NOTHING)
        return AttemptRecords(
            attempt=number,
            ranks={0: lines},
            checkpoints=self.attempt(lambda: read_journal(paths.checkpoints, CheckpointLine, self.limit), NOTHING),
            spans=self.attempt(lambda: read_journal(paths.spans(0), Span, self.limit), NOTHING),
            final=self.attempt(lambda: decode(Final, read_json(paths.final)) if paths.final.exists() else None, None),
            order=None,
            testimonies=self.attempt(lambda: {rank: read_journal(paths.testimony(rank), Testimony, self.limit) for rank in paths.testified()}, {}),
        )

    def fired(self) -> tuple[Fired, ...]:
        folder = self.layout.fired
        return tuple(decode(Fired, read_json(path)) for path in sorted(folder.glob("*.json"))[:MOST_FAILURES]) if is_folder(folder) else ()


def _missing(layout: RunLayout, supervisor: SupervisorRecord | None) -> list[str]:
    """The records of a finished run that are not there, relative to its folder."""
    wanted = [layout.config, layout.environment, layout.dataset, layout.failures, layout.supervisor]
    for a in supervisor.attempts if supervisor else ():
        logs = layout.attempt(a.attempt)
        wanted += [logs.rank(rank) for rank in range(min(a.world_size, MOST_NAMED))] if a.last_step else []
    return [layout.relative(path) for path in wanted if not path.exists()]


def _document(place: Place) -> dict[str, Any] | None:
    """metrics.json, of the schema that this ECRL knows."""
    if not place.layout.metrics.exists():
        return None
    value = read_json(place.layout.metrics)
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError("metrics.json", f"schema version {version}, this ECRL reads {SCHEMA_VERSION}", "use the version that wrote the run")
    return dict(value)


def _metrics(document: dict[str, Any]) -> Metrics:
    known = {f.name for f in fields(Metrics)}
    metrics = decode(Metrics, {key: item for key, item in document.items() if key in known})
    lacking = [f"checkpoints.{key}" for key in CHECKPOINT_KEYS if key not in metrics.checkpoints]
    lacking += [f"seconds.{key}" for key in CATEGORY_COLOURS if key not in metrics.seconds]
    if lacking:
        raise RecordError("metrics.json", f"lacks {lacking[0]}", "restore the file")
    return metrics


def _names(place: Place, metrics: Metrics | None, config: dict[str, Any]) -> tuple[str, str, str]:
    """Suite, variant and seed: from the metrics, else from the configuration, else from the sweep's manifest."""
    if metrics:
        return metrics.suite, metrics.variant, str(metrics.seed)
    if config:
        suite = config["suite_name"] or f"{config['dataset']['name']}-{config['model']['name']}"
        return suite, config["variant"]["name"], str(config["seed"])
    said = place.said
    return said.get("suite", ""), said.get("variant", ""), said.get("seed", "")


def _reason(place: Place, metrics: Metrics | None, supervisor: SupervisorRecord | None) -> str:
    said = ": ".join(word for word in (place.said.get("status", ""), place.said.get("reason", "")) if word)
    if not place.layout.root.is_dir():
        return f"never started (manifest: {said})"
    if metrics is None:
        damaged = place.layout.metrics.exists()
        return "metrics.json cannot be read" if damaged else f"no metrics.json ({_status(supervisor) or said or 'the run has not ended'})"
    if metrics.committed_steps < metrics.target_steps or metrics.final is None:
        return f"ended at step {metrics.committed_steps} of {metrics.target_steps}" + (f" ({_status(supervisor)})" if supervisor else "")
    return ""


def _status(supervisor: SupervisorRecord | None) -> str:
    if supervisor is None:
        return ""
    return supervisor.terminal_status + (f": {supervisor.reason}" if supervisor.reason else "")


def _verdict(place: Place) -> Verdict:
    if not place.layout.verdict.exists():
        return Verdict("missing")
    value = read_json(place.layout.verdict)
    if value.get("records_sha256", "") not in ("", fingerprint(place.layout)):
        return Verdict("missing", (Finding("records", "unknown", "the records were changed after the verdict; run `ecrl verify` again"),))
    status = value["status"] if value["status"] in ("valid", "invalid", "unknown") else "unknown"
    findings = tuple(Finding(f["promise"], f["status"], f["message"], f.get("evidence")) for f in value["findings"])
    return Verdict(status, findings, str(value.get("reference", "")))
