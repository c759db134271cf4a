"""Failures of one save: `writer`, `enospc`, `eio`, `slow_disk`. They strike whichever process writes, at a point of the store's protocol."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from ecrl_cli.checkpoint.format.names import CRASH_POINTS, TRAIN
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext
from ecrl_cli.storage.fault_injecting_fs import Fault

HALF = "half_part"  # the default point: half of the first part is written
SLOW_SAVES = 3

# The protocol's points without the part that some of them name, and those from which a write or a sync is still to come in every save. Each file is
# synced where it has been written; only folders are synced later.
POINTS = tuple(dict.fromkeys(point.partition(":")[0] for point in CRASH_POINTS))
_WRITES_FOLLOW = POINTS[: POINTS.index("after_commit")]
_SYNCS_FOLLOW = POINTS[: POINTS.index("after_rename") + 1]
_TRASH = ("before_trash", "half_trash", "after_trash")


def kill_writer(scene: InjectionContext) -> NoReturn:
    del scene
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived SIGKILL")


def armed(scene: InjectionContext) -> None:
    """Nothing to do here: the store's file system has the fault, or the delay."""


def available(config: RunConfig) -> str | None:
    return "strikes a save, checkpoint=none makes none" if config.checkpoint.strategy == "none" else None


def syncs(config: RunConfig) -> str | None:
    return available(config) or (None if config.write_mode.sync_files else f"fails a sync, write_mode={config.write_mode.name} makes none")


def wrong_point(kind: str, point: str, config: RunConfig) -> str | None:
    """Why failure `kind` cannot strike at `point` in any save of this run, or None."""
    name, _, part = point.partition(":")
    if name not in POINTS or (part and (name not in (HALF, "after_part") or config.checkpoint.layout == "single" or not _is_part(part))):
        return f"unknown point {point!r}, known: {', '.join(CRASH_POINTS)}"
    if kind == "slow_disk":
        return f"slow_disk slows down whole saves, it has no point, got {point!r}"
    if kind == "enospc" and name not in _WRITES_FOLLOW:
        return f"nothing need be written behind point {point}, use one up to {_WRITES_FOLLOW[-1]}"
    synced = _SYNCS_FOLLOW if config.write_mode.sync_directories else _WRITES_FOLLOW
    if kind == "eio" and name not in synced:
        return f"with write_mode={config.write_mode.name} a save needs no sync behind point {point}, use one up to {synced[-1]}"
    return f"point {point} does not occur: {why}" if (why := _absent(name, config)) else None


def _is_part(part: str) -> bool:
    return part == TRAIN or part in ("model.safetensors", "optimizer.safetensors", "rng.safetensors")


def _absent(name: str, config: RunConfig) -> str:
    """Why no save of this run passes the point, or nothing."""
    checkpoint, mode = config.checkpoint, config.write_mode
    if name == "between_renames" and checkpoint.layout == "group":
        return "a group is renamed whole (checkpoint.layout=single has two names)"
    if name in ("before_manifest", "half_manifest", "before_stage_sync") and checkpoint.layout == "single":
        return "a single file has its manifest in its sidecar"
    if name in ("before_rename", "between_renames") and not mode.atomic:
        return f"write_mode={mode.name} renames nothing"
    if name == "before_stage_sync" and not mode.sync_directories:
        return f"write_mode={mode.name} syncs no directory"
    if name in _TRASH and (config.target_steps - 1) // checkpoint.every <= checkpoint.keep:
        return f"nothing is retired, checkpoint.keep is {checkpoint.keep}"
    return ""


WRITER = FaultKind("is killed by SIGKILL", ("save",), kill_writer, subject="whoever writes", available=available)
ENOSPC = FaultKind("meets a full disk (ENOSPC)", ("save",), armed, False, subject="the save", available=available)
EIO = FaultKind("meets a sync that fails (EIO)", ("save",), armed, False, subject="the save", available=syncs)
SLOW_DISK = FaultKind(
    f"and the {SLOW_SAVES - 1} behind it take {{seconds:g}} s longer over each write and sync",
    ("save",),
    armed,
    ends=False,
    subject="the save",
    seconds=0.02,
    available=available,
)
FAULTS = {"enospc": Fault("ENOSPC", 1, scope="write"), "eio": Fault("EIO", 1, scope="sync")}
