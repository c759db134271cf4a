"""Runs the product's supervisor over actors, and says how it went."""

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
from ecrl_cli.records.attempt_spec import AttemptSpec
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import Progress
from ecrl_cli.records.run_config import read_run_config, write_run_config
from ecrl_cli.studies.fake_ranks.script import FakeRankScript, write_part
from ecrl_cli.studies.frame.leak_check import remaining
from ecrl_cli.studies.frame.study import StudyContext
from ecrl_cli.supervision.attempts.stop_signals import STOPPING
from ecrl_cli.supervision.attempts.supervisor_record import read_record
from ecrl_cli.supervision.console import SilentUI
from ecrl_cli.supervision.launch.launcher import Launcher, LaunchSpec, RunningAttempt
from ecrl_cli.supervision.launch.torchrun import TorchrunLauncher
from ecrl_cli.supervision.launch.zygote import ZygoteLauncher
from ecrl_cli.supervision.supervisor import supervise

ACTOR = "ecrl_cli.studies.fake_ranks.fake_rank"
LIMIT_S = 1.0  # of silence: the least that can be configured
START_S = 3 * LIMIT_S  # the same, in a start or a save
TRIAL_S = 120.0  # a trial that takes longer hangs, whatever the supervisor makes of it


@dataclass(frozen=True)
class Trigger:
    """Rank 0 has said that it is in `phase`, at `step` or later, in `attempt`."""

    phase: str
    step: int = 0
    attempt: int = 0


class TriggeringUI(SilentUI):
    """Does `act` once, when the cue comes; notes what a person would have read."""

    def __init__(self, cue: Trigger | None = None, act: Callable[[], None] = lambda: None) -> None:
        self._cue, self._act, self._attempt = cue, act, -1
        self.notes: list[str] = []
        self.acted_at: float | None = None

    def launched(self, order: AttemptSpec) -> None:
        self._attempt = order.attempt

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, progress: Progress) -> None:
        cue = self._cue
        if cue and self._attempt == cue.attempt and progress.phase == cue.phase and progress.global_step >= cue.step and self.acted_at is None:
            self.acted_at = monotonic()
            self._act()


class ActorLauncher:
    """A real launcher, of actors."""

    def __init__(self, real: Launcher) -> None:
        self._real = real

    def warm(self, config: RunConfig) -> None:
        """Done once for all trials."""

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        return self._real.launch(replace(spec, module=ACTOR, preload=(ACTOR,)))

    def close(self) -> None:
        """It serves the next trial too."""


@dataclass
class SupervisorOutcome:
    """How a stay of the supervisor ended: its exit code and last words; the supervisor's record; seconds from the cue to the end."""

    code: int
    said: str
    attempts: list[dict[str, Any]]
    after_s: float
    left: int
    notes: list[str] = field(default_factory=list)


class Stage:
    """A folder for one run at a time, and the launchers that all trials share."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._launchers: dict[str, Launcher] = {}
        self.number = 0

    def launcher(self, kind: str) -> ActorLauncher:
        if kind not in self._launchers:
            if LAUNCHERS.of(kind).warm:
                zygote = ZygoteLauncher((ACTOR,))
                zygote.warm(RunConfig())
                self._launchers[kind] = zygote
            else:
                self._launchers[kind] = TorchrunLauncher()
        return ActorLauncher(self._launchers[kind])

    @contextlib.contextmanager
    def run(self, config: RunConfig, part: FakeRankScript) -> Iterator[RunLayout]:
        """A run directory, laid down; gone afterwards."""
        self.number += 1
        layout = RunLayout((self._scratch / f"run{self.number}").resolve())
        layout.root.mkdir(parents=True)
        layout.failures.write_text(json.dumps(encode(plan(config))), encoding="utf-8")
        write_run_config(layout, config)
        write_part(layout, part)
        try:
            yield layout
        finally:
            processes.sweep(processes.of_run(layout.root))
            shutil.rmtree(layout.root, ignore_errors=True)

    def supervise(self, config: RunConfig, layout: RunLayout, ui: TriggeringUI, kind: str = "zygote") -> SupervisorOutcome:
        launcher, began = self.launcher(kind), monotonic()
        code, said = 0, "completed"
        with heard_by_nobody_else():
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


def stage(context: StudyContext) -> Stage:
    """For `context.shared`."""
    return Stage(context.scratch)


def settings(target_steps: int, every: int = 5, strategy: str = "blocking", **supervision: Any) -> RunConfig:
    """A run of two actors whose hangs are found after LIMIT_S."""
    chosen: dict[str, Any] = {"launcher": "zygote", "hang_timeout_s": LIMIT_S, "start_timeout_s": START_S, "max_restarts": 4} | supervision
    return RunConfig(
        target_steps=target_steps,
        checkpoint=CheckpointConfig(strategy=strategy, every=every),
        supervision=SupervisionConfig(**chosen),
    )


@contextlib.contextmanager
def heard_by_nobody_else() -> Iterator[None]:
    """A stop signal that came too late for the run is passed on to whoever called: here that is a trial, and not to be stopped by it."""
    before = {number: signal.signal(number, lambda received, frame: None) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def steps(layout: RunLayout, attempt: int, rank: int) -> list[int]:
    return [line.global_step for line in read_journal(layout.attempt(attempt).rank(rank), RankLine).events]


def whole(layout: RunLayout) -> list[int]:
    """The steps of the checkpoints that pass the guard, oldest first; each must, unless it lies aside."""
    stored = read_run_config(layout)
    with contextlib.closing(CheckpointStore(layout.checkpoints, StoreConfig.of(stored.config, stored.run_id))) as store:
        reports = [store.verify(entry.path) for entry in store.entries()] if layout.checkpoints.exists() else []
    return sorted(report.global_step or 0 for report in reports if report.ok)


def lineage_whole(layout: RunLayout) -> bool:
    """Every rank did every step, each attempt from where it resumed, without a gap."""
    record = read_record(layout)
    for attempt in record.attempts:
        for rank in range(attempt.world_size):
            done = steps(layout, attempt.attempt, rank)
            if done and done != list(range(attempt.resumed_from_step + 1, attempt.resumed_from_step + 1 + len(done))):
                return False
    last = record.attempts[-1]
    return last.outcome != "completed" or all(
        steps(layout, last.attempt, rank)[-1:] in ([record.target_steps], []) for rank in range(last.world_size)
    )
