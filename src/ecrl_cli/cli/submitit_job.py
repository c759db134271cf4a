"""A run as a job of its own, on whatever machine an engine gives it: what is pickled into the job, and what the job leaves behind.

Every job speaks for its own run alone, in a file of its own; the process that submitted the jobs makes one manifest of what they say.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig

from ecrl_cli.cli.console import say
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.machine import check_machine, check_torch
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EcrlError, RunHeld
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.run import RunContext, RunResult, failed, run
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.launch.launcher_cache import LauncherCache
from ecrl_cli.supervision.launch.slurm_allocation import REQUEUED
from ecrl_cli.supervision.run_lock import run_lock

AT_WORK = RunResult(RunHeld.exit_code, "running", "its job is at work")


@dataclass(frozen=True)
class Job:
    """The task function of the jobs. `configs`, by run directory: what was checked when it was submitted is what is run."""

    configs: Mapping[str, RunConfig]

    def __call__(self, composed: Any) -> RunResult:
        """Run the one that Hydra composed `composed` for. Does not return where the job is to be started anew."""
        folder = HydraConfig.get().sweep.subdir  # as it was submitted, before anything made the path shorter
        os.umask(0o077)
        return attend(RunLayout(Path(folder)), self.configs[folder])


def attend(layout: RunLayout, config: RunConfig) -> RunResult:
    """One run, its outcome on record. A run that another job holds is left to it, and so is its outcome."""
    try:
        with run_lock(layout):
            record(layout, AT_WORK)
    except RunHeld as error:
        return RunResult(error.exit_code, "running", error.line())
    with preemption() as asked:
        result = _run(layout, config)
        record(layout, result)
        if result.reason.startswith(f"E-{REQUEUED} "):
            sys.exit(result.exit_code)  # a result would end the job for those who wait for it, and it is in the queue again
    if asked.by and result.exit_code:
        signal.raise_signal(asked.by)  # the run is at rest: now the engine may write the job down and start it anew
    return result


def _run(layout: RunLayout, config: RunConfig) -> RunResult:
    launchers = LauncherCache()
    try:
        check_torch()
        check_machine(config)
        return run(plan_run(config, layout.root), RunContext(say, launchers))
    except (EcrlError, OSError) as error:
        return failed(error, say)
    except Exception as error:  # a defect in one run must not look like a lost job
        return RunResult(1, "failed", f"E-internal {type(error).__name__}: {error}")
    finally:
        launchers.close()


@dataclass
class PreemptionRequest:
    """By which signal the engine asked for the job's end; 0: not at all."""

    by: int = 0


@contextmanager
def preemption() -> Iterator[PreemptionRequest]:
    """While entered, the engine's signal (time is up, or another job goes first) stops the run in order instead of breaking it off."""
    asked, number = PreemptionRequest(), getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}")

    def stop(received: int, frame: FrameType | None) -> None:
        asked.by = received
        signal.raise_signal(signal.SIGTERM)  # which the supervisor obeys; where there is none yet, the engine's handler lets it pass

    before = signal.signal(number, stop)
    try:
        yield asked
    finally:
        signal.signal(number, before)


def record(layout: RunLayout, result: RunResult) -> None:
    """Put on record how the job of this run stands or ended."""
    layout.outcome.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(layout.outcome, encode(result))


def recorded(layout: RunLayout) -> RunResult | None:
    """What the run's job has put on record; None where it has not begun, or the record cannot be read."""
    try:
        return decode(RunResult, read_json(layout.outcome))
    except (OSError, EcrlError, KeyError, TypeError):
        return None
