"""`ecrl audit` on jobs that others start: torchrun that restarts by itself, another number of
processes, srun under a real slurmd. Slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import command, run_ecrl
from tests.e2e.slurm import slurm, why_not

JOB = str(Path(__file__).parents[2] / "examples" / "jobs" / "plain.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_job_that_restarts_itself_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both failures strike inside one command: torchrun starts its ranks again, and each of its
    restarts is an attempt.

    On a busy machine a restarted rank may read an address of the ranks before it from the store
    that torchrun shares with them (pytorch#135712).
    """
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    keys = ("failure=kill", "failure.steps=[13,19.optimizer]", "failure.rank=1", "run_dir=job")
    torchrun = (*TORCHRUN, "--max-restarts", "3", "--nproc-per-node", "2")
    done = run_ecrl(tmp_path, "audit", *keys, "--", *torchrun, JOB, "--out", "{dir}", timeout=800)
    assert done.stdout.startswith("job: valid: 1 run with failures ended bit for bit"), done.stdout
    launches = json.loads((tmp_path / "job" / "struck" / "arm.json").read_text())["launches"]
    assert [launch["exit_code"] for launch in launches] == [0]
    assert sorted(path.name for path in (tmp_path / "job" / "struck").glob("attempt-*")) == [
        "attempt-00",
        "attempt-01",
        "attempt-02",
    ]


def test_another_number_of_processes_and_a_cold_start_are_judged(tmp_path: Path) -> None:
    """Stopped by SIGTERM on two ranks, it goes on as one process."""
    elastic = f"audit.elastic={sys.executable} {JOB} --out {{dir}}"
    keys = (
        "audit.references=1",
        "audit.cold=true",
        "failure=term",
        "failure.steps=[13]",
        elastic,
        "run_dir=job",
    )
    done = run_ecrl(
        tmp_path,
        "audit",
        *keys,
        "--",
        *TORCHRUN,
        "--nproc-per-node",
        "2",
        JOB,
        "--out",
        "{dir}",
        timeout=800,
    )
    assert done.stdout.startswith(
        "job: valid: 1 with another number of processes, with the same samples and state"
    ), done.stdout
    found = {
        finding["promise"]: finding
        for finding in json.loads((tmp_path / "job" / "audit.json").read_text())["findings"]
    }
    assert (
        found["exactly once"]["message"]
        == "with 2 and 1 processes, each step consumed the samples of the undisturbed run"
    )
    assert found["state used"]["status"] == found["restored: optimizer"]["status"] == "kept"
    assert found["same trajectory"]["status"] == "not checked"


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_a_job_of_two_ranks_under_slurm_is_judged(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """srun starts the ranks below a real slurmd, outside the auditor's process tree; its
    environment carries the recorder there.
    """
    rank = (
        "RANK=$SLURM_PROCID WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29517 exec"
        f' {sys.executable} {JOB} --out "$ECRL_ARM_DIR"'
    )
    srun = ("srun", "-N1", "-n2", "--overcommit", "--kill-on-bad-exit=1", "bash", "-c", rank)
    keys = (
        "failure=kill",
        "failure.steps=[13]",
        "failure.rank=1",
        "audit.own_dir=true",
        "run_dir=job",
    )
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        environment = os.environ | cluster.environment
        done = subprocess.run(
            command("audit", *keys, "--", *srun),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
        )
    assert done.returncode == 0 and done.stdout.startswith(
        "job: valid: 1 run with failures ended bit for bit"
    ), done.stdout + done.stderr
    records = sorted(
        path.name.split("-")[0]
        for path in (tmp_path / "job" / "struck" / "attempt-01").glob("*.jsonl")
    )
    assert records == ["rank0", "rank1"]
