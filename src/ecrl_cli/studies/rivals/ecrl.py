"""ECRL in the race: `ecrl audit` with the failures that it draws itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ecrl_cli.studies.rivals.bench import Ended, RaceBench
from ecrl_cli.studies.rivals.subjects import RacedJob
from ecrl_cli.studies.rivals.tool import CAUGHT, FAILED, PASSED, UNKNOWN, ToolAnswer

ECRL = (sys.executable, "-m", "ecrl_cli.cli.main")
_OUTCOMES = {0: PASSED, 1: CAUGHT, 3: UNKNOWN}


class Ecrl:
    name, distribution = "ECRL", "ecrl"
    way = "ecrl audit -- COMMAND, every failure drawn by itself (docs/audit.md)"

    def judge(self, subject: RacedJob, bench: RaceBench) -> ToolAnswer:
        folder = bench.folder()
        ended = run_audit(subject.first(), subject.again, bench.start(subject), bench, folder)
        if ended.code not in _OUTCOMES:
            return ToolAnswer(FAILED, ended.text.strip()[-300:], seconds=ended.seconds)
        document = json.loads((folder / "audit" / "audit.json").read_text(encoding="utf-8"))
        starts, planned = attempts(folder / "audit")
        broken = {f["promise"]: None for f in document["findings"] if f["status"] == "broken"}
        text = f"{document['diagnosis']} [{', '.join(broken)}]"
        return ToolAnswer(_OUTCOMES[ended.code], text, planned, starts, 0, ended.seconds)


def run_audit(
    words: list[str], again: str, start: list[str], bench: RaceBench, folder: Path, keys: str = ""
) -> Ended:
    """`ecrl audit` of a job into `folder`/audit; `keys`: further ones."""
    quoted = again.replace("'", "\\'")
    resume = [f"audit.resume='{quoted}'"] if again else []
    command = [*ECRL, "audit", *resume, *keys.split(), "run_dir=audit", "--"]
    return bench.run([*command, *start, *words], folder)


def attempts(audit: Path) -> tuple[int, int]:
    """Starts of the job in all arms, and those that ended by a planned failure."""
    launches = [
        launch
        for path in audit.glob("*/arm.json")
        for launch in json.loads(path.read_text(encoding="utf-8"))["launches"]
    ]
    return len(launches), sum(bool(launch["planned"]) for launch in launches)
