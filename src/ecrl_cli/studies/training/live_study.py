"""`live-recovery`: real training runs in which ranks die and others live on, in every way that a run can recover.

First a fixed matrix (who dies in backward x two to four processes, several at once, one after the other, during a recovery), then runs drawn at
random. A trial: one run by the code path of `ecrl train` under the zygote launcher, to its end; then the verdict of `verify`, and beside it what
`look.py` reads in the records: survivors bit for bit alike, nothing restarted that could go on, the ledger exact, and where the run must end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, StudyContext, Trial
from ecrl_cli.studies.mutants.in_place_recovery import LIVE_BUGS
from ecrl_cli.studies.training.live_generator import LiveRunSpec, facts, generate, matrix, of_facts
from ecrl_cli.studies.training.live_history import Story, read_story
from ecrl_cli.studies.training.live_invariants import LOOKS, elsewhere, sockets
from ecrl_cli.studies.training.live_tables import findings
from ecrl_cli.studies.training.training_study import Campaign
from ecrl_cli.studies.training.trial import Bench, Run

TOLD = ("valid", "idle", "invalid", "unknown")  # outcomes of a run whose records are whole
SHOWN = ("invalid", "apart", "restarted", "ledger", "differs", "exit")  # what a bug in a recovery may come to
# What shows each bug: how the run recovers.
LOSSY, ROLLBACK = ("lossy_forward",), ("immediate_rollback",)
SHOWS = {
    "buffers left where the given-up step had them": ROLLBACK,
    "newcomers with generators of their own": ROLLBACK,
}


def make(setting: StudyContext) -> PreparedStudy:
    return _LiveRecovery(setting)


class _LiveRecovery(Campaign):
    bugs = LIVE_BUGS

    def play(self, bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
        course, entries = of_facts(facts)
        return play(bench, course, entries), course.typed(entries)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(self._config, records)

    def drawn(self) -> Iterator[Trial]:
        yield from self._matrix()
        yield from self._random()

    def _matrix(self) -> Iterator[Trial]:
        for name, course, entries in matrix(self._config.recoveries, self._config.strategies):
            yield Trial(f"matrix/{name}", {"arm": "matrix", **facts(course, entries)})

    def _random(self) -> Iterator[Trial]:
        for number in range(self._config.trials):
            key = f"run/{number:04d}"
            course, entries = generate(self._setting.rng(key), self._config.recoveries, self._config.strategies)
            yield Trial(key, {"arm": "random", **facts(course, entries)})

    def search(self, trial: Trial) -> dict[str, Any]:
        """One run of the matrix after the other with the bug, until one comes out wrong."""
        bug = trial.facts["bug"]
        bench, runs = Bench(self._setting.scratch / "planted", bug), 0
        try:
            for _, course, entries in matrix(SHOWS.get(bug, LOSSY), self._config.strategies):
                found, runs = play(bench, course, entries), runs + 1
                if found["outcome"] in SHOWN:
                    return {"found": True, "runs": runs, "by": f"{found['outcome']}: {found['why']}", "beside": found["seen"]}
        finally:
            bench.close()
        return {"found": False, "runs": runs, "by": "", "beside": ""}


def play(bench: Bench, course: LiveRunSpec, entries: tuple[str, ...]) -> dict[str, Any]:
    """How the run came out; `seen`: what was found beside the verdict; `went_on`, `joined`, `redone`, `lost`: attempts that others went on from
    with their memory, spares that took a place, steps that were finished without the dead, samples on the ledger."""
    beside: dict[str, Any] = {"seen": "", "went_on": 0, "joined": 0, "redone": 0, "lost": 0}

    def look(run: Run, layout: RunLayout, reference: RunLayout) -> None:
        if run.outcome not in TOLD:
            return
        story = read_story(layout, read_run_config(layout).config)
        beside.update(_counted(story))
        outcome, why = _asked(story, run, layout, reference)
        beside["seen"] = f"{outcome}: {why}" if why else ""
        if why and run.outcome in ("valid", "idle"):
            run.outcome, run.why = outcome, why

    found = asdict(bench.play(course.keys(entries), course.reference, look=look))
    return found | beside


def _asked(story: Story, run: Run, layout: RunLayout, reference: RunLayout) -> tuple[str, str]:
    """(outcome, why) of the first promise that is broken."""
    if left := sockets(layout):
        return "left", left[0]
    for outcome, asked in LOOKS.items():
        if why := asked(story):
            return outcome, why
    return "differs", elsewhere(story, run.digests, reference)


def _counted(story: Story) -> dict[str, int]:
    steps = {(chapter.attempt.attempt, each.global_step) for chapter in story.chapters for each in chapter.redone}
    ledgers = [next(iter(chapter.ledgers.values()), ()) for chapter in story.chapters]
    lost = {(line.global_step, sample) for lines in ledgers for line in lines for sample in line.samples}
    return {
        "went_on": sum(chapter.attempt.memory == SURVIVORS for chapter in story.chapters),
        "joined": sum(len(chapter.attempt.joined) for chapter in story.chapters),
        "redone": len(steps),
        "lost": len(lost),
    }
