"""The checkpoints on disk, under their name and quarantined, with the results of their integrity
check; verification never loads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.manifest import MAX_COMMIT, read_commit
from ecrl_cli.checkpoint.format.names import COMMIT, REJECTED_PREFIX, STEP_NAME
from ecrl_cli.checkpoint.store.integrity import (
    IntegrityConfig,
    IntegrityReport,
    examine_step,
    verify_checkpoint,
)
from ecrl_cli.checkpoint.store.step_metadata import size_of
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import RecordError
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.layout import is_folder
from ecrl_cli.records.safe_read import parsed, read_whole
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.storage.fs import PosixFs

_QUARANTINED_NAME = re.compile(
    rf"^{re.escape(REJECTED_PREFIX)}(step_([0-9]{{8}}))\.([0-9a-f]+)(\.safetensors|\.pt|\.json)?\Z"
)
STEM = len("step_00000000")
_SUFFIXES = ("", ".safetensors", ".pt", ".json")


@dataclass(frozen=True)
class StoredCheckpoint:
    """One checkpoint: its path in the run directory, its integrity report, and the content of
    train.json (empty if it cannot be read).

    `bytes`: of the files that another checkpointer wrote; None for one of ECRL's own. `signed`:
    whether its commit carries a MAC.
    """

    path: str
    step: int
    report: IntegrityReport
    train: dict[str, Any]
    previous: str | None
    bytes: int | None = None
    signed: bool = False

    @property
    def line_chain(self) -> tuple[str, ...]:
        """The line chain by rank."""
        chains = self.train.get("line_chain")
        return tuple(str(value) for value in chains) if isinstance(chains, list) else ()


def on_disk(records: RunRecords, *, contents: bool = True) -> tuple[StoredCheckpoint, ...]:
    """Every checkpoint under its final name, by step. `contents` False reads the metadata but not
    the tensors.
    """
    folder = records.layout.checkpoints
    paths = [folder / name for name in names_in(records) if STEP_NAME.match(name)]
    config = integrity_config(records, contents)
    found = []
    for path in paths:
        report = verify_checkpoint(path, config)
        commit = report.commit if report.ok else None
        size = size_of(path) if config.checkpointer else None
        if not report.ok:
            _check_still_there(records, path)
        found.append(
            StoredCheckpoint(
                records.layout.relative(path),
                int(path.name[5:13]),
                report,
                _train_document(report) if report.ok else {},
                commit.prev_commit_sha256 if commit else None,
                size,
                commit is not None and commit.hmac_sha256 is not None,
            )
        )
    return tuple(found)


def names_in(records: RunRecords) -> list[str]:
    """The names in the folder of checkpoints, sorted: there are now, or at the instant at which a
    running run's records were read.
    """
    folder = records.layout.checkpoints
    if records.cut:
        return list(records.cut.names(folder))
    return sorted(path.name for path in folder.iterdir()) if is_folder(folder) else []


def _check_still_there(records: RunRecords, path: Path) -> None:
    """MovedOn if a running run has removed files of the checkpoint since the instant at which its
    records were read.
    """
    if records.cut:
        for name in records.cut.names(path.parent):
            if name.startswith(path.name[:STEM]):
                records.cut.check_unchanged(path.parent / name)


def quarantined_steps(records: RunRecords) -> list[int]:
    """The steps of quarantined checkpoints whose commit record is still valid, as it names them."""
    folder = records.layout.checkpoints
    paths = [folder / name for name in names_in(records) if name.startswith(REJECTED_PREFIX)]
    return [step for path in paths if (step := _committed_step(path)) is not None]


def _committed_step(path: Path) -> int | None:
    try:
        if is_folder(path):
            return read_commit(read_whole(path / COMMIT, MAX_COMMIT)).global_step
        return (
            read_commit(canonical_json(parsed(read_whole(path))["commit"])).global_step
            if path.suffix == ".json"
            else None
        )
    except (RecordError, OSError, ValueError, KeyError, TypeError):
        return None


def integrity_config(records: RunRecords, contents: bool) -> IntegrityConfig:
    """Integrity settings of the run. The files' owner is not checked, so that a run copied from
    another machine can be judged.
    """
    checkpoint = records.stored.config.checkpoint
    return IntegrityConfig(
        run_id=records.stored.run_id,
        max_bytes=checkpoint.max_bytes,
        trust_owner=True,
        contents=contents,
        finite=checkpoint.finite,
        restorable=recorded_by_rank(records.stored.config),  # earlier versions stored less
        checkpointer=strategy_of(records.stored.config).checkpointer,
    )


def _train_document(report: IntegrityReport) -> dict[str, Any]:
    """train.json; empty if it is no document, which only the check of the contents refuses."""
    try:
        document = parse(report.train)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(frozen=True)
class Quarantined:
    """One quarantined checkpoint: its path in the run directory, the step in its name, its
    integrity report under its original name.
    """

    path: str
    step: int
    report: IntegrityReport


def quarantined(records: RunRecords) -> tuple[Quarantined, ...]:
    """All quarantined checkpoints, ordered by name. A single file and its sidecar count as one."""
    folder = records.layout.checkpoints
    names = names_in(records)
    there: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if match := _QUARANTINED_NAME.match(name):
            there.setdefault((match[1], match[3]), []).append(match[4] or "")
    config = integrity_config(records, contents=True)
    found = []
    for (stem, mark), suffixes in there.items():
        # Also names that are not there: a later save of that step has them, and they are not this
        # one's.
        aside = {
            f"{stem}{suffix}": f"{REJECTED_PREFIX}{stem}.{mark}{suffix}" for suffix in _SUFFIXES
        }
        path = folder / aside[f"{stem}{min(suffixes)}"]
        if config.checkpointer:
            report = examine_step(path, int(stem[5:]), config, PosixFs())
        else:
            suffix = next((each for each in suffixes if each != ".json"), ".safetensors")
            report = verify_checkpoint(
                folder / f"{stem}{suffix}", config, _RenamedFs(folder, aside)
            )
        found.append(Quarantined(records.layout.relative(path), int(stem[5:]), report))
    return tuple(found)


class _RenamedFs(PosixFs):
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
        return (
            path.with_name(self._aliases.get(path.name, path.name))
            if path.parent == self._folder
            else path
        )
