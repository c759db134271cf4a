"""Random faults of eight kinds at any position of a checkpoint with realistic content, in memory."""

from __future__ import annotations

import random
import shutil
from typing import Any

from ecrl_cli.studies.corruption.bytes_fs import Files, look_at, taken
from ecrl_cli.studies.corruption.content import GUARD, PUBLISHED, image_of, store_in, training_specs
from ecrl_cli.studies.corruption.counts import Counts
from ecrl_cli.studies.corruption.faults import IN_A_FILE, SMALLEST, SWAP_PARTS
from ecrl_cli.studies.corruption.invariants import outcome
from ecrl_cli.studies.frame.study import StudyContext, Trial

ARM = "random"
SLICE = 50
FAULTS = (*IN_A_FILE, SWAP_PARTS)
LAYOUTS = ("group", "single")


def trials(setting: StudyContext) -> list[Trial]:
    """Slices of each fault, one checkpoint per slice, alternating the layouts."""
    found, count = [], setting.config.study.random
    for number, start in enumerate(range(0, count, SLICE)):
        for fault in FAULTS:
            layout = "group" if fault == SWAP_PARTS else LAYOUTS[number % 2]
            facts = {"arm": ARM, "fault": fault, "layout": layout, "injections": min(SLICE, count - start)}
            found.append(Trial(f"{ARM}/{fault}/{number:04d}", facts))
    return found


def run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    rng, fault, tally = setting.rng(trial.key), str(trial.facts["fault"]), Counts()
    name, files = committed(setting, rng.getrandbits(48), single=trial.facts["layout"] == "single")
    for number in range(int(trial.facts["injections"])):
        changed, where = injured(files, fault, rng)
        look = look_at(changed, name, GUARD)
        tally.add(outcome(look, changed != files), look, changed != files, f"{number}: {where}")
    return tally.found()


def committed(setting: StudyContext, seed: int, *, single: bool) -> tuple[str, dict[str, bytes]]:
    """A committed checkpoint of two ranks with a predecessor: its name, and the folder's files."""
    root = setting.scratch / "run"
    store = store_in(root)
    try:
        for step in (10, 20):
            path = store.save(image_of(training_specs(*PUBLISHED, world_size=2), seed, step, single=single), 0).path
        return path.name, {name: data for name, data in taken(root / "checkpoints").items() if name.startswith("step_00000020")}
    finally:
        store.close()
        shutil.rmtree(root)


def injured(files: Files, fault: str, rng: random.Random) -> tuple[dict[str, bytes], str]:
    """`files` after one fault, and its position."""
    if fault == SWAP_PARTS:
        first, second = rng.sample(sorted(files), 2)
        return dict(files) | {first: files[second], second: files[first]}, f"{first} and {second}"
    name = rng.choice([name for name in sorted(files) if len(files[name]) >= SMALLEST.get(fault, 1)])
    return dict(files) | {name: IN_A_FILE[fault](files[name], rng)}, name
