"""pytest-torch in the race: `assert_resume_equivalent` of a job whose loop is taken apart."""

from __future__ import annotations

import shlex

from ecrl_cli.studies.rivals.bench import RaceBench
from ecrl_cli.studies.rivals.subjects import CHECKOUT, USER, RacedJob
from ecrl_cli.studies.rivals.tool import CAUGHT, NOT_APPLICABLE, PASSED, ToolAnswer, failed, written

_TEST = "test_plain.py"


class PytestTorch:
    name, distribution = "pytest-torch", "pytest-torch"
    way = (
        "a test with assert_resume_equivalent, its setup, step, save and load taken from the job"
        " (its guide to training loops); the job's own choice of samples and checkpoint is not in"
        " it"
    )

    def judge(self, subject: RacedJob, bench: RaceBench) -> ToolAnswer:
        if subject.job != "plain":
            wants = "the script's loop as functions: setup, step, save, load; about 50 lines"
            return ToolAnswer(NOT_APPLICABLE, wants)
        folder, python = bench.folder(), bench.python(self.name)
        words = shlex.split(subject.again)
        environment = {
            "RACE_JOBS": str(CHECKOUT / "examples" / "jobs"),
            "RACE_BUG": words[-1] if words else "",
        }
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        command += ["-p", "no:ecrl"]  # an environment may list it without having it
        command += ["--rootdir", str(folder), "-c", "/dev/null", str(USER / _TEST)]
        ended = bench.run(command, folder, environment)
        lines = written(_TEST)
        if ended.code not in (0, 1):
            return failed(ended.text, ended.seconds, lines)
        told = [line[1:].strip() for line in ended.text.splitlines() if line.startswith("E ")]
        hint = next((i for i, line in enumerate(told) if line.startswith("Hint:")), len(told))
        outcome = CAUGHT if ended.code else PASSED
        text = " ".join(told[:hint]) if told else ended.text.strip().splitlines()[-1]
        return ToolAnswer(outcome, text, 0, 2, lines, ended.seconds)
