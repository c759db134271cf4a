"""The structural rows and random faults again, under integrity checks with a layer left out."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from ecrl_cli.studies.corruption import random_faults, structural
from ecrl_cli.studies.corruption.bytes_fs import look_at
from ecrl_cli.studies.corruption.content import GUARD
from ecrl_cli.studies.corruption.invariants import outcome
from ecrl_cli.studies.frame.study import StudyContext, Trial
from ecrl_cli.studies.mutants.layers import names, planted

ARM = "planted"
PER_FAULT = 10


def trials(setting: StudyContext) -> list[Trial]:
    return [Trial(f"{ARM}/{name.replace(' ', '_')}", {"arm": ARM, "mutant": name}) for name in names()]


def run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    """What the mutant lets through, and what another layer than usual rejects. The cases are the same for every mutant."""
    mutant = str(trial.facts["mutant"])
    seen: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    wrong: list[str] = []
    for case in _rows(setting):
        right = structural.row_of(case)
        found = structural.run(setting, case, partial(planted, mutant))
        seen["cases"] += 1
        if found["as_expected"]:
            continue
        if found["layer"] and found["layer"] != right.layer and found["recovered"] == right.recovers and not found["untyped"]:
            elsewhere[found["layer"]] += 1
        else:
            seen["untyped" if found["untyped"] else "undetected"] += 1
            wrong.append(str(case.facts["row"]))
    for fault in random_faults.FAULTS:
        _random(setting, mutant, fault, seen, elsewhere, wrong)
    return {
        "cases": seen["cases"],
        "undetected": seen["undetected"],
        "untyped": seen["untyped"],
        "elsewhere": dict(sorted(elsewhere.items())),
        "first": wrong[:1],
    }


def _rows(setting: StudyContext) -> list[Trial]:
    """Each row of the group layout, once."""
    return [trial for trial in structural.trials(setting) if trial.facts["layout"] == "group" and trial.key.endswith("/00")]


def _random(setting: StudyContext, mutant: str, fault: str, seen: Counter[str], elsewhere: Counter[str], wrong: list[str]) -> None:
    rng = setting.rng(f"{ARM}/{fault}")
    name, files = random_faults.committed(setting, rng.getrandbits(48), single=False)
    for _ in range(PER_FAULT):
        changed, where = random_faults.injured(files, fault, rng)
        usual = look_at(changed, name, GUARD)
        with planted(mutant):
            look = look_at(changed, name, GUARD)
        seen["cases"] += 1
        ended = outcome(look, changed != files)
        if ended in ("silent_wrong", "untyped"):
            seen["undetected" if ended == "silent_wrong" else "untyped"] += 1
            wrong.append(f"{fault} of {where}")
        elif look.layer != usual.layer:
            elsewhere[look.layer] += 1
