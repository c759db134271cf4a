"""Runs the product's supervisor over fake ranks, and reports the outcome."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.config.codec import encode
from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.schema import CheckpointConfig, RunConfig, SupervisionConfig
from ecrl_cli.errors import EcrlError
from ecrl_cli.failures.plan import plan
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec, Progress
from ecrl_cli.records.run_config import read_run_config, write_run_config
from ecrl_cli.studies.fake_ranks.fake_rank import FakeRankScript, write_script
from ecrl_cli.studies.frame.limits import remaining
from ecrl_cli.studies.frame.study import StudyContext
from ecrl_cli.supervision.attempts.stop_signals import STOPPING
from ecrl_cli.supervision.attempts.supervisor_record import read_record
from ecrl_cli.supervision.console import SilentUI
from ecrl_cli.supervision.launch.launcher import Launcher, LaunchSpec, RunningAttempt
from ecrl_cli.supervision.launch.torchrun import TorchrunLauncher
from ecrl_cli.supervision.launch.zygote import ZygoteLauncher
from ecrl_cli.supervision.supervisor import supervise

FAKE_RANK_MODULE = "ecrl_cli.studies.fake_ranks.fake_rank"
LIMIT_S = 1.0  # seconds without progress: the smallest limit that can be configured
START_S = 3 * LIMIT_S  # the same, during a start or a save
TRIAL_S = 120.0  # a longer trial counts as hung, whatever the supervisor reports


@dataclass(frozen=True)
class Trigger:
    """Fires when rank 0 reports `phase`, at `step` or later, in `attempt`."""

    phase: str
    step: int = 0
    attempt: int = 0


class TriggeringUI(SilentUI):
    """Runs `act` once when the trigger fires; records the console output."""

    def __init__(
        self, trigger: Trigger | None = None, act: Callable[[], None] = lambda: None
    ) -> None:
        self._trigger, self._act, self._attempt = trigger, act, -1
        self.notes: list[str] = []
        self.acted_at: float | None = None

    def launched(self, order: AttemptSpec) -> None:
        self._attempt = order.attempt

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, progress: Progress) -> None:
        trigger = self._trigger
        if (
            trigger
            and self._attempt == trigger.attempt
            and progress.phase == trigger.phase
            and progress.global_step >= trigger.step
            and self.acted_at is None
        ):
            self.acted_at = monotonic()
            self._act()


class FakeRankLauncher:
    """A real launcher that starts fake ranks."""

    def __init__(self, real: Launcher) -> None:
        self._real = real

    def warm(self, config: RunConfig) -> None:
        """Warm up once for all trials."""

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        return self._real.launch(
            replace(spec, module=FAKE_RANK_MODULE, preload=(FAKE_RANK_MODULE,))
        )

    def close(self) -> None:
        """Do nothing; the launcher is reused by the next trial."""


@dataclass
class SupervisorOutcome:
    """How the supervisor ended: its exit code and last output; its record; seconds from the trigger
    to the end.
    """

    code: int
    said: str
    attempts: list[dict[str, Any]]
    after_s: float
    left: int
    notes: list[str] = field(default_factory=list)


class SupervisorHarness:
    """A folder for one run at a time, and the launchers shared by all trials."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._launchers: dict[str, Launcher] = {}
        self.number = 0

    def launcher(self, kind: str) -> FakeRankLauncher:
        if kind not in self._launchers:
            if LAUNCHERS.of(kind).warm:
                zygote = ZygoteLauncher((FAKE_RANK_MODULE,))
                zygote.warm(RunConfig())
                self._launchers[kind] = zygote
            else:
                self._launchers[kind] = TorchrunLauncher()
        return FakeRankLauncher(self._launchers[kind])

    @contextlib.contextmanager
    def run(self, config: RunConfig, script: FakeRankScript) -> Iterator[RunLayout]:
        """Create a run directory; removed on exit."""
        self.number += 1
        layout = RunLayout((self._scratch / f"run{self.number}").resolve())
        layout.root.mkdir(parents=True)
        layout.failures.write_text(json.dumps(encode(plan(config))), encoding="utf-8")
        write_run_config(layout, config)
        write_script(layout, script)
        try:
            yield layout
        finally:
            processes.sweep(processes.of_run(layout.root))
            shutil.rmtree(layout.root, ignore_errors=True)

    def supervise(
        self, config: RunConfig, layout: RunLayout, ui: TriggeringUI, kind: str = "zygote"
    ) -> SupervisorOutcome:
        launcher, began = self.launcher(kind), monotonic()
        code, said = 0, "completed"
        with stop_signals_ignored():
            try:
                supervise(config, layout, ui, launcher)
            except EcrlError as error:
                code, said = error.exit_code, error.line()
        after = monotonic() - (ui.acted_at or began)
        attempts = [encode(attempt) for attempt in read_record(layout).attempts]
        return SupervisorOutcome(code, said, attempts, after, len(remaining(layout.root)), ui.notes)

    def close(self) -> None:
        for launcher in self._launchers.values():
            launcher.close()
        self._launchers = {}


def harness_of(context: StudyContext) -> SupervisorHarness:
    """Factory for `context.shared`."""
    return SupervisorHarness(context.scratch)


def settings(
    target_steps: int, every: int = 5, strategy: str = "blocking", **supervision: Any
) -> RunConfig:
    """Configuration of a run of two fake ranks whose hangs are detected after LIMIT_S."""
    chosen: dict[str, Any] = {
        "launcher": "zygote",
        "hang_timeout_s": LIMIT_S,
        "start_timeout_s": START_S,
        "max_restarts": 4,
    } | supervision
    return RunConfig(
        target_steps=target_steps,
        checkpoint=CheckpointConfig(strategy=strategy, every=every),
        supervision=SupervisionConfig(**chosen),
    )


@contextlib.contextmanager
def stop_signals_ignored() -> Iterator[None]:
    """Ignore stop signals that come too late for the run: they are passed on to the caller, here
    the trial, which must not stop.
    """
    before = {number: signal.signal(number, lambda received, frame: None) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def steps(layout: RunLayout, attempt: int, rank: int) -> list[int]:
    return [
        line.global_step
        for line in read_journal(layout.attempt(attempt).rank(rank), RankLine).events
    ]


def whole(layout: RunLayout) -> list[int]:
    """Steps of the checkpoints that pass the integrity check, oldest first; all that are not
    quarantined must pass.
    """
    stored = read_run_config(layout)
    with contextlib.closing(
        CheckpointStore(layout.checkpoints, StoreConfig.of(stored.config, stored.run_id))
    ) as store:
        reports = (
            [store.verify(entry.path) for entry in store.entries()]
            if layout.checkpoints.exists()
            else []
        )
    return sorted(report.global_step or 0 for report in reports if report.ok)


def lineage_whole(layout: RunLayout) -> bool:
    """Whether every rank did every step, each attempt from where it resumed, without a gap."""
    record = read_record(layout)
    for attempt in record.attempts:
        for rank in range(attempt.world_size):
            done = steps(layout, attempt.attempt, rank)
            if done and done != list(
                range(attempt.resumed_from_step + 1, attempt.resumed_from_step + 1 + len(done))
            ):
                return False
    last = record.attempts[-1]
    return last.outcome != "completed" or all(
        steps(layout, last.attempt, rank)[-1:] in ([record.target_steps], [])
        for rank in range(last.world_size)
    )
