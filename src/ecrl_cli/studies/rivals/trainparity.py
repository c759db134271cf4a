"""TrainParity in the race: `check_resume` of a case: how to start the job, its checkpoint."""

from __future__ import annotations

import json

from ecrl_cli.studies.rivals.bench import RaceBench
from ecrl_cli.studies.rivals.subjects import USER, RacedJob
from ecrl_cli.studies.rivals.tool import (
    CAUGHT,
    FAILED,
    NOT_APPLICABLE,
    PASSED,
    UNKNOWN,
    ToolAnswer,
    failed,
    written,
)

_OUTCOMES = {"PASS": PASSED, "FAIL": CAUGHT, "ABSTAIN": UNKNOWN, "ERROR": FAILED}


class TrainParity:
    name, distribution = "TrainParity", "trainparity"
    way = (
        "check_resume of a case whose command can stop at a step, and whose checkpoint is one file"
        " (its README, quickstarts.resume)"
    )

    def judge(self, subject: RacedJob, bench: RaceBench) -> ToolAnswer:
        if subject.half is None:
            wants = (
                "a checkpoint of one file, a job that stops at a step, and torch below 2.14 with"
                " the job's framework"
            )
            return ToolAnswer(NOT_APPLICABLE, wants)
        folder, python = bench.folder(), bench.python(self.name)
        case = {
            "name": subject.job,
            "start": [*bench.start(subject, python), str(USER / "stop_after.py")],
            "first": subject.first(),
            "again": subject.restarted(),
            "updates": subject.half.updates,
            "saved": subject.half.saved,
            "last": subject.half.last,
        }
        environment = {"RACE_CASE": json.dumps(case), "PYTHONPATH": str(USER)}
        ended = bench.run([python, str(USER / "parity_case.py")], folder, environment)
        lines = written("parity_case.py", "stop_after.py")
        try:
            result = json.loads(ended.text.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return failed(ended.text, ended.seconds, lines)
        first = result.get("primary_difference") or {}
        differences = len(result.get("all_differences") or ())
        text = " ".join(filter(None, (result["outcome"], result.get("message"), first.get("path"))))
        text += f" ({differences} differences)" if differences else ""
        return ToolAnswer(_OUTCOMES[result["outcome"]], text, 0, 4, lines, ended.seconds)
