"""One instant of a run directory that is still being written to: which files lay there, and how
long each of them was.

Journals only grow and documents are replaced whole. So a journal read up to the size that it had,
and a document that is still the same file, are as they were at that instant, all of them together.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.layout import RunLayout, is_folder

WITHIN_S = 5.0  # so long an instant is looked for at which nothing is being written
MOST_ENTRIES = 100_000  # an honest run has some ten for each attempt and each checkpoint

# of a file: inode, size, time; of a folder: the names in it; None: not there
State = tuple[int, int, int] | tuple[str, ...] | None


class MovedOn(EvidenceMissing):
    """The run replaced or removed a file after the instant at which it was to be read."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            "records",
            f"{path.name} changes faster than it can be read",
            "verify again, or when the run has ended",
        )


@dataclass(frozen=True)
class Cut:
    """By path: the files and folders of a run directory as they were at one instant. Hidden names
    are left out.
    """

    states: dict[Path, State]

    def __contains__(self, path: Path) -> bool:
        return path in self.states

    def size(self, path: Path) -> int:
        """Bytes that the file had; 0 of a folder."""
        return _bytes(self.states[path])

    def names(self, folder: Path) -> tuple[str, ...]:
        """The names in the folder, sorted; none if it was not there."""
        return tuple(str(name) for name in self.states.get(folder) or ())

    def check_unchanged(self, path: Path) -> None:
        """MovedOn if the document, or the list of names in a folder, is no longer what it was."""
        if _state(path) != self.states.get(path):
            raise MovedOn(path)

    def check_grown(self, journal: Path) -> None:
        """MovedOn if the journal is not there any more, or shorter than it was."""
        if _bytes(_state(journal)) < self.size(journal):
            raise MovedOn(journal)


def take_cut(layout: RunLayout) -> Cut:
    """The run directory at one instant. MovedOn if none is found within WITHIN_S; EvidenceMissing
    for more than MOST_ENTRIES names.

    Every entry is looked at twice, the second time in reverse order: where all are unchanged, all
    were so at the instant between the two passes. What changed last is looked at last and first, so
    that between two writes of a fast run there is time enough for it.
    """
    deadline = monotonic() + WITHIN_S
    while True:
        paths = sorted(_paths(layout), key=_changed_at)
        before = [_state(path) for path in paths]
        after = [_state(path) for path in reversed(paths)]
        states = dict(zip(paths, before, strict=True))
        if before == after[::-1] and _closed(states):
            return Cut(states)
        if monotonic() > deadline:
            raise MovedOn(layout.root)


def _paths(layout: RunLayout) -> list[Path]:
    """The entries that records and checkpoints can have."""
    found = [layout.root, *_below(layout.root)]
    for folder in (layout.fired, layout.logs, layout.checkpoints):
        if is_folder(folder):
            inside = list(_below(folder))
            deeper = [] if folder == layout.fired else [path for path in inside if is_folder(path)]
            found += [*inside, *(path for each in deeper for path in _below(each))]
        if len(found) > MOST_ENTRIES:
            raise EvidenceMissing(
                "records",
                f"the run directory holds more than {MOST_ENTRIES} files",
                "a run leaves far fewer: remove the others",
            )
    return found


def _below(folder: Path) -> Iterator[Path]:
    with suppress(OSError):  # removed since it was listed: the next try does not see it
        yield from (folder / name for name in _names(folder))


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith("."))


def _changed_at(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _state(path: Path) -> State:
    try:
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            return tuple(_names(path))
        return status.st_ino, status.st_size, status.st_mtime_ns
    except OSError:
        return None


def _bytes(state: State) -> int:
    return state[1] if state and len(state) > 1 and isinstance(state[1], int) else 0


def _closed(states: dict[Path, State]) -> bool:
    """Whether every entry is there, and every name in a folder that was looked into is an entry."""
    if None in states.values():
        return False
    looked_into = {path.parent for path in states}
    return all(
        path / str(name) in states
        for path in looked_into & states.keys()
        for name in states[path] or ()
    )
