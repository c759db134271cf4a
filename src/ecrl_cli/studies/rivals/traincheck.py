"""TrainCheck in the race: invariants inferred from two runs that are right, an undisturbed one and
one that came back rightly; the run to be checked is one that came back.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ecrl_cli.studies.rivals.bench import Ended, RaceBench
from ecrl_cli.studies.rivals.subjects import USER, Half, RacedJob, subjects
from ecrl_cli.studies.rivals.tool import CAUGHT, NOT_APPLICABLE, PASSED, ToolAnswer, failed

_FAILED = re.compile(r"Total failed invariants: (\d+)/(\d+)")


class TrainCheck:
    name, distribution = "TrainCheck", "traincheck"
    way = (
        "traincheck-collect of the undisturbed job and of a restart that is right,"
        " traincheck-infer, then collect and traincheck-check of the restart in question (its"
        " README); in an environment with a CPU build of torch"
    )

    def judge(self, subject: RacedJob, bench: RaceBench) -> ToolAnswer:
        if not subject.track or subject.half is None:
            wants = "not tried: a script in one file, its model in a variable, minutes a job"
            return ToolAnswer(NOT_APPLICABLE, wants)
        job = _Traced(subject, subject.half, bench, bench.python(self.name))
        invariants, seconds = job.invariants()
        if not invariants.exists():
            return failed(job.told, seconds)
        target = bench.folder()
        collected = job.collect(target, subject.restarted(), job.stopped())
        checker = str(Path(job.python).with_name("traincheck-check"))
        checked = bench.run(
            [checker, "-f", str(target / "trace"), "-i", str(invariants), "-o", "checked"], target
        )
        seconds += collected.seconds + checked.seconds
        counts = _FAILED.search(checked.text)
        if not counts:
            return failed(collected.text + checked.text, seconds)
        broken, of = map(int, counts.groups())
        text = f"{broken} of {of} invariants fail; {_first_failures(target)}"
        return ToolAnswer(CAUGHT if broken else PASSED, text, 0, 4, 0, seconds)


class _Traced:
    """Runs of a job under TrainCheck."""

    def __init__(self, subject: RacedJob, half: Half, bench: RaceBench, python: str) -> None:
        self._subject, self._half, self._bench, self.python = subject, half, bench, python
        self._right = next(row for row in subjects() if row.job == subject.job and row.healthy)
        self.told = ""

    def stopped(self) -> Path:
        """A folder as the job leaves it when it is stopped at its half."""
        folder = self._bench.folder()
        words = [word.replace("{dir}", str(folder / "out")) for word in self._subject.first()]
        start = [*self._bench.start(self._subject, self.python), str(USER / "stop_after.py")]
        self._bench.run([*start, str(self._half.updates), *words], folder)
        return folder / "out"

    def collect(self, folder: Path, words: list[str], out: Path) -> Ended:
        """Trace the job into `folder`/trace, wholly: traced for given invariants alone, a restart
        that is right breaks some of them.
        """
        script = folder / Path(words[0]).name
        script.write_text(Path(words[0]).read_text(encoding="utf-8"), encoding="utf-8")
        line = [self.python, str(script), *(word.replace("{dir}", str(out)) for word in words[1:])]
        (folder / "run.sh").write_text(shlex.join(line) + "\n", encoding="utf-8")
        command = [str(Path(self.python).with_name("traincheck-collect")), "-p", str(script)]
        command += ["-s", str(folder / "run.sh"), "--models-to-track", self._subject.track]
        command += ["--output-dir", str(folder / "trace")]
        return self._bench.run(command, folder)

    def invariants(self) -> tuple[Path, float]:
        """The file of invariants, made once a job, and the seconds that it took."""
        key = ("invariants", self._subject.job)
        if key not in self._bench.kept:
            self._bench.kept[key] = self._infer()
        made: tuple[Path, float] = self._bench.kept[key]
        return made

    def _infer(self) -> tuple[Path, float]:
        whole, back, folder = (self._bench.folder() for _ in range(3))
        one = self.collect(whole, self._right.first(), whole / "out")
        two = self.collect(back, self._right.restarted(), self.stopped())
        infer = str(Path(self.python).with_name("traincheck-infer"))
        traces, path = [str(whole / "trace"), str(back / "trace")], folder / "invariants.json"
        ended = self._bench.run([infer, "-f", *traces, "-o", str(path)], folder)
        self.told = one.text[-200:] + two.text[-200:] + ended.text
        return path, one.seconds + two.seconds + ended.seconds


def _first_failures(folder: Path) -> str:
    """The subjects of the first failed invariants."""
    text = "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(folder.rglob("failed*"))
    )
    return "; ".join(dict.fromkeys(re.findall(r'"text_description": "(.+?)"', text)))[:400]
