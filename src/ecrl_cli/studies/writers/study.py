"""Concurrent writers, clocks and readers: one owner at a time, late writers get an error, and no
clock decides.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.config.studies import Writers
from ecrl_cli.studies.frame.gates import all_of, mutants_found
from ecrl_cli.studies.frame.result import upper_bound
from ecrl_cli.studies.frame.study import (
    Arm,
    Record,
    Study,
    StudyContext,
    Trial,
    TrialResults,
    planted,
)
from ecrl_cli.studies.frame.tables import (
    Cells,
    TableSpec,
    count,
    fact,
    found,
    mutants_table,
    proportion,
    size,
    value,
)
from ecrl_cli.studies.writers import clocks, fencing, flaky_nfs, mutants
from ecrl_cli.studies.writers import races as racing
from ecrl_cli.studies.writers.store_fixture import CommittedStore


def _history(context: StudyContext) -> CommittedStore:
    return CommittedStore(context.scratch / "history", context.seed)


def _races(context: StudyContext) -> racing.Races:
    return racing.Races(context.scratch)


def _on_history(
    run: Callable[..., dict[str, Any]], context: StudyContext, trial: Trial
) -> dict[str, Any]:
    return run(context.shared(_history), context.seed, context.scratch / "trial", trial.facts)


def _race_trials(context: StudyContext) -> list[Trial]:
    return [
        Trial(f"race/{n:03d}", {"arm": "race", "number": n, "left": racing.stale_of(n)})
        for n in range(context.keys.races)
    ]


def _clock_trials(context: StudyContext) -> Iterator[Trial]:
    for number in range(context.keys.lies):
        jump, layout = (
            clocks.JUMPS[number % len(clocks.JUMPS)],
            LAYOUTS[number // len(clocks.JUMPS) % len(LAYOUTS)],
        )
        yield Trial(f"clock/{number:03d}", {"arm": "clock", "jump": jump, "layout": layout})


def _clock(context: StudyContext, trial: Trial) -> dict[str, Any]:
    layout, honest = trial.facts["layout"], context.shared(_honest)
    honest[layout] = honest.get(layout) or _scenario(context, trial, "")
    told = _scenario(context, trial, trial.facts["jump"])
    return {"differs": sorted(key for key, value in told.items() if value != honest[layout][key])}


def _honest(context: StudyContext) -> dict[str, dict[str, Any]]:
    """The result under correct clocks, by layout."""
    return {}


def _scenario(context: StudyContext, trial: Trial, jump: str) -> dict[str, Any]:
    folder = context.scratch / "trial"
    try:
        return clocks.scenario(
            folder, context.seed, trial.facts["layout"], jump, context.rng(trial.key)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_ARMS = (
    Arm(
        "race",
        _race_trials,
        lambda context, trial: context.shared(_races).run(trial.facts["number"]),
    ),
    Arm(
        "fence",  # also "publish": the two alternate
        lambda context: fencing.trials(
            context.shared(_history), context.seed, context.scratch, context.keys.every
        ),
        partial(_on_history, fencing.run),
    ),
    Arm("publish", lambda context: (), partial(_on_history, fencing.run)),
    Arm("clock", _clock_trials, _clock),
    Arm(
        "remote",
        lambda context: flaky_nfs.trials(context.shared(_history), context.seed, context.scratch),
        partial(_on_history, flaky_nfs.run),
    ),
    Arm(
        "reader",
        lambda context: fencing.reader_trials(
            context.shared(_history), context.seed, context.scratch, context.keys.saves
        ),
        partial(_on_history, fencing.run_reader),
    ),
    Arm(
        "source",
        lambda context: [
            Trial(f"source/{module}", {"arm": "source", "module": module})
            for module in clocks.DECIDES
        ],
        lambda context, trial: {
            "offences": clocks.offences(clocks.source_of(trial.facts["module"]))
        },
    ),
    Arm(
        "planted",
        lambda context: [
            Trial(f"planted/{bug.name}", {"arm": "planted", "bug": bug.name})
            for bug in mutants.WRITER_MUTANTS
        ],
        lambda context, trial: mutants.run(
            trial.facts["bug"], context.shared(_history), context.seed, context.scratch / "trial"
        ),
        planted,
    ),
)


def _won(record: Record) -> bool:
    return racing.sound(record.found)


def _kept(record: Record) -> bool:
    return fencing.sound(record.found, record.facts)


def _unexplained(record: Record) -> bool:
    """Whether the old writer ended with an error that is neither Fenced nor CheckpointConflict."""
    return str(record.found["old"]).startswith("refused")


def _late_writer(end: str) -> Callable[[Record], bool]:
    return lambda record: bool(record.found["old"] == end)


def _survived(record: Record) -> bool:
    return flaky_nfs.sound(record.found)


def _bad(test: Callable[[Record], object]) -> tuple[Cells, Cells]:
    return count("bad", "count", test), size()


_INTERLEAVINGS = ("fence", "publish")


def _looks(results: TrialResults) -> str:
    looks = sum(record.found["looks"] for record in results.of("reader") if record.facts["at"] < 0)
    return (
        "Few saves: at each call of a look. Many: a thread beside a reader that looks again and"
        f" again; {looks} looks."
    )


_TABLES = (
    TableSpec(
        "races",
        "Two supervisors start at once",
        ("race",),
        by=(fact("left", "what a predecessor left in the lock's file"),),
        columns=(
            count("won", "one winner", lambda r: r.found["winners"] == 1),
            count("told", "loser told", lambda r: r.found["names_holder"]),
            count("freed", "got it afterwards", lambda r: r.found["freed"]),
            proportion(lambda r: not _won(r)),
        ),
        note=(
            f"One winner in {racing.KILLED_EVERY} is killed instead of letting go. The proportion"
            " counts races that went otherwise than promised."
        ),
    ),
    TableSpec(
        "interleavings",
        "A writer that stands still while another one claims and commits",
        _INTERLEAVINGS,
        by=(
            fact("arm", "arm"),
            fact("mode", "write mode"),
            fact("layout", "layout"),
            fact("newer", "the newer writer"),
        ),
        columns=(
            size("n", "interleavings"),
            *(
                count(end, f"late writer: {end}", _late_writer(end))
                for end in ("saved", "fenced", "conflict")
            ),
            count("refused", "late writer: another error", _unexplained),
            count("bad", "lost, overwritten or untyped", lambda r: not _kept(r)),
        ),
        note=(
            "Every call of a save at which another writer can make a difference; no interval: they"
            " are all there are. publish: one attempt, no claim."
        ),
    ),
    TableSpec(
        "clocks",
        "Decisions under false clocks and scrambled mtimes",
        ("clock",),
        by=(fact("jump", "the clock"),),
        columns=_bad(lambda r: r.found["differs"]),
        note="count: stories that differ.",
    ),
    TableSpec(
        "late_names",
        "A file system across a network",
        ("remote",),
        by=(fact("fault", "fault"),),
        columns=_bad(lambda r: not _survived(r)),
        note=(
            "Each call that the fault concerns, once, in a save and in a recovery. count: anything"
            " acknowledged lost, or the next save refused."
        ),
    ),
    TableSpec(
        "readers",
        "A reader beside a writer",
        ("reader",),
        by=(fact("saves", "saves meanwhile", "count"),),
        columns=_bad(lambda r: r.found["misled"]),
        note=_looks,
    ),
    TableSpec(
        "source",
        "Read off the source",
        ("source",),
        columns=(
            fact("module", "module that decides"),
            value(
                "offences",
                "looks at a clock or an mtime",
                lambda r: "; ".join(r.found["offences"]) or "no",
            ),
        ),
    ),
    mutants_table(
        (
            fact("bug", "planted bug"),
            found("shown", "trials that show it", "count"),
            found("tried", "of", "count"),
        )
    ),
)

_GATES = (
    all_of("one_winner", "race", _won, "races with one winner, and a loser that was told (exit 8)"),
    all_of("fenced", _INTERLEAVINGS, _kept, "interleavings that lost and overwrote nothing"),
    all_of(
        "told_why",
        _INTERLEAVINGS,
        lambda r: not _unexplained(r),
        "late writers that ended as Fenced, as CheckpointConflict, or saved",
    ),
    all_of(
        "clocks",
        "clock",
        lambda r: not r.found["differs"],
        "stories under false clocks and mtimes with the same decisions",
    ),
    all_of(
        "late_names",
        "remote",
        _survived,
        "faults of a network file system after which nothing was lost",
    ),
    all_of(
        "readers",
        "reader",
        lambda r: not r.found["misled"],
        "looks beside a writer that were not misled",
    ),
    all_of(
        "no_clock_decides",
        "source",
        lambda r: not r.found["offences"],
        "deciding modules that look at no clock and no mtime",
    ),
    mutants_found("bug", "shown"),
)


def _notes(results: TrialResults) -> Iterator[str]:
    raced, interleaved = results.of("race"), results.of(*_INTERLEAVINGS)
    if raced and all(map(_won, raced)):
        yield (
            f"0 of {len(raced)} start races had two winners or none: below"
            f" {upper_bound(len(raced)):.2%} of such races at 95% (one-sided, exact)."
        )
    if interleaved and all(map(_kept, interleaved)):
        yield (
            f"All {len(interleaved)} interleavings tried of one save with another writer ended as"
            " promised: exhaustive over the calls, no interval."
        )
    yield (
        "Fencing holds where claims follow one another, which the lock of the run directory sees"
        " to; two claims in the same instant on a file system without locks are not covered, nor is"
        " a server that forgets what it has answered."
    )
    yield (
        "The write mode unsafe writes in place: a late writer can leave a whole checkpoint there"
        " that nobody acknowledged; none is mistaken."
    )
    yield "Hang detection is not tried here."


STUDY = Study(
    keys=Writers,
    description=(
        "Two writers, fenced and raced; clocks that jump; names that appear late; a reader beside a"
        " writer."
    ),
    arms=_ARMS,
    tables=_TABLES,
    gates=_GATES,
    notes=_notes,
)
