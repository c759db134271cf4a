"""`corrupt`: damage at rest. A rank is killed; before the next attempt chooses its checkpoint, bytes of the newest one are flipped."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, TRAIN
from ecrl_cli.config.fault_spec import Entry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.failures.fault_kind import BetweenAttempts, Ends, FaultKind, Problem, RecordedFault, RefusedFault, Strike, Victim
from ecrl_cli.failures.rank_faults import Kill

MAX_FLIPS = 8  # bytes


@dataclass(frozen=True)
class Damage:
    """Bytes to change in one file of a checkpoint: (offset, XOR mask from 1 to 255)."""

    file: Path
    flips: tuple[tuple[int, int], ...]

    def text(self, root: Path) -> str:
        """`checkpoints/step_00000040/model.safetensors: bytes 17, 4711 changed`."""
        return f"{self.file.relative_to(root).as_posix()}: bytes {', '.join(str(offset) for offset, _ in self.flips)} changed"


def choose_damage(checkpoint: Path, seed: int) -> Damage:
    """Up to MAX_FLIPS bytes of one file of `checkpoint` (a folder, or a single file), drawn from `seed`."""
    generator = random.Random(seed)
    parts = [path for path in sorted(checkpoint.iterdir()) if path.name not in (MANIFEST, COMMIT, TRAIN)] if checkpoint.is_dir() else [checkpoint]
    file = generator.choice(parts)
    offsets = generator.sample(range(file.stat().st_size), generator.randint(1, MAX_FLIPS))
    return Damage(file, tuple((offset, generator.randint(1, 255)) for offset in sorted(offsets)))


def inflict(damage: Damage) -> None:
    """Changes the bytes. AssertionError if the file is unchanged afterwards or differs from what was written."""
    before = damage.file.read_bytes()
    data = bytearray(before)
    for offset, mask in damage.flips:
        data[offset] ^= mask
    with damage.file.open("r+b") as file:
        file.write(data)
    after = damage.file.read_bytes()
    assert after == data and after != before, f"{damage.file} was not changed"


class Corrupt(FaultKind):
    """A kill, and the damage before the next attempt; `corrupt@40.rest` is the damage alone."""

    name = "corrupt"
    description = "`failure.rank` is killed, and bytes of the newest checkpoint are flipped before the next attempt chooses what to resume from"
    shows = "the damaged checkpoint is refused, by name and layer, and an older one is taken"
    text = "is damaged"
    moments = ("rest",)
    victim = Victim.CHECKPOINT
    needs_checkpoints = 2  # valid ones: one must remain to fall back to
    ends = Ends.NOTHING

    @property
    def takes_rank(self) -> bool:
        return True  # of the kill

    def refuses(self, config: RunConfig) -> str | None:
        return "damages a checkpoint, checkpoint=none makes none" if not strategy_of(config).saves else None

    def expand(self, entry: Entry, config: RunConfig) -> tuple[Entry, ...]:
        step, every = entry.step, config.checkpoint.every
        if step // every < self.needs_checkpoints:
            reason = f"at step {step} there is no earlier checkpoint to fall back to with checkpoint.every={every}"
            raise RefusedFault("steps", reason, f"strike at step {self.needs_checkpoints * every} or behind it")
        damage = Entry(self.name, step, "rest")
        return (damage,) if entry.moment == "rest" else (replace(entry, what=Kill.name), damage)

    def strike_at_rest(self, between: BetweenAttempts) -> Strike | None:
        """None until an attempt is to resume from a checkpoint and there are enough valid ones."""
        if not between.chooses:
            return None
        reports = (between.store.verify(each.path) for each in between.store.entries())
        valid = [report.path for report in reports if report.ok]
        if len(valid) < self.needs_checkpoints:
            return None
        damage = choose_damage(valid[0], between.seed)
        return Strike(damage.text(between.root), partial(inflict, damage))

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """The next attempt must have rejected the damaged checkpoint, because of the damaged file."""
        fired = fault.fired
        damaged = fired.detail.partition(":")[0]
        after = [rejected for a in fault.run.attempts if a.attempt >= fired.attempt for rejected in a.rejected]
        refused = [rejected for rejected in after if damaged == rejected.path or damaged.startswith(f"{rejected.path}/")]
        name = damaged.rpartition("/")[2]
        if not damaged:
            yield Problem(f"entry {fired.index} does not say what it damaged", proven=False)
        elif not refused and fault.attempt:
            yield Problem(f"entry {fired.index} damaged {damaged}, and attempt {fired.attempt} did not refuse it")
        elif refused and not any(name in rejected.reason or rejected.layer == "hash" for rejected in refused):
            yield Problem(f"entry {fired.index} damaged {damaged}, which was refused for something else: {refused[0].layer}: {refused[0].reason}")
