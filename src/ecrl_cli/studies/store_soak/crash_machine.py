"""The simulated machine: a disk in memory that can lose power and be damaged, and processes that
die or resume late.
"""

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
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fault_injecting_fs import FaultyFs
from ecrl_cli.storage.memory_fs import File, FsOp, ModelFs
from ecrl_cli.studies.frame.store_fixture import store_config
from ecrl_cli.studies.frame.watched_fs import CrashingFs
from ecrl_cli.studies.mutants.registry import StoreMutant
from ecrl_cli.studies.power_loss.model_disk import Forest, ModelDisk
from ecrl_cli.studies.store_soak.model import KEEP, Content

RUN = Path("/run")
ROOT = RUN / "checkpoints"
STATES = 48  # number of candidate states from which a power loss is drawn
CALLS = 5_000  # of one operation; a correct one makes about two hundred


class Dead(BaseException):
    """The process does nothing more, not even its `finally` blocks."""


class DyingProcessFs(CrashingFs):
    """A process's view of the disk: `event` happens before its modifying call number `last`.
    Timestamps are never equal: nothing may depend on them.
    """

    def __init__(self, disk: ModelFs, rng: random.Random) -> None:
        self.faulty = FaultyFs(disk, CALLS)
        super().__init__(-1, self.faulty)
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

    def come(self, call: str, path: Path) -> None:
        if not self.dead and self.armed:
            self.calls.append(call)
            if len(self.calls) - 1 == self.last:
                self.event()
        if self.dead:
            raise Dead


@dataclass
class SavingProcess:
    """A saving process: a rank of the blocking strategy, or the background writer with its queue.
    `next`: the step it saves next.
    """

    attempt: int
    ranks: int
    fs: DyingProcessFs
    store: CheckpointStore
    log: CheckpointLog
    lines: list[CheckpointLine]
    next: int = 1
    waiting: list[Content] = field(default_factory=list)

    def take(self) -> Content:
        """The content of the next step; advances the counter."""
        content, self.next = (self.next, self.ranks), self.next + 1
        return content


class _Memory:
    """A log kept in memory."""

    def __init__(
        self, lines: list[CheckpointLine], on_line: Callable[[CheckpointLine], None]
    ) -> None:
        self._lines, self._on_line = lines, on_line

    def append(self, event: object) -> bytes:
        assert isinstance(event, CheckpointLine)
        self._lines.append(event)
        self._on_line(event)
        return b""


class Machine:
    """The disk, and the creation of processes on it."""

    def __init__(self, mode: str, planted: StoreMutant | None, rng: random.Random) -> None:
        self._config = store_config(mode, KEEP)
        self._planted, self._rng, self._stores = planted, rng, list[CheckpointStore]()
        self._begin({})

    def _begin(self, tree: dict[str, object]) -> None:
        self.disk = ModelFs(RUN, tree)  # type: ignore[arg-type]
        self._start = ModelFs(RUN, tree).nodes  # type: ignore[arg-type]

    def process(
        self, attempt: int, ranks: int, on_line: Callable[[SavingProcess, CheckpointLine], None]
    ) -> SavingProcess:
        """A new process with its own store; `on_line` is called with every line of its log as it is
        written.
        """
        fs, lines = DyingProcessFs(self.disk, self._rng), list[CheckpointLine]()
        journal = cast(Journal, _Memory(lines, lambda line: on_line(made, line)))
        made = SavingProcess(
            attempt,
            ranks,
            fs,
            self.store(fs),
            CheckpointLog(journal, RunLayout(RUN), attempt),
            lines,
        )
        return made

    def store(self, fs: DyingProcessFs | ModelFs) -> CheckpointStore:
        store = (
            self._planted.store(ROOT, self._config, fs)
            if self._planted
            else CheckpointStore(ROOT, self._config, fs)
        )
        self._stores.append(store)
        return store

    def entries(self) -> list[CheckpointEntry]:
        """Names that claim to be checkpoints, newest first, listed by the sound store."""
        return entries(self.disk, ROOT)

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()

    def lose_power(self, model: str, salt: int) -> None:
        """Replace the disk by a random state that a power loss under `model` may leave."""
        rng = random.Random(salt)
        forest = Forest()
        lost = ModelDisk(forest, self._start, model, STATES, rng)
        for op in self.disk.log:
            lost.take(op)
        tree = forest.tree(rng.choice(lost.states().numbers))
        assert isinstance(tree, dict)
        self._begin(tree)

    def damage(self, how: str, salt: int) -> int | None:
        """Change bytes at rest in a checkpoint or sometimes in a pointer; returns the damaged step,
        or None.
        """
        rng, names = random.Random(salt), self._names()
        if not names:
            return None
        name = rng.choice(names)
        folder = ROOT / name
        path = (
            folder
            if STEP_NAME.match(name) is None or "." in name
            else folder / rng.choice(self.disk.listdir(folder) or ["?"])
        )
        return (
            (int(name[5:13]) if name.startswith("step_") else None)
            if self._spoil(path, how, rng)
            else None
        )

    def _names(self) -> list[str]:
        """The names of files that can be damaged, with the newest listed twice."""
        try:
            names = [
                name
                for name in self.disk.listdir(ROOT)
                if name.startswith("step_") or name == LATEST
            ]
        except StorageError:
            return []
        return names + names[-1:]

    def _spoil(self, path: Path, how: str, rng: random.Random) -> bool:
        """Also changes the log from which a power loss is computed: damage persists, and deleted
        data does not come back.
        """
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
        self.disk.log += [
            FsOp("truncate", number),
            FsOp("write", number, data=data),
            FsOp("fsync", number),
        ]


def _spoilt(data: bytes, how: str, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    if how == "cut":
        return data[:at]
    if how == "empty":
        return b""
    zeroed = data[:at] + bytes(len(data[at : at + 16])) + data[at + 16 :]
    return (
        zeroed
        if how == "zero" and zeroed != data
        else data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    )
