"""Small checkpoints for tests: a store with a history, damage done to files, a writer process of
one's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, synthetic_image, synthetic_plan
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fs import Fs, PosixFs

CONFIG = StoreConfig(keep=2, integrity=IntegrityConfig(run_id=RUN_ID))


def image(
    step: int, *, single: bool = False, seed: int = 1, run_id: str = RUN_ID
) -> CheckpointImage:
    return synthetic_image(seed, step, synthetic_plan(40_000, 20_000, single=single), run_id)


def replaced_by_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def replaced_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


class CountingFs(PosixFs):
    """Counts the bytes read of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()
        self._lock = threading.Lock()

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        got = super().read_at(fd, buffer, offset)
        with self._lock:
            self.read[self._path(fd).name] += got
        return got


def store_at(
    root: Path, config: StoreConfig = CONFIG, fs: Fs | None = None, attempt: int = 0
) -> CheckpointStore:
    store = CheckpointStore(root / "checkpoints", config, fs)
    store.claim(attempt)
    return store


def commit(store: CheckpointStore, step: int, *, single: bool = False, attempt: int = 0) -> Saved:
    made = image(step, single=single)
    saved = store.save(made, attempt)
    store.update_pointers_and_retire(saved, made)
    return saved


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit; the rest, and the name's inode, stay."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ (1 << bit)]))


@contextmanager
def writer_process(
    layout: RunLayout, beats: HeartbeatTable | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The real background writer of `layout`, which listens when this begins. `beats`: where it
    says what it does.
    """
    layout.logs.mkdir(exist_ok=True)
    with listen(layout.writer) as listener, layout.writer_output.open("ab") as output:
        fds = (listener.fileno(), *((beats.fd,) if beats else ()))
        command = [
            sys.executable,
            "-m",
            "ecrl_cli.supervision.launch.writer_main",
            str(layout.root),
            *map(str, fds),
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=fds
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert not layout.writer_output.read_text()
