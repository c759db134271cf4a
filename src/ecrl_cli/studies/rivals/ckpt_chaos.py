"""ckpt-chaos in the race: `ckpt-chaos run`, the results compared by content, the steps told."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

from ecrl_cli.studies.rivals.bench import RaceBench
from ecrl_cli.studies.rivals.subjects import USER, RacedJob
from ecrl_cli.studies.rivals.tool import CAUGHT, PASSED, ToolAnswer, failed, written

# Its note of a run that took another course stands behind the verdict, in brackets.
_ROW = re.compile(
    r"^(no crash \(control\)|#\d+ [^\n]+?\]) {2,}.* ([A-Z_]+)(?: +\[([A-Z ]+)\])?$", re.MULTILINE
)
_NO_DEATH = "DID NOT CRASH"
_BAD = ("HARD_FAIL", "SILENT_DIVERGENCE", "LOST_WORK", "CONTROL_FAIL")


class CkptChaos:
    name, distribution = "ckpt-chaos", "ckpt-chaos"
    way = (
        "ckpt-chaos run --result-cmd, --modes before,torn,term; where checkpoints are numbered"
        " also --checkpoint-glob, --step-regex and LOST_WORK in --fail-on (its README)"
    )

    def judge(self, subject: RacedJob, bench: RaceBench) -> ToolAnswer:
        folder, python = bench.folder(), bench.python(self.name)
        start = bench.start(subject)
        command = [python, "-m", "ckpt_chaos", "run", "--work", str(folder / "work")]
        command += ["--max-points", str(bench.points), "--modes", "before,torn,term"]
        lines = 0
        if subject.results:
            files = [f"{{out}}/{name}" for name in subject.results]
            digest = [*start, str(USER / "content_digest.py"), *files]
            command += ["--result-cmd", shlex.join(digest)]
            lines += written("content_digest.py")
        teller = []
        if subject.checkpoints:
            teller = [str(USER / "tell_step.py")]
            command += ["--checkpoint-glob", f"{{out}}/{subject.checkpoints}"]
            command += ["--step-regex", r"resumed from step (\d+)"]
            command += ["--fail-on", ",".join(_BAD)]
            lines += written("tell_step.py")
        again = [*start, *teller, *_out(subject.restarted())]
        command += ["--resume-cmd", shlex.join(again), "--", *start, *_out(subject.first())]
        ended = bench.run(command, folder)
        rows = _ROW.findall(ended.text)
        if ended.code not in (0, 1) or not rows:
            return failed(ended.text, ended.seconds, lines)
        bad = [f"{verdict} at {label}" for label, verdict, _ in rows if verdict != "PASS"]
        told = Counter(verdict for _, verdict, _ in rows)
        counts = ", ".join(f"{n} {verdict}" for verdict, n in told.items())
        text = "; ".join([counts, *bad[:4], *_last_words(folder / "work")])
        outcome = CAUGHT if ended.code else PASSED
        deaths = sum(note != _NO_DEATH for _, _, note in rows) - 1
        return ToolAnswer(outcome, text, deaths, 2 * deaths + 2, lines, ended.seconds)


def _last_words(work: Path) -> list[str]:
    """The last line of the first restart that failed, which its draft of a report quotes."""
    for path in sorted(work.glob("pt_*/result.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["outcome"]["raised"] and (tail := told.get("resume_tail", "").strip()):
            return [tail.splitlines()[-1]]
    return []


def _out(words: list[str]) -> list[str]:
    return [word.replace("{dir}", "{out}") for word in words]
