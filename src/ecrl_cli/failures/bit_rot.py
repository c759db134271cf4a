"""`corrupt`: damage at rest. A rank is killed; before the next attempt chooses what to resume from, bytes of the newest checkpoint are flipped."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, TRAIN
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext

MAX_FLIPS = 8  # bytes
LEFT_TO_CHOOSE = 2  # valid checkpoints, or none is damaged: there must be one to fall back to


@dataclass(frozen=True)
class Damage:
    """Which bytes of which file of a checkpoint change, and by what they are xored (never zero)."""

    file: Path
    flips: tuple[tuple[int, int], ...]

    def text(self, root: Path) -> str:
        """`checkpoints/step_00000040/model.safetensors: bytes 17, 4711 changed`."""
        return f"{self.file.relative_to(root).as_posix()}: bytes {', '.join(str(offset) for offset, _ in self.flips)} changed"


def choose_damage(checkpoint: Path, seed: int) -> Damage:
    """What to change in `checkpoint` (a group's folder or a single file): in one of its parts, drawn from `seed`."""
    generator = random.Random(seed)
    parts = [path for path in sorted(checkpoint.iterdir()) if path.name not in (MANIFEST, COMMIT, TRAIN)] if checkpoint.is_dir() else [checkpoint]
    file = generator.choice(parts)
    offsets = generator.sample(range(file.stat().st_size), generator.randint(1, MAX_FLIPS))
    return Damage(file, tuple((offset, generator.randint(1, 255)) for offset in sorted(offsets)))


def inflict(damage: Damage) -> None:
    """AssertionError where the file is not as it should then be: an injector that changed nothing has tested nothing."""
    before = damage.file.read_bytes()
    data = bytearray(before)
    for offset, mask in damage.flips:
        data[offset] ^= mask
    with damage.file.open("r+b") as file:
        file.write(data)
    after = damage.file.read_bytes()
    assert after == data and after != before, f"{damage.file} was not changed"


def at_rest(scene: InjectionContext) -> None:
    """The supervisor chooses the checkpoint and the damage itself: the claim says what it hits."""
    raise AssertionError(f"{scene.entry.kind} has no blow of its own")


def available(config: RunConfig) -> str | None:
    return "damages a checkpoint, checkpoint=none makes none" if config.checkpoint.strategy == "none" else None


def too_early(step: int, config: RunConfig) -> str | None:
    """Why the newest checkpoint behind `step` has no earlier one to fall back to, or None."""
    every = config.checkpoint.every
    if step // every >= 2:
        return None
    return f"at step {step} there is no earlier checkpoint to fall back to with checkpoint.every={every}: strike at step {2 * every} or behind it"


STRIKE = FaultKind("is damaged", ("rest",), at_rest, ends=False, subject="the newest checkpoint", available=available)
