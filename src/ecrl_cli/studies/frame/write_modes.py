"""The write modes by name, as the store takes them."""

from __future__ import annotations

from ecrl_cli.storage.writing import WriteMode

_MODES = {
    "unsafe": WriteMode(sync_files=False, atomic=False, sync_directories=False),
    "atomic_nodirsync": WriteMode(sync_directories=False),
    "atomic_dirsync": WriteMode(),
}


def write_mode(name: str) -> WriteMode:
    return _MODES[name]
