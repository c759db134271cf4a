"""Failures of storage: of one save, at a point of the store's protocol; a read-only run directory;
bytes of a checkpoint flipped at rest.
"""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    CRASH_POINTS,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STEP_METADATA,
    TRAIN,
)
from ecrl_cli.config.fault_spec import Entry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import StorageError
from ecrl_cli.failures.fault_kind import (
    BetweenAttempts,
    Death,
    Ends,
    FaultKind,
    InjectionContext,
    PreparedFault,
    Problem,
    RecordedFault,
    RefusedFault,
    SaveInProgress,
    Victim,
)
from ecrl_cli.failures.rank_faults import SLOWNESS_IS_REPORTED, Kill
from ecrl_cli.records.events import CHECKPOINT_ENDS, CheckpointLine, PlannedFailure
from ecrl_cli.storage.fault_injecting_fs import Fault

HALF = "half_part"  # half of the first file is written
SLOW_SAVES = 3

# The protocol's points without file names, and those that are followed by a write, or by a sync, in
# every save. Files are synced right after they are written; only directories are synced later.
POINTS = tuple(dict.fromkeys(point.partition(":")[0] for point in CRASH_POINTS))
_WRITES_FOLLOW = POINTS[: POINTS.index("after_commit")]
_SYNCS_FOLLOW = POINTS[: POINTS.index("after_rename") + 1]
_BEFORE_ACKNOWLEDGED = POINTS[: POINTS.index("after_root_sync") + 1]
_TRASH = ("before_trash", "half_trash", "after_trash")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGING = ("mkdir", "rename", "replace", "unlink", "rmdir", "symlink", "truncate")

MAX_FLIPS = 8  # bytes


def acknowledges_after(point: str) -> bool:
    """Whether a save is acknowledged only after it has passed `point` (empty: its start)."""
    return not point or point.partition(":")[0] in _BEFORE_ACKNOWLEDGED


class SaveFault(FaultKind):
    """A failure of one save."""

    shows = "a save fails or dies; nothing acknowledged is lost"
    moments = ("save",)
    victim = Victim.SAVE
    point = HALF
    ends = Ends.NOTHING

    def refuses(self, config: RunConfig) -> str | None:
        strategy = strategy_of(config)
        if not strategy.saves:
            return "is injected into a save, checkpoint=none makes none"
        return (
            f"is injected into ECRL's store, checkpoint={strategy.name} writes by itself"
            if strategy.checkpointer
            else None
        )

    def wrong_point(self, point: str, config: RunConfig) -> str | None:
        name, _, part = point.partition(":")
        parted = (
            name in (HALF, "after_part")
            and config.checkpoint.layout != "single"
            and part in (TRAIN, MODEL, OPTIMIZER, RNG)
        )
        if name not in POINTS or (part and not parted):
            return f"unknown point {point!r}, known: {', '.join(CRASH_POINTS)}"
        return self.point_too_late(name, config) or (
            f"point {point} does not occur: {why}" if (why := _absent(name, config)) else None
        )

    def point_too_late(self, point: str, config: RunConfig) -> str | None:
        """Why no call that can fail need follow `point` in a save, or None."""
        del point, config
        return None

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """The save that was hit must have a recorded end, and one that fits the kind."""
        fired, a = fault.fired, fault.attempt
        lines = fault.run.logs(fired.attempt).checkpoints.events
        end = next(
            (
                line
                for line in lines
                if line.global_step == fired.at_step and line.event in CHECKPOINT_ENDS
            ),
            None,
        )
        who, save = (
            f"entry {fired.index} ({self.name})",
            f"the save of step {fired.at_step} in attempt {fired.attempt}",
        )
        if end is None:
            yield Problem(f"{who}: {save} has no end on record", proven=False)
        elif a and (wrong := self.wrong_end(end, fault.planned, a.outcome == "completed")):
            yield Problem(f"{who}: {save} {wrong}")

    def wrong_end(self, end: CheckpointLine, entry: PlannedFailure, completed: bool) -> str | None:
        """Why `end` does not fit a save hit by this kind, or None. `completed`: whether its attempt
        completed.
        """
        raise NotImplementedError


