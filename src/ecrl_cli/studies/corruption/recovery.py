"""The store as a whole: undamaged checkpoints and copies of them must all pass; with the newest k
damaged, recovery takes the newest intact one.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.image import DTYPES, CheckpointImage, TensorSpec
from ecrl_cli.checkpoint.format.manifest import Components, components
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import image_components
from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.linux.prerequisites import program
from ecrl_cli.studies.corruption.byte_faults import IN_A_FILE
from ecrl_cli.studies.corruption.content import GENERATOR, Parts, image_of, store_at, training_specs
from ecrl_cli.studies.corruption.published import overwrite
from ecrl_cli.studies.frame.store_fixture import GUARD, files_under
from ecrl_cli.studies.frame.study import Arm, Skip, StudyContext, Trial, asked

SLICE = 50  # verifications; half of them of copies
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (7,),
    (3, 0, 5),
    (16, 3, 3, 3),
    (64, 33),
    (1, 1, 1, 1, 2),
    (4096,),
)
# NaN, infinity, -infinity
NOT_FINITE = (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff")
# a state of random structure may have NaN in its optimizer, which is no damage to the files
_GUARD = replace(GUARD, finite="model")

COMMANDS: dict[str, list[str]] = {
    "cp -a": ["cp", "-a", "{source}/.", "{target}"],
    "tar": ["sh", "-c", 'tar -C "$0" -cf - . | tar -C "$1" -xf -', "{source}", "{target}"],
    "rsync": ["rsync", "-a", "{source}/", "{target}"],
}


def tools() -> list[str]:
    """The ways of copying available here."""
    return ["copytree", *(name for name in COMMANDS if program(name.partition(" ")[0]))]


def _clean_trials(setting: StudyContext) -> list[Trial]:
    found, means = [], tools()
    for number, start in enumerate(range(0, setting.config.study.clean, SLICE)):
        facts = {"layout": LAYOUTS[number % 2], "copied": means[number // 2 % len(means)]}
        count = min(SLICE, setting.config.study.clean - start)
        found.append(
            Trial(
                f"clean/{facts['layout']}/{facts['copied'].replace(' ', '')}/{number:04d}",
                {"arm": "clean", "verifications": count} | facts,
            )
        )
    return found


def skips() -> list[Skip]:
    return [
        Skip(f"clean: copies by {name}", f"{name} is not installed")
        for name in COMMANDS
        if name not in tools()
    ]


def _run_clean(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    rng, count, root = (
        setting.rng(trial.key),
        int(trial.facts["verifications"]),
        setting.scratch / "run",
    )
    single, seed = trial.facts["layout"] == "single", rng.getrandbits(48)
    with store_at(root) as store:
        # one image per step; one verification for the original, the rest for the copies
        images = [varied(rng, seed, step, single=single) for step in range(1, -(-count // 2) + 1)]
        paths = [store.save(image, 0).path for image in images]
        copy = root / "copy"
        copied(str(trial.facts["copied"]), store.root, copy)
        digests = [image_components(image) for image in images]
        pairs = [
            *zip(paths, digests, strict=True),
            *zip([copy / path.name for path in paths], digests, strict=True),
        ][:count]
        refused = [text for path, saved in pairs if (text := _refusal(path, saved))]
    return {
        "outcome": "new" if not refused else "detected",
        "verified": len(pairs),
        "refused": len(refused),
        "first": refused[:1],
    }


def _refusal(path: Path, saved: Components) -> str:
    """Why a clean checkpoint was rejected; empty if it was accepted with the saved content."""
    try:
        report = verify_checkpoint(path, _GUARD)
    except Exception as error:  # a defect, recorded as data
        return f"{path.name}: {type(error).__name__}: {error}"[:200]
    if not report.ok or report.manifest is None:
        return f"{path.name}: {report.layer}: {report.reason}"
    return (
        "" if components(report.manifest) == saved else f"{path.name}: accepted with other digests"
    )


def varied(rng: random.Random, seed: int, step: int, *, single: bool) -> CheckpointImage:
    """A state of random structure: every type, scalars and empty tensors, one to four ranks, an
    optimizer that may hold NaN.
    """
    return _not_finite(rng, image_of(_structure(rng), seed, step, single=single))


def _structure(rng: random.Random) -> Parts:
    def specs(component: str, most: int) -> list[TensorSpec]:
        return [
            TensorSpec(f"{component}.t{n}", rng.choice(sorted(DTYPES)), rng.choice(SHAPES))
            for n in range(rng.randint(0, most))
        ]

    ranks = [
        TensorSpec(f"rng.rank{rank}.torch", "torch.uint8", (GENERATOR,))
        for rank in range(rng.randint(1, 4))
    ]
    return {
        MODEL: specs("parameters", 8) + specs("buffers", 3),
        OPTIMIZER: specs("optimizer", 8),
        RNG: ranks,
    }


def _not_finite(rng: random.Random, image: CheckpointImage) -> CheckpointImage:
    for place in (place for part in image.parts for place in part.tensors):
        spec = place.spec
        if spec.name.startswith("optimizer.") and spec.dtype == "torch.float32" and spec.nbytes:
            image.memory[place.offset : place.offset + 4] = rng.choice(NOT_FINITE)
    return image


def copied(tool: str, source: Path, target: Path) -> None:
    if tool == "copytree":
        shutil.copytree(source, target, symlinks=True)
        return
    target.mkdir()
    command = [word.format(source=source, target=target) for word in COMMANDS[tool]]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


STEPS = (10, 20, 30, 40)
SIZES = (12_000, 12_000)


def _recovery_trials(setting: StudyContext) -> list[Trial]:
    return [
        Trial(
            f"recovery/{layout}/{damaged}/{number:02d}",
            {"arm": "recovery", "layout": layout, "damaged": damaged},
        )
        for number in range(setting.config.study.seeds)
        for layout in LAYOUTS
        for damaged in range(1, len(STEPS))
    ]


def _run_recovery(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    rng, root, damaged = (
        setting.rng(trial.key),
        setting.scratch / "run",
        int(trial.facts["damaged"]),
    )
    single, seed = trial.facts["layout"] == "single", rng.getrandbits(48)
    parts, expected = training_specs(*SIZES, world_size=1), STEPS[-1 - damaged]
    with store_at(root) as store:
        paths = {
            step: store.save(image_of(parts, seed, step, single=single), 0).path for step in STEPS
        }
        whole = files_under(store.root)
        for step in STEPS[-damaged:]:
            names = [name for name in whole if name.startswith(paths[step].stem)]
            _damage_one(whole, names, rng)
            for name in names:
                overwrite(store.root / name, whole[name])
        before = files_under(store.root)
        choice = store.newest_valid()
        untouched = files_under(store.root) == before
    report = choice.report
    exact = bool(
        report
        and report.manifest
        and components(report.manifest)
        == image_components(image_of(parts, seed, expected, single=single))
    )
    named = [refused.path.rpartition("/")[2] for refused in choice.rejected] == [
        paths[step].name for step in reversed(STEPS[-damaged:])
    ]
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
        name, fault = (
            rng.choice(names),
            rng.choice(sorted(set(IN_A_FILE) - {"duplicate_block", "swap_blocks"})),
        )
        changed = IN_A_FILE[fault](files[name], rng)
        if changed != files[name]:
            files[name] = changed
            return


CLEAN = Arm("clean", _clean_trials, _run_clean, asked("clean"))
RECOVERY = Arm("recovery", _recovery_trials, _run_recovery, asked("recovery"))
