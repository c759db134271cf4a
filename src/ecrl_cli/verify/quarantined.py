"""Runs the integrity check again on quarantined checkpoints, to confirm that their rejection was justified."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.names import REJECTED_PREFIX
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.layout import is_folder
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.verify.disk_state import integrity_config

_NAME = re.compile(rf"^{re.escape(REJECTED_PREFIX)}(step_([0-9]{{8}}))\.([0-9a-f]+)(\.safetensors|\.pt|\.json)?\Z")


@dataclass(frozen=True)
class Quarantined:
    """One quarantined checkpoint: its path in the run directory, the step in its name, its integrity report under its original name."""

    path: str
    step: int
    report: IntegrityReport


def quarantined(records: RunRecords) -> tuple[Quarantined, ...]:
    """All quarantined checkpoints, ordered by name. A single file and its sidecar count as one."""
    folder = records.layout.checkpoints
    names = sorted(path.name for path in folder.iterdir()) if is_folder(folder) else []
    parts: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        if match := _NAME.match(name):
            parts.setdefault((match[1], match[3]), {})[f"{match[1]}{match[4] or ''}"] = name
    config = integrity_config(records, contents=True)
    found = []
    for (stem, _), aliases in parts.items():
        first = next((name for name in aliases if not name.endswith(".json")), f"{stem}.safetensors")
        report = verify_checkpoint(folder / first, config, RenamedFs(folder, aliases))
        found.append(Quarantined(records.layout.relative(folder / min(aliases.values())), int(stem[5:]), report))
    return tuple(found)


class RenamedFs(PosixFs):
    """The real file system with `aliases` in `folder`: requested name -> existing name."""

    def __init__(self, folder: Path, aliases: dict[str, str]) -> None:
        super().__init__()
        self._folder, self._aliases = folder, aliases

    def open(self, path: Path, flags: int) -> int:
        return super().open(self._there(path), flags)

    def open_at(self, folder: int, name: str, flags: int) -> int:
        there = self._aliases.get(name, name) if self._path(folder) == self._folder else name
        return super().open_at(folder, there, flags)

    def listdir(self, path: Path) -> list[str]:
        return super().listdir(self._there(path))

    def _there(self, path: Path) -> Path:
        return path.with_name(self._aliases.get(path.name, path.name)) if path.parent == self._folder else path
