"""Which state the frameworks of others restore: jobs written as their documentation has it, killed
in several places, audited; and the planted bugs of examples/jobs, each of which the audit must find
and name.

Ranks are forks of a process that has imported the framework (forked_job.py); everything else is as
in `ecrl audit`. What is found is an observation of one release on one machine: the diagnosis says
what did not come back, not whose fault it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ecrl_cli.config.studies import Frameworks
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import all_of, mutants_found
from ecrl_cli.studies.frame.study import (
    Arm,
    Record,
    Skip,
    Study,
    StudyContext,
    Trial,
    TrialResults,
    planted,
)
from ecrl_cli.studies.frame.tables import TableSpec, cell, fact, found, mutants_table, value, yes
from ecrl_cli.studies.frameworks.jobs import (
    PLACES,
    ForkedJobs,
    FrameworkJob,
    Killed,
    component,
    place_of,
)
from ecrl_cli.studies.frameworks.recipes import RECIPES, Recipe, jobs_dir

NO_PLACE = "no such place"


def _asked(context: StudyContext) -> list[Recipe]:
    return [recipe for recipe in RECIPES if recipe.script in context.keys.jobs]


def catalogue() -> list[dict[str, Any]]:
    """The planted bugs: script, switch, the threads that report its like, and what the audit has to
    blame.
    """
    rows: list[dict[str, Any]] = json.loads(
        (jobs_dir() / "catalogue.json").read_text(encoding="utf-8")
    )
    return rows


def _trials(context: StudyContext) -> list[Trial]:
    return [
        Trial(
            f"{recipe.name}/{ranks}/{place}",
            {"arm": "recipes", "recipe": recipe.name, "processes": ranks, "place": place},
        )
        for recipe in _asked(context)
        if not recipe.missing()
        for ranks in recipe.processes
        if ranks in context.keys.processes
        for place in PLACES
    ]


def _run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    recipe = next(recipe for recipe in RECIPES if recipe.name == trial.facts["recipe"])
    job = FrameworkJob(recipe.script, recipe.modules, trial.facts["processes"])
    jobs = context.shared(ForkedJobs)
    killed = place_of(jobs.reference(job, recipe.variant), trial.facts["place"], job.ranks - 1)
    told: dict[str, Any] = {
        "exact": recipe.exact,
        "versions": recipe.versions(),
        "promise": recipe.promise,
        "source": recipe.source,
    }
    if killed is None:
        return told | {"verdict": NO_PLACE, "blamed": "", "said": "", "step": 0}
    verdict = jobs.audited(job, killed, switch=recipe.variant)
    return told | {
        "verdict": verdict.status,
        "blamed": component(verdict),
        "said": verdict.diagnosis,
        "step": killed.step,
    }


def _random_trials(context: StudyContext) -> list[Trial]:
    """Healthy jobs, each drawn with the number of its ranks."""
    exact = [
        (recipe, ranks)
        for recipe in _asked(context)
        if recipe.exact and not recipe.missing()
        for ranks in recipe.processes
    ]
    within = [(recipe, ranks) for recipe, ranks in exact if ranks in context.keys.processes]
    trials = []
    for number in range(context.keys.random if within else 0):
        recipe, ranks = context.rng(f"random/{number}").choice(within)
        trials.append(
            Trial(
                f"random/{recipe.name}/{ranks}/{number:03d}",
                {"arm": "random", "recipe": recipe.name, "processes": ranks},
            )
        )
    # those of one job one after another: its processes are forked from one that has imported it
    return sorted(trials, key=lambda trial: trial.key)


def _random_run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """Kill a rank at any step, also before there is a checkpoint."""
    recipe = next(recipe for recipe in RECIPES if recipe.name == trial.facts["recipe"])
    job, rng, jobs = (
        FrameworkJob(recipe.script, recipe.modules, trial.facts["processes"]),
        context.rng(trial.key),
        context.shared(ForkedJobs),
    )
    last = jobs.reference(job, recipe.variant).path.last
    killed = Killed(
        rng.randint(1, last), rng.choice(("before", "backward")), rng.randrange(job.ranks)
    )
    verdict = jobs.audited(job, killed, switch=recipe.variant)
    return {
        "verdict": verdict.status,
        "said": verdict.diagnosis,
        "killed": f"rank {killed.rank}, step {killed.step} of {last}, {killed.moment}",
    }


def _planted_trials(context: StudyContext) -> list[Trial]:
    return [
        Trial(
            f"planted/{row['script']}/{row['bug']}",
            {"arm": "planted", "bug": f"{row['script']}: {row['bug']}", "number": number},
        )
        for number, row in enumerate(catalogue())
        if row["script"] in context.keys.jobs and not _recipe_of(row["script"]).missing()
    ]


def _recipe_of(script: str) -> Recipe:
    return next(recipe for recipe in RECIPES if recipe.script == script)


def _planted_run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    row = catalogue()[trial.facts["number"]]
    recipe = _recipe_of(row["script"])
    job = FrameworkJob(recipe.script, recipe.modules, row.get("processes", 1))
    jobs, switch = context.shared(ForkedJobs), row["bug"] if row.get("from_the_start") else ""
    killed = place_of(jobs.reference(job, switch), row.get("place", PLACES[0]), job.ranks - 1)
    assert killed is not None, f"{row['script']} has no {row.get('place', PLACES[0])}"
    verdict = jobs.audited(job, killed, "" if switch else row["bug"], switch)
    blamed = component(verdict)
    threads = ", ".join(row["threads"])
    return {
        "found": verdict.status == "invalid" and blamed == row["blames"],
        "blamed": blamed,
        "said": verdict.diagnosis,
        "threads": threads,
    }


def _without_packages(context: StudyContext) -> list[Skip]:
    scripts = {recipe.script: recipe.missing() for recipe in _asked(context)}
    return [Skip(script, reason) for script, reason in scripts.items() if reason]


def _no_job(context: StudyContext) -> str:
    """Why none of the asked jobs can run here; empty if one can."""
    reasons = [recipe.missing() for recipe in _asked(context)]
    return reasons[0] if all(reasons) and reasons else ""


def _valid(record: Record) -> bool:
    return not record.found["exact"] or record.found["verdict"] in ("valid", NO_PLACE)


def _random_gate(results: TrialResults) -> Iterator[Gate]:
    records = results.of("random")
    wrong = [record.key for record in records if record.found["verdict"] != "valid"]
    if records:
        told = (
            f"{len(records) - len(wrong)} of {len(records)} healthy jobs are valid wherever they"
            " are killed"
        )
        yield Gate("random", not wrong, told + (f"; not {', '.join(wrong[:3])}" if wrong else ""))


def _tried(results: TrialResults) -> Iterator[Gate]:
    """A recipe that was killed nowhere has shown nothing."""
    places: dict[str, int] = {}
    for record in results.of("recipes"):
        if record.found["exact"]:
            places[record.facts["recipe"]] = places.get(record.facts["recipe"], 0) + (
                record.found["verdict"] == "valid"
            )
    never = [name for name, count in places.items() if not count]
    told = f"{len(places) - len(never)} of {len(places)} exact recipes came back from a failure" + (
        f"; not {', '.join(never)}" if never else ""
    )
    yield Gate("tried", bool(places) and not never, told)


def _notes(results: TrialResults) -> list[str]:
    recipes = {record.facts["recipe"]: record.found for record in results.of("recipes")}
    return [f"{name} ({told['source']}): {told['promise']}." for name, told in recipes.items()]


STUDY = Study(
    keys=Frameworks,
    description=(
        "Jobs written in other people's frameworks, killed and audited; planted recovery bugs that"
        " the audit must name."
    ),
    arms=(
        Arm("recipes", _trials, _run, missing=_no_job),
        Arm("random", _random_trials, _random_run, missing=_no_job),
        Arm("planted", _planted_trials, _planted_run, enabled=planted, missing=_no_job),
    ),
    tables=(
        TableSpec(
            "recipes",
            "What came back, as observed",
            arms=("recipes",),
            columns=(
                fact("recipe", "recipe"),
                found("versions", "versions"),
                fact("processes", "processes", "count"),
                fact("place", "killed"),
                yes("exact", "exact by intention", lambda record: record.found["exact"]),
                found("verdict", "verdict"),
                found("blamed", "first not restored"),
            ),
            note=(
                "Observations of these releases on one machine; the diagnosis names what did not"
                " come back, not whose fault it is."
            ),
        ),
        TableSpec(
            "random",
            "Healthy jobs killed anywhere",
            arms=("random",),
            columns=(
                fact("recipe", "recipe"),
                fact("processes", "processes", "count"),
                found("killed", "killed"),
                found("verdict", "verdict"),
            ),
        ),
        mutants_table(
            (
                cell("bug", "bug", "text", lambda group: group[0].facts["bug"]),
                found("threads", "reported in"),
                found("blamed", "blamed"),
                value(
                    "seen", "found", lambda record: "found" if record.found["found"] else "missed"
                ),
            )
        ),
    ),
    gates=(
        all_of("exact", "recipes", _valid, "cells are judged as their recipe intends"),
        _tried,
        _random_gate,
        mutants_found(),
    ),
    notes=_notes,
    skips=_without_packages,
)
