"""With the newest k checkpoints damaged, recovery takes the newest intact one, reports what it rejected and why, and changes nothing."""

from __future__ import annotations

import random
import shutil
from typing import Any

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.store.synthetic import image_components
from ecrl_cli.studies.corruption.bytes_fs import taken
from ecrl_cli.studies.corruption.content import image_of, store_in, training_specs
from ecrl_cli.studies.corruption.faults import IN_A_FILE
from ecrl_cli.studies.corruption.published import overwrite
from ecrl_cli.studies.frame.study import StudyContext, Trial

ARM = "recovery"
STEPS = (10, 20, 30, 40)
LAYOUTS = ("group", "single")
SIZES = (12_000, 12_000)


def trials(setting: StudyContext) -> list[Trial]:
    return [
        Trial(f"{ARM}/{layout}/{damaged}/{number:02d}", {"arm": ARM, "layout": layout, "damaged": damaged})
        for number in range(setting.config.study.seeds)
        for layout in LAYOUTS
        for damaged in range(1, len(STEPS))
    ]


def run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    rng, root, damaged = setting.rng(trial.key), setting.scratch / "run", int(trial.facts["damaged"])
    single, seed = trial.facts["layout"] == "single", rng.getrandbits(48)
    parts, expected = training_specs(*SIZES, world_size=1), STEPS[-1 - damaged]
    store = store_in(root)
    try:
        paths = {step: store.save(image_of(parts, seed, step, single=single), 0).path for step in STEPS}
        whole = taken(store.root)
        for step in STEPS[-damaged:]:
            names = [name for name in whole if name.startswith(paths[step].stem)]
            _damage_one(whole, names, rng)
            for name in names:
                overwrite(store.root / name, whole[name])
        before = taken(store.root)
        choice = store.newest_valid()
        untouched = taken(store.root) == before
    finally:
        store.close()
        shutil.rmtree(root)
    report = choice.report
    exact = bool(report and report.manifest and components(report.manifest) == image_components(image_of(parts, seed, expected, single=single)))
    named = [refused.path.rpartition("/")[2] for refused in choice.rejected] == [paths[step].name for step in reversed(STEPS[-damaged:])]
    recovered = report.global_step if report else None
    return {
        "outcome": "lost_all" if recovered is None else "silent_wrong" if not exact else "previous",
        "recovered": recovered,
        "expected": expected,
        "named": named and all(refused.reason and refused.layer for refused in choice.rejected),
        "untouched": untouched,
        "layers": [refused.layer for refused in choice.rejected],
    }


def _damage_one(files: dict[str, bytes], names: list[str], rng: random.Random) -> None:
    """Inject one fault into one of `names`, redrawn until it changes bytes."""
    while True:
        name, fault = rng.choice(names), rng.choice(sorted(set(IN_A_FILE) - {"duplicate_block", "swap_blocks"}))
        changed = IN_A_FILE[fault](files[name], rng)
        if changed != files[name]:
            files[name] = changed
            return
