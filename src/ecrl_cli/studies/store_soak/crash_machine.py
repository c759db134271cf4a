"""The machine on which the program runs: a disk in memory that can lose power and be damaged, and processes that die or wake up late."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from ecrl_cli.checkpoint.format.names import LATEST, STEP_NAME
from ecrl_cli.checkpoint.store.catalog import CheckpointEntry, entries
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fault_injecting_fs import FaultyFs
from ecrl_cli.storage.memory_fs import FsOp, ModelFs
from ecrl_cli.storage.memory_fs_nodes import File
from ecrl_cli.studies.crash_points.crashing_fs import CrashingFs
from ecrl_cli.studies.frame.write_modes import write_mode
from ecrl_cli.studies.mutants.registry import Planted
from ecrl_cli.studies.power_loss.model_disk import Disk
from ecrl_cli.studies.power_loss.tree_store import Forest
from ecrl_cli.studies.store_soak.model import KEEP, Content

RUN = Path("/run")
ROOT = RUN / "checkpoints"
STATES = 48  # of the states that a loss of power may leave, so many are drawn from
CALLS = 5_000  # of one operation; a sound one makes two hundred


class Dead(BaseException):
    """The process does nothing more: not even what a `finally` asks for."""


class MortalFs(CrashingFs):
    """What a process sees: before its changing call number `last`, `event` happens to it. No time is twice the same: nothing may depend on one."""

    def __init__(self, disk: ModelFs, rng: random.Random) -> None:
        self.faulty = FaultyFs(disk, CALLS)
        super().__init__(ROOT, -1, self.faulty)
        self.event: Callable[[], None] = self.die
        self.dead, self._rng = False, rng

    def die(self) -> None:
        self.dead = True

    def stat(self, path: Path) -> os.stat_result:
        return self._some_time(super().stat(path))

    def fstat(self, fd: int) -> os.stat_result:
        return self._some_time(super().fstat(fd))

    def _some_time(self, found: os.stat_result) -> os.stat_result:
        return os.stat_result((*found[:7], *(self._rng.randrange(1 << 32) for _ in range(3))))

    def _come(self, call: str, path: Path) -> None:
        if not self.dead and self.armed:
            self.calls.append(call)
            if len(self.calls) - 1 == self.last:
                self.event()
        if self.dead:
            raise Dead


@dataclass
class Process:
    """One that saves: a rank of the blocking strategy, or the background writer with what was handed over to it. `next`: the step it saves next."""

    attempt: int
    ranks: int
    fs: MortalFs
    store: CheckpointStore
    log: CheckpointLog
    lines: list[CheckpointLine]
    next: int = 1
    waiting: list[Content] = field(default_factory=list)

    def take(self) -> Content:
        """The content of the step that comes next."""
        content, self.next = (self.next, self.ranks), self.next + 1
        return content


class _Memory:
    """A journal that lies nowhere."""

    def __init__(self, lines: list[CheckpointLine], heard: Callable[[CheckpointLine], None]) -> None:
        self._lines, self._heard = lines, heard

    def append(self, event: object) -> bytes:
        assert isinstance(event, CheckpointLine)
        self._lines.append(event)
        self._heard(event)
        return b""


class Machine:
    """The disk, and how a process is put onto it."""

    def __init__(self, mode: str, planted: Planted | None, rng: random.Random) -> None:
        self._config = StoreConfig(write_mode(mode), keep=KEEP, integrity=IntegrityConfig(run_id=RUN_ID))
        self._planted, self._rng, self._stores = planted, rng, list[CheckpointStore]()
        self._begin({})

    def _begin(self, tree: dict[str, object]) -> None:
        self.disk = ModelFs(RUN, tree)  # type: ignore[arg-type]
        self._start = ModelFs(RUN, tree).nodes  # type: ignore[arg-type]

    def process(self, attempt: int, ranks: int, heard: Callable[[Process, CheckpointLine], None]) -> Process:
        """A new one, with a store of its own; `heard` is told every line of its journal as it is written."""
        fs, lines = MortalFs(self.disk, self._rng), list[CheckpointLine]()
        journal = cast(Journal, _Memory(lines, lambda line: heard(made, line)))
        made = Process(attempt, ranks, fs, self.store(fs), CheckpointLog(journal, RunLayout(RUN), attempt), lines)
        return made

    def store(self, fs: MortalFs | ModelFs) -> CheckpointStore:
        store = self._planted.store(ROOT, self._config, fs) if self._planted else CheckpointStore(ROOT, self._config, fs)
        self._stores.append(store)
        return store

    def entries(self) -> list[CheckpointEntry]:
        """What claims to be a checkpoint, newest first; by the store's own eyes, which no bug is planted in."""
        return entries(self.disk, ROOT)

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()

    def lose_power(self, model: str, salt: int) -> None:
        """The disk becomes one of the states that a loss of power under `model` may leave."""
        rng = random.Random(salt)
        forest = Forest()
        lost = Disk(forest, self._start, model, STATES, rng)
        for op in self.disk.log:
            lost.take(op)
        tree = forest.tree(rng.choice(lost.states().numbers))
        assert isinstance(tree, dict)
        self._begin(tree)

    def damage(self, how: str, salt: int) -> int | None:
        """Change bytes at rest, of a checkpoint or now and then of a pointer to one; gives the step that is damaged, None where none is."""
        rng, names = random.Random(salt), self._names()
        if not names:
            return None
        name = rng.choice(names)
        folder = ROOT / name
        path = folder if STEP_NAME.match(name) is None or "." in name else folder / rng.choice(self.disk.listdir(folder) or ["?"])
        return (int(name[5:13]) if name.startswith("step_") else None) if self._spoil(path, how, rng) else None

    def _names(self) -> list[str]:
        """What can be damaged, the newest twice."""
        try:
            names = [name for name in self.disk.listdir(ROOT) if name.startswith("step_") or name == LATEST]
        except StorageError:
            return []
        return names + names[-1:]

    def _spoil(self, path: Path, how: str, rng: random.Random) -> bool:
        """Also in the log from which a loss of power is worked out: what has rotted stays rotten, what is gone does not come back."""
        with suppress(StorageError):
            folder, _, number = self.disk._existing("damage", path)
            node = self.disk.nodes[number]
            if isinstance(node, File) and node.data:
                if how == "remove":
                    self.disk.unlink(path)
                    self.disk.log.append(FsOp("fsyncdir", folder))
                else:
                    self._rewrite(number, node, _spoilt(bytes(node.data), how, rng))
                return True
        return False

    def _rewrite(self, number: int, node: File, data: bytes) -> None:
        node.data = node.synced = data
        self.disk.log += [FsOp("truncate", number), FsOp("write", number, data=data), FsOp("fsync", number)]


def _spoilt(data: bytes, how: str, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    if how == "cut":
        return data[:at]
    if how == "empty":
        return b""
    zeroed = data[:at] + bytes(len(data[at : at + 16])) + data[at + 16 :]
    return zeroed if how == "zero" and zeroed != data else data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
