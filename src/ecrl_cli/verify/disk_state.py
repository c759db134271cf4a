"""The checkpoints that still lie on disk, as the guard sees them. The judge reads them, it never loads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.manifest import MAX_COMMIT, read_commit
from ecrl_cli.checkpoint.format.names import COMMIT, REJECTED_PREFIX, STEP_NAME
from ecrl_cli.checkpoint.store.integrity import CheckpointRejected, IntegrityConfig, IntegrityReport, OpenCheckpoint, opened, verify_checkpoint
from ecrl_cli.errors import RecordError
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.layout import is_folder
from ecrl_cli.records.safe_read import parsed, read_whole
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.storage.fs import PosixFs


@dataclass(frozen=True)
class StoredCheckpoint:
    """One checkpoint: its path in the run directory, what the guard says, and what train.json says (nothing where it cannot be read)."""

    path: str
    step: int
    report: IntegrityReport
    train: dict[str, Any]
    previous: str | None

    @property
    def line_chain(self) -> tuple[str, ...]:
        """By rank."""
        chains = self.train.get("line_chain")
        return tuple(str(value) for value in chains) if isinstance(chains, list) else ()


def on_disk(records: RunRecords, *, contents: bool = True) -> tuple[StoredCheckpoint, ...]:
    """Every checkpoint under its own name, by step. `contents` False reads the records but not the tensors."""
    folder = records.layout.checkpoints
    paths = sorted(p for p in folder.iterdir() if STEP_NAME.match(p.name)) if is_folder(folder) else []
    config = guard_config(records, contents)
    found = []
    for path in paths:
        report, content = verify_checkpoint(path, config), OpenCheckpoint()
        train = _train_document(records, path.name, content) if report.ok else {}
        previous = content.commit.prev_commit_sha256 if content.commit else None
        found.append(StoredCheckpoint(records.layout.relative(path), int(path.name[5:13]), report, train, previous))
    return tuple(found)


def set_aside(records: RunRecords) -> list[int]:
    """The steps of the checkpoints that were set aside and still carry a commit record that matches itself, as those records say."""
    folder = records.layout.checkpoints
    paths = sorted(folder.glob(f"{REJECTED_PREFIX}*")) if folder.is_dir() else []
    return [step for path in paths if (step := _committed_step(path)) is not None]


def _committed_step(path: Path) -> int | None:
    try:
        if is_folder(path):
            return read_commit(read_whole(path / COMMIT, MAX_COMMIT)).global_step
        return read_commit(canonical_json(parsed(read_whole(path))["commit"])).global_step if path.suffix == ".json" else None
    except (RecordError, OSError, ValueError, KeyError, TypeError):
        return None


def guard_config(records: RunRecords, contents: bool) -> IntegrityConfig:
    """Whoever owns the files: a run that was copied from another machine is judged like any other."""
    checkpoint = records.stored.config.checkpoint
    return IntegrityConfig(
        run_id=records.stored.run_id,
        max_bytes=checkpoint.max_bytes,
        trust_owner=True,
        contents=contents,
        finite=checkpoint.finite,
        restorable=recorded_by_rank(records.stored.config),  # earlier versions wrote less
    )


def tensor_digests(records: RunRecords) -> dict[int, dict[str, str]]:
    """By step, every tensor's digest as the manifest of the checkpoint says."""
    return {c.step: tensor_digests_of(c) for c in on_disk(records, contents=False) if c.report.ok}


def tensor_digests_of(c: StoredCheckpoint) -> dict[str, str]:
    """By name."""
    parts = c.report.manifest.parts.values() if c.report.manifest else ()
    return {name: entry.sha256 for part in parts for name, entry in part.tensors.items()}


def _train_document(records: RunRecords, name: str, content: OpenCheckpoint) -> dict[str, Any]:
    try:
        with opened(records.layout.checkpoints / name, guard_config(records, contents=False), PosixFs(), content):
            document = parse(content.train)
            return document if isinstance(document, dict) else {}
    except (CheckpointRejected, ValueError):
        return {}