class KilledWriter(SaveFault):
    name = "writer"
    description = (
        "SIGKILL of whoever writes, at `failure.point` of the first save due at `failure.steps`:"
        " rank 0 when blocking, else the background writer"
    )
    text = "is killed by SIGKILL"
    victim = Victim.WRITER
    ends = Ends.WRITER
    death = Death(signal=signal.SIGKILL)

    def ends_attempt(self, entry: PlannedFailure, config: RunConfig) -> bool:
        return not strategy_of(config).background

    def inject(self, context: InjectionContext) -> NoReturn:
        del context
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("survived SIGKILL")

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        return () if self.ends_attempt(fault.planned, fault.config) else super().trace(fault)

    def wrong_end(self, end: CheckpointLine, entry: PlannedFailure, completed: bool) -> str | None:
        committed = end.event == "committed" and end.reason is None
        committed_first = committed and acknowledges_after(entry.point)
        return "was committed by the writer that had been killed" if committed_first else None


class FailedCall(SaveFault):
    """The next call in the fault's scope fails with an errno."""

    fault: Fault

    def inject_into_save(self, save: SaveInProgress, context: InjectionContext) -> None:
        del context
        save.fail_next(self.fault)

    def wrong_end(self, end: CheckpointLine, entry: PlannedFailure, completed: bool) -> str | None:
        failed = end.event == "failed" and self.fault.kind in (end.reason or "")
        lost = end.event == "lost" and not completed
        return (
            None
            if failed or lost
            else f"ended as {end.event} ({end.reason}), not as failed with {self.fault.kind}"
        )


class FullDisk(FailedCall):
    name = "enospc"
    description = (
        "the first save due at `failure.steps` meets a full disk at `failure.point` of the store's"
        " protocol"
    )
    text = "meets a full disk (ENOSPC)"
    fault = Fault("ENOSPC", 1, scope="write")

    def point_too_late(self, point: str, config: RunConfig) -> str | None:
        return (
            None
            if point in _WRITES_FOLLOW
            else f"nothing need be written after point {point}, use one up to {_WRITES_FOLLOW[-1]}"
        )


class FailedSync(FailedCall):
    name = "eio"
    description = (
        "the first save due at `failure.steps` meets a sync that fails, at `failure.point`"
    )
    text = "meets a sync that fails (EIO)"
    fault = Fault("EIO", 1, scope="sync")

    def refuses(self, config: RunConfig) -> str | None:
        return super().refuses(config) or (
            None
            if config.write_mode.sync_files
            else f"fails a sync, write_mode={config.write_mode.name} makes none"
        )

    def point_too_late(self, point: str, config: RunConfig) -> str | None:
        synced = _SYNCS_FOLLOW if config.write_mode.sync_directories else _WRITES_FOLLOW
        if point in synced:
            return None
        return (
            f"with write_mode={config.write_mode.name} a save needs no sync after point {point},"
            f" use one up to {synced[-1]}"
        )


