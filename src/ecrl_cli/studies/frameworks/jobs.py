"""Audits of jobs in forked ranks: an undisturbed run, the attempt that is killed and the attempt
after it, each made once for all who share it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ecrl
from ecrl_cli.audit.components import ArmFinding, Judged, judged_arm
from ecrl_cli.audit.plan import PlannedFault
from ecrl_cli.audit.records import read_arm
from ecrl_cli.audit.verdict import AuditVerdict, judge
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.studies.frame.study import StudyContext
from ecrl_cli.studies.frameworks.recipes import jobs_dir

PLACES = ("mid epoch", "boundary", "second epoch", "in the backward pass")


@dataclass(frozen=True)
class FrameworkJob:
    """A script of examples/jobs on so many ranks; `modules` are imported before they are forked."""

    script: str
    modules: tuple[str, ...]
    ranks: int = 1


@dataclass(frozen=True)
class Killed:
    """Where the job is killed: before step `step` is applied, or at another moment of it."""

    step: int
    moment: str
    rank: int


class ForkedJob:
    """A process that has imported what a job needs and forks the ranks of each attempt
    (forked_job.py). Started with the first attempt.
    """

    def __init__(self, job: FrameworkJob) -> None:
        self._job = job
        self._server: subprocess.Popen[str] | None = None

    def attempt(
        self, arm: Path, number: int, faults: Sequence[PlannedFault], words: Sequence[str]
    ) -> dict[str, Any]:
        """Attempt `number` in `arm`, with `words` after the job's own; returns the launch as
        arm.json has it.
        """
        (arm / "work").mkdir(parents=True, exist_ok=True)
        order = {
            "arm": str(arm),
            "attempt": number,
            "strikes": [encode(fault) for fault in faults],
            "words": ["--out", str(arm / "work"), *words],
        }
        if self._server is None:
            self._server = self._start()
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise EcrlError(
                self._job.script,
                f"its process ended with {self._server.wait()}",
                f"run {jobs_dir() / self._job.script}.py",
            )
        launch: dict[str, Any] = json.loads(answer)
        return launch

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            for pipe in (self._server.stdin, self._server.stdout):
                if pipe is not None:
                    pipe.close()
            self._server = None

    def _start(self) -> subprocess.Popen[str]:
        job, module = self._job, "ecrl_cli.studies.frameworks.forked_job"
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            module,
            str(jobs_dir() / f"{job.script}.py"),
            str(job.ranks),
            *job.modules,
        ]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ECRL_")
        }
        source = str(Path(ecrl.__file__).parents[1])
        environment |= {
            "PYTHONPATH": (
                os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
            ),
            "HF_HUB_OFFLINE": "1",
        }
        return subprocess.Popen(
            with_pdeathsig(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            encoding="utf-8",
            start_new_session=True,
        )


class ForkedJobs:
    """The jobs of one process of the study."""

    def __init__(self, context: StudyContext) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="ecrl-jobs-", dir=context.scratch.parent))
        self._forked: dict[FrameworkJob, ForkedJob] = {}

    def reference(self, job: FrameworkJob, switch: str = "") -> Judged:
        """The undisturbed run of `job` with `switch` on."""
        folder = self._folder(job, switch)
        if not (folder / "ref").exists():
            launch = self._attempt(job, folder / "ref", 0, None, switch)
            if launch["exit_code"] != 0:
                words = (
                    (folder / "ref" / "attempt-00" / "output.log")
                    .read_text(encoding="utf-8", errors="replace")
                    .strip()
                    .splitlines()[-1:]
                )
                raise EcrlError(
                    job.script,
                    f"fails without any failure: {''.join(words)[:300]}",
                    f"run {jobs_dir() / job.script}.py",
                )
            write_launches(folder / "ref", [launch])
        return judged_arm(read_arm(folder / "ref"))

    def audited(
        self, job: FrameworkJob, killed: Killed, bug: str = "", switch: str = ""
    ) -> AuditVerdict:
        """The verdict on `job` with `switch` on from its start, killed once, and `bug` planted in
        the attempt after that.
        """
        self.reference(job, switch)
        folder = self._folder(job, switch)
        before, arm = (
            folder / f"killed-{killed.step}-{killed.moment}-{killed.rank}",
            folder / "struck",
        )
        if not before.exists():
            write_launches(arm, [self._attempt(job, arm, 0, killed, switch)])
            arm.rename(before)
        shutil.copytree(before, arm)  # where the first attempt ran: the job may have kept its path
        launches = [
            *json.loads((arm / "arm.json").read_text(encoding="utf-8"))["launches"],
            self._attempt(job, arm, 1, None, bug or switch),
        ]
        write_launches(arm, launches)
        verdict = judge([read_arm(folder / "ref")], [read_arm(arm)])
        if kept := os.environ.get("ECRL_KEEP_JOBS"):
            shutil.copytree(
                folder,
                Path(kept) / f"{folder.name}-{killed.step}-{bug or 'healthy'}",
                dirs_exist_ok=True,
            )
        shutil.rmtree(arm)
        return verdict

    def close(self) -> None:
        for forked in self._forked.values():
            forked.close()
        self._forked.clear()
        shutil.rmtree(self._root, ignore_errors=True)

    def _folder(self, job: FrameworkJob, switch: str) -> Path:
        return self._root / f"{job.script}-{job.ranks}-{switch.replace(' ', '-') or 'plain'}"

    def _attempt(
        self, job: FrameworkJob, arm: Path, number: int, killed: Killed | None, switch: str
    ) -> dict[str, Any]:
        forked = self._forked.setdefault(job, ForkedJob(job))
        faults = (
            (PlannedFault(0, number, "kill", killed.rank, killed.step, killed.moment),)
            if killed
            else ()
        )
        return forked.attempt(arm, number, faults, ("--bug", switch) if switch else ())


def write_launches(arm: Path, launches: list[dict[str, Any]]) -> None:
    """Writes the same record of launches that `ecrl audit` writes of an arm that it has run."""
    (arm / "arm.json").write_text(json.dumps({"launches": launches}), encoding="utf-8")


def place_of(reference: Judged, place: str, rank: int) -> Killed | None:
    """Where a job is killed for `place`, out of what its undisturbed run showed; None if it has no
    such place.
    """
    last = reference.path.last
    processes = reference.arm.processes
    saved = sorted(
        {
            save["after_step"]
            for process in processes
            for save in process.saves
            if save.get("done") and 0 < save["after_step"] < last
        }
    )
    ends = sorted({step for process in processes for step in process.epochs if 0 < step < last})
    if not saved:
        return None
    if place == "boundary":
        return Killed(saved[0] + 1, "before", rank)
    inside = [step for step in saved if ends and step > ends[0]]
    if place == "second epoch":
        return Killed(min(inside[0] + 2, last), "before", rank) if inside else None
    within = [step for step in saved if not ends or step + 2 <= ends[0]]
    moment = "backward" if place == "in the backward pass" else "before"
    return Killed(within[-1] + 2, moment, rank) if within else None


def component(verdict: AuditVerdict) -> str:
    """The component that the diagnosis of `verdict` blames, in one word; empty if nothing is
    broken.
    """
    found = next(
        (
            finding
            for finding in verdict.findings
            if finding.status == "broken" and finding.message == verdict.diagnosis
        ),
        None,
    )
    return _blamed(found) if found is not None else ""


def _blamed(finding: ArmFinding) -> str:
    if finding.promise == "same trajectory":
        differs = next((text for text in finding.evidence if text.startswith("differs in ")), "")
        first = differs.removeprefix("differs in ").partition(",")[0]
        return {"samples": "position", "settings": "schedule", "scale": "scaler"}.get(first, first)
    words = {
        "exactly once": "position",
        "same input": "input",
        "right checkpoint": "checkpoint",
        "same end": "end",
        "progress": "end",
    }
    restored = finding.promise.removeprefix("restored: ").removesuffix(" and settings")
    return words.get(finding.promise, restored)
