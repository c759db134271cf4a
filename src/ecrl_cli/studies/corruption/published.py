"""The published study: one fault in a committed checkpoint on real files, 400 trials of each kind and 400 without a fault."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.storage.writing import WriteMode
from ecrl_cli.studies.corruption.bytes_fs import taken
from ecrl_cli.studies.corruption.content import GUARD, PUBLISHED, image_of, store_in, training_specs
from ecrl_cli.studies.corruption.faults import PUBLISHED as FAULTS
from ecrl_cli.studies.corruption.faults import zeros_over_zeros
from ecrl_cli.studies.corruption.invariants import looked, outcome
from ecrl_cli.studies.corruption.layer_ablation import seen_by
from ecrl_cli.studies.frame.study import StudyContext, Trial

ARM = "published"
NOOP, CONTROL = "zeros over zeros", "none"
SHARE_NOOP = 8  # one trial of zeros over zeros per so many of each fault


def trials(setting: StudyContext) -> list[Trial]:
    """The trials, faults interleaved."""
    count = setting.config.study.trials
    faults = [(number, fault) for number in range(count) for fault in (*FAULTS, CONTROL)]
    faults += [(number, NOOP) for number in range(-(-count // SHARE_NOOP))]
    return [Trial(f"{ARM}/{fault.replace(' ', '_')}/{number:04d}", {"arm": ARM, "fault": fault}) for number, fault in faults]


def run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    """Commit, inject, verify."""
    rng, root, fault = setting.rng(trial.key), setting.scratch / "run", str(trial.facts["fault"])
    image = image_of(training_specs(*PUBLISHED, world_size=1), rng.getrandbits(48), 10)
    store = store_in(root, WriteMode())
    try:
        path = store.save(image, 0).path
        before = taken(path)
        name = injected(path, fault, rng)
        after = taken(path)
        look = looked(lambda: verify_checkpoint(path, GUARD))
    finally:
        store.close()
        shutil.rmtree(root)
    changed = after != before
    found = {"outcome": outcome(look, changed), "changed": changed, "layer": look.layer, "reason": look.reason or look.untyped}
    return found | {"file": name, "mechanisms": seen_by(after)}


def injected(path: Path, fault: str, rng: random.Random) -> str:
    """Inject into one random file of the checkpoint at `path`; returns its name. Asserts that nothing else changes."""
    if fault == CONTROL:
        return ""
    files = taken(path)
    if fault == NOOP:
        files = {name: data for name, data in files.items() if bytes(3) in data}
    name = rng.choice(sorted(files))
    changed = (zeros_over_zeros if fault == NOOP else FAULTS[fault])(files[name], rng)
    overwrite(path / name, changed)
    assert taken(path) == taken(path) | {other: data for other, data in files.items() if other != name} | {name: changed}
    return name


def overwrite(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`, asserting the same inode, owner and mode; otherwise a later rejection would prove nothing."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))
    after = path.stat()
    same = [(found.st_ino, found.st_mode, found.st_uid, found.st_nlink) for found in (before, after)]
    assert same[0] == same[1] and after.st_size == len(data)
