"""Slurm's queue: which of the jobs that an earlier command submitted are still to come, so that they are not submitted again."""

from __future__ import annotations

import subprocess

from ecrl_cli.errors import EcrlError, RunHeld
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.run import RunResult
from ecrl_cli.storage.files import write_json

QUEUED = RunResult(RunHeld.exit_code, "pending", "its job waits in the queue")
ANSWERS_WITHIN_S = 60.0  # a controller under load takes its time


def remember(layout: RunLayout, job_id: str) -> None:
    """Put on record which of Slurm's jobs the run was submitted as (`12`, or `12_3` in an array)."""
    layout.job.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(layout.job, {"job_id": job_id})


def queued(layout: RunLayout) -> bool:
    """Whether Slurm still has the job that the run was last submitted as. False where nobody knows: a run too often submitted does no harm,
    because the second job finds it finished or held."""
    try:
        job = read_json(layout.job)["job_id"]
        asked = subprocess.run(
            ["squeue", "-h", "-j", str(job), "-o", "%T"], capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=ANSWERS_WITHIN_S
        )
    except (OSError, EcrlError, KeyError, TypeError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and bool(asked.stdout.strip())