class SlowDisk(SaveFault):
    name = "slow_disk"
    description = (
        "three saves, from the first one due at `failure.steps` on, take `failure.seconds` longer"
        " over each write and sync"
    )
    shows = SLOWNESS_IS_REPORTED
    text = f"and the {SLOW_SAVES - 1} after it take {{seconds:g}} s longer over each write and sync"
    point = ""
    seconds = 0.02

    def wrong_point(self, point: str, config: RunConfig) -> str | None:
        del config
        return f"slow_disk slows down whole saves, it has no point, got {point!r}"

    def inject_into_save(self, save: SaveInProgress, context: InjectionContext) -> None:
        save.slow_down(context.entry.seconds, SLOW_SAVES)

    def wrong_end(self, end: CheckpointLine, entry: PlannedFailure, completed: bool) -> None:
        """Any end is accepted; `trace` checks the seconds."""

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """Each committed save took at least the delays of its own calls: one write per file, and
        one sync where files are synced.

        Saves after the first are checked only where rank 0 writes: a background writer may have
        been replaced meanwhile by one without the fault.
        """
        yield from super().trace(fault)
        fired, config = fault.fired, fault.config
        files = 6 if config.checkpoint.layout == "group" else 2
        least = fault.planned.seconds * files * (2 if config.write_mode.sync_files else 1)
        lines = fault.run.logs(fired.attempt).checkpoints.events
        slow = sorted(
            {
                line.global_step
                for line in lines
                if line.event == "submitted" and line.global_step >= (fired.at_step or 0)
            }
        )
        for step in slow[: 1 if strategy_of(config).background else SLOW_SAVES]:
            end = next(
                (
                    line
                    for line in lines
                    if line.global_step == step and line.event in CHECKPOINT_ENDS
                ),
                None,
            )
            if (
                end
                and end.event == "committed"
                and end.reason is None
                and end.write_s + end.commit_s < least
            ):
                took = (
                    f"took {end.write_s + end.commit_s:.3f} s, its calls alone were held up for"
                    f" {least:g} s"
                )
                yield Problem(
                    f"entry {fired.index} (slow_disk): the save of step {step} in attempt"
                    f" {fired.attempt} {took}"
                )


def _absent(name: str, config: RunConfig) -> str:
    """Why no save of this run passes the point, or ""."""
    checkpoint, mode = config.checkpoint, config.write_mode
    if name == "between_renames" and checkpoint.layout == "group":
        return "a group is renamed whole (checkpoint.layout=single has two names)"
    if (
        name in ("before_manifest", "half_manifest", "before_stage_sync")
        and checkpoint.layout == "single"
    ):
        return "a single file has its manifest in its sidecar"
    if name in ("before_rename", "between_renames") and not mode.atomic:
        return f"write_mode={mode.name} renames nothing"
    if name == "before_stage_sync" and not mode.sync_directories:
        return f"write_mode={mode.name} syncs no directory"
    if name in _TRASH and (config.target_steps - 1) // checkpoint.every <= checkpoint.keep:
        return f"nothing is retired, checkpoint.keep is {checkpoint.keep}"
    return ""


class ReadOnly(FaultKind):
    """EROFS at every write of rank 0. A remount would need a separate file system: instead, the
    `os` calls that change files are replaced in rank 0's process.
    """

    name = "readonly"
    description = (
        "from a step on, rank 0 finds the run directory read-only: the run ends with exit code 5,"
        " and goes on once it is writable again"
    )
    shows = "the run ends with code 5 and goes on exactly"
    text = "finds the run directory read-only"
    victim = Victim.RANK_0
    ends = Ends.ATTEMPT
    death = Death(exit_code=StorageError.exit_code)
    supervisor_exit = StorageError.exit_code

    def inject(self, context: InjectionContext) -> None:
        seal(context.layout.root)


