"""The adapters in jobs of their frameworks, which are imported before torch is hooked: what they
record is judged as what an audit records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ecrl_cli.audit.audit import judge_folder
from ecrl_cli.audit.verdict import render
from tests.needs import require

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Puts the adapter into the job.
ADAPTED = {
    "lightning": (
        """
import lightning.pytorch as lightning
from ecrl import adapters
import lightning_job as job
plain = lightning.Trainer
def recorded(callbacks, **more):
    return plain(callbacks=[*callbacks, adapters.lightning_callback()], **more)
lightning.Trainer = recorded
"""
    ),
    "transformers": (
        """
import transformers
from ecrl import adapters
import trainer_job as job
plain = job.Trainer
job.Trainer = lambda *args, **more: plain(*args, callbacks=[adapters.trainer_callback()], **more)
"""
    ),
    "accelerate": (
        """
import accelerate
from ecrl import adapters
import accelerate_job as job
plain = job.Accelerator
job.Accelerator = lambda **more: adapters.recorded(plain(**more))
"""
    ),
}
# All arms in one process, which begins a new record where the folder changes: the last one goes on
# after the planned failure of the first.
ARMS = """
import json, os, sys
folder, failure = sys.argv[1:]
for arm, attempt in (("struck", 0), ("ref", 0), ("struck", 1)):
    os.environ |= {"ECRL_RECORD": f"{folder}/{arm}", "ECRL_ATTEMPT": str(attempt)}
    os.environ["ECRL_STRIKES"] = failure if arm == "struck" else ""
    os.makedirs(f"{folder}/{arm}/work", exist_ok=True)
    sys.argv = ["job", "--out", f"{folder}/{arm}/work"]
    try:
        job.main()
    except RuntimeError as error:
        assert "planned by ecrl audit" in str(error) and (arm, attempt) == ("struck", 0), error
"""


@pytest.mark.parametrize(
    ("package", "step"), [("lightning", 8), ("transformers", 8), ("accelerate", 8)]
)
def test_a_job_with_an_adapter_in_it_is_judged(package: str, step: int, tmp_path: Path) -> None:
    require(package)
    failure = json.dumps(
        [{"index": 0, "attempt": 0, "kind": "raise", "rank": 0, "step": step, "moment": "before"}]
    )
    environment = os.environ | {"PYTHONPATH": str(JOBS), "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        ADAPTED[package] + ARMS,
        str(tmp_path),
        failure,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    verdict = judge_folder(tmp_path, None, "auto")
    assert verdict.status == "valid", render(verdict, package)
    kept = {finding.promise for finding in verdict.findings if finding.status == "kept"}
    assert {
        "exactly once",
        "restored: parameters",
        "restored: optimizer",
        "restored: generators",
        "right checkpoint",
        "same end",
    } <= kept
