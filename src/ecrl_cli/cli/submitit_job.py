"""A run as a job of its own on a machine that the launcher gives it: the pickled task, and the
outcome file that it leaves.

Each job writes the outcome of its own run only; the submitting process builds the manifest from
these files.
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

from ecrl_cli.cli.console import restrict, say
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.machine import check_machine, check_torch
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import DEFECT, EcrlError, RunHeld
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.run import RunContext, RunResult, failed, run
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.launch.launcher import LauncherCache
from ecrl_cli.supervision.launch.slurm_allocation import REQUEUED, requeued
from ecrl_cli.supervision.run_lock import run_lock

AT_WORK = RunResult(RunHeld.exit_code, "running", "its job is at work")


@dataclass(frozen=True)
class SubmititJob:
    """The task function of the jobs. `configs`: by run directory, the configurations as checked at
    submission; these are what is run.
    """

    configs: Mapping[str, RunConfig]

    def __call__(self, composed: Any) -> RunResult:
        """Runs the configuration that `composed` belongs to. Does not return where the job is
        requeued.
        """
        # as submitted, before any normalization of the path
        folder = HydraConfig.get().sweep.subdir
        restrict(private=self.configs[folder].private)
        return attend(RunLayout(Path(folder)), self.configs[folder])


def attend(layout: RunLayout, config: RunConfig) -> RunResult:
    """Runs one run and stores its outcome. A run held by another job is left alone, and so is its
    outcome.
    """
    try:
        with run_lock(layout):
            record(layout, AT_WORK)
    except RunHeld as error:
        return RunResult(error.exit_code, "running", error.line())
    with preemption() as preempted:
        result = _run(layout, config)
        record(layout, result)
        if result.reason.startswith(f"E-{REQUEUED} ") or (result.exit_code and requeued()):
            # a return value would end the job for those who wait for it, and it has been requeued
            sys.exit(result.exit_code)
    if preempted.by and result.exit_code:
        # the run has stopped: now submitit may checkpoint the job and requeue it
        signal.raise_signal(preempted.by)
    return result


def _run(layout: RunLayout, config: RunConfig) -> RunResult:
    launchers = LauncherCache()
    try:
        check_torch()
        check_machine(config)
        return run(plan_run(config, layout.root), RunContext(say, launchers))
    except (EcrlError, OSError) as error:
        return failed(error, say)
    except Exception as error:  # an internal error in one run must not look like a lost job
        return RunResult(DEFECT, "failed", f"E-internal {type(error).__name__}: {error}")
    finally:
        launchers.close()


@dataclass
class PreemptionRequest:
    """Which signal announced preemption; 0: none."""

    by: int = 0


@contextmanager
def preemption() -> Iterator[PreemptionRequest]:
    """While entered, submitit's preemption signal (timeout, or another job has priority) stops the
    run gracefully.
    """
    request, number = (
        PreemptionRequest(),
        getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"),
    )

    def stop(received: int, frame: FrameType | None) -> None:
        request.by = received
        # handled by the supervisor; where none runs yet, submitit's handler ignores it
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(number, stop)
    try:
        yield request
    finally:
        signal.signal(number, before)


def record(layout: RunLayout, result: RunResult) -> None:
    """Stores the state of this run's job, or its result."""
    layout.outcome.parent.mkdir(parents=True, exist_ok=True)
    write_json(layout.outcome, encode(result))


def recorded(layout: RunLayout) -> RunResult | None:
    """The stored outcome of the run's job; None where it has not begun or the file cannot be
    read.
    """
    try:
        return decode(RunResult, read_json(layout.outcome))
    except (OSError, EcrlError, KeyError, TypeError):
        return None
