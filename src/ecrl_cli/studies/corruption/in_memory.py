"""The integrity check on checkpoints that lie as bytes in memory, so that it can be asked thousands
of times; its verdicts, counted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.store_fixture import GUARD


@dataclass(frozen=True)
class CheckOutcome:
    """`layer`: the rejecting layer (empty: none). `untyped`: an exception from the integrity check,
    which promises to raise none.
    """

    layer: str = ""
    reason: str = ""
    untyped: str = ""

    @property
    def accepted(self) -> bool:
        return not self.layer and not self.untyped


def verdict_of(examine: Callable[[], IntegrityReport]) -> CheckOutcome:
    """The verdict of `examine`."""
    try:
        report = examine()
    except Exception as error:  # any exception is a finding
        return CheckOutcome(untyped=f"{type(error).__name__}: {error}"[:200])
    return CheckOutcome() if report.ok else CheckOutcome(report.layer or "?", report.reason)


def outcome(verdict: CheckOutcome, changed: bool) -> str:
    """The outcome class of one check of a checkpoint whose bytes were `changed` (if not, it must
    pass).
    """
    if verdict.untyped:
        return "untyped"
    if verdict.accepted:
        return "silent_wrong" if changed else "new"
    return "detected"


# by path below a checkpoint folder: "step_00000020/MANIFEST.json", "latest.json"
Files = Mapping[str, bytes]
ROOT = Path("/checkpoints")


class BytesFs(PosixFs):
    """Serves reads from `files` as if they lay under ROOT; read-only."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self._files = {f"{ROOT}/{name}": data for name, data in files.items()}
        self._folders: dict[str, set[str]] = {str(ROOT): set()}
        for name in files:
            above, _, last = name.rpartition("/")
            self._folders[str(ROOT)].add(name.partition("/")[0])
            if above:
                self._folders.setdefault(f"{ROOT}/{above}", set()).add(last)
        self._open: dict[int, str] = {}
        self._next = 1000

    def open(self, path: Path, flags: int) -> int:
        return self._opened_as(str(path), flags)

    def open_at(self, folder: int, name: str, flags: int) -> int:
        return self._opened_as(f"{self._open[folder]}/{name}", flags)

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        piece = self._files[self._open[fd]][offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self, fd: int) -> None:
        self._open.pop(fd)

    def listdir(self, path: Path) -> list[str]:
        if str(path) not in self._folders:
            raise _refused("list", str(path), errno.ENOENT)
        return sorted(self._folders[str(path)])

    def stat(self, path: Path) -> os.stat_result:
        return self._stat(str(path))

    def fstat(self, fd: int) -> os.stat_result:
        return self._stat(self._open[fd])

    def _opened_as(self, path: str, flags: int) -> int:
        if path not in self._files and path not in self._folders:
            raise _refused("open", path, errno.ENOENT)
        if flags & os.O_DIRECTORY and path not in self._folders:
            raise _refused("open", path, errno.ENOTDIR)
        self._next += 1
        self._open[self._next] = path
        return self._next

    def _stat(self, path: str) -> os.stat_result:
        if path not in self._files and path not in self._folders:
            raise _refused("stat", path, errno.ENOENT)
        kind = stat.S_IFDIR | 0o700 if path in self._folders else stat.S_IFREG | 0o600
        return os.stat_result(
            (kind, 0, 1, 1, os.geteuid(), os.getegid(), len(self._files.get(path, b"")), 0, 0, 0)
        )


def _refused(call: str, path: str, number: int) -> StorageError:
    return StorageError.of(call, path, OSError(number, os.strerror(number)))


def verify_files(files: Files, name: str) -> CheckOutcome:
    """The integrity check's verdict on checkpoint `name` among `files`."""
    fs = BytesFs(files)
    return verdict_of(lambda: verify_checkpoint(ROOT / name, GUARD, fs))


COUNTS = ("injections", "noops", "detected", "silent_wrong", "untyped", "noops_refused")


class OutcomeCounts:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._layers: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, outcome: str, verdict: CheckOutcome, changed: bool, where: str) -> None:
        """Add one injection at `where` with `outcome`. A rejection of an unchanged checkpoint is an
        error, too.
        """
        self._counts["injections"] += 1
        self._counts["noops"] += not changed
        if changed or outcome == "untyped":
            self._count(outcome, verdict, where)
        elif outcome == "detected":
            self._count("noops_refused", verdict, where)

    def _count(self, what: str, verdict: CheckOutcome, where: str) -> None:
        self._counts[what] += 1
        if what == "detected":
            self._layers[verdict.layer] += 1
        else:
            self._first.setdefault(
                what, f"{where}: {verdict.layer or verdict.untyped or 'accepted'}"
            )

    def found(self) -> dict[str, Any]:
        """For the record: counts, counts by detecting layer, and one example of each kind of
        error.
        """
        return {name: self._counts[name] for name in COUNTS} | {
            "layers": dict(sorted(self._layers.items())),
            "first": dict(sorted(self._first.items())),
        }


def summed(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several slices; `first` comes from the first slice that has it."""
    counts: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    first: dict[str, str] = {}
    for each in found:
        counts.update({name: each[name] for name in COUNTS})
        layers.update(each["layers"])
        first = each["first"] | first
    return {name: counts[name] for name in COUNTS} | {"layers": dict(layers), "first": first}
