"""Every recovery bug of examples/jobs/plain.py is found and its component named; healthy jobs under
random kills are never called invalid.

Slow: about 5 minutes on two idle cores. The ranks are forks of one process that has imported torch,
as in the study `frameworks`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.audit.plan import PlannedFault
from ecrl_cli.audit.records import Arm, read_arm
from ecrl_cli.audit.verdict import AuditVerdict, judge, render
from ecrl_cli.studies.frameworks.jobs import ForkedJob, FrameworkJob, write_launches

LAST = 24  # steps of the job; it saves after every 5th
AUDITS = 100
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

POSITION = "the data position was not restored"
GENERATORS = "torch's random number generators were not restored"
SCHEDULE = "the learning-rate schedule, or another setting of the optimizer, was not restored"
OPTIMIZER = (
    "the optimizer's state before step 11 is that of no earlier step, the parameters are those of"
    " step 10"
)
PARAMETERS = "the parameters before the first step of attempt 1 are those of no earlier step"
# By bug, the promise that the diagnosis is about, and what it says. Two ranks, rank 1 killed at
# step 13; the newest checkpoint is that of step 10.
EXPECTED: dict[str, tuple[str, str]] = {
    "position": (
        "exactly once",
        f"step 11 repeats the samples of step 9 (rank 0, attempt 1): {POSITION}",
    ),
    "position off by one": ("exactly once", POSITION),
    "batch twice": (
        "exactly once",
        f"step 11 repeats the samples of step 10 (rank 0, attempt 1): {POSITION}",
    ),
    "position without accumulation": (
        "exactly once",
        f"step 11 repeats the samples of step 10 (rank 0, attempt 1): {POSITION}",
    ),
    "epoch not set": (
        "exactly once",
        f"step 11 repeats the samples of step 3 (rank 0, attempt 1): {POSITION}",
    ),
    "epoch off by one": ("exactly once", POSITION),
    "order": (
        "exactly once",
        "step 11 consumed other samples than the undisturbed run (rank 0, attempt 1)",
    ),
    "next epoch skipped": ("exactly once", POSITION),
    "ends early": ("same end", ", the undisturbed run at step 24"),
    "generators": ("restored: generators", GENERATORS),
    "generators drawn from": ("restored: generators", GENERATORS),
    "generator one draw on": ("restored: generators", GENERATORS),
    "generators of rank 0": ("restored: generators", f"before step 11, rank 1: {GENERATORS}"),
    "seeded after the load": ("restored: generators", GENERATORS),
    "augmentation": (
        "same input",
        (
            "the same samples came out as other tensors: what makes them (augmentation, a worker's"
            " seed, statistics, a cache) was not restored"
        ),
    ),
    "other data set": ("same input", "the same samples came out as other tensors"),
    "scheduler twice": ("restored: schedule and settings", SCHEDULE),
    "scheduler anew": (
        "restored: schedule and settings",
        "1 update after attempt 1 began, in step 12, rank 0, 1: the learning-rate schedule, or what"
        " else sets the optimizer's settings, goes on otherwise: it was not restored",
    ),
    "lr stale": ("restored: schedule and settings", SCHEDULE),
    "optimizer": (
        "restored: optimizer",
        "is that of no earlier step (0 entries): it was not loaded",
    ),
    "optimizer of the first save": (
        "restored: optimizer",
        "before step 11 is that of step 5, the parameters are those of step 10",
    ),
    "second moment": ("restored: optimizer", OPTIMIZER),
    "counter": ("restored: optimizer", OPTIMIZER),
    "state shuffled": ("restored: optimizer", OPTIMIZER),
    "state in bf16": ("restored: optimizer", OPTIMIZER),
    "weight decay": ("restored: schedule and settings", SCHEDULE),
    "scaler": ("restored: scaler", "the gradient scaler was not restored"),
    "buffers": ("restored: buffers", "the model's buffers were not restored"),
    "average": ("restored: parameters", PARAMETERS),
    "stale masters": ("restored: parameters", PARAMETERS),
    "frozen again": ("same trajectory", "in parameters"),
    "older checkpoint": (
        "right checkpoint",
        "attempt 1 went on after step 5, and a checkpoint of step 10 had been finished",
    ),
    "cold start": (
        "right checkpoint",
        "attempt 1 began anew, and a checkpoint of step 10 had been finished",
    ),
    "one parameter": ("restored: parameters", PARAMETERS),
}


@dataclass(frozen=True)
class Jobs:
    """Arms of the job, each in a folder of its own. The bug is in what goes on after a checkpoint:
    the first attempt is the healthy job.
    """

    job: ForkedJob
    folder: Path

    def arm(self, name: str, faults: tuple[PlannedFault, ...] = (), bug: str = "") -> Arm:
        launches: list[dict[str, Any]] = []
        while not launches or (launches[-1]["exit_code"] != 0 and len(launches) <= len(faults)):
            words = ("--bug", bug) if bug and launches else ()
            launches.append(self.job.attempt(self.folder / name, len(launches), faults, words))
        write_launches(self.folder / name, launches)
        return read_arm(self.folder / name)

    def judged(
        self, references: list[Arm], name: str, faults: tuple[PlannedFault, ...], bug: str = ""
    ) -> AuditVerdict:
        return judge(references, [self.arm(name, faults, bug)])


def forked(ranks: int) -> AbstractContextManager[ForkedJob]:
    # what the first step of an optimizer imports
    return closing(ForkedJob(FrameworkJob("plain", ("torch._dynamo",), ranks)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Jobs, list[Arm]]]:
    with forked(2) as job:
        jobs = Jobs(job, tmp_path_factory.mktemp("pair"))
        yield jobs, [jobs.arm("ref"), jobs.arm("ref2")]


@pytest.mark.parametrize("bug", EXPECTED)
def test_each_planted_bug_is_found_and_its_component_named(
    pair: tuple[Jobs, list[Arm]], bug: str
) -> None:
    jobs, references = pair
    verdict = jobs.judged(
        references, bug.replace(" ", "-"), (PlannedFault(0, 0, "kill", 1, 13, "before"),), bug
    )
    promise, said = EXPECTED[bug]
    broken = [
        found
        for found in verdict.findings
        if found.status == "broken" and found.message == verdict.diagnosis
    ]
    assert (
        verdict.status == "invalid" and said in verdict.diagnosis and broken[0].promise == promise
    ), render(verdict, bug)


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_healthy_job_under_random_kills_is_called_invalid(ranks: int, tmp_path: Path) -> None:
    """Half of the audits each for one process and for two: one to three failures at any step,
    moment and rank.
    """
    with forked(ranks) as job:
        wrong, fired = random_kills(Jobs(job, tmp_path), ranks)
    assert wrong == [] and fired >= AUDITS // 2


def random_kills(jobs: Jobs, ranks: int) -> tuple[list[str], int]:
    """The audits that were not called valid, and how many failures were injected in all."""
    references = [jobs.arm("ref"), jobs.arm("ref2")]
    draw, wrong, fired = random.Random(17 + ranks), [], 0
    for number in range(AUDITS // 2):
        steps = sorted(draw.sample(range(2, LAST + 1), draw.randint(1, 3)))
        moments = [draw.choice(("before", "backward", "optimizer")) for _ in steps]
        kinds = [draw.choice(("kill", "kill", "exit", "raise")) for _ in steps]
        drawn = enumerate(zip(kinds, steps, moments, strict=True))
        faults = tuple(
            PlannedFault(i, i, kind, draw.randrange(ranks), step, moment)
            for i, (kind, step, moment) in drawn
        )
        verdict = jobs.judged(references, f"audit-{number:03d}", faults)
        fired += sum(launch.planned for launch in verdict.arms[0].arm.launches)
        if verdict.status != "valid":
            wrong.append(f"{faults}\n{render(verdict, 'audit')}")
    return wrong, fired