def seal(root: Path) -> Callable[[], None]:
    """Makes everything under `root` read-only for this process; returns a function that undoes
    it.
    """
    inside, before = (
        f"{root}{os.sep}",
        {name: getattr(os, name) for name in ("open", "write", *_CHANGING)},
    )

    def refuse(path: object) -> None:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if os.path.abspath(text).startswith(inside):  # noqa: PTH100 - pathlib would follow links
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), text)

    def write(fd: int, data: Any) -> Any:
        refuse(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        return before["write"](fd, data)

    def opened(path: Any, flags: int, *more: Any, **named: Any) -> Any:
        if flags & _WRITING:
            refuse(path)
        return before["open"](path, flags, *more, **named)

    def changing(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: Any, *more: Any, **named: Any) -> Any:
            refuse(path)
            return call(path, *more, **named)

        return guarded

    replaced: dict[str, Callable[..., Any]] = {
        "write": write,
        "open": opened,
        **{name: changing(before[name]) for name in _CHANGING},
    }
    _replace_calls(replaced)
    return partial(_replace_calls, before)


def _replace_calls(calls: Mapping[str, Callable[..., Any]]) -> None:
    for name, call in calls.items():
        setattr(os, name, call)


@dataclass(frozen=True)
class Damage:
    """Bytes to change in one file of a checkpoint: (offset, XOR mask from 1 to 255)."""

    file: Path
    flips: tuple[tuple[int, int], ...]

    def text(self, root: Path) -> str:
        """`checkpoints/step_00000040/model.safetensors: bytes 17, 4711 changed`."""
        return (
            f"{self.file.relative_to(root).as_posix()}: bytes"
            f" {', '.join(str(offset) for offset, _ in self.flips)} changed"
        )


def choose_damage(checkpoint: Path, seed: int) -> Damage:
    """Up to MAX_FLIPS bytes of one file of `checkpoint` (a folder, or a single file), drawn from
    `seed`.
    """
    generator = random.Random(seed)
    inside = (
        path
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name not in (MANIFEST, COMMIT, TRAIN, STEP_METADATA)
    )
    parts = list(inside) if checkpoint.is_dir() else [checkpoint]
    file = generator.choice(parts)
    offsets = generator.sample(range(file.stat().st_size), generator.randint(1, MAX_FLIPS))
    return Damage(file, tuple((offset, generator.randint(1, 255)) for offset in sorted(offsets)))


def inflict(damage: Damage) -> None:
    """Changes the bytes. AssertionError if the file is unchanged afterwards or differs from what
    was written.
    """
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
    description = (
        "`failure.rank` is killed, and bytes of the newest checkpoint are flipped before the next"
        " attempt chooses what to resume from"
    )
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
        return (
            "damages a checkpoint, checkpoint=none makes none"
            if not strategy_of(config).saves
            else None
        )

    def expand(self, entry: Entry, config: RunConfig) -> tuple[Entry, ...]:
        step, every = entry.step, config.checkpoint.every
        if step // every < self.needs_checkpoints:
            reason = (
                f"at step {step} there is no earlier checkpoint to fall back to with"
                f" checkpoint.every={every}"
            )
            raise RefusedFault(
                "steps", reason, f"inject at step {self.needs_checkpoints * every} or after it"
            )
        damage = Entry(self.name, step, "rest")
        return (damage,) if entry.moment == "rest" else (replace(entry, what=Kill.name), damage)

    def inject_at_rest(self, between: BetweenAttempts) -> PreparedFault | None:
        """None until an attempt is to resume from a checkpoint and there are enough valid ones."""
        if not between.chooses:
            return None
        reports = (between.store.verify(each.path) for each in between.store.entries())
        valid = [report.path for report in reports if report.ok]
        if len(valid) < self.needs_checkpoints:
            return None
        damage = choose_damage(valid[0], between.seed)
        return PreparedFault(damage.text(between.root), partial(inflict, damage))

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """The next attempt must have rejected the damaged checkpoint, because of the damaged file.

        One that another checkpointer wrote may be taken as it is: whether that noticed the damage
        is its business, and what it restored is judged.
        """
        if strategy_of(fault.config).checkpointer:
            return
        fired = fault.fired
        damaged = fired.detail.partition(":")[0]
        after = [
            rejected
            for a in fault.run.attempts
            if a.attempt >= fired.attempt
            for rejected in a.rejected
        ]
        refused = [
            rejected
            for rejected in after
            if damaged == rejected.path or damaged.startswith(f"{rejected.path}/")
        ]
        name = damaged.rpartition("/")[2]
        if not damaged:
            yield Problem(f"entry {fired.index} does not say what it damaged", proven=False)
        elif not refused and fault.attempt:
            yield Problem(
                f"entry {fired.index} damaged {damaged}, and attempt {fired.attempt} did not"
                " refuse it"
            )
        elif refused and not any(
            name in rejected.reason or rejected.layer == "hash" for rejected in refused
        ):
            yield Problem(
                f"entry {fired.index} damaged {damaged}, which was refused for something else:"
                f" {refused[0].layer}: {refused[0].reason}"
            )
