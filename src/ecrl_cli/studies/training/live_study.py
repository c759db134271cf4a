"""`live-recovery`: real training runs in which some ranks die and others survive, under every recovery.

First a fixed matrix (victims in backward x two to four processes, several at once, one after the other, during a recovery), then random runs. A
trial: one run by the code path of `ecrl train` under the zygote launcher, to its end; then the verdict of `verify`, and the checks of
`live_invariants`: survivors bit for bit equal, no unnecessary restart, exact lost-sample records, and the right final state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ecrl_cli.config.studies import LiveRecovery
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.result import upper_bound
from ecrl_cli.studies.frame.study import Results, Study, StudyContext, Trial
from ecrl_cli.studies.mutants.in_place_recovery import LIVE_BUGS
from ecrl_cli.studies.training.live_generator import LiveRunSpec, facts, generate, matrix, of_facts
from ecrl_cli.studies.training.live_history import Story, read_story
from ecrl_cli.studies.training.live_invariants import LOOKS, elsewhere, sockets
from ecrl_cli.studies.training.training_study import (
    BUGS_FOUND,
    FAILED,
    all_valid,
    by,
    is_valid,
    phases_hit,
    phases_struck,
    planted_arm,
    run_arm,
    runs,
    whom,
)
from ecrl_cli.studies.training.trial import Bench, Run

OUTCOMES = ("valid", "hung", "left", "exit", "invalid", "unknown", "apart", "restarted", "ledger", "differs", "idle")
# Phases that a recorded study must have hit, and how often; and the number of runs of such a study.
PHASES = ("boundary", "forward", "backward", "optimizer", "capture", "load", "rendezvous")
HITS, RECORDED = 5, 200
TOLD = ("valid", "idle", "invalid", "unknown")  # outcomes of a run with complete records
SHOWN = ("invalid", "apart", "restarted", "ledger", "differs", "exit")  # possible outcomes of a recovery bug
# The recovery under which each bug shows.
LOSSY, ROLLBACK = ("lossy_forward",), ("immediate_rollback",)
SHOWS = {
    "buffers left where the given-up step had them": ROLLBACK,
    "newcomers with generators of their own": ROLLBACK,
}


def _matrix(context: StudyContext) -> Iterator[Trial]:
    for name, course, entries in matrix(context.keys.recoveries, context.keys.strategies):
        yield Trial(f"matrix/{name}", {"arm": "matrix", **facts(course, entries)})


def _draw(context: StudyContext) -> Iterator[Trial]:
    for number in range(context.keys.trials):
        key = f"run/{number:04d}"
        course, entries = generate(context.rng(key), context.keys.recoveries, context.keys.strategies)
        yield Trial(key, {"arm": "random", **facts(course, entries)})


def _play(bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
    course, entries = of_facts(facts)
    return play(bench, course, entries), course.typed(entries)


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """Run the matrix with the bug until one run fails."""
    bug = trial.facts["bug"]
    bench, tried = Bench(context.scratch / "planted", bug), 0
    try:
        for _, course, entries in matrix(SHOWS.get(bug, LOSSY), context.keys.strategies):
            found, tried = play(bench, course, entries), tried + 1
            if found["outcome"] in SHOWN:
                return {"found": True, "runs": tried, "by": f"{found['outcome']}: {found['why']}", "beside": found["seen"]}
    finally:
        bench.close()
    return {"found": False, "runs": tried, "by": "", "beside": ""}


def play(bench: Bench, course: LiveRunSpec, entries: tuple[str, ...]) -> dict[str, Any]:
    """The run's outcome; `seen`: findings beside the verdict; `went_on`, `joined`, `redone`, `lost`: attempts continued by others in memory,
    spares that joined, steps finished without the dead ranks, and lost samples."""
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
    """(outcome, why) of the first broken promise."""
    if left := sockets(layout):
        return "left", left[0]
    for outcome, asked in LOOKS.items():
        if why := asked(story):
            return outcome, why
    return "differs", elsewhere(story, run.digests, reference)


def _counted(story: Story) -> dict[str, int]:
    steps = {(chapter.attempt.attempt, each.global_step) for chapter in story.chapters for each in chapter.redone}
    recorded = [next(iter(chapter.lost_samples.values()), ()) for chapter in story.chapters]
    lost = {(line.global_step, sample) for lines in recorded for line in lines for sample in line.samples}
    return {
        "went_on": sum(chapter.attempt.memory == SURVIVORS for chapter in story.chapters),
        "joined": sum(len(chapter.attempt.joined) for chapter in story.chapters),
        "redone": len(steps),
        "lost": len(lost),
    }


def _alive(results: Results) -> Iterator[Gate]:
    """Under each recovery some processes survived others; otherwise every recovery was a restart."""
    outlived = {record.facts["recovery"] for record in runs(results) if record.found["joined"] + record.found["went_on"]}
    missing = [name for name in results.keys.recoveries if name not in outlived]
    message = f"survivors went on with what was in their memory {sum(record.found['went_on'] for record in runs(results))} times"
    yield Gate("alive", not missing, message + (f"; never outlived others with {', '.join(missing)}" if missing else ""))


def _notes(results: Results) -> Iterator[str]:
    tried = runs(results)
    if not tried:
        return
    total = {name: sum(record.found[name] for record in tried) for name in ("attempts", "went_on", "joined", "redone", "lost")}
    struck = sum(len(record.found["fired"]) for record in tried)
    yield (
        f"{struck} failures struck in {len(tried)} runs, which took {total['attempts']} attempts; into {total['went_on']} of these survivors took "
        f"their memory along, spares took {total['joined']} places, {total['redone']} steps were finished without the dead, "
        f"{total['lost']} samples are on record as lost."
    )
    if all(map(is_valid, tried)):
        yield (
            f"0 of {len(tried)} runs had survivors that differed, restarted what could go on, kept a false lost-samples record or ended "
            f"elsewhere than they must: the probability per such run is below {upper_bound(len(tried)):.2%} (one-sided exact 95%)."
        )


STUDY = Study(
    keys=LiveRecovery,
    description="Real training runs whose ranks die while others live on: a fixed matrix, then runs drawn at random.",
    arms=(run_arm("matrix", _matrix, _play), run_arm("random", _draw, _play), planted_arm(LIVE_BUGS, _search)),
    tables=(
        by("recovery", "recovery", lambda r: [r.facts["recovery"]], OUTCOMES),
        by("ranks", "ranks", lambda r: [str(r.facts["world_size"])], OUTCOMES),
        by("who", "who was struck", whom, OUTCOMES),
        by("phase", "phase in which it struck", phases_struck, OUTCOMES),
        by("deaths", "failures in the run", lambda r: [str(len(r.facts["entries"]))], OUTCOMES),
        by("spares", "spares", lambda r: [str(r.facts["spares"])], OUTCOMES),
        by("strategy", "write strategy", lambda r: [r.facts["strategy"]], OUTCOMES),
        FAILED,
        BUGS_FOUND,
    ),
    gates=(all_valid, _alive, phases_hit(PHASES, HITS, RECORDED), mutants_found()),
    notes=_notes,
)
