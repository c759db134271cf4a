"""What a user may set of each study: one frozen dataclass per conf/study/NAME.yaml, defaults at the published number of trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ecrl_cli.config.schema import LAYOUTS, WRITE_MODES, at_least, positive

WRITING = ("blocking", "overlapped")


def some_of(choices: tuple[str, ...], default: tuple[str, ...] | None = None) -> Any:
    """A field that holds any of `choices`, each once; all of them unless `default` says fewer."""
    return field(default=choices if default is None else default, metadata={"choices": choices})


@dataclass(frozen=True)
class WriteLatency:
    """`checkpoints` per seed and mode, modes interleaved. Published: 10 seeds x 40, 128 KiB model and 64 KiB optimizer."""

    name: str = "write-latency"
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    layout: str = field(default="group", metadata={"choices": LAYOUTS})
    seeds: int = at_least(10, 1)
    checkpoints: int = at_least(40, 1)
    model_bytes: int = at_least(128 * 1024, 4)
    optimizer_bytes: int = at_least(64 * 1024, 4)


@dataclass(frozen=True)
class CrashPoints:
    """`trials` at after_model, `fewer` at every other point (published 400 and 10); `kills`: at a random microsecond, per mode."""

    name: str = "crash-points"
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    layouts: tuple[str, ...] = some_of(LAYOUTS)
    strategies: tuple[str, ...] = some_of(WRITING)
    trials: int = at_least(400, 1)
    fewer: int = at_least(10, 1)
    kills: int = at_least(2000, 0)
    planted: bool = True


@dataclass(frozen=True)
class PowerLoss:
    """`arms`: model (every legal state, enumerated), shutdown (loop image cut off), blocks (block log replayed)."""

    name: str = "power-loss"
    arms: tuple[str, ...] = some_of(("model", "shutdown", "blocks"))
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    planted: bool = True


@dataclass(frozen=True)
class Corruption:
    """`trials` of each published fault and of the control."""

    name: str = "corruption"
    trials: int = at_least(400, 1)
    planted: bool = True


@dataclass(frozen=True)
class IoErrors:
    """Each call of each operation fails in each way, once and for ever."""

    name: str = "io-errors"
    planted: bool = True


@dataclass(frozen=True)
class DiskTimeline:
    """The disk sampled every `interval_s` while a checkpoint is written every `every_s`."""

    name: str = "disk-timeline"
    interval_s: float = positive(1.0)
    every_s: float = positive(3.0)


@dataclass(frozen=True)
class Writers:
    """Two writers, fenced and raced; clocks that jump; names that appear late."""

    name: str = "writers"
    planted: bool = True


@dataclass(frozen=True)
class Hostile:
    """Checkpoints and records prepared by an adversary."""

    name: str = "hostile"


@dataclass(frozen=True)
class Compat:
    """Golden checkpoints of every format version, and of versions that do not exist."""

    name: str = "compat"


STUDIES: dict[str, type[Any]] = {
    kind.name: kind for kind in (WriteLatency, CrashPoints, PowerLoss, Corruption, IoErrors, DiskTimeline, Writers, Hostile, Compat)
}
